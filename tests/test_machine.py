"""The machine: missing extras, limits of memory, files written whole, and compiled code."""

import os
import sys
import time
from importlib import import_module

import psutil
import pytest
from programs import finished, run
from tqdm import tqdm

import jmdp_lib as jl
from experiments.files import replacing
from jmdp_lib import machine
from jmdp_lib.machine import extra, process


def test_a_missing_extra_is_named_with_its_command():
    missing = pytest.raises(ImportError, match="no_such_module is not installed")
    with missing as caught, extra("pandas", "torch"):
        import_module("no_such_module")
    assert 'pip install "jmdp_lib[pandas,torch]"' in str(caught.value)
    assert caught.value.name == "no_such_module"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_our_own_mistake_is_not_blamed_on_an_extra():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), extra("pandas"):
        import_module("jmdp_lib.no_such_module")


GIB = 2**30
FILES = f"anon 5\nfile {3 * GIB}\nshmem {GIB}\ninactive_file {GIB}\nactive_file {GIB}\n"
LIMITS = {
    "none": ("0::/a/b\n", {}, 64),
    "of a group around it": (
        "0::/a/b\n",
        {
            "a": {"memory.max": str(8 * GIB), "memory.current": str(5 * GIB)},
            "a/b": {"memory.max": "max", "memory.current": "7"},
        },
        5,  # 8 of which 5 are used, 2 of them for files that can be dropped
    ),
    "a container that sees its own group on top": (
        "1:cpu,cpuacct:/docker/abc\n0::/docker/abc\n",
        {"": {"memory.max": str(4 * GIB), "memory.current": str(3 * GIB)}},
        3,
    ),
    "full": ("0::/\n", {"": {"memory.max": str(GIB), "memory.current": str(4 * GIB)}}, 0),
}


@pytest.mark.parametrize("case", LIMITS)
def test_control_groups_limit_memory(case, tmp_path, leave, monkeypatch):
    """On a machine of 64 GiB."""
    membership, groups, gibibytes = LIMITS[case]
    leave(64 * GIB)
    monkeypatch.setattr(process, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(process, "GROUPS", tmp_path / "groups")
    (tmp_path / "cgroup").write_text(membership)
    for folder, files in groups.items():
        (tmp_path / "groups" / folder).mkdir(parents=True)
        for name, text in {**files, "memory.stat": FILES}.items():
            (tmp_path / "groups" / folder / name).write_text(text)
    assert machine.available_bytes() == gibibytes * GIB


def test_writers_of_one_file(tmp_path):
    """Each writes a file of its own, and one that fails leaves the old file and nothing else.

    Two threads, or equal process numbers on two machines, wrote into one temporary file.
    """
    path = tmp_path / "file"
    umask = os.umask(0o022)
    os.umask(umask)
    with replacing(path) as one, replacing(path) as two:
        one.write_text("one")
        two.write_text("two")
        assert one.parent == two.parent == tmp_path
        assert one.read_text() == "one"

    def fail():
        with replacing(path) as part:
            part.write_text("half of the n")
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        fail()
    assert path.read_text() == "one"
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask  # as any other new file
    assert os.listdir(tmp_path) == ["file"]


GRID = jl.windy_gridworld(4)
DRIFT = jl.uniform_policy(GRID)
FEATURES = jl.action_features(jl.rbf_features(4, 4, 2), 4)
LONG_CALLS = {
    "jipe2": lambda: jl.jipe2(GRID, DRIFT, route="dense"),
    "coupling_range": lambda: jl.laws.coupling_range(GRID, DRIFT),
    "policy_gaps": lambda: jl.laws.policy_gaps(GRID, DRIFT, jl.goal_policy(4)),
    "projected_jipe2": lambda: jl.projected_jipe2(GRID, DRIFT, FEATURES),
    "jipe": lambda: jl.jipe(GRID, DRIFT, order=3),
}
BARS = {
    "jipe": "multisets of order 3",
    "projected_jipe2": "pair occupancy",
    "jipe2": "JIPE-2 on pairs",
}


@pytest.mark.parametrize("name", LONG_CALLS)
def test_a_long_call_shows_how_far_it_is(name, monkeypatch):
    """Its bar moves again and again, also within one cycle of a linear solver."""
    moves: dict[str, int] = {}

    class Bar(tqdm):
        def update(self, n=1):
            moves[self.desc] = moves.get(self.desc, 0) + 1

    def seen(desc, **options):
        return Bar(desc=desc, **options | {"disable": False, "delay": 1e9})

    monkeypatch.setattr(process, "tqdm", seen)
    LONG_CALLS[name]()
    assert max((n for bar, n in moves.items() if BARS.get(name, name) in bar), default=0) >= 4


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
jl.simulate_pairs(jm, policy, (0, 1), state=4, num_pairs=10, rng=0)
for coupling in ("joint", "independent"):
    jl.jipe2(jm, uniform, coupling=coupling).moments.gap_variance
jl.jipe2(jm, policy, states=[4]).moments.second((4, 1), (4, 2))
jl.jipe(jl.coupled_reward_chain(4), uniform[:4, :2] * 2, order=3).moments.gap_variance
jl.incremental_jipe2(jm, uniform, 1000)
jl.incremental_jipe2(jm, uniform, 1000, form="centred")
jl.projected_jipe2(jm, uniform, jl.action_features(jl.rbf_features(3, 3, 1), 4))
"""


def run_python(code, **environment):
    """(functions compiled, what was said) in a process of its own."""
    code += "print(sum(record.is_start for _, record in compiles.buffer))"
    done = finished(sys.executable, "-c", code, **environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr


@pytest.mark.slow
def test_no_solver_compiles_in_a_second_process():
    # The first process may be the second one already, if other tests have compiled everything.
    assert 0 in (run_python(PRELUDE + SOLVE)[0], run_python(PRELUDE + SOLVE)[0])


WORKERS = """
import time
from experiments.processes import in_processes
if __name__ == "__main__":
    in_processes(time.sleep, [(600,), (600,)], 2, "sleep")
"""


@pytest.mark.slow
def test_processes_end_with_a_parent_that_was_killed(family):
    """Even those that have not begun to watch it."""
    parent = psutil.Popen([sys.executable, "-c", WORKERS])
    family.append(parent)
    while len(family) < 4:  # two workers, and what tracks their resources
        assert parent.poll() is None
        time.sleep(0.1)
        family[1:] = parent.children(recursive=True)
    parent.kill()
    assert not psutil.wait_procs(family, timeout=120)[1]


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
    (law,) = jl.laws.gap_law(small, goal, gaps=[(4, 0, 2)])
    three = jl.jipe(chain, jl.uniform_policy(chain), order=3).moments
    one = jl.jipe2(grid, uniform, states=[40]).moments.gap_variance[40]
    dense = jl.jipe2(grid, uniform, route="dense").moments.gap_variance
    pairs = jl.simulate_pairs(small, goal, (0, 2), state=4, num_pairs=5000, rng=0)
    return [np.array(x).tobytes() for x in (law.prob_worse, three.gap_variance, one, dense, pairs)]
"""
FORKED = """
if __name__ == "__main__":
    expected = numbers(0)
    assert numba.threading_layer() == sys.argv[1]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(numbers, range(2)) == [expected, expected]
    assert numbers(0) == expected
"""
AT_ONCE = """
with ThreadPoolExecutor(2) as pool:
    assert len({tuple(run) for run in pool.map(numbers, range(4))}) == 1
assert numba.threading_layer() == sys.argv[1]
"""


# The layer of Numba that does not survive a fork, and the one that does not survive two calls.
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize(
    ("code", "layer"),
    [pytest.param(FORKED, "omp", id="fork"), pytest.param(AT_ONCE, "workqueue", id="threads")],
)
def test_solvers_after_a_fork_and_in_two_threads_at_once(code, layer):
    """Bit by bit the same numbers. In a process of its own: at worst it would never return."""
    settings = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    run(sys.executable, "-c", CALLS + code, layer, timeout=300, **settings)


PLAIN = """
import jmdp_lib as jl
jm, policy = jl.windy_gridworld(2, gamma=0.5), jl.goal_policy(2)
print(float(jl.jipe2(jm, policy, route="reachable").moments.gap_variance[2, 0, 1]))
print(*jl.laws.gap_law(jm, policy, gaps=[(2, 0, 1)], width=0.1, points=16)[0].mean)
"""


def test_solvers_run_where_numba_compiles_nothing(capsys):
    """As for somebody who debugs a loop. In a process of its own: Numba is imported once."""
    plain = run(sys.executable, "-c", PLAIN, NUMBA_DISABLE_JIT="1").split()
    exec(PLAIN, {})
    usual = capsys.readouterr().out.split()
    assert [*map(float, plain)] == pytest.approx([*map(float, usual)], rel=1e-9)


@pytest.mark.slow
def test_compiled_code_is_kept_where_a_folder_is_named(tmp_path):
    """And one line says so. Solvers also run without a folder.

    As for a user without a home, of an install that nobody can write to.
    """
    alone = "from numba.core import caching\n"
    alone += "caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator]\n"
    for folder, kept in (("", False), (str(tmp_path), False), (str(tmp_path), True)):
        count, said = run_python(alone + PRELUDE + SHORT, NUMBA_CACHE_DIR=folder)
        assert (count == 0) == kept
        assert said.count("jmdp_lib compiles what is called") == (not kept)
        assert said.count("in every process, unless NUMBA_CACHE_DIR") == (not folder)
