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

A part with a `search` takes the trials that were best there: in figures/atari, or in OUT if it is
not there. The results of all finished runs go to OUT: see `results`. The exit status is 0 if
nothing is left to be done.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import jmdp_lib as jl
from experiments.atari import results
from experiments.atari.networks import Network
from experiments.atari.predictions import evaluate, gaps_of
from experiments.atari.recursive_pairs import (
    PairRecords,
    first_actions,
    pair_gaps,
    record_pairs,
)
from experiments.atari.replay import Replay
from experiments.atari.settings import MINIATURE, PARTS, Config, Run, runs_of, selected, table_of
from experiments.atari.small_models import tables_of, with_shock
from experiments.atari.tables import QueryTables, collect, evaluation_states
from experiments.atari.training import train
from experiments.files import claim, replacing, save_once
from experiments.processes import PROJECT, made_with, program, run_program

COMMITTED = PROJECT / "figures" / "atari"


def play(run: Run, processes: int) -> None:
    """Play all that is missing: what is learned from, states, and recursive pairs from them."""
    sizes = run.experiment
    save_once(run.tables, collect, sizes, _stream(0, run.seed), processes)
    for fresh in run.fresh:
        if not run.states(fresh).exists():
            starts, tables = evaluation_states(sizes, _stream(2, fresh), processes)
            if not run.reference:
                pairs = record_pairs(sizes, starts, _stream(3, fresh), processes)
                pairs.save(run.pairs(fresh))
            tables.save(run.states(fresh))


def simulated(run: Run, fresh: int) -> pd.DataFrame:
    """Simulated gaps, by discount, shock and state."""
    if not run.reference:
        cases = sorted({(gamma, sigma) for gamma, _, sigma in run.config.members})
        gaps = pair_gaps(PairRecords.load(run.pairs(fresh)), cases)
        return results.averages(gaps, ["gamma", "sigma", "state"])
    every = pd.read_csv(COMMITTED / f"{run.reference}_simulated.csv")
    mine = every[(every.game == run.experiment.game) & (every.states == fresh)]
    return mine.drop(columns=["game", "states"])


def _stream(purpose: int, number: int) -> np.random.SeedSequence:
    """Of a seed's states, 0, or of the states and the pairs of a number, 2 and 3."""
    return np.random.SeedSequence([purpose, number, 0])


def finish(run: Run, device: str) -> bool:
    """Train and evaluate; whether it could be trained."""
    tables = QueryTables.load(run.tables)
    network = Network(tables, run.config, device)
    started = time.perf_counter()
    try:
        params = train(network, Replay.of(tables, device), run.seed)
    except FloatingPointError as error:
        print(f"FAILED {run.gaps}: {error}", flush=True)
        return False
    print(f"trained for {run.gaps}: {time.perf_counter() - started:.0f} s", flush=True)
    frames = []
    for fresh in run.fresh:
        states = QueryTables.load(run.states(fresh))
        actions = [
            first_actions(_stream(3, fresh), row, run.experiment, states.num_actions)[0]
            for row in range(run.experiment.num_evaluation)
        ]
        gaps = evaluate(network, params, states, actions)
        both = gaps.merge(simulated(run, fresh), on=["gamma", "sigma", "state"])
        frames.append(both.assign(states=fresh))
    key = {"game": run.experiment.game, "trial": run.trial, "seed": run.seed}
    with replacing(run.gaps) as part:
        pd.concat(frames).assign(**key).to_csv(part, index=False, float_format="%.8g")
    return True


def learned_gaps(table: dict[str, Any]) -> pd.DataFrame:
    """Gram networks of many dimensions on a gridworld whose moments are known exactly.

    Learned / exact average gap variance, by dimension and seed.

    table: of the part. A network sees each of 16 cells as one byte that is not zero.
    """
    gamma, _, sigma = member = tuple(table["member"])
    grid = jl.windy_gridworld(4, gamma=gamma)
    exact = jl.jipe2(with_shock(grid, sigma), jl.uniform_policy(grid)).moments.gap_variance
    cells = 255 * np.eye(grid.num_states, dtype=np.uint8)
    tables = tables_of(grid, cells)
    rows = []
    for dim in table["dims"]:
        for seed in table["seeds"]:
            config = Config((member,), shared_dim=dim, **table["config"])
            network = Network(tables, config)
            params = train(network, Replay.of(tables), seed)
            here = network(params, torch.from_numpy(cells))
            learned = gaps_of(here.mean, here.covariance)[1]
            rows.append({"dim": dim, "seed": seed, "ratio": float(learned.mean() / exact.mean())})
    return pd.DataFrame(rows)


def work_through(todo: list[Run], options: argparse.Namespace, deadline: float) -> None:
    """Train and evaluate until the deadline, while processes play for the next runs."""
    done = 0
    with ThreadPoolExecutor(1) as ahead:
        try:
            for run, _ in zip(
                todo, ahead.map(lambda run: play(run, options.processes), todo), strict=True
            ):
                if time.monotonic() > deadline:
                    break
                done += finish(run, options.device)
        finally:
            ahead.shutdown(cancel_futures=True)
            if done < len(todo):
                left = f"{len(todo) - done} runs of {options.part} are left"
                print(f"{left}: to go on, give the same command again", flush=True)


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
    """Make a part, or a game or a seed of it, and write the results of all its finished runs."""
    deadline = time.monotonic() + 60.0 * options.minutes
    torch.backends.cuda.matmul.allow_tf32 = True
    part, game, seed = selected(options.part)
    facts = made_with(options)
    if part == "grid":
        table = PARTS[part] | (MINIATURE[part] if options.miniature else {})
        results.save(options.out, part, {"": learned_gaps(table)}, facts | {"settings": table})
        return
    chosen = best_trials(part, options.out)
    every = runs_of(part, options.work, chosen, options.miniature)
    mine = [
        run for run in every if game in (None, run.experiment.game) and seed in (None, run.seed)
    ]
    for run in mine:
        sizes = asdict(run.experiment) | {"fresh": run.fresh}
        config = {f"{run.trial}-{run.group}": asdict(run.config)}
        claim(run.home / "settings.json", {"sizes": sizes} | config)
    work_through([run for run in mine if not run.gaps.exists()], options, deadline)
    finished = [run.gaps for run in every if run.gaps.exists()]
    if finished:
        results.write(part, finished, options.out, facts | {"runs": len(finished)})
    sys.exit(not all(run.gaps.exists() for run in mine))


def main(words: list[str] | None = None) -> None:
    parser = program(__doc__ or "")
    parser.add_argument("part", metavar="PART[:GAME[:SEED]]")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after these")
    run_program(parser, words, make)
