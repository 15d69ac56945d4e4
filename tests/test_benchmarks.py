"""The programs that measure: each runs on its smallest row, and its pages say what they are of."""

import importlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from programs import ROOT

import jmdp_lib as jl

BENCHMARKS = ROOT / "benchmarks"
# Rows of each program: its command line, constants that are made smaller, and lines that it prints.
SMALLEST = [
    ("decisions --only", "fair coins", {"CALLS": 2, "BUDGET": 100}, 1),
    ("decisions --only", "coin, 0.5 standard deviations", {"REPEATS": 2}, 1),
    ("gap_law --only", "random, 5 states, gamma 0.5", {"PAIRS": 10_000}, 1),
    ("gap_law --only", "20x20 grid, goal policy, one gap", {}, 1),
    ("local --only", "inventory", {"RUNS": 20}, 1),
    ("run --only", "jipe2 by default, 3x3 gridworld, goal policy", {}, 1),
    ("scaling --only", "gridworld, uniform policy", {}, 6),
    ("scaling --only", "order", {}, 2),
    (
        "scaling --device=cpu --only",
        "random successors",
        {"GPU_SIDES": {"random successors": [5]}},
        1,
    ),
    ("simulators --only", "CartPole-v1", {"_REPEATS": 2}, 1),
    ("vector --only", "joint", {"PAIRS": 100, "FEW": 10}, 1),
    ("vector --device=cpu --only", "joint", {"LEAST": 1_000}, 1),
]
# What those measure that start themselves once more.
CHILDREN = {"gap_law": "bracket", "local": "row", "scaling": "rows_of"}


@pytest.fixture
def program(monkeypatch):
    """A function that imports a program as its command line runs it."""

    def imported(name, *options):
        monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / f"{name}.py"), *options])
        return importlib.import_module(name)

    return imported


@pytest.mark.slow
@pytest.mark.parametrize(("command", "row", "smaller", "num_lines"), SMALLEST)
def test_a_program_measures_its_smallest_row(
    command, row, smaller, num_lines, program, monkeypatch, capsys
):
    """In this process alone, which has compiled what other tests call."""
    module = program(*command.split(), row)
    for constant, value in smaller.items():
        monkeypatch.setattr(module, constant, value)
    if module.__name__ in CHILDREN:
        measure = getattr(module, CHILDREN[module.__name__])
        monkeypatch.setattr(module, "in_a_process", lambda *x: json.loads(json.dumps(measure(*x))))
    before = {path: path.stat().st_mtime_ns for path in BENCHMARKS.glob("*.*")}
    module.main()
    printed = capsys.readouterr().err
    assert len(re.findall(rf"^.*\b{re.escape(row)}\b.*$", printed, re.MULTILINE)) == num_lines
    assert {path: path.stat().st_mtime_ns for path in BENCHMARKS.glob("*.*")} == before


CHILD = """
import os, signal, sys

sys.path.append({folder!r})
from timing import command_line


def measure(how):
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise {{"full": MemoryError, "wrong": TypeError}}[how](how)


command_line("A program.", one=measure)
"""


@pytest.mark.slow
def test_only_a_child_that_ran_out_of_memory_is_passed_over(tmp_path, monkeypatch, capfd):
    """One that failed of a wrong call left a page without our own rows."""
    import scaling

    child = tmp_path / "child.py"
    child.write_text(CHILD.format(folder=str(BENCHMARKS)))
    monkeypatch.setattr(sys, "argv", [str(child)])
    assert scaling.alone("full") == scaling.alone("killed") == []
    assert "killed ran out of memory" in capfd.readouterr().err
    with pytest.raises(subprocess.CalledProcessError):
        scaling.alone("wrong")


@pytest.mark.parametrize("goal", [False, True])
def test_the_pair_system_of_scipy_finds_the_gap_variances(goal, program):
    timing = program("timing")
    jm, policy = timing.grid(5, goal)
    variances = program("pair_system").gap_variances(jm, policy)
    np.testing.assert_allclose(variances, jl.jipe2(jm, policy).moments.gap_variance, atol=1e-7)


def test_the_files_of_benchmarks_are_listed():
    """Each page names the commit that it was measured at."""
    page = (BENCHMARKS / "README.md").read_text()
    files = {path.name for path in BENCHMARKS.iterdir() if path.is_file()} - {"README.md"}
    assert files == set(re.findall(r"(?:`|benchmarks/)(\w+\.(?:md|csv|png|py))\b", page))
    for name in files:
        first = (BENCHMARKS / name).read_text().split("\n\n")[1] if name.endswith(".md") else ""
        measured = r"$|(\*\*Not of the present code: m|M)easured on .* at commit [0-9a-f]{7,}"
        assert re.match(measured, first), name
