"""What the library says of the machine: missing extras, and that it compiles."""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
import pytest
from numba import njit

from jmdp_lib import machine
from jmdp_lib.machine import extra

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
STRANGER = 54321  # a user that no machine knows
NO_CACHES = shutil.ignore_patterns("__pycache__")


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


[FIVE_LINES] = re.findall(r"^## In five lines\n+```python\n(.*?)^```", README, re.M | re.S)
COUNTED = """
import sys
sys.path[:0] = sys.argv[1:]
from numba.core import event
compiles = event.RecordingListener()
event.register("numba:compile", compiles)
import numpy as np
import jmdp_lib as jl
{lines}
print(jl.__file__, sum(record.is_start for _, record in compiles.buffer))
"""


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that everybody can read: the package, which nobody can write to, and `tmp`."""
    if os.name != "posix" or os.geteuid() != 0 or not Path("/proc/self/fd").exists():
        pytest.skip("needs root, to start processes as a user without any rights")
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is for its owner only
        root = Path(folder)
        root.chmod(0o755)
        shutil.copytree(ROOT / "jmdp_lib", root / "jmdp_lib", ignore=NO_CACHES)
        (root / "tmp").mkdir()
        os.chown(root / "tmp", STRANGER, STRANGER)
        yield root


def as_stranger(root: Path, lines: str, **environment: str) -> tuple[int, str]:
    """(functions compiled, what is said) when a user without home and rights runs some lines.

    The interpreter may be in a folder of root's. An open folder is found by its number, whoever
    may look into those above it.
    """
    folders = [Path(sys.base_prefix), Path(numba.__file__).parents[1]]
    opened = [os.open(folder, os.O_RDONLY) for folder in folders]
    base, packages = (Path("/proc/self/fd", str(number)) for number in opened)
    python = base / Path(sys.executable).resolve().relative_to(Path(sys.base_prefix).resolve())
    try:
        done = subprocess.run(
            [python, "-I", "-c", COUNTED.format(lines=lines), root, packages],
            capture_output=True, text=True, cwd=root / "tmp", pass_fds=opened,
            user=STRANGER, group=STRANGER, extra_groups=[],
            env={"TMPDIR": str(root / "tmp"), "OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip
    finally:
        for number in opened:
            os.close(number)
    assert done.returncode == 0, done.stderr
    file, count = done.stdout.split()
    assert Path(file).is_relative_to(root)
    return int(count), done.stderr


@pytest.mark.slow
def test_a_stranger_without_a_home_runs_the_readme_from_a_read_only_install(
    read_only: Path,
) -> None:
    """Numba finds no folder for its cache: a temporary one of the user's own takes its place."""
    count, said = as_stranger(read_only, FIVE_LINES, HOME="/no/home")
    assert count > 0
    [own] = (read_only / "tmp").iterdir()
    assert own.stat().st_uid == STRANGER
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert said.count("compiling") == said.count(f"again when {own} is emptied") == 1
    assert as_stranger(read_only, FIVE_LINES, HOME="/no/home") == (0, "")


@pytest.mark.slow
def test_a_stranger_does_not_run_what_others_may_have_left(read_only: Path) -> None:
    """A folder of the right name that is somebody else's is not used: then there is no cache.

    Nor is there a folder named ~, which Numba makes where the user has no HOME at all.
    """
    others = read_only / "tmp" / f"jmdp_lib-{STRANGER}"
    others.mkdir()
    others.chmod(0o777)
    count, said = as_stranger(read_only, SHORT)
    assert count > 0
    assert not list(others.iterdir())
    assert [path.name for path in (read_only / "tmp").iterdir()] == [others.name]
    assert said.count("compiling") == said.count("again when the next process starts") == 1


def test_all_that_is_compiled_is_compiled_by_way_of_the_machine() -> None:
    """`njit(cache=True)` by itself fails at import where Numba finds no folder for its cache."""
    files = [path for path in sorted((ROOT / "jmdp_lib").rglob("*.py")) if path.stem != "machine"]
    assert not [
        p.name for p in files if re.search(r"\b(njit|jit|vectorize|cfunc)\b", p.read_text())
    ]
