"""The examples in docstrings run, and every public function and class has one."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
import re
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [
    p for name in ("jmdp_lib", "experiments", "notebooks") for p in ROOT.glob(f"{name}/**/*.py")
]
FILES = [path for path in sorted(SOURCES) if ">>> " in path.read_text()]
PROPERTIES = (property, functools.cached_property)
MEMBERS = (types.FunctionType, classmethod, staticmethod, *PROPERTIES)
NUMBER = re.compile(r"-?\d+\.\d*")


class Rounded(doctest.OutputChecker):
    """A number may be off by one in the last digit that is shown, and a zero may be negative."""

    def check_output(self, want, got, flags):
        expected, found = NUMBER.findall(want), NUMBER.findall(got)
        units = [0.1 ** len(number.partition(".")[2]) for number in expected]
        pairs = zip(expected, found, units, strict=False)
        if all(abs(float(x) - float(y)) < 1.5 * unit for x, y, unit in pairs):
            got = NUMBER.sub(lambda _: expected.pop(0) if expected else "?", got)
        return super().check_output(want, got, flags | doctest.NORMALIZE_WHITESPACE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_examples_say_what_happens(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(checker=Rounded())
    for test in doctest.DocTestFinder().find(module):
        runner.run(test)
    if runner.failures:  # perhaps for want of an extra, which is an error of its own
        try:
            doctest.testmod(module, raise_on_error=True)
        except doctest.UnexpectedException as error:
            raise error.exc_info[1] from None
    assert runner.tries > 0
    assert runner.failures == 0


def test_nothing_but_the_last_digit_of_an_example_may_depend_on_the_processor():
    want, flags = "0.000, 1.569 of 3\n", 0
    for same in ("-0.000, 1.569 of 3\n", "0.001, 1.568 of 3\n"):
        assert Rounded().check_output(want, same, flags)
    for other in ("0.000, 1.571 of 3\n", "0.000, 1.569 of 4\n", "0.000, 1.569, 1.0 of 3\n"):
        assert not Rounded().check_output(want, other, flags)


def test_every_public_name_is_documented_and_every_function_has_an_example(
    monkeypatch,
):
    monkeypatch.syspath_prepend(ROOT / "book")
    names = importlib.import_module("pages").public_names()
    members = {
        f"{path}.{name}": member
        for path, thing in names.items()
        if inspect.isclass(thing)
        for name, member in vars(thing).items()
        if not name.startswith("_") and isinstance(member, MEMBERS)
    }
    # A class that has no docstring would show that of its parent.
    docs = {
        p: vars(x).get("__doc__") if inspect.isclass(x) else x.__doc__ for p, x in names.items()
    }
    docs |= {path: getattr(member, "__func__", member).__doc__ for path, member in members.items()}
    assert not [path for path, doc in docs.items() if not doc]
    functions = [path for path, thing in names.items() if inspect.isfunction(thing)]
    assert not [path for path in functions if "\n    Example:\n        >>> " not in docs[path]]
    shown = "\n".join(re.findall(r"(?:>>>|\.\.\.) .*", "\n".join(docs.values())))
    methods = [p for p, member in members.items() if not isinstance(member, PROPERTIES)]
    assert not [p for p in methods if f".{p.rpartition('.')[2]}(" not in shown]
