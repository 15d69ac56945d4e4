"""Where the results of a profile are, and whether they are whole.

A notebook's run is made in `out/PROFILE/.runs/NAME`. Its record comes last: the provenance, with
size and hash of every file, and a checksum of the record itself. What is finished is copied into
`notebooks/`, `figures/` and `provenance/`. Before the batch works, it compares both places with the
record.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from job import replacing

RUNS = ".runs"
STATES = ("done", "failed", "interrupted", "not started")
SHOWN = 3  # files that a message names


def record_of(out: Path, name: str) -> Path:
    """The provenance file of a run. It exists only once the run is finished."""
    return out / RUNS / name / "provenance" / f"{name}.json"


def working_of(out: Path, name: str) -> Path:
    """A folder that is there while a notebook runs, and stays if the run is interrupted."""
    return out / RUNS / f".{name}"


def failed_of(out: Path, name: str) -> Path:
    """Where a notebook is kept that failed."""
    return out / "failed" / f"{name}.ipynb"


def state_of(out: Path, name: str) -> str:
    """One of the four words in STATES."""
    if record_of(out, name).exists():
        return "done"
    if working_of(out, name).exists():
        return "interrupted"
    return "failed" if (out / RUNS / name).exists() else "not started"


def fingerprint(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def fingerprints(run: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of every file of a run, by its path in there."""
    paths = sorted(path for path in run.rglob("*") if path.is_file())
    return {str(path.relative_to(run)): fingerprint(path) for path in paths}


def checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def record_text(record: dict[str, Any]) -> str:
    """A record as it is written, with its checksum."""
    return json.dumps({**record, "checksum": checksum(record)}, indent=2) + "\n"


def read_record(out: Path, name: str) -> dict[str, Any] | None:
    """The record of a run; None if there is none, or if it is not as it was written."""
    try:
        record = json.loads(record_of(out, name).read_bytes())
    except (OSError, ValueError):
        return None
    whole = isinstance(record, dict) and record.pop("checksum", None) == checksum(record)
    return record if whole else None


def is_whole(path: Path, made: dict[str, Any]) -> bool:
    """Whether a file is what was made; most damage shows in its size."""
    try:
        return path.stat().st_size == made["size"] and fingerprint(path) == made
    except OSError:
        return False


def copy_whole(out: Path, source: Path, target: Path) -> None:
    """Copy a file with its time, in one step for whoever looks at the target."""
    with replacing(target, out / RUNS) as part:
        shutil.copy2(source, part)


def publish(out: Path, name: str) -> None:
    """Copy what is new of a finished run to where it is read; an unfinished one is not shown."""
    run = out / RUNS / name
    record = record_of(out, name)
    if not record.exists():
        return
    files = [path for path in run.rglob("*") if path.is_file() and path != record]
    for source in [*files, record]:  # whoever sees the record sees all that it lists
        target = out / source.relative_to(run)
        made = source.stat()
        with contextlib.suppress(FileNotFoundError):
            there = target.stat()
            if (there.st_size, there.st_mtime_ns) == (made.st_size, made.st_mtime_ns):
                continue
        copy_whole(out, source, target)


def retract(out: Path, name: str) -> None:
    """Remove a run and what is shown of it, which goes first: the run's folder lists it.

    The record is no longer in that folder when Snakemake starts a job again.
    """
    run = out / RUNS / name
    record = read_record(out, name) or {"files": {}}
    there = [str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()]
    own = str(record_of(out, name).relative_to(run))
    for file in {own, *there, *record["files"]}:
        (out / file).unlink(missing_ok=True)
    discard(out, name)
    failed_of(out, name).unlink(missing_ok=True)


def discard(out: Path, name: str) -> None:
    """Remove a run, of which nothing is shown."""
    for folder in (out / RUNS / name, working_of(out, name)):
        shutil.rmtree(folder, ignore_errors=True)


def mend(out: Path, name: str) -> str | None:
    """Compare a finished run, and what is shown of it, with its record; what was wrong, or None.

    A damaged run is removed, so that it is made again. If only what is shown is damaged or missing,
    it is copied again. Remains of an unfinished run are removed.
    """
    run = out / RUNS / name
    if not record_of(out, name).exists():
        discard(out, name)
        return None
    record = read_record(out, name)
    own = record_of(out, name).relative_to(run)
    made = {} if record is None else record["files"]
    damaged = [file for file in made if not is_whole(run / file, made[file])]
    if record is None or damaged:
        retract(out, name)
        return f"{_some(run, damaged or [str(own)])} damaged or missing: {name} has to run again"
    made[str(own)] = fingerprint(run / own)
    damaged = [file for file in made if not is_whole(out / file, made[file])]
    for file in damaged:
        copy_whole(out, run / file, out / file)
    if damaged:
        return f"{_some(out, damaged)} damaged or missing: copied again from the run of {name}"
    return None


def _some(folder: Path, files: list[str]) -> str:
    """The names of files, of many only the first; from the project's folder."""
    project = next(parent.parent for parent in folder.parents if parent.name == "out")
    names = [str((folder / file).relative_to(project)) for file in files[:SHOWN]]
    more = [f"{len(files) - SHOWN} more"] if len(files) > SHOWN else []
    return f"{', '.join(names + more)} {'is' if len(files) == 1 else 'are'}"
