"""What the benchmarks share: timers, processes of their own, tables, and pages that say when and
where they were measured."""

import argparse
import contextlib
import errno
import json
import platform
import resource
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

import jmdp_lib as jl

HERE = Path(__file__).resolve().parent
STATUS = Path("/proc/self/status")
# How a process ends that has no memory left: by itself, or by the system.
OUT_OF_MEMORY = errno.ENOMEM, -signal.SIGKILL
sys.path.append(str(HERE.parent / "workflow"))
from job import hardware, provenance


def grid(size, goal, gamma=0.95):
    """A windy gridworld, and the goal policy or the uniform one."""
    jm = jl.windy_gridworld(size, gamma=gamma)
    return jm, jl.goal_policy(size) if goal else jl.uniform_policy(jm)


def random_model(size, num_tables, num_actions, least, gamma):
    """Rewards from `least` to 1, on no lattice, and any next states; and the uniform policy."""
    rng = np.random.default_rng(0)
    shape = (size, num_tables, num_actions)
    probs = rng.dirichlet(np.ones(num_tables), size)
    rewards = rng.uniform(least, 1.0, shape)
    jm = jl.JMDP(probs, rewards, rng.integers(size, size=shape), gamma)
    return jm, jl.uniform_policy(jm)


def once(work):
    """Seconds of one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def seconds(work):
    """Best of up to five runs in some seconds, after one that compiles and warms up."""
    work()
    times = [once(work)]
    while len(times) < 5 and sum(times) < 3.0:
        times.append(once(work))
    return min(times)


def highest():
    """Bytes that this process had resident at most so far, since `forget` where there is /proc."""
    if STATUS.exists():  # what getrusage says includes the parent before the start
        line = next(x for x in STATUS.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def forget():
    """Let `highest` begin anew, where the system can."""
    with contextlib.suppress(OSError):
        STATUS.with_name("clear_refs").write_text("5")


def in_a_process(*arguments):
    """Measure these arguments in a process of its own: this program, by the `one` of its options.

    Raises MemoryError if that one ran out of memory, and CalledProcessError if it failed otherwise.
    """
    command = [sys.executable, sys.argv[0], "--one", json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode in OUT_OF_MEMORY:
        raise MemoryError("ran out of memory")
    done.check_returncode()
    return json.loads(done.stdout.splitlines()[-1])


def command_line(doc, only=None, one=None, **more):
    """The options of the command line. `--only` takes one of these names; `--one` ends the program.

    one: the function that measures in a process of its own. more: further options, by name.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--only", choices=only, default="", help="rows of this name, and no page")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    for name, settings in more.items():
        parser.add_argument(f"--{name}", **settings)
    chosen = parser.parse_args()
    if chosen.one:
        try:
            print(json.dumps(one(*json.loads(chosen.one))))
        except MemoryError as error:
            print(error, file=sys.stderr)
            sys.exit(errno.ENOMEM)
        sys.exit()
    return chosen


def duration(seconds):
    """A time for people."""
    for unit, name, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 1), (1, "s", 2)):
        if seconds >= unit:
            return f"{seconds / unit:,.{digits}f} {name}"
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.3g} µs"


def table(heads, rows):
    """Of Markdown."""
    lines = [list(heads), *rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def lines(row, names, only=""):
    """A row of a table for each name, or for one alone, printed as soon as it is there."""
    rows = []
    for name in names:
        if only in ("", name):
            rows.append(row(name))
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    return rows


def commit(folder=HERE.parent):
    """That is checked out."""
    return f"commit {provenance(folder)['commit'][:7]}"


def measured(*packages):
    """When, of which commit and where a page was measured, with the versions that matter."""
    cpu, cores, memory, system = hardware().values()
    versions = [f"{name} {version(name)}" for name in ("numpy", "numba", *packages)]
    return (
        f"Measured on {time.strftime('%d %B %Y')} at {commit()}: {system}, {cpu}, {cores} cores, "
        f"{memory} GB, Python {platform.python_version()}, {', '.join(versions)}."
    )


def about(doc):
    """What a page says of its rows: all that its program says of itself after how it is run."""
    return doc.split("\n\n", 2)[2].strip()


def write_page(name, title, *parts, packages=()):
    """A page of this folder, with the versions of these packages; it is printed too."""
    text = "\n\n".join([f"# {title}", measured(*packages), *parts]) + "\n"
    sys.stdout.write(text)
    (HERE / name).write_text(text)
