"""The page for contributors: its example; and how the size of the project is counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import size

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "book" / "layout.md").read_text(encoding="utf-8")


def test_the_worked_example_runs() -> None:
    scope: dict = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(code, scope)
    tests = [name for name in scope if name.startswith("test_")]
    assert len(tests) == 2
    for name in tests:
        scope[name]()


def test_tokens_are_neither_comments_nor_docstrings_nor_layout(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        '"""Two\nlines."""\n\n# a comment\nx = "a"; y = 1\n\n\ndef f():\n    """Doc."""\n'
    )
    packed = size.num_tokens(file)
    assert packed == 7 + 5
    file.write_text(file.read_text().replace("; ", "\n"))
    assert size.num_tokens(file) == packed - 1


def test_what_lint_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "ROOT", tmp_path)
    file = tmp_path / "code.py"
    body = '    """One\n    two."""\n' + 39 * "    x = 1\n"
    file.write_text(f"def short():\n{body}\n\ndef long():\n{body}    x = 2  {chr(35)} fmt: skip\n")
    assert list(size.long_functions(file)) == ["code.py:45: long has 41 lines, more than 40"]
    assert list(size.unformatted(file)) == ["code.py:87: let ruff format this"]
