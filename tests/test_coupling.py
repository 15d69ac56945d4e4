"""A coupling is a value: the words of users stand in one file, and no other code compares them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import jmdp_lib as jl
from jmdp_lib.model import COMMON, INDEPENDENT, JOINT, Coupling

LIBRARY = Path(jl.__file__).parent
WORDS = {"joint", "independent", "common"}


def code_words(path):
    """Lines and words that stand in a file as literals of code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and node.value in WORDS:
            yield node.lineno, str(node.value)


def test_the_words_stand_in_one_file():
    using = {
        path.relative_to(LIBRARY).as_posix()
        for path in LIBRARY.rglob("*.py")
        if any(code_words(path))
    }
    assert using == {"model/coupling.py"}


def test_words_become_values_at_the_door():
    values = {"joint": JOINT, "independent": INDEPENDENT, "common": COMMON}
    assert {word: Coupling.named(word) for word in WORDS} == values
    with pytest.raises(ValueError, match=r"coupling must be one of 'joint'.*, got 'shared'"):
        jl.jipe2(jl.example_1(), [[0.5, 0.5]], coupling="shared")  # type: ignore[arg-type]
