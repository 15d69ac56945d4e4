"""Train runs of the protocol, one after the other, on a machine with one GPU or with none.

    python -m experiments.atari.device calibrate:Pong:10:base ... --work WORK
    python -m experiments.atari.device ... --work WORK --settings FILE --device cpu

Runs are named PART:GAME:SEED:TRIAL. Other processes play their games, ahead of the trainings. What
is finished is a file under WORK/PART/GAME, and is not made again: if the command was stopped, give
it again. A network that was trained but not evaluated is then evaluated without training.

    settings.json                   what all files of the game were made with
    tables-SEED.npz                 queried states, to learn from
    evaluation-FRESH.npz            states that networks are evaluated at
    records-FRESH.npz               recursive pairs from them
    run-SEED-TRIAL.pt               a trained network
    gaps-SEED-TRIAL.csv             its gaps beside simulated ones, a row for each member and state

Then `experiments.atari.protocol` writes the results. The exit status is 1 if a training failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from experiments.atari.networks import Network
from experiments.atari.predictions import evaluate
from experiments.atari.protocol import (
    PROJECT,
    PROTOCOL,
    Experiment,
    experiment_of,
    settings,
    use_settings,
)
from experiments.atari.recursive_pairs import PairRecords, record_pairs
from experiments.atari.replay import Replay
from experiments.atari.tables import QueryTables, collect, evaluation_states
from experiments.atari.training import Trained, train
from experiments.files import replacing, write_whole
from experiments.processes import require_device
from jmdp_lib import checks

sys.path.append(str(PROJECT / "workflow"))

from job import outlive_terminal, provenance


class Training(NamedTuple):
    """A run to train: one trial of an experiment, whose config has the seed.

    fresh: the numbers of the states that it is evaluated at. home: where its files are.
    """

    experiment: Experiment
    trial: str
    fresh: list[int]
    home: Path

    @classmethod
    def of(cls, run: str, work: Path) -> Training:
        """As the command names it."""
        named = re.fullmatch(r"(\w+):(\w+):(\d+):(\w+)", run)
        part, game, seed, trial = named.groups() if named else ("", "", "", "")
        if part not in PROTOCOL or trial not in settings(part, game)["trials"]:
            raise ValueError(f"the protocol has no run {run}: runs are PART:GAME:SEED:TRIAL")
        experiment = experiment_of(part, game, trial, int(seed))
        return cls(experiment, trial, settings(part, game)["fresh"], work / part / game)

    @property
    def seed(self) -> int:
        return self.experiment.config.seed

    def tables(self, processes: int | None = None) -> QueryTables:
        """What it learns from; collected if that is not there yet."""
        path = self.home / f"tables-{self.seed}.npz"
        if not path.exists():
            sizes = self.experiment
            collect(
                sizes.game,
                sizes.num_states,
                _stream(0, self.seed),
                actions=sizes.actions,
                follow_share=sizes.follow_share,
                processes=processes,
            ).save(path)
        return QueryTables.load(path)

    def simulated(
        self, fresh: int, processes: int | None = None
    ) -> tuple[QueryTables, PairRecords]:
        """Tables of states to be evaluated at, and recursive pairs from them; played if missing.

        fresh: another number gives other states and other pairs.
        """
        tables = self.home / f"evaluation-{fresh}.npz"
        records = self.home / f"records-{fresh}.npz"
        if not (tables.exists() and records.exists()):
            sizes = self.experiment
            starts, found = evaluation_states(
                sizes.game, sizes.num_evaluation, _stream(2, fresh), processes=processes
            )
            found.save(tables)
            record_pairs(
                sizes.game,
                starts,
                sizes.horizon,
                _stream(3, fresh),
                pairs_per_state=sizes.pairs_per_state,
                repeats=sizes.repeats,
                processes=processes,
            ).save(records)
        return QueryTables.load(tables), PairRecords.load(records)

    @property
    def network_file(self) -> Path:
        return self.home / f"run-{self.seed}-{self.trial}.pt"

    @property
    def gaps_file(self) -> Path:
        return self.home / f"gaps-{self.seed}-{self.trial}.csv"


def _stream(purpose: int, number: int) -> np.random.SeedSequence:
    """Of a seed's states, 0, or of the states and the pairs of a number, 2 and 3."""
    return np.random.SeedSequence([purpose, number, 0])


def claim(training: Training) -> None:
    """Note the settings of a run in its folder; refuse a folder that was made with others."""
    path = training.home / "settings.json"
    experiment = training.experiment
    sizes = asdict(experiment) | {"config": None, "fresh": training.fresh}
    config = asdict(experiment.config) | {"seed": None}
    here = json.loads(json.dumps({"experiment": sizes, training.trial: config}))
    try:
        there = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if different := [key for key in here.keys() & there.keys() if here[key] != there[key]]:
        raise ValueError(f"{training.home} has files of other settings: {', '.join(different)}")
    write_whole(path, json.dumps(there | here, indent=1) + "\n")


def prepare(options: argparse.Namespace) -> list[Training]:
    """What a command is to train; bad input is refused here, before work starts."""
    trainings = [Training.of(run, options.work) for run in options.runs]
    require_device(options.device)
    checks.at_least("--processes", options.processes, 1)
    for training in trainings:
        claim(training)
        if training.network_file.exists():
            Trained.load(training.network_file)
    return trainings


def play(training: Training, processes: int) -> None:
    """Play all that is missing for a run."""
    if not training.network_file.exists():
        training.tables(processes)
    for fresh in training.fresh:
        training.simulated(fresh, processes)


def write_gaps(training: Training) -> None:
    """Evaluate a trained network beside the simulation."""
    trained = Trained.load(training.network_file)
    frames = [
        evaluate(trained, *training.simulated(fresh)).assign(states=fresh)
        for fresh in training.fresh
    ]
    with replacing(training.gaps_file) as part:
        pd.concat(frames).to_csv(part, index=False, float_format="%.8g")


def finish(training: Training, device: str) -> bool:
    """Train, unless that is done, and evaluate; whether it could be trained."""
    if not training.network_file.exists():
        tables = training.tables()
        network = Network.of(tables, training.experiment.config, device)
        try:
            trained = train(network, Replay.of(tables, device))
        except FloatingPointError as error:
            print(f"FAILED {training.network_file}: {error}", flush=True)
            return False
        trained.save(training.network_file)
        print(f"trained {training.network_file}", flush=True)
    write_gaps(training)
    return True


def work_through(trainings: list[Training], device: str, processes: int) -> bool:
    """Train and evaluate, while processes play for the next ones; whether all could be trained."""
    todo = [training for training in trainings if not training.gaps_file.exists()]
    done = []
    with ThreadPoolExecutor(1) as ahead:
        played = [ahead.submit(play, training, processes) for training in todo]
        try:
            for training, ready in zip(todo, played, strict=True):
                ready.result()
                done.append(finish(training, device))
        finally:
            ahead.shutdown(cancel_futures=True)
    return all(done)


def write_facts(work: Path, device: str) -> None:
    """Where and with what the runs are made."""
    facts = provenance(PROJECT) | {"device": device, "cores": os.cpu_count()}
    if device != "cpu":
        facts["device"] = torch.cuda.get_device_name(device)
        facts["matrix products"] = "TF32"
    write_whole(work / "facts.json", json.dumps(facts, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="PART:GAME:SEED:TRIAL")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--settings", type=Path, help="a file of parts that replace those here")
    options = parser.parse_args()
    try:
        use_settings(options.settings)
        trainings = prepare(options)
    except (RuntimeError, TypeError, ValueError, OSError) as error:
        parser.error(str(error))
    write_facts(options.work, options.device)
    torch.backends.cuda.matmul.allow_tf32 = True
    sys.exit(not work_through(trainings, options.device, options.processes))


if __name__ == "__main__":
    outlive_terminal()
    main()
