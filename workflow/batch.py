"""Run every notebook of a profile and say which claims held: `make figures` calls this.

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
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml
from job import end_with_parent, write_atomically
from jsonschema import Draft202012Validator, ValidationError, validators
from notebook_job import OUT_DIR, ProjectError, clock, parameter_defaults
from results import RUNS, STATES, failed_of, mend, publish, read_record, record_of, state_of

WORKFLOW = Path(__file__).resolve().parent
FILES = "_files"  # parameters that end so are lists of files that must be there
ATARI = "atari"  # the entry of a profile that is not a notebook, and the folder of its results
INTERRUPTED = 130  # the exit code
CANCELLING_ROUNDS = 60  # of two seconds; Slurm gives a job half a minute to end, unless configured
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
# In JSON 3.0 is an integer; range() refuses it.
INTEGERS = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, v: type(v) is int)
Validator = validators.extend(Draft202012Validator, type_checker=INTEGERS)


def notebook_names(root: Path) -> list[str]:
    return sorted(p.stem for p in (root / "notebooks").glob("[0-9][0-9]_*.py"))


def schema_of(default: Any) -> dict[str, Any]:
    """What a profile may give in place of this default."""
    if isinstance(default, dict):
        fields = {name: schema_of(value) for name, value in default.items() if name != OUT_DIR}
        return {"type": ["object", "null"], "properties": fields, "additionalProperties": False}
    if isinstance(default, list | tuple):
        items = schema_of(next(iter(default), None))
        return {"type": "array", "items": items, "minItems": min(len(default), 1)}
    return {"type": TYPES[type(default)]} if type(default) in TYPES else {}


def explain(error: ValidationError) -> str:
    where = "".join(f"{step}: " for step in error.absolute_path)
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        unknown = ", ".join(repr(name) for name in error.instance if name not in known)
        return f"{where}unknown {unknown}; known: {', '.join(known)}"
    hint = "; in YAML write 1.0e-8, not 1e-8" if error.validator_value == "number" else ""
    return f"{where}{error.message}{hint}"


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
    schema = schema_of(defaults)
    schema["properties"][ATARI] = yaml.safe_load((WORKFLOW / "schemas/atari.yaml").read_bytes())
    problems = [explain(error) for error in Validator(schema).iter_errors(entries)]
    if problems:
        raise ProjectError("\n".join(f"{profile}.yaml: {problem}" for problem in problems))
    return entries


def atari_jobs(entry: dict[str, Any] | None, device: str, elsewhere: bool) -> dict[str, Any]:
    """The games, seeds and settings of a profile's `atari:` entry, and the device.

    elsewhere: the jobs run on other machines, which may have the device when this one has not.
    """
    from experiments.atari.training import require_device
    from jmdp_lib.atari.emulator import title

    if entry is None:
        raise ProjectError(f"the profile needs an entry `{ATARI}:` with games and seeds")
    try:
        if not (elsewhere and device.startswith("cuda")):
            require_device(device)
        games = [title(name) for name in entry["games"]]
    except (RuntimeError, ValueError) as error:
        raise ProjectError(f"{ATARI}: {error}") from error
    if len(set(games)) < len(games):
        raise ProjectError(f"{ATARI}: games must be distinct, found {games}")
    return {**entry, "games": games, "device": device}


def make_plan(
    root: Path, profile: str, device: str | None = None, elsewhere: bool = False
) -> dict[str, Any]:
    """What the Snakefile works through; raises on anything wrong.

    notebooks: the parameters that each is given; atari: the games to be trained on `device`, if
    there is one.
    """
    paths = [root / "notebooks" / f"{name}.py" for name in notebook_names(root)]
    defaults = {path.stem: parameter_defaults(path) for path in paths}
    entries = load_profile(root, profile, defaults)
    atari = atari_jobs(entries.get(ATARI), device, elsewhere) if device else None

    def found(name: str, file: str) -> str:
        if atari and Path(file).name.startswith("atari_paper_"):
            return f"out/{profile}/{ATARI}/{Path(file).name}"
        if not (root / file).is_file():
            raise ProjectError(f"{name}: there is no file {file}")
        return file

    if atari and "settings" in atari:
        found(f"{profile}.yaml", atari["settings"])

    notebooks = {name: entries.get(name) or {} for name in defaults}
    for name, given in notebooks.items():
        files = {k: v for k, v in {**defaults[name], **given}.items() if k.endswith(FILES)}
        given |= {k: [found(f"{name}.py", file) for file in files[k]] for k in files}
    return {"profile": profile, "notebooks": notebooks, ATARI: atari}


def job_prefix(out: Path) -> str:
    """How the names of this profile's Slurm jobs begin: no other project or profile has it."""
    return f"jmdp-{hashlib.sha256(str(out).encode()).hexdigest()[:12]}"


def slurm_options(out: Path) -> list[str]:
    """Options for Snakemake; `squeue` tells how jobs ended where no accounting database does."""
    asked = subprocess.run("sacct --noheader --allocations", shell=True, capture_output=True)
    tells = f"--slurm-status-command {'squeue' if asked.returncode else 'sacct'}"
    name = f"--slurm-jobname-prefix {job_prefix(out)}"
    return f"--executor slurm --jobs 100 {name} {tells}".split()


def cancel_jobs(out: Path) -> None:
    """Cancel the Slurm jobs of this profile, and wait until they have ended."""
    command = ["squeue", "--me", "--noheader", "--format=%j %i"]
    numbers: list[str] = []
    for _ in range(CANCELLING_ROUNDS):
        listed = subprocess.run(command, capture_output=True, text=True)
        if listed.returncode:
            raise ProjectError(f"Slurm does not answer: {listed.stderr.strip()}")
        left = re.findall(rf"^{job_prefix(out)}.* (\d+)$", listed.stdout, re.MULTILINE)
        if not left:
            return
        if left != numbers:
            print(f"Cancelling Slurm jobs of an interrupted run: {' '.join(left)}", flush=True)
        numbers = left
        subprocess.run(["scancel", *numbers], check=False)
        time.sleep(2.0)
    raise ProjectError(
        f"Slurm jobs {' '.join(numbers)} do not end. Results are safe only after their end: try "
        f"`scancel --signal=KILL {' '.join(numbers)}`, or ask those who run the cluster"
    )


@contextlib.contextmanager
def signals(handler: Any) -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM alike, for a while."""
    before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, earlier in before.items():
            signal.signal(signum, earlier)


def stop(snakemake: subprocess.Popen[bytes]) -> None:
    """End Snakemake and its jobs.

    Asked politely, it would wait for them. Jobs are asked, so that they can tidy up.
    """
    family, jobs = [], []
    with contextlib.suppress(psutil.NoSuchProcess):
        jobs = psutil.Process(snakemake.pid).children()
        family = psutil.Process(snakemake.pid).children(recursive=True)
    snakemake.kill()
    snakemake.wait()
    for job in jobs:
        with contextlib.suppress(psutil.NoSuchProcess):
            job.terminate()
    psutil.wait_procs(family, timeout=20)


def wait_for(snakemake: subprocess.Popen[bytes]) -> int:
    """Wait for the end of Snakemake, or for a signal, which ends it; its code or INTERRUPTED."""
    try:
        return snakemake.wait()
    except KeyboardInterrupt:
        with signals(signal.SIG_IGN):  # a second one must not stop the tidying up
            stop(snakemake)
        return INTERRUPTED


def check_results(out: Path, names: list[str]) -> None:
    """Compare all results with their records, and say what was damaged."""
    for part in (out / RUNS).glob(".*.part"):  # of a run that was killed
        part.unlink(missing_ok=True)
    for name in names:
        if told := mend(out, name):
            print(told, flush=True)


def run_snakemake(out: Path, plan: dict[str, Any], options: list[str], visible: bool) -> int:
    """Bring results up to date; Snakemake's exit code. Its log goes into a file, or is visible."""
    command = [sys.executable, str(WORKFLOW / "job.py"), str(os.getpid()), "--snakefile"]
    command += [str(WORKFLOW / "Snakefile"), "--directory", str(out), "--nolock", "--nocolor"]
    command += ["--configfile", str(out / "plan.json"), "--keep-going", "--rerun-incomplete"]
    command += ["--scheduler", "greedy", "--workflow-profile", "none", *options]
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "w") as lock:  # freed on any death, unlike Snakemake's own
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Another run of profile {out.name} is going on; waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if "slurm" in options:
            cancel_jobs(out)
        check_results(out, list(plan["notebooks"]))
        write_atomically(out / "plan.json", json.dumps(plan, indent=2) + "\n")
        with open(out / "snakemake.log", "wb") as log:
            # The lock travels to Snakemake: the profile stays held until that has ended, too.
            told = None if visible else log
            process = subprocess.Popen(command, stderr=told, pass_fds=[lock.fileno()])
        code = wait_for(process)
        if "slurm" in options:
            time.sleep(1.0)  # what Snakemake was just submitting
            cancel_jobs(out)
        for name in plan["notebooks"]:
            with contextlib.suppress(OSError):  # the summary says what is not shown
                publish(out, name)
    return code


def print_claims(claims: list[tuple[str, ...]]) -> None:
    print("\nClaims checked")
    rows = [("notebook", "claim", "value", "verdict"), *claims]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


def print_places(out: Path, states: dict[str, list[str]], num_figures: int) -> None:
    """Print how many notebooks are done, where results are, and which notebooks are unfinished."""
    here = Path("out", out.name)
    total = sum(map(len, states.values()))
    print(f"\n{len(states['done'])} of {total} notebooks done, profile {out.name}")
    print(f"  executed notebooks   {here / 'notebooks'}")
    print(f"  figures and data     {here / 'figures'} ({num_figures} files)")
    print(f"  how they were made   {here / 'provenance'}")
    for word in ("interrupted", "not started"):
        if states[word]:
            print(f"  {word:<19}  {', '.join(states[word])}")


def refusal_to_write(out: Path) -> str:
    """What the system says when a mebibyte is written there: "No space left on device", or ""."""
    try:
        with tempfile.TemporaryFile(dir=out, buffering=0) as file:
            file.write(bytes(2**20))
            file.write(b" ")  # the first may have been written in part, without an error
    except OSError as error:
        return str(error.strerror)
    return ""


def failures(out: Path, states: dict[str, list[str]], code: int, log: str) -> list[str]:
    """What to read about each notebook that failed, or about the end of Snakemake, and why."""
    refusal = refusal_to_write(out)
    why = f"{refusal}; " if refusal else ""
    hidden = [n for n in states["done"] if not (out / "provenance" / f"{n}.json").exists()]
    told = [f"{name}: done, but not shown: {why}read the messages above" for name in hidden]
    for name in states["failed"]:
        where = f"out/{out.name}/failed/{name}.ipynb"
        if not failed_of(out, name).exists():
            where = f"the messages above and {log}; nothing of it could be kept"
        told.append(f"{name}: {why}read {where}")
    if code not in (0, INTERRUPTED) and not states["failed"]:
        told.append(f"Snakemake stopped with code {code}: {why}read {log}")
    return told


def summarise(out: Path, selected: list[str], code: int, log: str) -> int:
    """Print what came out; the exit code of the batch. log: where Snakemake's messages are."""
    found = {name: read_record(out, name) for name in selected}
    records = {name: record for name, record in found.items() if record is not None}
    claims = [(name, *claim) for name, record in records.items() for claim in record["claims"]]
    states = {word: [n for n in selected if state_of(out, n) == word] for word in STATES}
    written = Counter(file for record in records.values() for file in record["figures"])
    if claims:
        print_claims(claims)
    if "Nothing to be done" in (out / "snakemake.log").read_text(errors="replace"):
        print("\nNothing had to be run: all results are up to date.")
    print_places(out, states, len(written))
    problems = [f"{file} is written by two notebooks" for file in written if written[file] > 1]
    problems += failures(out, states, code, log)
    broken = sum(claim[-1] == "FAILS" for claim in claims)
    if broken:
        problems.append(f"{broken} of {len(claims)} claims")
    all_is_well = not problems and len(states["done"]) == len(selected)
    if claims and not broken:
        others = Counter(claim[-1] for claim in claims if claim[-1] != "holds")
        rest = "".join(f"; {verdict}: {count}" for verdict, count in others.items())
        every = "All " if all_is_well and not others else ""
        print(f"{every}{len(claims) - others.total()} claims hold{rest}")
    for problem in problems:
        print(f"FAILED {problem}")
    if code == INTERRUPTED:
        return INTERRUPTED
    return 0 if all_is_well else 1


def cores_of(given: argparse.Namespace) -> int:
    """How many notebooks run at a time."""
    if given.cores is None:
        from jmdp_lib.machine import cores

        return cores()
    if given.cores < 1:
        raise ProjectError(f"--cores must be at least 1, found {given.cores}")
    return int(given.cores)


def run_batch(given: argparse.Namespace) -> int:
    """Check what is asked for, run it and say what came out; the exit code."""
    root = given.root.resolve()
    out = root / "out" / given.profile
    cores = cores_of(given)
    if given.slurm and not shutil.which("sbatch"):
        raise ProjectError("--slurm: there is no command sbatch on this machine")
    plan = make_plan(root, given.profile, given.atari, given.slurm)
    selected = list(dict.fromkeys(given.only or plan["notebooks"]))
    for name in set(selected) - set(plan["notebooks"]):
        raise ProjectError(f"unknown notebook {name!r}; known: {', '.join(plan['notebooks'])}")
    where = "a Slurm cluster" if given.slurm else f"{cores} cores"
    print(f"Profile {given.profile}: {len(selected)} notebooks on {where}", flush=True)
    options = slurm_options(out) if given.slurm else ["--cores", str(cores)]
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
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this parent has died")
    parser.add_argument("snakemake", nargs="*", help="after --: options for Snakemake")
    given = parser.parse_args(argv)
    begin = time.monotonic()
    if given.parent:
        end_with_parent(given.parent)
    try:
        with signals(signal.default_int_handler):
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
    sys.exit(main(sys.argv[1:]))
