"""The public interface: its documentation, options given by name, and its types."""

import ast
import doctest
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple, Protocol

import pages
import pytest
from programs import PYPROJECT, ROOT, finished
from test_readme import BLOCKS, write_examples

from jmdp_lib.laws import PhiBracket, StepBracket
from jmdp_lib.machine import ReadOnly

# Examples of docstrings, each in a function if it is typed. A dictionary of options has no types.
EXAMPLES = [
    "".join(example.source for example in shown.examples)
    for path, thing in pages.public_names().items()
    if not inspect.ismodule(thing)
    for shown in doctest.DocTestFinder().find(thing, path)
    if shown.examples
]
FUNCTIONS = [
    f"def example_{number}() -> None:\n" + textwrap.indent(example, "    ")
    for number, example in enumerate(EXAMPLES)
    if not re.search(r"\*\*[a-z]", example)
]
UNTYPED = "# mypy: allow-untyped-defs, no-strict-optional\n"
TYPED = Path(__file__).with_name("typed_calls.py").read_text(encoding="utf-8")
USER = "\n".join([*BLOCKS, *EXAMPLES, TYPED])
# Options that may be given by position: sizes of an environment, and arguments of a formula.
NATURAL = {"size", "num_states", "capacity", "max_order", "gust_prob", "arrival_prob", "gamma"}
NATURAL |= {"reward_bound", "scale", "power", "draw"}
BY_NAME, VARIABLE = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD
RESULTS = (ReadOnly, tuple, PhiBracket, StepBracket)
MADE_BY_THE_LIBRARY = {"GapEstimate.of"}
# The ten options that are words.
WORDS = r'\b((?:coupling|route|cone|weights|form|method|gust|rewards|obs)=|interval\()"[^"]*"'


class Call(NamedTuple):
    """A public function, constructor or method.

    doc: the docstring that lists its parameters. by_user: False if it makes a result of solvers.
    """

    path: str
    parameters: list[inspect.Parameter]
    doc: str
    by_user: bool = True


def call(path, function, documented):
    every = inspect.signature(function).parameters.values()
    parameters = [p for p in every if p.name != "self" and p.name[0] != "_"]
    made = inspect.isclass(function) and issubclass(function, RESULTS)
    # Attributes that a result has of its parent are listed there.
    classes = inspect.getmro(documented)[:-1] if inspect.isclass(documented) else [documented]
    doc = "\n".join(inspect.cleandoc(x.__doc__ or "") for x in classes)
    return Call(path, parameters, doc, not made)


def public_calls():
    for path, thing in pages.public_names().items():
        is_class = inspect.isclass(thing)
        if inspect.isfunction(thing) or (is_class and not issubclass(thing, (Protocol, Exception))):
            yield call(path, thing, thing)
        for name, member in inspect.getmembers(thing, inspect.isroutine) if is_class else ():
            function = getattr(member, "__func__", member)
            own = f"{getattr(function, '__module__', '')}".startswith("jmdp_lib.")
            if own and name[0] != "_" and f"{thing.__name__}.{name}" not in MADE_BY_THE_LIBRARY:
                yield call(f"{path}.{name}", member, function)


CALLS = list(public_calls())


def listed(doc):
    """The names in the lists of arguments and attributes of a docstring in Google style."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:(?: .*)?\n)+)", doc + "\n", re.MULTILINE)
    entries = re.findall(r"^    ([*\w]+(?:, [*\w]+)*): ", "".join(sections), re.MULTILINE)
    return {name.lstrip("*") for entry in entries for name in entry.split(", ")}


def nodes_of_the_library():
    """(path, node) of all syntax trees."""
    for path in sorted((ROOT / "jmdp_lib").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(ROOT), node


def test_the_words_of_couplings_stand_in_one_file():
    """Everywhere else a coupling is a value, which `Coupling.named` makes."""
    for path, node in nodes_of_the_library():
        if isinstance(node, ast.Constant) and path.name != "coupling.py":
            assert node.value not in {"joint", "independent", "common"}, path


def test_docstrings_begin_with_a_noun_or_a_verb():
    """A clause without a subject has to be read twice."""
    offenders = []
    for path, node in nodes_of_the_library():
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        doc = (ast.get_docstring(node) or "") if documented else ""
        if re.match(r"(What|How|Of|Where|Whether|Which|That|As)\b", doc):
            offenders.append(f"{path}:{getattr(node, 'lineno', 1)}: {doc.splitlines()[0]}")
    assert not offenders, "\n".join(offenders)


def test_every_public_parameter_is_documented():
    for path, parameters, doc, _ in CALLS:
        assert {p.name for p in parameters} <= listed(doc), path


def test_every_option_is_given_by_its_name():
    for path, parameters, _, by_user in CALLS:
        options = [p for p in parameters if p.default is not p.empty and p.name not in NATURAL]
        assert not by_user or {p.kind for p in options} <= {BY_NAME, VARIABLE}, path
        names = [p.name for p in parameters if p.name != "ax"]
        if {"policy", "policies"} & {*names} and by_user:
            assert names[0] in {"jm", "model", "env", "simulator"}, path
            assert names[1] in {"policy", "policies"}, path


def test_examples_show_every_public_call_and_option():
    for path, parameters, _, by_user in CALLS:
        if by_user:
            assert re.search(rf"\b{path.rpartition('.')[2]}\(", "".join(EXAMPLES)), path
            for p in parameters:
                assert p.kind is not BY_NAME or re.search(rf"\b{p.name}=", USER), f"{path}: {p}"
                assert p.name != "coupling" or p.annotation == "CouplingName", path


@pytest.mark.slow
def test_mypy_accepts_users_and_refuses_every_wrong_word(tmp_path):
    # The project's settings are strict but for two rules, which are set here: in the file and not
    # by `--strict`, for which mypy would read the whole library again, without its cache.
    assert PYPROJECT["tool"]["mypy"]["strict"] is True
    untyped = "\n".join([UNTYPED, *FUNCTIONS])
    wrong, count = re.subn(WORDS, r'\1"fats"', TYPED + untyped)
    files = write_examples(tmp_path, [*BLOCKS, TYPED, untyped, wrong])
    for file in files:
        rules = "# mypy: warn-return-any, disallow-untyped-decorators\n"
        file.write_text(rules + file.read_text())
    output = finished(sys.executable, "-m", "mypy", *files, MYPYPATH=str(ROOT)).stdout
    lines = enumerate(files[-1].read_text().splitlines(), 1)
    # By the file's name: mypy repeats what it cached of an equal file, with that one's folder.
    places = {f"{files[-1].name}:{number}" for number, line in lines if '"fats"' in line}
    assert set(re.findall(r"^.*?(\w+\.py:\d+): error", output, re.MULTILINE)) == places, output
    assert f"Found {count} errors in 1 file (checked {len(files)} " in output
    assert len({*re.findall(WORDS, wrong)}) == 10
