"""JupyterLab for the chapters: `jupyter lab --config=workflow/lab.py`, which `make lab` runs."""

from pathlib import Path
from typing import Any


def forget_versions(model: dict[str, Any], **_: object) -> None:
    """Save a notebook without what Lab adds when it opens one: the version of the reader's Python.

    Otherwise git shows every chapter as changed that somebody has only looked at.
    """
    if model["type"] == "notebook":
        metadata = model["content"]["metadata"]
        metadata["language_info"] = {"name": "python"}
        if "formats" not in metadata.get("jupytext", {}):  # those of pyproject.toml
            metadata.pop("jupytext", None)


c = get_config()  # type: ignore[name-defined]  # noqa: F821
c.ServerApp.root_dir = str(Path(__file__).resolve().parents[1])
c.FileContentsManager.pre_save_hook = forget_versions
