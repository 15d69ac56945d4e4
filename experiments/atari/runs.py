"""Make a part of runs.toml: play its games, train and evaluate its networks, write its files.

    python -m experiments.atari PART --work WORK --device cuda --minutes 9
    python -m experiments.atari PART:GAME:SEED --work WORK --device cpu --miniature

Processes play the games, ahead of the trainings, which come one after the other. What is finished
is a file under WORK/PART/GAME, and is not made again: if the command was stopped, or its minutes
are over, give it again. All pairs are played before a network is trained, so it is evaluated at
once.

    settings.json                     what the files of the game were made with
    tables-SEED.npz                   queried states, to learn from
    evaluation-FRESH.npz              states that networks are evaluated at
    records-FRESH.npz                 recursive pairs from them
    gaps-SEED-TRIAL-GROUP.csv         learned gaps beside simulated ones, by member and state

A part with a `search` takes the trials that were best there. If figures/atari has no results of the
search, it is made first. The results of all finished runs go to OUT: see `records`. The exit status
is 0 if nothing is left to be done.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.atari import records, results
from experiments.atari.grid import learned_gaps
from experiments.atari.networks import Network
from experiments.atari.predictions import evaluate
from experiments.atari.recursive_pairs import PairRecords, first_actions, record_pairs
from experiments.atari.replay import Replay
from experiments.atari.settings import MINIATURE, PARTS, Run, runs_of, selected, table_of
from experiments.atari.tables import QueryTables, collect, evaluation_states
from experiments.atari.training import train
from experiments.files import claim, replacing
from experiments.processes import program, require_device
from jmdp_lib import checks

PROJECT = Path(__file__).resolve().parents[2]
COMMITTED = PROJECT / "figures" / "atari"
sys.path.append(str(PROJECT / "workflow"))

from job import outlive_terminal, provenance  # noqa: E402

__all__ = ["main", "outlive_terminal"]


class Files:
    """The files of a run under a folder, and how many processes play what is missing."""

    def __init__(self, run: Run, work: Path, processes: int) -> None:
        self.run = run
        self.sizes = run.experiment
        self.home = work / run.part / run.game
        self.gaps = self.home / f"gaps-{run.label}.csv"
        self.processes = processes

    def tables(self) -> QueryTables:
        """What the run learns from."""
        path = self.home / f"tables-{self.run.seed}.npz"
        if not path.exists():
            collect(
                self.sizes.played,
                self.sizes.num_states,
                _stream(0, self.run.seed),
                actions=self.sizes.actions,
                follow_share=self.sizes.follow_share,
                processes=self.processes,
            ).save(path)
        return QueryTables.load(path)

    def states(self, fresh: int) -> QueryTables:
        """The states of a number to be evaluated at; recursive pairs are played with them."""
        path = self.home / f"evaluation-{fresh}.npz"
        if not path.exists():
            starts, tables = evaluation_states(
                self.sizes.played,
                self.sizes.num_evaluation,
                _stream(2, fresh),
                processes=self.processes,
            )
            if not self.run.reference:
                record_pairs(
                    self.sizes.played,
                    starts,
                    self.sizes.horizon,
                    _stream(3, fresh),
                    pairs_per_state=self.sizes.pairs_per_state,
                    repeats=self.sizes.repeats,
                    processes=self.processes,
                ).save(self.home / f"records-{fresh}.npz")
            tables.save(path)
        return QueryTables.load(path)

    def simulated(self, fresh: int) -> pd.DataFrame:
        """Simulated gaps, by discount, shock and state."""
        if not self.run.reference:
            pairs = PairRecords.load(self.home / f"records-{fresh}.npz")
            return records.simulated_gaps(pairs, self.sizes.config.members)
        every = pd.read_csv(COMMITTED / f"{self.run.reference}_simulated.csv")
        mine = every[(every.game == self.run.game) & (every.states == fresh)]
        return mine.drop(columns=["game", "states"])

    def play(self) -> None:
        """Play all that is missing."""
        self.tables()
        for fresh in self.run.fresh:
            self.states(fresh)

    def claim(self) -> None:
        """Note the settings; a folder that was made with others is refused."""
        run = self.run
        config = asdict(self.sizes.config) | {"seed": None}
        sizes = asdict(self.sizes) | {"config": None, "fresh": run.fresh}
        claim(self.home / "settings.json", {"sizes": sizes, f"{run.trial}-{run.group}": config})


def _stream(purpose: int, number: int) -> np.random.SeedSequence:
    """Of a seed's states, 0, or of the states and the pairs of a number, 2 and 3."""
    return np.random.SeedSequence([purpose, number, 0])


def finish(files: Files, device: str) -> bool:
    """Train and evaluate; whether it could be trained."""
    run, sizes = files.run, files.sizes
    tables = files.tables()
    network = Network(tables, sizes.config, device)
    started = time.perf_counter()
    try:
        params = train(network, Replay.of(tables, device)).params
    except FloatingPointError as error:
        print(f"FAILED {files.gaps}: {error}", flush=True)
        return False
    print(f"trained for {files.gaps}: {time.perf_counter() - started:.0f} s", flush=True)
    frames = []
    for fresh in run.fresh:
        states = files.states(fresh)
        actions = [
            first_actions(_stream(3, fresh), row, states.num_actions, sizes.pairs_per_state)[0]
            for row in range(sizes.num_evaluation)
        ]
        gaps = evaluate(network, params, states, actions)
        both = gaps.merge(files.simulated(fresh), on=["gamma", "sigma", "state"])
        frames.append(both.assign(states=fresh))
    every = pd.concat(frames).assign(game=run.game, trial=run.trial, seed=run.seed)
    with replacing(files.gaps) as part:
        every.to_csv(part, index=False, float_format="%.8g")
    return True


def work_through(todo: list[Files], device: str, deadline: float) -> None:
    """Train and evaluate until the deadline, while processes play for the next runs."""
    done = 0
    with ThreadPoolExecutor(1) as ahead:
        played = [ahead.submit(files.play) for files in todo]
        try:
            for files, ready in zip(todo, played, strict=True):
                if time.monotonic() > deadline:
                    break
                ready.result()
                done += finish(files, device)
        finally:
            ahead.shutdown(cancel_futures=True)
            if done < len(todo):
                left = f"{len(todo) - done} runs of {todo[0].run.part} are left"
                print(f"{left}: to go on, give the same command again", flush=True)


def make(
    options: argparse.Namespace, part: str, game: str | None = None, seed: int | None = None
) -> bool:
    """A part, or a game or a seed of it, and before that its search; whether all is finished."""
    on_gpu = options.device != "cpu"
    device = f"{torch.cuda.get_device_name()}, products in TF32" if on_gpu else "cpu"
    facts = provenance(PROJECT) | {"device": device}
    if part == "grid":
        table = PARTS["grid"] | (MINIATURE["grid"] if options.miniature else {})
        records.save(options.out, part, {"": learned_gaps(table)}, facts | {"settings": table})
        return True
    chosen = None
    if search := table_of(part, "").get("search"):
        path = COMMITTED / f"{search}.csv"
        if not path.exists():
            tuned = game in table_of(search, "")["games"]
            if not make(options, search, game if options.miniature and tuned else None):
                return False
            path = options.out / f"{search}.csv"
        chosen = results.best_trials(pd.read_csv(path))
    every = [
        Files(run, options.work, options.processes)
        for run in runs_of(part, chosen, options.miniature)
    ]
    mine = [x for x in every if game in (None, x.run.game) and seed in (None, x.run.seed)]
    for files in mine:
        files.claim()
    work_through([x for x in mine if not x.gaps.exists()], options.device, options.deadline)
    finished = [files.gaps for files in every if files.gaps.exists()]
    if finished:
        records.write(part, finished, options.out, facts | {"runs": len(finished)})
    return all(files.gaps.exists() for files in mine)


def main(words: list[str] | None = None) -> None:
    parser = program(__doc__ or "")
    parser.add_argument("part", metavar="PART[:GAME[:SEED]]")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after these")
    options = parser.parse_args(words)
    options.deadline = time.monotonic() + 60.0 * options.minutes
    options.out = options.out or options.work / "results"
    try:
        named = selected(options.part)
        checks.at_least("--processes", options.processes, 1)
        device = require_device(options.device)
        if device.type == "cuda":
            torch.cuda.set_device(device.index or 0)
            torch.backends.cuda.matmul.allow_tf32 = True
        finished = make(options, *named)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    sys.exit(not finished)
