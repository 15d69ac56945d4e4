"""Train runs of the protocol, many at a time, on a machine with one GPU or with none.

    python -m experiments.atari.device calibrate:Pong:10:base ... --work WORK
    python -m experiments.atari.device ... --work WORK --settings FILE --device cpu

Other processes play the games, and evaluate networks that are trained. This one trains. Each
training has a stream of the GPU, and they take turns: small kernels of several streams run at once.
They begin in the order in which they are named, PART:GAME:SEED:TRIAL each. What is finished is a
file under WORK, and is not made again. The work ends when all is done, or cleanly when the
--seconds are over; its exit status is 1 if something was left or failed. Then
`experiments.atari.protocol` writes the results.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import tomllib
import traceback
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from experiments.atari.experiment import collected_tables, evaluate, monte_carlo
from experiments.atari.networks import Network
from experiments.atari.protocol import (
    PROJECT,
    PROTOCOL,
    STATES_OF,
    experiment_of,
    label_of,
    settings,
)
from experiments.atari.replay import Replay
from experiments.atari.training import Run, Trained, steps_to_the_end
from experiments.files import replacing
from experiments.processes import end_with_parent, require_device
from jmdp_lib import checks

sys.path.append(str(PROJECT / "workflow"))

from job import provenance

STARTED = time.monotonic()
LANES = {"play": 4, "evaluate": 8}  # jobs at a time
PROCESSES = 4  # that play games in one job
SLOTS = 14  # trainings at a time
TURNS = 750  # of a training; it makes so many steps in each


def say(*words: object) -> None:
    """A line of the log, with the seconds since the start."""
    print(f"{time.monotonic() - STARTED:7.1f}", *words, flush=True)


class Training(NamedTuple):
    """A run to train: of a part, a game and a seed, with a trial."""

    part: str
    game: str
    seed: int
    trial: str

    @classmethod
    def of(cls, run: str) -> Training:
        """As --runs names it."""
        part, game, seed, trial = run.split(":")
        if part not in PROTOCOL or trial not in settings(part, game)["trials"]:
            raise ValueError(f"the protocol has no run {run}")
        experiment_of(part, game, trial)  # refuses an unknown game
        return cls(part, game, checks.at_least("SEED", int(seed), 0), trial)

    @property
    def states(self) -> tuple[str, str]:
        """The part and the game whose states it learns from."""
        return STATES_OF.get(self.part, self.part), self.game

    @property
    def name(self) -> str:
        """As the files of the run name it."""
        return f"{self.seed}-{label_of(self.part, self.trial)}"

    def home(self, work: Path) -> Path:
        return work.joinpath(*self.states)


# Jobs: what other processes do.


def prepare_tables(training: Training, options: argparse.Namespace) -> None:
    """Collect the states of a seed, and group them for the GPU; write prepared-SEED.pt."""
    home = training.home(options.work)
    experiment = experiment_of(training.part, training.game)
    tables, held_out = collected_tables(experiment, training.seed, home, options.processes)
    network = Network.of(tables, experiment.config)
    prepared = {
        "tables": vars(Replay.of(tables)),
        "held_out": vars(Replay.of(held_out)),
        "network": (network.sizes, network.rewards, network.varied),
        "checksums": {
            "checksum of the tables": tables.checksum,
            "checksum of the held-out tables": held_out.checksum,
        },
    }
    with replacing(home / f"prepared-{training.seed}.pt") as part:
        torch.save(prepared, part)


def play_pairs(training: Training, options: argparse.Namespace) -> None:
    """Play what networks are compared with, for all parts that use these states."""
    experiment = experiment_of(*training.states)
    for fresh in settings(*training.states)["fresh"]:
        monte_carlo(experiment, training.home(options.work), options.processes, fresh)


def write_gaps(training: Training, options: argparse.Namespace) -> None:
    """Evaluate a trained run beside the simulation; write gaps-SEED-TRIAL.csv."""
    home = training.home(options.work)
    trained = Trained.load(home / f"run-{training.name}")
    experiment = experiment_of(training.part, training.game)
    told = replace(experiment, config=trained.network.config)
    frames = []
    for fresh in settings(training.part, training.game)["fresh"]:
        simulated = monte_carlo(experiment, home, options.processes, fresh)
        frames.append(evaluate(told, training.seed, trained, *simulated).assign(states=fresh))
    with replacing(home / f"gaps-{training.name}.csv") as file:
        pd.concat(frames).to_csv(file, index=False, float_format="%.8g")


def workers(lane: str, options: argparse.Namespace) -> ProcessPoolExecutor:
    """Processes for jobs: they end with this one, which comes first."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.atari.device"])  # torch is imported once
    return ProcessPoolExecutor(LANES[lane], context, start_worker, (options.settings,))


def start_worker(changed: Path | None) -> None:
    end_with_parent()
    os.nice(10)
    torch.set_num_threads(1)
    use_settings(changed)


def use_settings(changed: Path | None) -> None:
    """Replace parts of the protocol by those of a file."""
    if changed:
        PROTOCOL.update(tomllib.loads(changed.read_text()))


# Training, in this process.


@lru_cache(maxsize=12)
def load_inputs(path: Path, device: str) -> dict[str, Any]:
    """What trainings learn from, on the device; only the last few are kept."""
    stored = torch.load(path, weights_only=True, map_location=device)
    return stored | {name: Replay(**stored[name]) for name in ("tables", "held_out")}


class Active:
    """A training under way: its stream, and its steps to the end."""

    def __init__(self, training: Training, options: argparse.Namespace) -> None:
        self.training = training
        self.stream = None if options.device == "cpu" else torch.cuda.Stream()
        home = training.home(options.work)
        inputs = load_inputs(home / f"prepared-{training.seed}.pt", options.device)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        config = experiment_of(training.part, training.game, training.trial).config
        config = replace(config, seed=training.seed)
        sizes, rewards, varied = inputs["network"]
        network = Network(config, sizes, rewards, varied, options.device)
        told = asdict(config) | inputs["checksums"]
        run = Run(network, inputs["tables"], home / f"run-{training.name}", told)
        self.steps = steps_to_the_end(run, inputs["held_out"])
        self.steps_a_turn = max(1, config.steps // TURNS)
        self.began = time.monotonic()

    def turn(self) -> bool:
        """Some steps; whether there are more."""
        context: AbstractContextManager[Any] = nullcontext()
        if self.stream is not None:
            context = torch.cuda.stream(self.stream)
        with context:
            return all(next(self.steps, None) is not None for _ in range(self.steps_a_turn))


class Work:
    """All trainings: those to come, in order, those under way, and the jobs around them.

    tables, pairs: the jobs that a training and its evaluation wait for, by what they are of.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.failed = 0
        self.active: list[Active] = []
        self.todo = [t for t in options.runs if not self.path(t, f"gaps-{t.name}.csv").exists()]
        self.gaps: list[Future[None]] = []
        self.waiting = ThreadPoolExecutor(len(self.todo) or 1)  # for the pairs of an evaluation
        self.evaluating = workers("evaluate", options)
        playing = workers("play", options)
        tables = {(t.states, t.seed): t for t in self.todo}
        self.tables = {k: playing.submit(prepare_tables, t, options) for k, t in tables.items()}
        pairs = {t.states: t for t in self.todo}
        self.pairs = {k: playing.submit(play_pairs, t, options) for k, t in pairs.items()}

    def path(self, training: Training, name: str) -> Path:
        return training.home(self.options.work) / name

    def go(self) -> None:
        """Train until all is done or the time is over."""
        while self.todo or self.active:
            if time.monotonic() - STARTED > self.options.seconds:
                return
            self._start_one()
            for active in list(self.active):
                self._turn(active)
            if not self.active:
                time.sleep(0.1)

    def _start_one(self) -> None:
        """Begin the first training whose states are there, if there is a slot for it."""
        ready = [t for t in self.todo if self.tables[t.states, t.seed].done()]
        if not ready or len(self.active) == SLOTS:
            return
        training = ready[0]
        self.todo.remove(training)
        if self.path(training, f"run-{training.name}/checkpoint.pt").exists():
            self.gaps.append(self.waiting.submit(self._evaluate, training))
            return
        try:
            self.tables[training.states, training.seed].result()
            self.active.append(Active(training, self.options))
        except Exception:
            self._fail(training)

    def _turn(self, active: Active) -> None:
        try:
            if active.turn():
                return
            self.gaps.append(self.waiting.submit(self._evaluate, active.training))
            say("trained", *active.training, f"{time.monotonic() - active.began:.1f} s")
        except Exception:
            self._fail(active.training)
        self.active.remove(active)

    def _evaluate(self, training: Training) -> None:
        """Wait for the pairs, then for the process that writes the gaps."""
        self.pairs[training.states].result()
        self.evaluating.submit(write_gaps, training, self.options).result()
        say("evaluated", *training)

    def _fail(self, training: Training) -> None:
        self.failed += 1
        say("FAILED", *training, traceback.format_exc())

    def finish(self) -> bool:
        """Give the last evaluations a moment; whether all that was asked for is there."""
        done, late = wait(self.gaps, self.options.grace)
        for error in filter(None, (future.exception() for future in done)):
            self.failed += 1
            say("FAILED", *traceback.format_exception(error))
        left = len(self.todo) + len(self.active) + len(late)
        say("left", left, "failed", self.failed)
        return not (left or self.failed)


def run_all(options: argparse.Namespace) -> None:
    """Train and evaluate."""
    options.work.mkdir(parents=True, exist_ok=True)
    facts = provenance(PROJECT) | {"device": options.device, "cores": os.cpu_count()}
    if options.device != "cpu":
        facts["device"] = torch.cuda.get_device_name()
        facts["matrix products"] = "TF32"
        torch.backends.cuda.matmul.allow_tf32 = True
    (options.work / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
    work = Work(options)
    work.go()
    code = 0 if work.finish() else 1
    os._exit(code)  # jobs that still go on end with this process


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="PART:GAME:SEED:TRIAL")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--seconds", type=float, default=1e9, help="to train, from the start on")
    parser.add_argument("--grace", type=float, default=600.0, help="seconds for evaluations then")
    parser.add_argument("--settings", type=Path, help="a file of parts that replace those here")
    parser.add_argument("--with-parent", action="store_true", help="end when it has ended")
    options = parser.parse_args()
    use_settings(options.settings)
    try:
        options.runs = [Training.of(run) for run in options.runs]
        require_device(options.device)
    except (RuntimeError, ValueError) as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    if options.with_parent:
        end_with_parent()
    run_all(options)


if __name__ == "__main__":
    main()
