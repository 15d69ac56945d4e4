"""What the library says of the machine: missing extras, and that it compiles."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from numba import njit

from jmdp_lib import machine
from jmdp_lib.machine import extra

ROOT = Path(__file__).resolve().parents[1]


def test_a_missing_extra_is_named_with_the_command_that_installs_it() -> None:
    missing = pytest.raises(ImportError, match="no_such_module is not installed")
    with missing as caught, extra("figures", "torch"):
        import_module("no_such_module")
    assert 'pip install "jmdp_lib[figures,torch]"' in str(caught.value)
    assert caught.value.name == "no_such_module"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_the_inner_extra_is_named() -> None:
    with pytest.raises(ImportError, match=r"jmdp_lib\[torch\]"), extra("atari"), extra("torch"):
        import_module("no_such_module")


def test_a_mistake_of_our_own_is_not_blamed_on_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), extra("figures"):
        import_module("jmdp_lib.no_such_module")


def compile_two(module: str) -> None:
    """Compile a function of a module, and with it another one that it calls."""

    def half(x: Any) -> Any:
        return x / 2

    def third(x: Any) -> Any:
        return inner(x) / 1.5

    half.__module__ = third.__module__ = module
    inner = njit(half)
    assert njit(third)(3.0) == 1.0


def test_compiling_is_said_once_a_call(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = time.monotonic() + 1e3
    monkeypatch.setattr(machine.time, "monotonic", lambda: clock)
    monkeypatch.setattr(machine, "watched", lambda: True)
    compile_two("somebody_elses")
    assert capsys.readouterr().err == ""
    clock += 5.0
    compile_two("jmdp_lib.example")
    compile_two("jmdp_lib.example")  # at once after the first: the same call
    assert capsys.readouterr().err.count("is compiling") == 1
    clock += 5.0
    compile_two("jmdp_lib.example")
    assert capsys.readouterr().err.count("is compiling") == 1
    clock += 5.0
    monkeypatch.setattr(machine, "watched", lambda: False)
    with caplog.at_level(logging.INFO, "jmdp_lib"):
        compile_two("jmdp_lib.example")
    assert capsys.readouterr().err == ""
    assert [record.name for record in caplog.records] == ["jmdp_lib"]


# What a second process does after the first: `compiles` counts what Numba really compiled.
PRELUDE = """
import sys
sys.stderr.isatty = lambda: True
from numba.core import event
compiles = event.RecordingListener()
event.register("numba:compile", compiles)
import numpy as np
import jmdp_lib as jl
jm, policy = jl.windy_gridworld(3), jl.goal_policy(3)
"""
SHORT = "jl.jipe(jl.coupled_reward_chain(4), np.full((4, 2), 0.5), order=3)\n"  # compiles least
SOLVE = """
uniform = jl.uniform_policy(jm)
jl.simulate_pairs(jm, policy, 4, (0, 1), 10)
for coupling in ("joint", "independent"):
    jl.jipe2(jm, uniform, coupling=coupling).moments.gap_variance
jl.jipe2(jm, policy, queries=[4]).moments.second((4, 1), (4, 2))
jl.jipe(jl.coupled_reward_chain(4), uniform[:4, :2] * 2, order=3).moments.gap_variance
jl.incremental_jipe2(jm, uniform, 1000)
jl.incremental_jipe2(jm, uniform, 1000, form="centred")
jl.sample_gaps(jm, uniform, [(4, 0, 1)], 10)
jl.projected_jipe2(jm, uniform, jl.per_action(jl.rbf_features(3, 3, 1), 4))
"""


def run_python(code: str, **environment: str) -> tuple[int, int]:
    """(functions compiled, how often that was said) in a process of its own."""
    code = PRELUDE + code + "print(sum(record.is_start for _, record in compiles.buffer))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr.count("is compiling")


def test_what_was_compiled_is_on_disk_and_then_nothing_is_said(tmp_path: Path) -> None:
    count, said = run_python(SHORT, NUMBA_CACHE_DIR=str(tmp_path))
    assert count > 0
    assert said == 1
    assert run_python(SHORT, NUMBA_CACHE_DIR=str(tmp_path)) == (0, 0)


@pytest.mark.slow
def test_no_solver_compiles_in_a_second_process() -> None:
    # The first process may be the second one already, if other tests have compiled everything.
    assert run_python(SOLVE) == (0, 0) or run_python(SOLVE) == (0, 0)


@pytest.mark.slow
def test_workers_end_with_a_parent_that_was_killed_outright(
    ends_when_killed: Callable[[str, int], None],
) -> None:
    code = (
        "import time\n"
        "from jmdp_lib.machine import in_processes\n"
        "if __name__ == '__main__':\n"
        "    in_processes(time.sleep, [(600,), (600,)], 2, 'sleep')\n"
    )
    ends_when_killed(code, 3)  # two workers, and what tracks their resources


UNGUARDED = """
import jmdp_lib as jl
jm = jl.windy_gridworld(3, gamma=0.8)
jl.estimate_gaps(jm, jl.goal_policy(3), actions=[0, 2], state=4, num_pairs=30, processes=2)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_fails_with_one_error(tmp_path: Path) -> None:
    """The processes that it starts import it, and say nothing of their own."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(script)], timeout=300, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert 'under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


# Calls that use threads, and what they give: gap laws, moments of order two and of order three.
CALLS = """
import multiprocessing, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import numba
import jmdp_lib as jl
grid, chain = jl.windy_gridworld(21, gamma=0.8), jl.coupled_reward_chain(6)
small, goal = jl.windy_gridworld(3, gamma=0.8), jl.goal_policy(3)
uniform = jl.uniform_policy(grid)

def numbers(_):
    (law,) = jl.gap_law(small, goal, [(4, 0, 2)])
    three = jl.jipe(chain, jl.uniform_policy(chain), order=3).moments
    one = jl.jipe2(grid, uniform, queries=[40]).moments.gap_variance[40]
    dense = jl.jipe2(grid, uniform, route="dense").moments.gap_variance
    played = jl.simulate_pairs(small, goal, 4, (0, 2), 5000)
    return [np.array(x).tobytes() for x in (law.prob_worse, three.gap_variance, one, dense, played)]
"""
FORKED = """
if __name__ == "__main__":
    known = numbers(0)
    assert numba.threading_layer() == sys.argv[1]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(numbers, range(2)) == [known, known]
    assert numbers(0) == known
"""
AT_ONCE = """
with ThreadPoolExecutor(2) as pool:
    assert len({tuple(found) for found in pool.map(numbers, range(4))}) == 1
assert numba.threading_layer() == sys.argv[1]
"""
LAYERS = ("omp", "workqueue")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("code", [FORKED, AT_ONCE], ids=["fork", "threads"])
@pytest.mark.parametrize("layer", LAYERS)
def test_solvers_after_a_fork_and_in_two_threads_at_once(code: str, layer: str) -> None:
    """Bit by bit the same numbers. In a process of its own: at worst it would never return."""
    settings = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", CALLS + code, layer], timeout=300,
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, **settings},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_sums_are_the_same_on_any_number_of_threads() -> None:
    """And without any, as after a fork: a sum of sums must not depend on who adds them up."""
    code = (
        "import numpy as np, numba\n"
        "from jmdp_lib import machine\n"
        "from jmdp_lib.solvers.affine import _inner_product\n"
        "x, y = np.random.default_rng(0).normal(size=(2, 1 << 19))\n"
        "both = _inner_product(x, y)\n"
        "numba.set_num_threads(1)\n"
        "assert _inner_product(x, y) == both\n"
        "machine._Threads.lost = True\n"
        "assert _inner_product(x, y) == both\n"
    )
    settings = {"NUMBA_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, **settings}
    )
