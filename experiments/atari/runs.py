"""Make a part of runs.toml: play its games, train and evaluate its networks, write its files.

    python -m experiments.atari PART --work WORK --device cuda --minutes 9
    python -m experiments.atari PART --work WORK --games Tennis Bowling --seeds 10
    python -m experiments.atari PART --work WORK --miniature            does all of it run?

Processes play the games, and pairs at last, while networks are trained one after the other: always
the first run of the list whose states are there. What is finished is a file under WORK/PART/GAME,
and is not made again: if the command was stopped, or its minutes are over, give it again.

    settings.json                     what the files of the game were made with
    tables-SEED-PIECE.npz             queried states, to learn from
    evaluation-FRESH.npz              states that networks are evaluated at
    records-FRESH-PLAY.npz            recursive pairs from them
    gaps-SEED-TRIAL-GROUP-BUDGET.csv  learned gaps, by member and state

A part with a `search` takes the trials that were best there: in figures/atari, or in OUT if it is
not there. The results of all finished runs go to OUT: see `results`. The exit status is 0 if
nothing is left to be done.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import lru_cache
from itertools import product
from pathlib import Path

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
from experiments.atari.tables import QueryTables, collect, evaluation_states
from experiments.atari.training import train
from experiments.files import claim, replacing, save_once
from experiments.processes import PROJECT, made_with, program, run_program
from jmdp_lib.atari.env import Snapshot

COMMITTED = PROJECT / "figures" / "atari"


def missing(run: Run) -> list[Path]:
    """Missing files of play that the training and the evaluation of a run need."""
    files = *run.tables, *map(run.states, run.fresh)
    return [path for path in files if not path.exists()]


def play(run: Run, processes: int, deadline: float) -> None:
    """Play the missing files, until the deadline."""
    for path, (seed, piece) in zip(run.tables, run.pieces, strict=True):
        if time.monotonic() < deadline:
            save_once(path, collect, run.experiment, _stream(0, seed, piece), processes)
    for fresh in run.fresh:
        if time.monotonic() < deadline and not run.states(fresh).exists():
            _starts(run, fresh, processes)[1].save(run.states(fresh))


def simulate(run: Run, fresh: int, number: int, processes: int, deadline: float) -> None:
    """Play recursive pairs from the states of a number."""
    path = run.pairs(fresh)[number]
    if time.monotonic() < deadline and not path.exists():
        starts, _ = _starts(run, fresh, processes)
        stream = _stream(3, fresh)
        record_pairs(run.experiment, starts, stream, processes, number).save(path)


def _starts(run: Run, fresh: int, processes: int) -> tuple[list[Snapshot], QueryTables]:
    """The states of a number, and their tables."""
    return evaluation_states(run.experiment, _stream(2, fresh), processes)


def simulations(runs: list[Run]) -> dict[Path, tuple[Run, int, int]]:
    """Files of the recursive pairs that runs are compared with, and arguments of `simulate`."""
    return {
        run.pairs(fresh)[number]: (run, fresh, number)
        for run in runs
        for number, fresh in product(range(run.plays), run.fresh)
    }


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
    """Train and evaluate until the deadline, while processes play for the next runs."""
    todo = [run for run in runs if not run.gaps.exists()]
    limits = options.processes, options.deadline
    with ThreadPoolExecutor(1) as ahead:
        jobs = [ahead.submit(play, run, *limits) for run in todo]
        jobs += [ahead.submit(simulate, *job, *limits) for job in simulations(runs).values()]
        try:
            while (todo or jobs) and time.monotonic() < options.deadline:
                jobs = _unfinished(jobs)
                if ready := next((run for run in todo if not missing(run)), None):
                    todo.remove(ready)
                    finish(ready, options.device)
                elif not jobs:
                    break
                else:
                    wait(jobs, timeout=0.2)
        finally:
            ahead.shutdown(cancel_futures=True)


def _unfinished(jobs: list[Future[None]]) -> list[Future[None]]:
    """The jobs that are not done; raises the error of one that failed."""
    done = [job for job in jobs if job.done()]
    for job in done:
        job.result()
    return [job for job in jobs if job not in done]


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
        unplayed = [path for path in simulations(runs) if not path.exists()]
        if left or unplayed:
            count = f"{len(left)} runs and {len(unplayed)} simulations of {part} are left"
            print(f"{count}: to go on, give the same command again", flush=True)
    homes = sorted({path.parent for path in (options.work / part).glob("*/gaps-*.csv")})
    if homes and len(gaps := pd.concat([*map(learned_in, homes)])):
        results.write(part, gaps, options.out, made_with(options))
    sys.exit(bool(left or unplayed))


def main(words: list[str] | None = None) -> None:
    parser = program(__doc__ or "")
    parser.add_argument("part", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    run_program(parser, words, make)
