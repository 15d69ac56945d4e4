"""The page for contributors: its example."""

from __future__ import annotations

import re
from pathlib import Path

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
