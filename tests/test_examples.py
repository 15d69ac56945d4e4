"""Examples in docstrings run, and every public function and class has one."""

import doctest
import functools
import importlib
import inspect
import re
import types

import pytest
from programs import ROOT

SOURCES = [
    p for name in ("jmdp_lib", "experiments", "notebooks") for p in ROOT.glob(f"{name}/**/*.py")
]
FILES = [path for path in sorted(SOURCES) if ">>> " in path.read_text()]
MEMBERS = (types.FunctionType, classmethod, staticmethod, property, functools.cached_property)
NUMBER = re.compile(r"-?\d+\.\d*")


class Rounded(doctest.OutputChecker):
    """A number may be off by one in the last digit that is shown, and a zero may be negative."""

    def check_output(self, want, got, flags):
        expected = NUMBER.findall(want)
        units = [0.1 ** len(number.partition(".")[2]) for number in expected]
        pairs = zip(expected, NUMBER.findall(got), units, strict=False)
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


def test_public_names_have_docstrings_and_functions_examples():
    """Calls of methods are in examples, too: see `test_interface`."""
    import pages

    for path, thing in pages.public_names().items():
        # A class that has no docstring would show that of its parent.
        members = vars(thing) if inspect.isclass(thing) else {"__doc__": thing.__doc__}
        assert members.get("__doc__"), path
        for name, member in members.items():
            if name[0] != "_" and isinstance(member, MEMBERS):
                assert getattr(member, "__func__", member).__doc__, f"{path}.{name}"
        example = "\n    Example:\n        >>> " in members["__doc__"]
        assert example or not inspect.isfunction(thing), path
