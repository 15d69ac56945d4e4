"""Run every notebook of a profile and print the verdicts of its claims: `make figures` calls this.

Everything that can be wrong in profiles and parameters is refused before any work, and so is a
missing result that a notebook reads (a parameter named *_files, paths from the project's folder).
Then Snakemake runs one job per notebook, in parallel, and repeats nothing that is done. A failing
notebook is kept in `failed/` and the others go on. With `--slurm` each is a job of a Slurm cluster.
With `--atari DEVICE` the Atari games are trained anew first, a job for each game of the
profile's `atari:` entry, and the notebooks read those results instead of the committed ones.
Arguments after `--` go to Snakemake (`--slurm -- --default-resources slurm_account=me`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import yaml
from children import INTERRUPTED, on_signals, wait_for
from job import outlive_terminal
from notebook_job import (
    ProjectError,
    claims_of,
    clock,
    damaged_files,
    figures_of,
    locked,
    parameter_defaults,
    record_of,
)

WORKFLOW = Path(__file__).resolve().parent
FILES = "_files"  # parameters that end so are lists of files that must be there
# What training the games anew writes (experiments/release/results.py).
TABLES = ["td_errors", "predictions", "pairs", "runs"]
ATARI = "atari"  # the entry of a profile that is not a notebook, and the folder of its results
PATIENCE = 1.0  # seconds that jobs have to end before they are killed
SLURM_PATIENCE = 60.0  # until Snakemake has cancelled its jobs
GAMES = {"games": ["Pong"], "seeds": [0], "miniature": False}  # what the entry may say


def notebook_names(root: Path) -> list[str]:
    return sorted(p.stem for p in (root / "notebooks").glob("[0-9][0-9]_*.py"))


def misfits(value: Any, default: Any, where: str) -> Iterator[str]:
    """Each value of a profile that is not like the default in whose place it stands."""
    kinds = {float: (float, int), tuple: (list,), dict: (dict, type(None))}
    allowed = kinds.get(type(default), (type(default),))  # neither True nor 3.0 is an int
    if type(value) not in allowed:
        hint = "; in YAML write 1.0e-8, not 1e-8" if isinstance(default, float) else ""
        yield f"{where}: {value!r} must be of type {allowed[0].__name__}{hint}"
    elif isinstance(value, dict):
        for name, given in value.items():
            if name in default:
                yield from misfits(given, default[name], f"{where}: {name}")
            else:
                yield f"{where}: unknown {name!r}; known: {', '.join(default)}"
    elif isinstance(value, list) and default:
        for place, entry in enumerate(value):
            yield from misfits(entry, default[0], f"{where}: {place}")
        if not value:
            yield f"{where}: [] should be non-empty"


def load_profile(root: Path, profile: str, defaults: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The parameters that a profile gives to each notebook; raises on all that do not fit."""
    folder = root / "workflow" / "profiles"
    known = sorted(p.stem for p in folder.glob("*.yaml"))
    if profile not in known:
        raise ProjectError(f"unknown profile {profile!r}; known profiles: {', '.join(known)}")
    try:
        entries = yaml.safe_load((folder / f"{profile}.yaml").read_bytes()) or {}
    except yaml.YAMLError as error:
        raise ProjectError(f"{profile}.yaml: not valid YAML: {error}") from error
    if problems := [*misfits(entries, defaults | {ATARI: GAMES}, f"{profile}.yaml")]:
        raise ProjectError("\n".join(problems))
    return entries


def atari_jobs(entry: dict[str, Any] | None, device: str, elsewhere: bool) -> dict[str, Any]:
    """The games, seeds and settings of a profile's `atari:` entry, and the device.

    elsewhere: the jobs run on other machines, which may have the device when this one has not.
    """
    from experiments.processes import require_device
    from jmdp_lib import checks
    from jmdp_lib.atari.emulator import title

    if not entry or not {"games", "seeds"} <= entry.keys():
        raise ProjectError(f"the profile needs an entry `{ATARI}:` with games and seeds")
    try:
        if not (elsewhere and device.startswith("cuda")):
            require_device(device)
        checks.at_least("seeds", min(entry["seeds"]), 0)
        games = [title(name) for name in entry["games"]]
    except (RuntimeError, ValueError) as error:
        raise ProjectError(f"{ATARI}: {error}") from error
    for name, listed in {"games": games, "seeds": entry["seeds"]}.items():
        if len(set(listed)) < len(listed):
            raise ProjectError(f"{ATARI}: {name} must be distinct, found {listed}")
    return {**entry, "games": games, "device": device, "tables": TABLES}


def make_plan(
    root: Path, profile: str, device: str | None = None, elsewhere: bool = False
) -> dict[str, Any]:
    """The plan that the Snakefile works through; raises on anything wrong.

    notebooks: the parameters that each is given; atari: the games to be trained on `device`, if
    there is one.
    """
    paths = [root / "notebooks" / f"{name}.py" for name in notebook_names(root)]
    defaults = {path.stem: parameter_defaults(path) for path in paths}
    entries = load_profile(root, profile, defaults)
    atari = atari_jobs(entries.get(ATARI), device, elsewhere) if device else None

    def found(name: str, file: str) -> str:
        if atari and file.startswith("figures/atari/") and Path(file).stem in TABLES:
            return f"out/{profile}/{ATARI}/{Path(file).name}"
        if not (root / file).is_file():
            raise ProjectError(f"{name}: there is no file {file}")
        return file

    notebooks = {name: entries.get(name) or {} for name in defaults}
    for name, given in notebooks.items():
        files = {k: v for k, v in {**defaults[name], **given}.items() if k.endswith(FILES)}
        given |= {k: [found(f"{name}.py", file) for file in files[k]] for k in files}
    return {"profile": profile, "notebooks": notebooks, ATARI: atari}


def name_of_jobs(out: Path) -> str:
    """Beginning of the names of Slurm jobs whose results are in `out`."""
    return f"jmdp-{hashlib.sha256(bytes(out.resolve())).hexdigest()[:12]}"


def slurm_options(out: Path) -> list[str]:
    """Options for Snakemake; it asks `squeue` about its jobs where `sacct` has no database."""
    answered = subprocess.run("sacct --noheader --allocations", shell=True, capture_output=True)
    options = ["--slurm-status-command", "squeue" if answered.returncode else "sacct"]
    options += ["--slurm-jobname-prefix", name_of_jobs(out)]
    return ["--executor", "slurm", "--jobs", "100", *options]


def cancel_jobs(out: Path) -> None:
    """Cancel the Slurm jobs that are left: of a batch that was killed outright, or those that
    Snakemake had just submitted when it was stopped, and does not cancel."""
    command = ["squeue", "--me", "--noheader", "--format=%i %j"]
    listed = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    if left := [line.split()[0] for line in listed if f" {name_of_jobs(out)}_" in line]:
        print("Cancelling Slurm jobs that were left:", *left, flush=True)
        subprocess.run(["scancel", *left])


def forget_damaged(out: Path, names: Iterable[str]) -> None:
    """Remove the records of damaged results, so that Snakemake makes these again.

    It would notice that a file is missing, but not that one was truncated.
    """
    for name in names:
        record = record_of(out, name)
        if record.exists() and (damaged := damaged_files(out, name)):
            files = ", ".join(f"out/{out.name}/{file}" for file in damaged)
            print(f"Damaged or missing: {files}; {name} has to run again", flush=True)
            record.unlink()


def show_figures(out: Path, names: Iterable[str]) -> None:
    """Show the figures of all finished notebooks together."""
    shown = out / "figures"
    shutil.rmtree(shown, ignore_errors=True)
    own = shutil.ignore_patterns(".snakemake_timestamp")
    for name in names:
        if record_of(out, name).exists():
            shutil.copytree(figures_of(out, name), shown, ignore=own, dirs_exist_ok=True)


def run_snakemake(out: Path, plan: dict[str, Any], options: list[str], visible: bool) -> int:
    """Bring results up to date; Snakemake's exit code. Its log goes into a file, or is visible."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(WORKFLOW / "Snakefile")]
    command += ["--directory", str(out), "--configfile", str(out / "plan.json"), "--nolock"]
    command += ["--nocolor", "--keep-going", "--rerun-incomplete", "--scheduler", "greedy"]
    command += ["--workflow-profile", "none", *options]
    waiting = f"Another run of profile {out.name} is going on; waiting for it."
    with locked(out / ".locks" / "batch", waiting) as lock:
        if "slurm" in options:
            cancel_jobs(out)
        forget_damaged(out, plan["notebooks"])
        # Where `out` is a link to another disk, the sources are not two folders above it.
        plan["root"] = os.path.relpath(out.parents[1], out.resolve())
        (out / "plan.json").write_text(json.dumps(plan, indent=2) + "\n")
        with open(out / "snakemake.log", "wb") as log:
            # The lock travels to Snakemake: the profile stays held until that has ended, too.
            # In a session of its own, it does not get a Ctrl-C of the terminal beside ours.
            process = psutil.Popen(
                command,
                stderr=None if visible else log,
                pass_fds=[lock],
                start_new_session=True,
            )
        code = wait_for(process, SLURM_PATIENCE if "slurm" in options else PATIENCE)
        if code == INTERRUPTED and "slurm" in options:
            cancel_jobs(out)
        show_figures(out, plan["notebooks"])
    return code


def summarise(out: Path, selected: list[str], code: int, log: str) -> int:
    """Print the results; the exit code of the batch. log: the place of Snakemake's messages."""
    finished = [name for name in selected if record_of(out, name).exists()]
    verdicts: Counter[str] = Counter()
    print("\nClaims checked: verdict, notebook, claim | value")
    for name in finished:
        executed = nbformat.read(out / "notebooks" / f"{name}.ipynb", as_version=4)
        for claim, value, verdict in claims_of(executed):
            print(f"{verdict:<24}  {name[:2]}  {claim} | {value}")
            verdicts[verdict] += 1
    if "Nothing to be done" in (out / "snakemake.log").read_text(errors="replace"):
        print("\nNothing had to be run: all results are up to date.")
    print(f"\n{len(finished)} of {len(selected)} notebooks done: look into out/{out.name}")
    print("Claims:", ", ".join(f"{verdict} {count}" for verdict, count in verdicts.items()))
    if verdicts["goal missed"]:
        print("goal missed: a goal of our own was not reached; the paper claims nothing of it")
    if code == INTERRUPTED:
        return code
    lost = [name for name in selected if name not in finished]
    kept = [name for name in lost if (out / "failed" / f"{name}.ipynb").exists()]
    problems = [f"{name}: read out/{out.name}/failed/{name}.ipynb and {log}" for name in kept]
    if code and not problems:
        problems = [f"Snakemake stopped with code {code}: read {log}"]
    if verdicts["FAILS"]:
        problems.append(f"{verdicts['FAILS']} of {verdicts.total()} claims")
    for problem in problems:
        print(f"FAILED {problem}")
    return int(bool(problems or lost))


def run_batch(given: argparse.Namespace) -> int:
    """Check the request, run it and print the results; the exit code."""
    root = given.root.resolve()
    out = root / "out" / given.profile
    if given.cores is not None and given.cores < 1:
        raise ProjectError(f"--cores must be at least 1, found {given.cores}")
    for link in (out.parent, out):
        if link.is_symlink() and not link.is_dir():
            raise ProjectError(f"{link} is a link to {link.readlink()}, which is no folder")
    if given.slurm and not shutil.which("sbatch"):
        raise ProjectError("--slurm: there is no command sbatch on this machine")
    plan = make_plan(root, given.profile, given.atari, given.slurm)
    selected = list(dict.fromkeys(given.only or plan["notebooks"]))
    for name in set(selected) - set(plan["notebooks"]):
        raise ProjectError(f"unknown notebook {name!r}; known: {', '.join(plan['notebooks'])}")
    cores = str(given.cores or "all")
    where = "a Slurm cluster" if given.slurm else f"{cores} cores"
    print(f"Profile {given.profile}: {len(selected)} notebooks on {where}", flush=True)
    options = slurm_options(out) if given.slurm else ["--cores", cores]
    targets = [str(record_of(Path(), name)) for name in selected]
    visible = given.slurm or bool(given.atari)
    code = run_snakemake(out, plan, [*options, *given.snakemake, "--", *targets], visible)
    log = "those of Snakemake" if visible else f"out/{given.profile}/snakemake.log"
    return summarise(out, selected, code, log)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="quick", help="a file in workflow/profiles")
    parser.add_argument("--cores", type=int, metavar="N", help="all that there are")
    parser.add_argument("--slurm", action="store_true", help="a Slurm job for each notebook")
    parser.add_argument("--atari", metavar="DEVICE", help="train the games anew: cpu or cuda")
    parser.add_argument("--only", nargs="+", action="extend", default=[], metavar="NN_name")
    parser.add_argument("--root", type=Path, default=WORKFLOW.parent, help="the project's folder")
    parser.add_argument("snakemake", nargs="*", help="after --: options for Snakemake")
    given = parser.parse_args(argv)
    begin = time.monotonic()
    try:
        on_signals(signal.default_int_handler)
        code = run_batch(given)
    except (ProjectError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        print("interrupted; the same command goes on from here")
    print(f"Total time {clock(time.monotonic() - begin)}")
    return code


if __name__ == "__main__":
    outlive_terminal()
    sys.exit(main(sys.argv[1:]))
