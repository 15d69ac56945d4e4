"""Make a part of runs.toml: play its games, train and evaluate its networks, write its files.

    python -m experiments.atari PART --work WORK --device cuda --minutes 9
    python -m experiments.atari PART:GAME:SEED --work WORK --device cpu --miniature

Processes play the games, ahead of the trainings, which come one after the other. What is finished
is a file under WORK/PART/GAME, and is not made again: if the command was stopped, or its minutes
are over, give it again. A network that was trained but not evaluated is then evaluated without
training.

    settings.json                     what the files of the game were made with
    tables-SEED.npz                   queried states, to learn from
    evaluation-FRESH.npz              states that networks are evaluated at
    records-FRESH.npz                 recursive pairs from them
    run-SEED-TRIAL-GROUP.pt           trained networks
    gaps-SEED-TRIAL-GROUP.csv         their gaps beside simulated ones, by member and state

A part with a `search` takes the trials that were best there. If figures/atari has no results of the
search, it is made first. The results of all finished runs go to OUT: see `records`. The exit status
is 0 if nothing is left to be done.
"""

from __future__ import annotations

import argparse
import json
import os
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
from experiments.atari.training import Trained, train
from experiments.files import replacing, write_whole
from experiments.processes import require_device
from jmdp_lib import checks

PROJECT = Path(__file__).resolve().parents[2]
COMMITTED = PROJECT / "figures" / "atari"
sys.path.append(str(PROJECT / "workflow"))

from job import outlive_terminal, provenance  # noqa: E402

__all__ = ["main", "outlive_terminal"]


class Work(argparse.Namespace):
    """The options of a command, and the files of its runs.

    work, out: folders. device, processes, miniature: how. deadline: when no further run is begun.
    """

    def home(self, run: Run) -> Path:
        return Path(self.work) / run.part / run.game

    def network_file(self, run: Run) -> Path:
        return self.home(run) / f"run-{run.label}.pt"

    def gaps_file(self, run: Run) -> Path:
        return self.home(run) / f"gaps-{run.label}.csv"

    def tables(self, run: Run) -> QueryTables:
        """What a run learns from; collected if that is not there yet."""
        path = self.home(run) / f"tables-{run.seed}.npz"
        if not path.exists():
            sizes = run.experiment
            collect(
                sizes.played,
                sizes.num_states,
                _stream(0, run.seed),
                actions=sizes.actions,
                follow_share=sizes.follow_share,
                processes=self.processes,
            ).save(path)
        return QueryTables.load(path)

    def states(self, run: Run, fresh: int) -> QueryTables:
        """The states to be evaluated at, and with them their recursive pairs; played if missing."""
        path = self.home(run) / f"evaluation-{fresh}.npz"
        pairs = self.records_file(run, fresh)
        if not (path.exists() and (run.reference or pairs.exists())):
            sizes = run.experiment
            starts, tables = evaluation_states(
                sizes.played, sizes.num_evaluation, _stream(2, fresh), processes=self.processes
            )
            if not run.reference:
                record_pairs(
                    sizes.played,
                    starts,
                    sizes.horizon,
                    _stream(3, fresh),
                    pairs_per_state=sizes.pairs_per_state,
                    repeats=sizes.repeats,
                    processes=self.processes,
                ).save(pairs)
            tables.save(path)
        return QueryTables.load(path)

    def records_file(self, run: Run, fresh: int) -> Path:
        return self.home(run) / f"records-{fresh}.npz"

    def simulated(self, run: Run, fresh: int) -> pd.DataFrame:
        """Simulated gaps, by discount, shock and state."""
        if run.reference:
            path = COMMITTED / f"{run.reference}_simulated.csv"
            every = pd.read_csv(path)
            mine = every[(every.game == run.game) & (every.states == fresh)]
            return mine.drop(columns=["game", "states"])
        pairs = PairRecords.load(self.records_file(run, fresh))
        return records.simulated_gaps(pairs, run.experiment.config.members)


def _stream(purpose: int, number: int) -> np.random.SeedSequence:
    """Of a seed's states, 0, or of the states and the pairs of a number, 2 and 3."""
    return np.random.SeedSequence([purpose, number, 0])


def claim(work: Work, run: Run) -> None:
    """Note the settings of a run in its folder; refuse a folder that was made with others."""
    path = work.home(run) / "settings.json"
    sizes = asdict(run.experiment) | {"config": None, "fresh": run.fresh}
    config = asdict(run.experiment.config) | {"seed": None}
    own = {"experiment": sizes, f"{run.trial}-{run.group}": config}
    here = json.loads(json.dumps(own))
    try:
        there = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if different := [key for key in here.keys() & there.keys() if here[key] != there[key]]:
        raise ValueError(f"{path.parent} has files of other settings: {', '.join(different)}")
    write_whole(path, json.dumps(there | here, indent=1) + "\n")


def play(work: Work, run: Run) -> None:
    """Play all that is missing for a run."""
    if not work.network_file(run).exists():
        work.tables(run)
    for fresh in run.fresh:
        work.states(run, fresh)


def write_gaps(work: Work, run: Run) -> None:
    """Evaluate a trained network beside the simulation."""
    trained = Trained.load(work.network_file(run))
    frames = []
    for fresh in run.fresh:
        tables = work.states(run, fresh)
        pairs = run.experiment.pairs_per_state
        actions = [
            first_actions(_stream(3, fresh), state, tables.num_actions, pairs)[0]
            for state in range(run.experiment.num_evaluation)
        ]
        gaps = evaluate(trained, tables, actions)
        both = gaps.merge(work.simulated(run, fresh), on=["gamma", "sigma", "state"])
        frames.append(both.assign(states=fresh))
    every = pd.concat(frames).assign(game=run.game, trial=run.trial, seed=run.seed)
    with replacing(work.gaps_file(run)) as part:
        every.to_csv(part, index=False, float_format="%.8g")


def finish(work: Work, run: Run) -> bool:
    """Train, unless that is done, and evaluate; whether it could be trained."""
    path = work.network_file(run)
    if not path.exists():
        tables = work.tables(run)
        network = Network.of(tables, run.experiment.config, work.device)
        started = time.perf_counter()
        try:
            trained = train(network, Replay.of(tables, work.device))
        except FloatingPointError as error:
            print(f"FAILED {path}: {error}", flush=True)
            return False
        trained.save(path)
        print(f"trained {path} in {time.perf_counter() - started:.0f} s", flush=True)
    write_gaps(work, run)
    return True


def work_through(work: Work, runs: list[Run]) -> None:
    """Train and evaluate, while processes play for the next runs."""
    todo = [run for run in runs if not work.gaps_file(run).exists()]
    done = 0
    with ThreadPoolExecutor(1) as ahead:
        played = [ahead.submit(play, work, run) for run in todo]
        try:
            for run, ready in zip(todo, played, strict=True):
                if time.monotonic() > work.deadline:
                    break
                ready.result()
                done += finish(work, run)
        finally:
            ahead.shutdown(cancel_futures=True)
            if done < len(todo):
                left = f"{len(todo) - done} of {len(runs)} runs of {runs[0].part}"
                print(f"{left} are left: to go on, give the same command again", flush=True)


def make(work: Work, part: str, game: str | None, seed: int | None) -> bool:
    """A part, or a game or a seed of it, and before that its search; whether all is finished."""
    if part == "grid":
        return make_grid(work)
    chosen = None
    if search := table_of(part, "").get("search"):
        path = COMMITTED / f"{search}.csv"
        if not path.exists():
            tuned = game if work.miniature and game in table_of(search, "")["games"] else None
            if not make(work, search, tuned, None):
                return False
            path = work.out / f"{search}.csv"
        chosen = results.best_trials(pd.read_csv(path))
    every = runs_of(part, chosen, work.miniature)
    runs = [run for run in every if game in (None, run.game) and seed in (None, run.seed)]
    for run in runs:
        claim(work, run)
        if work.network_file(run).exists():
            Trained.load(work.network_file(run))
    work_through(work, runs)
    finished = [run for run in every if work.gaps_file(run).exists()]
    if finished:
        facts = provenance(PROJECT) | {"device": work.device_name, "runs": len(finished)}
        records.write(part, [work.gaps_file(run) for run in finished], work.out, facts)
    return set(map(id, runs)) <= set(map(id, finished))


def make_grid(work: Work) -> bool:
    """The part that plays no game."""
    table = PARTS["grid"] | {"seeds": PARTS["grid"]["seeds"][: 1 if work.miniature else None]}
    if work.miniature:
        table |= {"config": table["config"] | MINIATURE["config"]}
    facts = provenance(PROJECT) | {"device": "cpu", "settings": table}
    records.save(work.out, "grid", {"": learned_gaps(table)}, facts)
    return True


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", metavar="PART[:GAME[:SEED]]")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="folder of results; WORK/results unless given")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after these")
    parser.add_argument("--miniature", action="store_true", help="does all of it run?")
    work = parser.parse_args(words, Work())
    work.deadline = time.monotonic() + 60.0 * work.minutes
    work.out = work.out or work.work / "results"
    try:
        named = selected(work.part)
        checks.at_least("--processes", work.processes, 1)
        work.device_name = prepared(work.device)
        finished = make(work, *named)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    sys.exit(not finished)


def prepared(name: str) -> str:
    """Set the device up for a run of this program; its name."""
    try:
        device = require_device(name)
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    if device.type == "cpu":
        return "cpu"
    torch.cuda.set_device(device.index or 0)
    torch.backends.cuda.matmul.allow_tf32 = True
    return f"{torch.cuda.get_device_name(device)}, matrix products in TF32"
