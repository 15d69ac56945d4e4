"""Train the networks of the paper's Figure 7 and Table 1 under the authors' own settings.

    python -m experiments.release --work DIR --device cuda          both settings, games and seeds
    python -m experiments.release --work DIR --settings defaults --games Pong --seeds 0
    python -m experiments.release --work DIR --steps 60000 --minutes 9
    python -m experiments.release --work DIR --miniature            does all of it run?

Settings, games, seeds and rules are in settings.toml. Processes simulate, one per core; then this
one trains, on a GPU all networks side by side, on a processor one after the other. What is finished
is a file of the work folder, and is not made again. If the command was stopped, or its --minutes
are over, give it again: each training goes on where it was, and ends as one in one piece does. With
more --steps it goes on, too, on longer rollouts. At the end the results of all runs of the folder
are written. Those in figures/atari were made with --out figures/atari.

    settings.json                          what all files of the folder were made with
    rollouts/COUPLING-GAME-SEED-STEPS.npz  steps to learn from
    pairs/COUPLING-GAME-SEED.npz           recursive pairs
    states/SETTINGS-GAME-SEED.pt           what a training goes on from
    runs/SETTINGS-GAME-SEED.csv            a training: errors and predictions on the way

The exit status is 0 if nothing is left to be done.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.files import claim, save_once, write_whole
from experiments.processes import (
    end_with_parent,
    in_processes,
    made_with,
    program,
    run_program,
)
from experiments.release.results import MADE_WITH, write_results
from experiments.release.rollouts import Collected, collect, simulate
from experiments.release.settings import PROTOCOL, Run, settings_of
from experiments.release.training import Data, Learner, data_on, load_state, save_state, train
from jmdp_lib.machine import extra

with extra("torch"):
    import torch


STATE_EVERY = 5  # windows of updates


def runs_of(options: argparse.Namespace) -> list[Run]:
    """All settings, games and seeds of a command."""
    chosen = {
        name: settings_of(name, options.miniature, options.steps) for name in options.settings
    }
    games, seeds = options.games or PROTOCOL["games"], options.seeds or PROTOCOL["seeds"]
    every = dict.fromkeys(product(chosen, games, seeds))
    return [Run(name, chosen[name], game, seed, options.work) for name, game, seed in every]


def simulate_all(runs: list[Run], options: argparse.Namespace) -> None:
    """Make the rollouts that the runs learn from, and their recursive pairs."""
    rollouts = {run.rollout: (collect, run) for run in runs}
    pairs = {run.pairs: (simulate, run) for run in runs}
    jobs = [
        (path, make, run.settings, run.game, run.seed)
        for path, (make, run) in (rollouts | pairs).items()
        if not path.exists()
    ]
    if jobs:
        label = "rollouts and pairs"
        in_processes(save_once, jobs, options.processes, label, options.deadline)


def unfinished(runs: list[Run]) -> list[Run]:
    """The runs whose records do not reach their last step."""
    return [
        run
        for run in runs
        if not run.results.exists() or pd.read_csv(run.results).step.max() < run.settings.steps
    ]


def groups_of(runs: list[Run], states: dict[Run, Any], device: str) -> list[list[Run]]:
    """Runs that are trained together: each alone on a processor, side by side on a GPU."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        at = states[run]["step"] if run in states else 0
        shared = run if device == "cpu" else (run.settings.steps, at)
        groups.setdefault(shared, []).append(run)
    return list(groups.values())


def learn(runs: list[Run], states: dict[Run, Any], options: argparse.Namespace) -> None:
    """Train networks side by side from where they stopped, and write their records."""
    facts = made_with(options)
    facts |= facts["versions"]
    noted = {name: facts.get(name) for name in MADE_WITH}
    rollouts = {run.rollout: run.settings for run in runs}

    def read(path: Path) -> Data:
        return data_on(options.device, Collected.load(path), rollouts[path])

    with ThreadPoolExecutor(4) as readers:  # a rollout of 200,000 steps has 2.8 GB
        data = dict(zip(rollouts, readers.map(read, rollouts), strict=True))
    learners = [Learner(run, data[run.rollout]) for run in runs]
    for learner in learners:
        if learner.run in states:
            learner.restore(states[learner.run])

    def note() -> None:
        for learner in learners:
            learner.records[-1] |= noted
            if len(learner.records) % STATE_EVERY == 0:
                save_state(learner)
            write_records(learner)

    train(learners, note, options.deadline)
    for learner in learners:
        save_state(learner)
        write_records(learner)


def write_records(learner: Learner) -> None:
    """Write the records of a network."""
    run = learner.run
    key = {"settings": run.name, "game": run.game, "seed": run.seed}
    rows = pd.DataFrame([key | record for record in learner.records])
    write_whole(run.results, rows.to_csv(index=False))


def work_through(options: argparse.Namespace) -> None:
    """Check all that was requested, simulate, train what is missing, and write the results."""
    runs = runs_of(options)
    shared = {key: PROTOCOL[key] for key in ("common", "couplings", "networks", "settings")}
    small = {"miniature": PROTOCOL["miniature"] if options.miniature else None}
    claim(options.work / "settings.json", shared | small)
    missing = unfinished(runs)
    states = {run: load_state(run.state, options.device) for run in missing if run.state.exists()}
    options.out.mkdir(parents=True, exist_ok=True)
    if options.with_parent:
        end_with_parent()
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False  # torch's default, whatever the machine's is
    try:
        simulate_all(runs, options)
        for group in groups_of(missing, states, options.device):
            if time.monotonic() < options.deadline:
                learn(group, states, options)
    except TimeoutError:
        print("the time is over before all games are simulated", flush=True)
    if list((options.work / "runs").glob("*.csv")):
        write_results(options)
    if left := unfinished(runs):
        print(f"{len(left)} runs are left: to go on, give the same command again", flush=True)
        sys.exit(1)


def main(words: list[str] | None = None) -> None:
    parser = program(__doc__ or "")
    own = ["defaults", "launcher"]
    parser.add_argument("--settings", nargs="+", default=own, help=", ".join(PROTOCOL["settings"]))
    parser.add_argument("--steps", type=int, help="in place of those of settings.toml")
    parser.add_argument("--with-parent", action="store_true", help="end when it has ended")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums on every run
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # streams that run at once
    run_program(parser, words, work_through)
