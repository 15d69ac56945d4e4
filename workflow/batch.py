"""Run every notebook of a profile and say which claims held: `make figures` calls this.

Everything that can be wrong in profiles and parameters is refused before any work, and so is a
missing result that a notebook reads (a parameter named *_files, paths from the project's folder).
Then Snakemake runs one job per notebook, in parallel, doing only what is not done yet. A failing
notebook is kept in `failed/` and the others go on. With `--slurm` each is a job of a Slurm cluster.
With `--atari DEVICE` the Atari games are trained anew first, a job for each game and seed of the
profile's `atari:` entry, and the notebooks read those results instead of the committed ones.
Arguments after `--` go to Snakemake (`--slurm -- --default-resources slurm_account=me`).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import yaml
from job import write_atomically
from notebook_job import (
    OUT_DIR,
    Layout,
    ProjectError,
    clock,
    has_tag,
    parameter_defaults,
)

WORKFLOW = Path(__file__).resolve().parent
VERDICTS = ("holds", "FAILS")
FILES = "_files"  # parameters that end so are lists of files that must be there
SLURM_JOBS = 100  # at most so many in the queue at a time
ATARI = "atari"  # the entry of a profile that is not a notebook, and the folder of its results
Plan = dict[str, dict[str, Any]]


class Claim(NamedTuple):
    notebook: str
    claim: str
    value: str
    verdict: str


def notebook_names(root: Path) -> list[str]:
    return sorted(p.stem for p in (root / "notebooks").glob("[0-9][0-9]_*.py"))


def load_profile(root: Path, profile: str) -> dict[str, Any]:
    folder = root / "workflow" / "profiles"
    known = sorted(p.stem for p in folder.glob("*.yaml"))
    if profile not in known:
        raise ProjectError(f"unknown profile {profile!r}; known profiles: {', '.join(known)}")
    path = folder / f"{profile}.yaml"
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ProjectError(f"{path.name}: not valid YAML: {error}") from error
    entries = {} if entries is None else entries
    if not isinstance(entries, dict):
        raise ProjectError(f"{path.name}: must map notebook names to parameters")
    return entries


def wrong_type(default: Any, value: Any) -> bool:
    """Whether a profile's value cannot stand for a parameter with this default."""
    if default is None:
        return False
    if isinstance(default, float) and not isinstance(value, bool):
        return not isinstance(value, int | float)
    if isinstance(default, list | tuple):
        first = next(iter(default), None)
        return not isinstance(value, list) or any(wrong_type(first, entry) for entry in value)
    return type(value) is not type(default)


def entry_problems(defaults: dict[str, Any], given: Any) -> Iterator[str]:
    if not isinstance(given, dict):
        yield f"must map parameter names to values, found {given!r}"
        return
    for name, value in given.items():
        if name == OUT_DIR:
            yield f"parameter {OUT_DIR!r} is set by the batch itself"
        elif name not in defaults:
            known = ", ".join(k for k in defaults if k != OUT_DIR)
            yield f"unknown parameter {name!r}; its parameters cell defines: {known}"
        elif wrong_type(defaults[name], value):
            default = defaults[name]
            kind = type(default).__name__
            if isinstance(default, list | tuple) and default:
                kind = f"list of {type(default[0]).__name__}"
            hint = "; in YAML write 1.0e-8, not 1e-8" if kind.endswith("float") else ""
            yield f"parameter {name!r} must be of type {kind}, found {value!r}{hint}"


def of_atari(file: str) -> bool:
    """Whether a result is one that the Atari jobs make."""
    return Path(file).name.startswith("atari_")


def file_problems(root: Path, parameters: dict[str, Any], own_results: bool) -> Iterator[str]:
    """Parameters named *_files list results that a notebook reads, relative to the project."""
    for name, value in parameters.items():
        if not name.endswith(FILES):
            continue
        if not isinstance(value, list) or not all(isinstance(file, str) for file in value):
            yield f"parameter {name!r} must be a list of paths, found {value!r}"
            continue
        for file in value:
            if not (root / file).is_file() and not (own_results and of_atari(file)):
                yield f"parameter {name!r}: there is no file {file}"


def result_files(root: Path, plan: Plan) -> dict[str, list[str]]:
    """The results that each notebook reads: it is run again when they change."""
    found = {}
    for name, given in plan.items():
        values = {**parameter_defaults(root / "notebooks" / f"{name}.py"), **given}
        found[name] = [f for key in values if key.endswith(FILES) for f in values[key]]
    return found


def atari_jobs(root: Path, profile: str, device: str, elsewhere: bool) -> dict[str, Any]:
    """The games, seeds and scale of a profile's `atari:` entry; raises on anything wrong.

    elsewhere: the jobs run on other machines, which may have the device when this one has not.
    """
    from jmdp_lib.atari.emulator import title
    from jmdp_lib.atari.training import require_device

    entry = load_profile(root, profile).get(ATARI)
    if not isinstance(entry, dict) or set(entry) != {"games", "seeds", "scale"}:
        raise ProjectError(f"{profile}.yaml: needs an entry `{ATARI}:` with games, seeds, scale")
    where = f"{profile}.yaml: {ATARI}"
    try:
        if not (elsewhere and device.startswith("cuda")):
            require_device(device)
        named = isinstance(entry["games"], list)
        games = [title(name) for name in entry["games"]] if named else []
    except (RuntimeError, ValueError) as error:
        raise ProjectError(f"{where}: {error}") from error
    for key, values, kind in (("games", games, str), ("seeds", entry["seeds"], int)):
        listed = isinstance(values, list) and values and all(type(v) is kind for v in values)
        if not listed or len(set(values)) < len(values):
            raise ProjectError(f"{where}: {key} must be a list of distinct {kind.__name__}s")
    if min(entry["seeds"]) < 0:
        raise ProjectError(f"{where}: seeds must be numbers >= 0")
    scale = entry["scale"]
    if type(scale) not in (int, float) or not 0 < scale <= 1:
        raise ProjectError(f"{where}: scale must be a number in (0, 1], found {scale!r}")
    return {**entry, "games": games, "device": device}


def with_own_results(layout: Layout, plan: Plan) -> Plan:
    """The plan with the Atari results of this profile in place of the committed ones."""
    changed = {}
    for name, given in plan.items():
        values = {**parameter_defaults(layout.root / "notebooks" / f"{name}.py"), **given}
        own = {}
        for key in (key for key in values if key.endswith(FILES)):
            moved = [f"out/{layout.profile}/{ATARI}/{Path(file).name}"
                     if of_atari(file) else file
                     for file in values[key]]  # fmt: skip
            if moved != values[key]:
                own[key] = moved
        changed[name] = {**given, **own}
    return changed


def make_plan(root: Path, profile: str, own_results: bool = False) -> Plan:
    """Every notebook with the parameters that the profile gives it; raises on anything wrong.

    own_results: the Atari results are still to be made.
    """
    entries = load_profile(root, profile)
    entries.pop(ATARI, None)
    names = notebook_names(root)
    if not names:
        raise ProjectError("there are no notebooks named NN_name.py in notebooks/")
    problems = [
        f"{profile}.yaml: there is no notebook notebooks/{name}.py; known: {', '.join(names)}"
        for name in entries
        if name not in names
    ]
    plan: Plan = {}
    for name in names:
        given = entries.get(name) or {}
        try:
            defaults = parameter_defaults(root / "notebooks" / f"{name}.py")
        except ProjectError as error:
            problems.append(str(error))
            continue
        if defaults.get(OUT_DIR) != "":
            problems.append(f'{name}.py: its parameters cell must have `{OUT_DIR} = ""`')
        wrong = [f"{profile}.yaml: {name}: {p}" for p in entry_problems(defaults, given)]
        if not wrong:
            found = file_problems(root, {**defaults, **given}, own_results)
            wrong = [f"{name}.py: {p}" for p in found]
        problems += wrong
        plan[name] = given
    if problems:
        raise ProjectError("\n".join(problems))
    return plan


@contextlib.contextmanager
def only_run(layout: Layout) -> Iterator[int]:
    """Hold the profile: the kernel frees this lock on any death, unlike Snakemake's own."""
    layout.out.mkdir(parents=True, exist_ok=True)
    with open(layout.out / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Another run of profile {layout.profile} is going on; waiting for it.")
            sys.stdout.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def show(log: Path, done: threading.Event) -> None:
    """Print what is appended to a log until it is done: the jobs themselves write elsewhere."""
    with open(log, errors="replace") as lines:
        last = False
        while not last:
            last = done.wait(1.0)
            print(lines.read(), end="", flush=True)


def run_snakemake(
    layout: Layout, plan: Plan, atari: dict[str, Any] | None, only: list[str], options: list[str],
    visible: bool,
) -> int:  # fmt: skip
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(WORKFLOW / "Snakefile")]
    command += ["--directory", str(layout.out), "--configfile", str(layout.out / "plan.json")]
    with only_run(layout) as lock, open(layout.out / "snakemake.log", "wb") as log:
        for part in layout.out.glob(".*.part"):
            part.unlink()  # of a run that was killed while it wrote
        files = result_files(layout.root, plan)
        content = {"profile": layout.profile, "notebooks": plan, "files": files, ATARI: atari}
        write_atomically(layout.out / "plan.json", json.dumps(content, indent=2) + "\n")
        for name in plan:
            if not all((layout.figures / f).exists() for f in layout.manifest_files(name)):
                # Snakemake knows the notebook, not its figures: make it see what was deleted.
                layout.provenance(name).unlink(missing_ok=True)
        if any((layout.out / ".snakemake" / "locks").glob("*")):
            # Ours is the only run, so Snakemake's lock is left over from a killed one.
            subprocess.run([*command, "--unlock"], stdout=log, stderr=log, check=False)
        command += ["--keep-going", "--rerun-incomplete", "--scheduler", "greedy"]
        command += ["--workflow-profile", "none", "--nocolor", *options]
        targets = [f"notebooks/{name}.ipynb" for name in only]
        # The lock travels to Snakemake: if only this process is killed, the profile stays held.
        process = subprocess.Popen([*command, "--", *targets], stderr=log, pass_fds=[lock])
        # Asked politely, Snakemake would wait for its jobs; killed, they end at once by themselves.
        signal.signal(signal.SIGTERM, lambda *_: process.kill())
        ended = threading.Event()
        printer = threading.Thread(target=show, args=(Path(log.name), ended))
        if visible:
            printer.start()
        try:
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:
                    # Snakemake got the same signal and stops its jobs; leave after it, not before.
                    print("Interrupted: stopping the running notebooks.", flush=True)
        finally:
            ended.set()
            if visible:
                printer.join()


def read_claims(layout: Layout, name: str) -> list[Claim]:
    """The lines `claim | value | verdict` that a notebook's summary cell printed."""
    claims = []
    nb = nbformat.read(layout.notebook(name), as_version=4)
    outputs = [out for cell in nb.cells if has_tag(cell, "summary") for out in cell.outputs]
    for line in "".join(out.text for out in outputs if out.get("name") == "stdout").splitlines():
        parts = [part.strip() for part in line.rsplit("|", 2)]
        if len(parts) == 3 and parts[2] in VERDICTS:
            claims.append(Claim(name, *parts))
    return claims


def print_table(rows: list[Claim]) -> None:
    rows = [Claim("notebook", "claim", "value", "verdict"), *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def summarise(layout: Layout, plan: Plan, selected: list[str], returncode: int) -> int:
    """Print what came out; the exit code of the batch."""
    here = Path("out") / layout.profile
    done = [name for name in selected if layout.notebook(name).exists()]
    claims = [claim for name in done for claim in read_claims(layout, name)]
    if claims:
        print("\nClaims checked")
        print_table(claims)
    if "Nothing to be done" in (layout.out / "snakemake.log").read_text(errors="replace"):
        print("\nNothing had to be run: all results are up to date.")
    silent = sorted(set(done) - {claim.notebook for claim in claims})
    figures = sum(len(layout.manifest_files(name)) for name in plan)
    print(f"\n{len(done)} of {len(selected)} notebooks done, profile {layout.profile}")
    print(f"  executed notebooks   {here / 'notebooks'}")
    print(f"  figures and data     {here / 'figures'} ({figures} files)")
    print(f"  how they were made   {here / 'provenance'}")
    for name in silent:
        print(f"  {name} states no claims: its summary cell printed no `claim | value | verdict`")
    for name in sorted(set(selected) - set(done)):
        if layout.failed(name).exists():
            print(f"FAILED {name}: read {here / 'failed' / name}.ipynb")
        else:
            print(f"NOT DONE {name}: read {here / 'snakemake.log'}")
    broken = [claim for claim in claims if claim.verdict == "FAILS"]
    if broken:
        print(f"{len(broken)} of {len(claims)} claims FAIL")
    elif claims:
        print(f"All {len(claims)} claims hold")
    if returncode and len(done) == len(selected):
        print(f"Snakemake stopped with code {returncode}: read {here / 'snakemake.log'}")
    return 1 if returncode or broken or len(done) < len(selected) else 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="quick", help="a file in workflow/profiles")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--slurm", action="store_true", help="a Slurm job for each notebook")
    parser.add_argument("--atari", metavar="DEVICE", help="train the games anew: cpu or cuda")
    parser.add_argument("--only", nargs="+", action="extend", default=[], metavar="NN_name")
    parser.add_argument("--root", type=Path, default=WORKFLOW.parent, help="the project's folder")
    parser.add_argument("snakemake", nargs="*", help="after --: options for Snakemake")
    arguments = parser.parse_args(argv)
    layout = Layout(arguments.root.resolve(), arguments.profile)
    try:
        if arguments.cores < 1:
            raise ProjectError(f"--cores must be at least 1, found {arguments.cores}")
        if arguments.slurm and not shutil.which("sbatch"):
            raise ProjectError("--slurm: there is no command sbatch on this machine")
        plan = make_plan(layout.root, layout.profile, own_results=bool(arguments.atari))
        atari = None
        if arguments.atari:
            atari = atari_jobs(layout.root, layout.profile, arguments.atari, arguments.slurm)
            plan = with_own_results(layout, plan)
        for name in arguments.only:
            if name not in plan:
                raise ProjectError(f"unknown notebook {name!r}; known: {', '.join(plan)}")
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    selected = list(dict.fromkeys(arguments.only)) or list(plan)
    where = "a Slurm cluster" if arguments.slurm else f"{arguments.cores} cores"
    print(f"Profile {layout.profile}: {len(selected)} notebooks on {where}", flush=True)
    begin = time.monotonic()
    slurm = ["--executor", "slurm", "--jobs", str(SLURM_JOBS)]
    options = slurm if arguments.slurm else ["--cores", str(arguments.cores)]
    options += arguments.snakemake
    visible = arguments.slurm or atari is not None
    returncode = run_snakemake(layout, plan, atari, arguments.only, options, visible)
    code = summarise(layout, plan, selected, returncode)
    print(f"Total time {clock(time.monotonic() - begin)}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
