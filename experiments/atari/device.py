"""Trainings of the protocol on a machine with one GPU.

    python -m experiments.atari.device run --work WORK --runs calibrate:Pong:10:base ...
    python -m experiments.atari.device run --work WORK --settings FILE --device cpu --runs ...

Other processes play the games, and evaluate networks that are trained. This one trains. Each
training has a stream of the GPU, and they take turns: small kernels of several streams run at once.
They begin in the order of --runs, PART:GAME:SEED:TRIAL each. What is finished is a file under WORK,
and is not made again. The work ends when all is done, or cleanly when the --seconds are over.

    jobs    tables PART GAME SEED           states to learn from, ready for the GPU
            pairs PART GAME                 evaluation states, and plays from them
            gaps PART GAME SEED TRIAL       predictions of a trained run beside the simulation
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from experiments.atari.experiment import Experiment, collected_tables, evaluate, monte_carlo
from experiments.atari.networks import Network
from experiments.atari.protocol import (
    PROJECT,
    PROTOCOL,
    STATES_OF,
    experiment_of,
    place_of,
    settings,
)
from experiments.atari.recursive_pairs import PairRecords
from experiments.atari.replay import Replay
from experiments.atari.tables import QueryTables
from experiments.atari.training import Run, Trained, require_device, steps_to_the_end
from jmdp_lib.machine import replacing

sys.path.append(str(PROJECT / "workflow"))

from job import provenance

STARTED = time.monotonic()
LANES = {"play": 4, "evaluate": 8}  # jobs at a time
PROCESSES = 4  # that play games in one job
SLOTS = 14  # trainings at a time
TURNS = 750  # of a training; it makes so many steps in each
KEYS = ["game", "states", "gamma", "state"]
SIMULATED = [
    "mc_mean",
    "mc",
    "mc_independent",
    "mc_mean_error",
    "mc_error",
    "mc_independent_error",
    "mc_covariance",
]


def say(*words: object) -> None:
    """A line of the log, with the seconds since the start."""
    print(f"{time.monotonic() - STARTED:7.1f}", *words, flush=True)


@dataclass(frozen=True)
class Training:
    """A run to train: of a part, a game and a seed, with a trial."""

    part: str
    game: str
    seed: int
    trial: str

    @classmethod
    def of(cls, run: str) -> Training:
        """As --runs names it."""
        part, game, seed, trial = run.split(":")
        table = settings(part, game)
        if game not in table["games"] or trial not in table["trials"]:
            raise ValueError(f"the protocol has no run {run}")
        return cls(part, game, int(seed), trial)

    @property
    def states(self) -> str:
        """The part whose states it learns from."""
        return STATES_OF.get(self.part, self.part)

    @property
    def label(self) -> str:
        """The trial, as the files of the run name it: parts that share a folder do not clash."""
        return self.trial if self.part == self.states else f"{self.part}_{self.trial}"

    @property
    def experiment(self) -> Experiment:
        experiment = experiment_of(self.part, self.game, self.trial)
        return replace(experiment, config=replace(experiment.config, seed=self.seed))


# Jobs: what other processes do. Each writes one file, which is its result.


def prepare_tables(options: argparse.Namespace) -> None:
    """Collect the states of a seed, and group them for the GPU; write prepared-SEED.pt."""
    home = place_of(options.part, options) / options.game
    experiment = experiment_of(options.part, options.game)
    tables, held_out = collected_tables(experiment, options.seed, home, options.processes)
    network = Network.of(tables, experiment.config)
    prepared = {
        "tables": vars(Replay.of(tables)),
        "held_out": vars(Replay.of(held_out)),
        "network": (network.sizes, network.rewards, network.varied),
        "checksum of the tables": tables.checksum,
        "checksum of the held-out tables": held_out.checksum,
    }
    with replacing(home / f"prepared-{options.seed}.pt") as part:
        torch.save(prepared, part)


def play_pairs(options: argparse.Namespace) -> None:
    """Play what networks are compared with; write pairs.done."""
    home = place_of(options.part, options) / options.game
    for fresh in settings(options.part, options.game)["fresh"]:
        simulated(fresh, home, options)
    (home / "pairs.done").touch()


def simulated(
    fresh: int, home: Path, options: argparse.Namespace
) -> tuple[QueryTables, PairRecords, PairRecords | None]:
    """`monte_carlo` at the states of a number; pairs whose estimates are kept are not played."""
    experiment = experiment_of(options.part, options.game)
    known = len(known_gaps(options, fresh)) > 0
    return monte_carlo(experiment, home, options.processes, fresh, known)


def known_gaps(options: argparse.Namespace, fresh: int) -> pd.DataFrame:
    """The estimates that are kept of a game at the states of a number, if any."""
    rows = pd.read_csv(options.known)
    return rows[(rows.game == options.game) & (rows.states == fresh)][[*KEYS, *SIMULATED]]


def write_gaps(options: argparse.Namespace) -> None:
    """Evaluate a trained run beside the simulation; write gaps-SEED-LABEL.csv."""
    home = place_of(options.part, options) / options.game
    name = f"{options.seed}-{options.label}"
    trained = Trained.load(home / f"run-{name}")
    experiment = replace(
        experiment_of(options.part, options.game), config=replace(trained.network.config, seed=0)
    )
    frames = []
    for fresh in settings(options.part, options.game)["fresh"]:
        found = simulated(fresh, home, options)
        frame = evaluate(experiment, options.seed, trained, *found).assign(states=fresh)
        known = known_gaps(options, fresh)
        if len(known):
            frame = frame.drop(columns=SIMULATED).merge(known, on=KEYS, validate="many_to_one")
        frames.append(frame)
    with replacing(home / f"gaps-{name}.csv") as file:
        pd.concat(frames).to_csv(file, index=False, float_format="%.8g")


JOBS = {"tables": prepare_tables, "pairs": play_pairs, "gaps": write_gaps}


class Lanes:
    """Jobs in order, so many at a time; threads wait for the processes that do them.

    A job begins when the file that it needs is there.
    """

    def __init__(self, count: int, options: argparse.Namespace) -> None:
        self.waiting: list[tuple[Path, tuple[str, ...]]] = []
        self.options = options
        self.lock = threading.Lock()
        self.failed: list[tuple[str, ...]] = []
        self.working = 0
        self.closed = False
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def add(self, needs: Path, *words: object) -> None:
        with self.lock:
            self.waiting.append((needs, tuple(map(str, words))))

    def _next(self) -> tuple[Path, tuple[str, ...]] | None:
        return next((job for job in self.waiting if job[0].exists()), None)

    @property
    def idle(self) -> bool:
        with self.lock:
            return not self.working and self._next() is None

    def _work(self) -> None:
        while not self.closed:
            with self.lock:
                found = self._next()
                if found is not None:
                    self.waiting.remove(found)
                    self.working += 1
            if found is None:
                time.sleep(0.1)
                continue
            job = found[1]
            began = time.monotonic()
            done = subprocess.run(
                job_command(job, self.options),
                stderr=subprocess.STDOUT,
                stdout=(self.options.work / "jobs.log").open("a"),
            )
            say("job", *job, f"{time.monotonic() - began:.1f} s", f"rc {done.returncode}")
            with self.lock:
                self.working -= 1
                if done.returncode:
                    self.failed.append(job)


def job_command(job: Sequence[str], options: argparse.Namespace) -> list[str]:
    """The command of a job, with the options of this one."""
    command = [sys.executable, "-m", "experiments.atari.device", *job]
    command += ["--work", str(options.work), "--known", str(options.known)]
    command += ["--processes", str(options.processes)]
    return command + (["--settings", str(options.settings)] if options.settings else [])


# Training, in this process.


class Active:
    """A training under way: its stream, and its steps to the end."""

    def __init__(self, training: Training, slot: Any, inputs: dict[str, Any], home: Path) -> None:
        self.training = training
        self.slot = slot
        config = training.experiment.config
        sizes, rewards, varied = inputs["network"]
        network = Network(config, sizes, rewards, varied, inputs["device"])
        checksums = {name: x for name, x in inputs.items() if name.startswith("checksum")}
        folder = home / f"run-{training.seed}-{training.label}"
        run = Run(network, inputs["tables"], folder, asdict(config) | checksums)
        self.steps = steps_to_the_end(run, inputs["held_out"])
        self.steps_a_turn = max(1, config.steps // TURNS)
        self.began = time.monotonic()

    def turn(self) -> bool:
        """Some steps; whether there are more."""
        context: AbstractContextManager[Any] = nullcontext()
        if self.slot is not None:
            context = torch.cuda.stream(self.slot)
        with context:
            return all(next(self.steps, None) is not None for _ in range(self.steps_a_turn))


class Inputs:
    """What trainings learn from, on the device; only the last few are kept."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.kept: dict[Path, dict[str, Any]] = {}

    def path(self, training: Training) -> Path:
        home = place_of(training.part, self.options) / training.game
        return home / f"prepared-{training.seed}.pt"

    def ready(self, training: Training) -> bool:
        return self.path(training).exists()

    def load(self, training: Training) -> dict[str, Any]:
        path = self.path(training)
        if path not in self.kept:
            while len(self.kept) >= 12:
                self.kept.pop(next(iter(self.kept)))
            stored = torch.load(path, weights_only=True)
            for name in ("tables", "held_out"):
                stored[name] = moved(stored[name], self.options.device)
            self.kept[path] = stored | {"device": self.options.device}
        return self.kept[path]


def moved(parts: dict[str, Any], device: str) -> Replay:
    """A Replay on the device."""
    columns = {name: column.to(device) for name, column in parts["columns"].items()}
    others = {name: part.to(device) for name, part in parts.items() if name != "columns"}
    return Replay(columns=columns, **others)


class Work:
    """All trainings: those to come, in order, and those under way."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.inputs = Inputs(options)
        self.playing = Lanes(LANES["play"], options)
        self.evaluating = Lanes(LANES["evaluate"], options)
        on_gpu = options.device != "cpu"
        self.slots = [torch.cuda.Stream() if on_gpu else None for _ in range(SLOTS)]
        self.active: list[Active] = []
        self.todo = [Training.of(run) for run in options.runs]
        for job in dict.fromkeys((t.states, t.game, t.seed) for t in self.todo):
            self.playing.add(options.work, "tables", *job)
        for place in dict.fromkeys((t.states, t.game) for t in self.todo):
            self.playing.add(options.work, "pairs", *place)

    def go(self) -> None:
        """Train until all is done or the time is over."""
        while time.monotonic() - STARTED < self.options.seconds:
            self._start_more()
            for active in list(self.active):
                self._turn(active)
            if not self.active:
                quiet = self.playing.idle and self.evaluating.idle
                if quiet and (not self.todo or not any(map(self.inputs.ready, self.todo))):
                    break
                time.sleep(0.1)

    def _start_more(self) -> None:
        free = [slot for slot in self.slots if slot not in [a.slot for a in self.active]]
        if not free and self.slots[0] is not None:
            return
        if len(self.active) >= SLOTS:
            return
        training = next((t for t in self.todo if self.inputs.ready(t)), None)
        if training is None:
            return
        self.todo.remove(training)
        home = place_of(training.part, self.options) / training.game
        if (home / f"gaps-{training.seed}-{training.label}.csv").exists():
            return
        slot = free[0] if self.slots[0] is not None else None
        try:
            self.active.append(Active(training, slot, self.inputs.load(training), home))
            if slot is not None:
                slot.wait_stream(torch.cuda.current_stream())
        except Exception:
            say("FAILED", training, traceback.format_exc())

    def _turn(self, active: Active) -> None:
        training = active.training
        try:
            if active.turn():
                return
            pairs = self.inputs.path(training).with_name("pairs.done")
            words = (training.states, training.game, training.seed, training.label)
            self.evaluating.add(pairs, "gaps", *words)
            say("trained", training, f"{time.monotonic() - active.began:.1f} s")
        except Exception:
            say("FAILED", training, traceback.format_exc())
        self.active.remove(active)


def run_all(options: argparse.Namespace) -> None:
    """Train and evaluate; at the end give the last evaluations a moment."""
    options.work.mkdir(parents=True, exist_ok=True)
    facts = provenance(PROJECT) | {"device": options.device, "cores": os.cpu_count()}
    if options.device != "cpu":
        facts["device"] = torch.cuda.get_device_name()
        facts["matrix products"] = "TF32"
        torch.backends.cuda.matmul.allow_tf32 = True
    (options.work / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    work = Work(options)
    work.go()
    end = time.monotonic() + options.grace
    while time.monotonic() < end and not (work.playing.idle and work.evaluating.idle):
        time.sleep(0.2)
    say(
        "left",
        len(work.todo),
        "under way",
        len(work.active),
        "failed",
        work.playing.failed + work.evaluating.failed,
    )
    (options.work / "all.done").touch()
    os._exit(0)  # processes that still play end with this one


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*JOBS, "run"])
    parser.add_argument("part", nargs="?")
    parser.add_argument("game", nargs="?")
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("label", nargs="?")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--seconds", type=float, default=1e9, help="to train, from the start on")
    parser.add_argument("--grace", type=float, default=20.0, help="seconds for evaluations then")
    parser.add_argument("--settings", type=Path, help="a file of parts that replace those here")
    parser.add_argument("--runs", nargs="+", metavar="PART:GAME:SEED:TRIAL")
    known = PROJECT / "figures" / "atari_simulated.csv"
    parser.add_argument("--known", type=Path, default=known, help="pairs that were played before")
    return parser


def main() -> None:
    options = command_line().parse_args()
    if options.settings:
        PROTOCOL.update(tomllib.loads(options.settings.read_text()))
    torch.set_num_threads(1)
    if options.what == "run":
        require_device(options.device)
        run_all(options)
    else:
        os.nice(10)  # the process that trains comes first
        JOBS[options.what](options)


if __name__ == "__main__":
    main()
