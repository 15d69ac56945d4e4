"""`pair.py NN_name...`: write `notebooks/NN_name.ipynb` from `NN_name.py`, executed.

The parameters are the defaults; without names, all notebooks are written.
What differs from run to run (times, ids, progress bars, versions) is left out, so that the files
change only when the notebooks do.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from batch import notebook_names
from job import outlive_terminal
from nbformat import NotebookNode
from notebook_job import KERNELSPEC, ProjectError, describe_figures, execute, folded, read_source

ROOT = Path(__file__).resolve().parents[1]
WIDGET = "application/vnd.jupyter.widget-view+json"


def stable(nb: NotebookNode) -> NotebookNode:
    for number, cell in enumerate(nb.cells):
        # Without the blank lines below a cell, jupytext takes the pair for two different texts.
        kept = {key: cell.metadata.get(key) for key in ("tags", "lines_to_next_cell")}
        kept["jupyter"] = {"source_hidden": True} if folded(cell) else None
        cell.metadata = nbformat.from_dict({key: value for key, value in kept.items() if value})
        cell.id = f"cell-{number:03d}"
        if cell.cell_type == "code":
            # A slider's id is new in every run, and without its kernel it is only an empty box.
            shown = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
            cell.outputs = [output for output in shown if output.get("name") != "stderr"]
    describe_figures(nb)
    language = {"name": "python"}
    nb.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": language})
    nb.nbformat, nb.nbformat_minor = 4, 5
    nbformat.validate(nb)
    return nb


def main(names: list[str]) -> None:
    for name in names or notebook_names(ROOT):
        source = ROOT / "notebooks" / f"{name}.py"
        text = nbformat.writes(stable(execute(read_source(source), {}, source))) + "\n"
        if str(ROOT) in text:
            raise ProjectError(f"{name}.py: an output shows this machine's folder {ROOT}")
        source.with_suffix(".ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    outlive_terminal()
    try:
        main(sys.argv[1:])
    except Exception as error:
        sys.exit(f"error: {error}")
