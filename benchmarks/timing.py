"""What the benchmarks share: timers, processes of their own, tables, and pages that say when and
where they were measured."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "workflow"))
from job import hardware, provenance


def once(work: Callable[[], object]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def seconds(work: Callable[[], object]) -> float:
    """Best of up to five runs in some seconds, after one that compiles and warms up."""
    work()
    times = [once(work)]
    while len(times) < 5 and sum(times) < 3.0:
        times.append(once(work))
    return min(times)


def in_a_process(*arguments: object) -> Any:
    """What `asked` measures of these arguments in a process of its own: this program, once more."""
    command = [sys.executable, sys.argv[0], "--one", json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def asked(
    doc: str,
    only: Iterable[str] | None = None,
    one: Callable[..., object] | None = None,
    **more: Any,
) -> argparse.Namespace:
    """What the command line asks for, `--only` one of these names, say; `one` ends the program.

    one: what is measured in a process of its own. more: further options, by name.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--only", choices=only, default="", help="rows of this name, and no page")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    for name, settings in more.items():
        parser.add_argument(f"--{name}", **settings)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(one(*json.loads(chosen.one))))
        sys.exit()
    return chosen


def duration(seconds: float) -> str:
    """A time for people."""
    for unit, name, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 1), (1, "s", 2)):
        if seconds >= unit:
            return f"{seconds / unit:,.{digits}f} {name}"
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.3g} µs"


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Of Markdown."""
    lines = [list(heads), *rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def shown(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """Rows of a table, each printed as soon as it is there."""
    for row in rows:
        print(*row, sep=" | ", file=sys.stderr, flush=True)
        yield row


def commit(folder: Path = HERE.parent) -> str:
    """That is checked out."""
    return f"commit {provenance(folder)['commit'][:7]}"


def measured(*packages: str) -> str:
    """When, of which commit and where a page was measured, with the versions that matter."""
    cpu, cores, memory, system = hardware().values()
    versions = [f"{name} {version(name)}" for name in ("numpy", "numba", *packages)]
    return (
        f"Measured on {time.strftime('%d %B %Y')} at {commit()}: {system}, {cpu}, {cores} cores, "
        f"{memory} GB, Python {platform.python_version()}, {', '.join(versions)}."
    )


def write_page(name: str, title: str, *parts: str) -> None:
    """A page of this folder; it is printed too."""
    text = "\n\n".join([f"# {title}", *parts]) + "\n"
    sys.stdout.write(text)
    (HERE / name).write_text(text)
