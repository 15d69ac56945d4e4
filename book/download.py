"""The notebook that a reader downloads: it says what to install, and runs anywhere."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from pages import Notebook, source, tags

# Extras of the library beside "figures", and what the code of a chapter that needs one contains.
EXTRAS = {"atari": "jmdp_lib.atari", "torch": '"device"'}
PROJECT_ONLY = "experiments."  # code that is not part of the library
RESULT_FILES = re.compile(r"^result_files = (\[.*\])$", re.MULTILINE)
BRING = """\
# The measurements that this chapter reads, so that it runs without the project.
from pathlib import Path
from tempfile import mkdtemp

folder = Path(mkdtemp())
result_files = []
for name, text in {files}.items():
    (folder / name).write_text(text)
    result_files.append(str(folder / name))"""


def standalone(notebook: Notebook, root: Path) -> str:
    """The notebook, as JSON, with a first cell that says what it needs, and the files it reads."""
    code = "\n".join(source(cell) for cell in notebook.cells if cell["cell_type"] == "code")
    cells = [_cell("markdown", "to-run-it", _needs(notebook.name, code, root))]
    for cell in notebook.cells:
        cells.append(cell)
        files = RESULT_FILES.search(source(cell)) if "parameters" in tags(cell) else None
        if files and PROJECT_ONLY not in code:
            texts = {Path(name).name: (root / name).read_text() for name in json.loads(files[1])}
            cells.append(_cell("code", "files", BRING.format(files=texts)))
    return json.dumps(notebook.content | {"cells": cells}, indent=1, ensure_ascii=False) + "\n"


def _needs(name: str, code: str, root: Path) -> str:
    """What to install for one chapter."""
    if PROJECT_ONLY in code:
        return (
            "**To run this notebook** you need the whole project, because it trains networks with "
            f"code that is not part of the library. Put it into `notebooks/` as `{name}.ipynb`, "
            'and in the folder above run `pip install -e ".[notebooks]"`.'
        )
    extras = ["figures", *(extra for extra, sign in EXTRAS.items() if sign in code)]
    others = ["jupyterlab", *(["seaborn"] if "import seaborn" in code else [])]
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]
    public = urls.get("Repository")
    library = f"jmdp_lib[{','.join(extras)}] @ git+{public}" if public else f".[{','.join(extras)}]"
    place = "" if public else ", in the folder of the project,"
    return (
        "**To run this notebook** you need Python 3.11 or newer. "
        f"Install the library{place} with\n\n"
        f'    pip install "{library}" {" ".join(others)}\n\n'
        "Nothing else is read from anywhere: the notebook runs in any folder."
    )


def _cell(kind: str, name: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": {}, "source": text}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})
