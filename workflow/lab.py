"""JupyterLab for the chapters: `jupyter lab --config=workflow/lab.py`, which `make lab` runs."""

import sys
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "workflow"))
from notebook_job import describe_figures  # noqa: E402

COMPILES = "jmdp_lib compiles"  # so begins the line that jmdp_lib.machine prints


def says_anything(output: nbformat.NotebookNode) -> bool:
    """Remove the line on compiling from an output; True if anything is left.

    A progress bar that was erased leaves nothing but blanks, which Lab shows as a coloured stripe.
    """
    if output.get("name") != "stderr":
        return True
    lines = "".join(output.text).splitlines(keepends=True)
    output.text = "".join(line for line in lines if COMPILES not in line)
    return bool(output.text.strip())


def tidy(model: dict[str, Any], **_: object) -> None:
    """Save a notebook with its alt texts, and without parts that differ between readers.

    Lab adds the version of the reader's Python when it opens one, and the reader's run adds what
    was printed beside the outputs; git would show it as changed.
    """
    if model["type"] == "notebook":
        nb = model["content"] = nbformat.from_dict(model["content"])
        nb.metadata["language_info"] = {"name": "python"}
        if "formats" not in nb.metadata.get("jupytext", {}):  # those of pyproject.toml
            nb.metadata.pop("jupytext", None)
        describe_figures(nb)
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if says_anything(output)]


c = get_config()  # type: ignore[name-defined]  # noqa: F821
c.ServerApp.root_dir = str(ROOT)
c.FileContentsManager.pre_save_hook = tidy
