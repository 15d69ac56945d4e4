"""The examples in docstrings run, and every public function and class has one."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [*sorted(ROOT.glob("jmdp_lib/**/*.py")), *sorted(ROOT.glob("experiments/**/*.py"))]
FILES = [path for path in SOURCES if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_examples_say_what_happens(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module = importlib.import_module(name)
    found = doctest.testmod(module)
    if found.failed:  # perhaps for want of an extra, which is an error of its own
        try:
            doctest.testmod(module, raise_on_error=True)
        except doctest.UnexpectedException as error:
            raise error.exc_info[1] from None
    assert found.attempted > 0
    assert found.failed == 0


def test_every_public_function_has_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "book")
    api = importlib.import_module("api")
    entries = [entry for page in api.read("jmdp_lib") for entry in page.public()]
    entries = [entry for entry in entries if entry.kind in ("class", "function")]
    everything = [e.doc for entry in entries for e in (entry, *entry.members)]
    shown = "\n".join(re.findall(r"(?:>>>|\.\.\.) .*", "\n".join(everything)))
    called = [e for entry in entries for e in (entry, *entry.members) if e.kind != "class"]
    returned = " ".join(e.signature.rpartition("->")[2] for e in called)
    missing = []
    for entry in entries:
        own = "\nExample:\n    >>> " in entry.doc
        if not own and not (entry.kind == "class" and re.search(rf"\b{entry.name}\b", returned)):
            missing.append(entry.path)
        methods = [member for member in entry.members if member.kind == "method"]
        missing += [m.path for m in methods if not re.search(rf"\.{m.name}\(", shown)]
    assert not missing
