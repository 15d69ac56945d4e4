"""Write `notebooks/NN_name.ipynb` from `NN_name.py`, executed at the default parameters.

What differs from run to run (times, ids, progress bars, versions) is left out, so that the files
change only when the notebooks do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat
from batch import notebook_names
from job import write_atomically
from nbformat import NotebookNode
from notebook_job import KERNELSPEC, ProjectError, Watch, execute, read_source

WIDGET = "application/vnd.jupyter.widget-view+json"
MINIMAL_METADATA = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"}}


def stable_outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    kept: list[NotebookNode] = []
    for output in outputs:
        # A slider's id is new in every run, and without its kernel it is only an empty box.
        if output.get("name") == "stderr" or WIDGET in output.get("data", {}):
            continue
        # How a kernel cuts its stdout into messages is a matter of timing.
        if kept and output.get("name") == "stdout" and kept[-1].get("name") == "stdout":
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def stable_notebook(nb: NotebookNode) -> NotebookNode:
    for number, cell in enumerate(nb.cells):
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        cell.id = f"cell-{number:03d}"
        if cell.cell_type == "code":
            cell.outputs = stable_outputs(cell.outputs)
    nb.metadata = nbformat.from_dict(MINIMAL_METADATA)
    nb.nbformat, nb.nbformat_minor = 4, 5
    nbformat.validate(nb)
    return nb


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("names", nargs="*", metavar="NN_name", help="default: all")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    try:
        for name in arguments.names or notebook_names(root):
            source = root / "notebooks" / f"{name}.py"
            nb = read_source(source)
            watch = Watch(name, len(nb.cells))
            nb = execute(nb, {}, source.parent, on_cell=watch.at_cell)
            text = nbformat.writes(stable_notebook(nb)) + "\n"
            if str(root) in text:
                raise ProjectError(f"{name}.py: an output shows this machine's folder {root}")
            write_atomically(source.with_suffix(".ipynb"), text)
            watch.end("done")
    except Exception as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
