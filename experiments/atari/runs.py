"""Make a part of runs.toml: simulate its games, train and evaluate its networks, write its files.

    python -m experiments.atari PART --work WORK --device cuda --minutes 9
    python -m experiments.atari PART --work WORK --games Tennis Bowling --seeds 10
    python -m experiments.atari PART --work WORK --miniature            does all of it run?

Processes simulate the games, and at last recursive pairs, while networks are trained one after the
other: always the first run of the list whose states are there. What is finished is a file under
WORK/PART/GAME, and is not made again: if the command was stopped, or its minutes are over, give it
again.

    settings.json                     what the files of the game were made with
    tables-SEED-PIECE.npz             queried states, to learn from
    evaluation-FRESH.npz              states that networks are evaluated at
    records-FRESH-ROUND.npz           recursive pairs from them
    gaps-SEED-TRIAL-GROUP-BUDGET.csv  learned gaps, by member and state

A part with a `search` takes the trials that were best there: in figures/atari, or in OUT if it is
not there. The results of all finished runs go to OUT: see `results`. The exit status is 0 if
nothing is left to be done.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import lru_cache
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from experiments.atari import results
from experiments.atari.networks import Network
from experiments.atari.predictions import evaluate
from experiments.atari.recursive_pairs import (
    PairRecords,
    first_actions,
    pair_gaps,
    record_pairs,
)
from experiments.atari.replay import Replay
from experiments.atari.settings import PARTS, Run, runs_of, table_of
from experiments.atari.tables import Experiment, QueryTables, collect, evaluation_states
from experiments.atari.training import train
from experiments.files import claim, replacing, save_once
from experiments.processes import PROJECT, made_with, program, run_program

COMMITTED = PROJECT / "figures" / "atari"
Job = tuple[Any, ...]  # a file, and the function that makes what it holds, with its arguments


def inputs(run: Run) -> list[Job]:
    """Files that a run is trained and evaluated with."""
    tables = zip(run.tables, run.pieces, strict=True)
    jobs: list[Job] = [
        (path, collect, run.experiment, _stream(0, *piece)) for path, piece in tables
    ]
    return jobs + [
        (run.states(fresh), evaluation_tables, run.experiment, fresh) for fresh in run.fresh
    ]


def evaluation_tables(experiment: Experiment, fresh: int, processes: int) -> QueryTables:
    return evaluation_states(experiment, _stream(2, fresh), processes)[1]


def simulations(runs: list[Run]) -> list[Job]:
    """Files of the recursive pairs that runs are compared with."""
    return [
        (run.pairs(fresh)[number], simulate, run.experiment, fresh, number)
        for run in runs
        for number, fresh in product(range(run.rounds), run.fresh)
    ]


def simulate(experiment: Experiment, fresh: int, number: int, processes: int) -> PairRecords:
    """Recursive pairs from the states of a number."""
    starts, _ = evaluation_states(experiment, _stream(2, fresh), processes)
    return record_pairs(experiment, starts, _stream(3, fresh), processes, number)


def missing(jobs: list[Job]) -> set[Path]:
    """Files of jobs that are not there yet."""
    return {path for path, *_ in jobs if not path.exists()}


def _stream(purpose: int, number: int, piece: int = 0) -> np.random.SeedSequence:
    """Stream of a seed's states, 0, or of the states and the pairs of a number, 2 and 3."""
    return np.random.SeedSequence([purpose, number, piece])


@lru_cache(maxsize=1)
def learned_from(paths: tuple[Path, ...], device: str) -> tuple[QueryTables, Replay]:
    """Pieces of a collection as one, which several runs in a row learn from."""
    tables = QueryTables.concatenate([QueryTables.load(path) for path in paths])
    return tables, Replay.of(tables, device)


def finish(run: Run, device: str) -> None:
    """Train and evaluate; a training that diverges prints a line and leaves no file."""
    tables, data = learned_from(run.tables, device)
    network = Network(tables, run.config, device)
    started = time.perf_counter()
    try:
        params = train(network, data, run.seed)
    except FloatingPointError as error:
        print(f"FAILED {run.gaps}: {error}", flush=True)
        return
    print(f"trained for {run.gaps}: {time.perf_counter() - started:.0f} s", flush=True)
    frames = []
    for fresh in run.fresh:
        states = QueryTables.load(run.states(fresh))
        actions = [
            first_actions(_stream(3, fresh), row, run.experiment, states.num_actions)[0]
            for row in range(run.experiment.num_evaluation)
        ]
        gaps = evaluate(network, params, states, actions)
        frames.append(gaps.assign(states=fresh))
    key = {"game": run.experiment.game, "trial": run.trial, "seed": run.seed, **run.budget}
    with replacing(run.gaps) as part:
        pd.concat(frames).assign(**key).to_csv(part, index=False, float_format="%.8g")


def learned_in(home: Path) -> pd.DataFrame:
    """Learned gaps of the finished runs of a game beside simulated ones, if there are both."""
    gaps = pd.concat([pd.read_csv(path) for path in sorted(home.glob("gaps-*.csv"))])
    cases = [*gaps.groupby(["gamma", "sigma"]).groups]
    truth = []
    for fresh in gaps.states.unique():
        if paths := sorted(home.glob(f"records-{fresh}-*.npz")):
            records = PairRecords.joined([*map(PairRecords.load, paths)])
            each = results.averages(pair_gaps(records, cases), ["gamma", "sigma", "state"])
            truth.append(each.assign(states=fresh))
    if not truth:
        return gaps[:0]
    return gaps.merge(pd.concat(truth), on=["states", "gamma", "sigma", "state"])


def work_through(runs: list[Run], options: argparse.Namespace) -> None:
    """Train and evaluate until the deadline, while processes simulate for the next runs."""
    todo = [run for run in runs if not run.gaps.exists()]

    def in_time(*job: Any) -> None:
        if time.monotonic() < options.deadline:
            save_once(*job, options.processes)

    with ThreadPoolExecutor(1) as ahead:
        every = [*chain(*map(inputs, todo)), *simulations(runs)]
        jobs = {ahead.submit(in_time, *job) for job in every}
        try:
            while (todo or jobs) and time.monotonic() < options.deadline:
                done, jobs = wait(jobs, timeout=0.0)
                for job in done:
                    job.result()  # raises the error of one that failed
                if ready := next((run for run in todo if not missing(inputs(run))), None):
                    todo.remove(ready)
                    finish(ready, options.device)
                elif not jobs:
                    break
                else:
                    wait(jobs, timeout=0.2)
        finally:
            ahead.shutdown(cancel_futures=True)


def best_trials(part: str, out: Path) -> dict[tuple[float, str, float], str] | None:
    """The trial of each member that was best in the search of a part; None: it has no search."""
    search = table_of(part).get("search")
    if not search:
        return None
    for folder in (COMMITTED, out):
        if (path := folder / f"{search}.csv").exists():
            return results.best_trials(pd.read_csv(path))
    raise ValueError(f"{out} has no {search}.csv: make part {search} first")


def make(options: argparse.Namespace) -> None:
    """Make a part, or games and seeds of it, and write the results of all its finished runs."""
    torch.backends.cuda.matmul.allow_tf32 = True
    part = options.part
    chosen = best_trials(part, options.out)
    named = options.games, options.seeds
    runs = runs_of(part, options.work, chosen, options.miniature, *named)
    for run in runs:
        sizes = asdict(run.experiment) | {"fresh": run.fresh}
        claim(run.home / "settings.json", {"sizes": sizes, run.name: asdict(run.config)})
    listed = table_of(part)["games"]
    for new in dict.fromkeys(run.experiment for run in runs):
        if new.game not in listed:
            actions = f"{new.actions or 'all'} of {new.emulator().num_actions} actions"
            print(
                f"{new.game} is new to part {part}: {new.num_states:,} states, {actions}",
                flush=True,
            )
    try:
        work_through(runs, options)
    finally:
        left = [run for run in runs if not run.gaps.exists()]
        pairs = missing(simulations(runs))
        if left or pairs:
            count = f"{len(left)} runs and {len(pairs)} simulations of {part} are left"
            print(f"{count}: to go on, give the same command again", flush=True)
    homes = sorted({path.parent for path in (options.work / part).glob("*/gaps-*.csv")})
    if homes and len(gaps := pd.concat([*map(learned_in, homes)])):
        results.write(part, gaps, options.out, made_with(options))
    sys.exit(bool(left or pairs))


def main(words: list[str] | None = None) -> None:
    parser = program(__doc__ or "")
    parser.add_argument("part", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    run_program(parser, words, make)
