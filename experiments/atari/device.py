"""The parts of the protocol from `plays` on, on a machine with one GPU.

    python -m experiments.atari.device run --work WORK --seconds 1000
    python -m experiments.atari.device run --work WORK --only Qbert:10 Asterix:11
    python -m experiments.atari.device run --work WORK --parts more --only Freeway:10
    python -m experiments.atari.device run --work WORK --settings FILE --device cpu    in miniature

With `--only`, nothing but these games and seeds of `--parts`: `plays` and `rivals`, unless given.
Otherwise all, but for `followed`, `more` and `longer`.

Other processes play the games, and evaluate networks that are trained. This one trains. Each
training has a stream of the GPU, and they take turns: small kernels of several streams run at once.
What is finished is a file under WORK, which holds it for `experiments.atari.protocol PART`, and is
not made again. The work ends when all is done, or cleanly when the seconds are over.

    jobs    tables PART GAME SEED           states to learn from, ready for the GPU
            pairs PART GAME                 evaluation states, and plays from them
            gaps PART GAME SEED LABEL       predictions of a trained run beside the simulation
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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from experiments.atari.experiment import Experiment, collected_tables, evaluate, monte_carlo
from experiments.atari.networks import Network
from experiments.atari.predictions import gap_table, predict_gaps
from experiments.atari.protocol import (
    PARTS,
    PROJECT,
    PROTOCOL,
    STATES_OF,
    by_networks_alone,
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
LANES = {"play": 4, "evaluate": 3}  # jobs at a time
PROCESSES = 4  # that play games in one job
SLOTS = 14  # trainings at a time
TURN = 4  # steps of a training before it is the next one's turn
KEYS = ["game", "gamma", "state"]
SIMULATED = [
    "mc_mean",
    "mc",
    "mc_independent",
    "mc_mean_error",
    "mc_error",
    "mc_independent_error",
    "mc_covariance",
]
FIRST = ("Pong", "Atlantis")  # of the games of `ablation` and `converged`, the two that come first


def say(*words: object) -> None:
    """A line of the log, with the seconds since the start."""
    print(f"{time.monotonic() - STARTED:7.1f}", *words, flush=True)


@dataclass(frozen=True)
class Training:
    """A run to train: of a part, a game and a seed, with a trial, which has these kinds."""

    part: str
    game: str
    seed: int
    trial: str
    kinds: tuple[str, ...]

    @property
    def label(self) -> str:
        """The trial, as the files of the run name it: parts that share a folder do not clash."""
        return self.trial if self.part in ("plays", "search") else f"{self.part}_{self.trial}"

    @property
    def experiment(self) -> Experiment:
        experiment = experiment_of(self.part, self.game, self.trial)
        config = replace(experiment.config, kinds=self.kinds, seed=self.seed)
        return replace(experiment, config=config)


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
    simulated(options.part, options.game, home, options)
    (home / "pairs.done").touch()


def simulated(
    part: str, game: str, home: Path, options: argparse.Namespace
) -> tuple[QueryTables, PairRecords, PairRecords | None]:
    """`monte_carlo` of a part; the long pairs are not played again if the part `final` has them."""
    known = part != "search" and len(known_pairs(game, options)) > 0
    fresh = settings(part, game)["fresh"]
    return monte_carlo(experiment_of(part, game), home, options.processes, fresh, known)


def known_pairs(game: str, options: argparse.Namespace) -> pd.DataFrame:
    """The committed estimates of the long pairs of a game at the states of `final`, if any."""
    rows = pd.read_csv(options.known)
    rows = rows[(rows.game == game) & (rows.kind == "near")]
    return rows[rows.seed == rows.seed.min()][[*KEYS, *SIMULATED]]


def write_gaps(options: argparse.Namespace) -> None:
    """Evaluate a trained run beside the simulation; write gaps-SEED-LABEL.csv."""
    part = options.part
    home = place_of(part, options) / options.game
    name = f"{options.seed}-{options.label}"
    trained = Trained.load(home / f"run-{name}")
    experiment = replace(
        experiment_of(part, options.game), config=replace(trained.network.config, seed=0)
    )
    evaluation, records, deep = simulated(part, options.game, home, options)
    asked_deep = deep if part == "plays" else None
    frame = evaluate(experiment, options.seed, trained, evaluation, records, asked_deep)
    if records is deep:
        known = known_pairs(options.game, options)
        frame = frame.drop(columns=SIMULATED).merge(known, on=KEYS, validate="many_to_one")
    with replacing(home / f"gaps-{name}.csv") as file:
        frame.to_csv(file, index=False, float_format="%.8g")


JOBS = {"tables": prepare_tables, "pairs": play_pairs, "gaps": write_gaps}


class Lanes:
    """Jobs in order, so many at a time; threads wait for the processes that do them."""

    def __init__(self, count: int, options: argparse.Namespace) -> None:
        self.waiting: list[tuple[str, ...]] = []
        self.options = options
        self.lock = threading.Lock()
        self.failed: list[tuple[str, ...]] = []
        self.working = 0
        self.closed = False
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def add(self, *words: object) -> None:
        with self.lock:
            self.waiting.append(tuple(map(str, words)))

    @property
    def idle(self) -> bool:
        with self.lock:
            return not self.waiting and not self.working

    def _work(self) -> None:
        while not self.closed:
            with self.lock:
                job = self.waiting.pop(0) if self.waiting else None
                self.working += job is not None
            if job is None:
                time.sleep(0.1)
                continue
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
        self.home = home
        folder = home / f"run-{training.seed}-{training.label}"
        self.run = Run(network, inputs["tables"], folder, asdict(config) | checksums)
        self.steps = steps_to_the_end(self.run, inputs["held_out"])
        self.record_every = config.log_every
        self.records: list[dict[str, float]] = []
        self.looked_at: tuple[torch.Tensor, ...] | None = None
        self.began = time.monotonic()

    def turn(self) -> bool:
        """Some steps; whether there are more."""
        context: AbstractContextManager[Any] = nullcontext()
        if self.slot is not None:
            context = torch.cuda.stream(self.slot)
        with context:
            for _ in range(TURN):
                step = next(self.steps, None)
                if step is None:
                    return False
                if (
                    self.training.part == "converged"
                    and not step % self.run.network.config.log_every
                ):
                    self.record(step)
        return True

    @torch.no_grad()
    def record(self, step: int) -> None:
        """What a run of `converged` predicts by now at the evaluation states."""
        if self.looked_at is None:
            self.looked_at = looked_at(self.training, self.home, self.run.network.scale.device)
        seen, previous, entry, a, b, state = self.looked_at
        network = self.run.network
        gaps = predict_gaps(network, self.run.online, seen, previous)
        config = network.config
        told = {name: part[0, entry, a, b] for name, part in gaps._asdict().items()}
        mean = network(self.run.online, seen, previous).mean / network.earned[:, None, None]
        row = {"step": step, "copies": step // config.copy_every, "mean": float(mean.mean())}
        for name in ("coupled", "independent"):
            each = torch.zeros(len(seen), device=seen.device, dtype=told[name].dtype)
            each.scatter_reduce_(0, state, told[name], "mean", include_self=False)
            row[name] = float(each.mean())
        self.records.append(row)

    def finish(self) -> None:
        """Write what was recorded on the way."""
        if self.records:
            names = {"game": self.training.game, "seed": self.training.seed}
            frame = pd.DataFrame(self.records).assign(**names, scale=self.training.trial)
            with replacing(self.home / f"records-{self.run.path.parent.name}.csv") as file:
                frame.to_csv(file, index=False, float_format="%.8g")


def looked_at(training: Training, home: Path, device: torch.device) -> tuple[torch.Tensor, ...]:
    """What is seen at the evaluation states; of each pair its entry, its actions and its state."""
    experiment = training.experiment
    evaluation = QueryTables.load(home / "evaluation-1.npz")
    pairs = PairRecords.load(home / "deep-1.npz")
    groups = np.unique(np.column_stack([pairs.state_rows, pairs.actions]), axis=0)
    data = Replay.of(evaluation)
    first = data.rows[:, 0]
    ids = evaluation.state_ids[:: len(evaluation) // experiment.num_evaluation]
    entry = np.unique(ids, return_inverse=True)[1][groups[:, 0]]
    columns = (entry, groups[:, 1], groups[:, 2], groups[:, 0])
    found = [data.columns["observations"][first], data.columns["previous"][first]]
    found += [torch.as_tensor(column) for column in columns]
    return tuple(part.to(device) for part in found)


class Inputs:
    """What trainings learn from, on the device; only the last few are kept."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.kept: dict[Path, dict[str, Any]] = {}

    def path(self, training: Training) -> Path:
        home = place_of(training.part, self.options) / training.game
        return home / f"prepared-{training.seed}.pt"

    def ready(self, training: Training) -> bool:
        path = self.path(training)
        needs_pairs = training.part not in ("search", "ablation")
        return path.exists() and (not needs_pairs or path.with_name("pairs.done").exists())

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


def planned(part: str, games: Sequence[str]) -> Iterator[Training]:
    """All trainings of a part in these games, a seed after the other."""
    for seed in settings(part, games[0])["seeds"]:
        for game in games:
            yield from trainings(part, game, seed)


def trainings(part: str, game: str, seed: int) -> Iterator[Training]:
    """All trials of a part in one game, with one seed."""
    for trial in settings(part, game)["trials"]:
        yield Training(part, game, seed, trial, experiment_of(part, game, trial).config.kinds)


def trainings_of(runs: Sequence[str], parts: Sequence[str]) -> list[Training]:
    """All trainings of these runs, "GAME:SEED", in the parts that have them."""
    found: list[Training] = []
    for part in parts:
        table = settings(part, "")
        for game, seed in (run.split(":") for run in runs):
            if game in table["games"] and int(seed) in table["seeds"]:
                found += trainings(part, game, int(seed))
    planned_runs = {f"{training.game}:{training.seed}" for training in found}
    if unknown := [run for run in runs if run not in planned_runs]:
        raise ValueError(f"no part of {', '.join(parts)} has the run {unknown[0]}")
    return found


def chosen_kinds(options: argparse.Namespace) -> dict[str, list[str]] | None:
    """The kinds of `ablation` by their best trial, once the whole search is evaluated."""
    searched = list(planned("search", list(PROTOCOL["search"]["games"])))
    home = place_of("search", options)
    paths = [home / t.game / f"gaps-{t.seed}-{t.label}.csv" for t in searched]
    if not all(path.exists() for path in paths):
        return None
    tables = [
        gap_table(by_networks_alone(pd.read_csv(path))).assign(trial=training.trial)
        for path, training in zip(paths, searched, strict=True)
    ]
    known = pd.read_csv(PROJECT / "figures" / "atari_trials.csv")
    known = known[known.game.isin(PROTOCOL["search"]["games"]) & (known.gamma >= 0.9)]
    errors = pd.concat([known, *tables]).groupby(["kind", "trial"]).error.mean().unstack()
    best = errors.idxmin(axis=1).to_dict()
    say("chosen", best, "\n", errors.round(3).to_string())
    (options.work / "ablation.json").write_text(json.dumps(best) + "\n")
    return {trial: [k for k in best if best[k] == trial] for trial in best.values()}


def plan_of_ablation(games: Sequence[str], kinds: dict[str, list[str]]) -> Iterator[Training]:
    """Each kind with its best trial; the kinds of one trial are trained together."""
    for seed in settings("ablation", games[0])["seeds"]:
        for game in games:
            for trial, members in kinds.items():
                yield Training("ablation", game, seed, trial, tuple(members))


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
        self.searched = False
        self.looked = 0.0  # when it was last seen whether the search is done
        games = list(settings("ablation", "")["games"])
        self.first = [game for game in games if game in FIRST]
        self.rest = [game for game in games if game not in FIRST]
        others = [game for game in settings("plays", "")["games"] if game not in games]
        self.todo = [
            *planned("search", self.first),
            *planned("converged", self.first),
            *planned("plays", self.first),
            *planned("plays", self.rest),
            *planned("plays", others),
            *planned("rivals", list(settings("rivals", "")["games"])),
            *planned("converged", self.rest),
        ]
        if options.only:
            self._plan_only(options.only)
        else:
            self._plan_jobs([*self.first, *self.rest, *others])

    def _plan_only(self, runs: Sequence[str]) -> None:
        """These games and seeds of `--parts`, and nothing else."""
        self.searched = True
        self.todo = trainings_of(runs, self.options.parts)
        homes = [(STATES_OF.get(t.part, t.part), t.game, t.seed) for t in self.todo]
        for home, game in dict.fromkeys((home, game) for home, game, _ in homes):
            self.playing.add("pairs", home, game)
        for job in dict.fromkeys(homes):
            self.playing.add("tables", *job)

    def _plan_jobs(self, games: list[str]) -> None:
        for game in self.first:
            self.playing.add("tables", "search", game, 0)
            self.playing.add("pairs", "search", game)
        groups = (games[:2], games[2:4], games[4:])
        for group in groups:
            for game in group:
                self.playing.add("pairs", "plays", game)
            for seed in settings("plays", "")["seeds"]:
                for game in group:
                    self.playing.add("tables", "plays", game, seed)

    def go(self) -> None:
        """Train until all is done or the time is over."""
        while time.monotonic() - STARTED < self.options.seconds:
            if not self.searched:
                self._plan_ablation()
            self._start_more()
            for active in list(self.active):
                self._turn(active)
            if not self.active:
                quiet = self.playing.idle and self.evaluating.idle
                if quiet and (not self.todo or not any(map(self.inputs.ready, self.todo))):
                    break
                time.sleep(0.1)

    def _plan_ablation(self) -> None:
        if time.monotonic() - self.looked < 1.0:
            return
        self.looked = time.monotonic()
        kinds = chosen_kinds(self.options)
        if kinds is not None:
            self.searched = True
            later = [t for t in self.todo if t.part == "plays" and t.game not in self.first]
            now = [t for t in self.todo if t not in later]
            self.todo = [
                *plan_of_ablation(self.first, kinds),
                *now,
                *later,
                *plan_of_ablation(self.rest, kinds),
            ]

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
            active.finish()
            self.evaluating.add("gaps", training.part, training.game, training.seed, training.label)
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
    while time.monotonic() < end and not work.evaluating.idle:
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
    parser.add_argument("--only", nargs="+", metavar="GAME:SEED", help="of --parts")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["plays", "rivals"])
    known = PROJECT / "figures" / "atari_fresh_gaps.csv"
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
