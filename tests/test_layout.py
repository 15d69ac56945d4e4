"""The page for contributors: its worked example, followed in a copy of the project."""

import re
import shutil
import sys

import nbformat
import pytest
from programs import ROOT, run

STEPS = re.findall(
    r"```\w+ (\S+)\n(.*?)```", (ROOT / "book" / "layout.md").read_text(encoding="utf-8"), re.S
)
# The checks that the page speaks of, by parts of their names.
CHECKS = "umbrella or public_name or test_interface or (examples_say and environments)"
FILES = [f"tests/test_{name}.py" for name in ("environments", "examples", "chapters", "interface")]


def follow(project, name, code):
    """Code whose first line a file has goes there; other code is added to the file's end."""
    path = project / name
    if "notebooks" in path.parts:
        path = path.with_suffix(".ipynb")
        notebook = nbformat.read(path, as_version=4)
        notebook.cells.append(nbformat.v4.new_code_cell(code))
        nbformat.write(notebook, path)
        return
    text = path.read_text()
    first = code.partition("\n")[0] + "\n"
    path.write_text(text.replace(first, code, 1) if first in text else f"{text}\n\n{code}")


@pytest.mark.slow
def test_the_worked_example_passes(tmp_path):
    for folder in ("jmdp_lib", "tests", "book", "notebooks"):
        left_out = shutil.ignore_patterns("__pycache__", "out", "_build")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=left_out)
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    (tmp_path / "experiments").mkdir()
    for name in ("pyproject.toml", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert len(STEPS) == 4
    for name, code in STEPS:
        follow(tmp_path, name, code)
    own = {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:nbval"]
    command += ["-m", "not slow", "-k", CHECKS, *FILES]
    passed = re.search(r"(\d+) passed", run(*command, cwd=tmp_path, **own))
    assert int(passed[1]) >= 8
