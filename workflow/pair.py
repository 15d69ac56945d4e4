"""`pair.py NN_name...`: write `notebooks/NN_name.ipynb` from `NN_name.py`, executed.

The parameters are the defaults; without names, all notebooks are written.
What differs from run to run (times, ids, progress bars, versions) is left out, so that the files
change only when the notebooks do. The public names that a notebook executes are in its metadata.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from pathlib import Path

import nbformat
from batch import notebook_names
from job import write_atomically
from nbformat import NotebookNode
from notebook_job import KERNELSPEC, ProjectError, execute, read_source

ROOT = Path(__file__).resolve().parents[1]
ALT = re.compile(r"<!-- alt: (.*?) -->", re.DOTALL)
WIDGET = "application/vnd.jupyter.widget-view+json"
TRACED = "import workflow.public_names as _names; _names."


def is_stable(output: NotebookNode) -> bool:
    # A slider's id is new in every run, and without its kernel it is only an empty box.
    return output.get("name") != "stderr" and WIDGET not in output.get("data", {})


def stable(nb: NotebookNode) -> NotebookNode:
    for number, cell in enumerate(nb.cells):
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        cell.id = f"cell-{number:03d}"
        if cell.cell_type == "code":
            cell.outputs = list(filter(is_stable, cell.outputs))
    for cell, below in pairwise(nb.cells):  # the alt text of a figure stands in its caption
        if found := ALT.search(below.source if "caption" in below.metadata.get("tags", []) else ""):
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.metadata = {"image/png": {"alt": " ".join(found[1].split())}}
    language = {"name": "python"}
    nb.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": language})
    nb.nbformat, nb.nbformat_minor = 4, 5
    nbformat.validate(nb)
    return nb


def traced(source: Path) -> NotebookNode:
    """The executed notebook of a source, with the public names that it has executed."""
    nb = read_source(source)
    first, last = (nbformat.v4.new_code_cell(TRACED + call) for call in ("start()", "finish()"))
    nb.cells = [first, *nb.cells, last]
    nb = execute(nb, {}, source)
    [printed] = nb.cells[-1].outputs
    nb.cells = nb.cells[1:-1]
    for cell in nb.cells:
        for counted in (cell, *cell.get("outputs", [])):
            if "execution_count" in counted:
                counted.execution_count -= 1
    nb = stable(nb)
    nb.metadata.public_names = json.loads(printed.text)
    return nb


def main(names: list[str]) -> None:
    for name in names or notebook_names(ROOT):
        source = ROOT / "notebooks" / f"{name}.py"
        text = nbformat.writes(traced(source)) + "\n"
        if str(ROOT) in text:
            raise ProjectError(f"{name}.py: an output shows this machine's folder {ROOT}")
        write_atomically(source.with_suffix(".ipynb"), text)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception as error:
        sys.exit(f"error: {error}")
