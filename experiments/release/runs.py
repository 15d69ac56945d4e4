"""Train the networks of the paper's Figure 7 and Table 1 under the authors' own settings.

    python -m experiments.release --work DIR --device cuda          both settings, games and seeds
    python -m experiments.release --work DIR --settings defaults --games Pong --seeds 0
    python -m experiments.release --work DIR --miniature            does all of it run?

Settings, games, seeds and rules are in settings.toml. Processes play, one per core; then this one
trains, on a GPU all networks side by side, on a processor one after the other. What is finished is
a file of the work folder, and is not made again: if the command was stopped, give it again. At the
end the results of all runs of the folder are written. Those in figures/atari were made with --out
figures/atari.

    settings.json                     what all files of the folder were made with
    plays/COUPLING-GAME-SEED.npz      steps to learn from
    pairs/COUPLING-GAME-SEED.npz      recursive pairs
    runs/SETTINGS-GAME-SEED.csv       a training: errors and predictions on the way
"""

from __future__ import annotations

import argparse
import os
from itertools import product
from pathlib import Path

import pandas as pd

from experiments.files import claim, save_once, write_whole
from experiments.processes import (
    end_with_parent,
    in_processes,
    made_with,
    program,
    run_program,
)
from experiments.release.play import Collected, collect, simulate
from experiments.release.results import PACKAGES, write_results
from experiments.release.settings import PROTOCOL, Run, settings_of
from experiments.release.training import Learner, data_on, train
from jmdp_lib import checks
from jmdp_lib.atari import emulator
from jmdp_lib.machine import extra

with extra("torch"):
    import torch


def runs_of(options: argparse.Namespace) -> list[Run]:
    """All settings, games and seeds of a command, checked."""
    games = [emulator.title(game) for game in options.games]
    seeds = [checks.at_least("--seeds", seed, 0) for seed in options.seeds]
    chosen = {name: settings_of(name, options.miniature) for name in options.settings}
    every = dict.fromkeys(product(chosen, games, seeds))
    return [Run(name, chosen[name], game, seed) for name, game, seed in every]


def play_all(runs: list[Run], work: Path, processes: int) -> None:
    """Play what the runs learn from, and their recursive pairs."""
    jobs = [
        (work / folder / f"{played}.npz", make, run.settings, run.game, run.seed)
        for folder, make in (("plays", collect), ("pairs", simulate))
        for played, run in {run.played: run for run in runs}.items()
    ]
    in_processes(save_once, jobs, processes, "plays and pairs")


def learn(runs: list[Run], options: argparse.Namespace) -> None:
    """Train networks side by side, and write what they did on the way."""
    plays = {run.played: run.settings for run in runs}
    data = {
        played: data_on(
            options.device, Collected.load(options.work / "plays" / f"{played}.npz"), settings
        )
        for played, settings in plays.items()
    }
    learners = [Learner(run, data[run.played]) for run in runs]
    train(learners)
    facts = made_with(options)
    facts |= {name: facts["versions"].get(name) for name in PACKAGES}
    noted = {name: facts[name] for name in ("device", "commit", "dirty", *PACKAGES)}
    for run, learner in zip(runs, learners, strict=True):
        key = {"settings": run.name, "game": run.game, "seed": run.seed}
        rows = pd.DataFrame([key | record | noted for record in learner.records])
        write_whole(run.file(options.work), rows.to_csv(index=False))


def work_through(options: argparse.Namespace) -> None:
    """Check all that was asked for, play, train what is missing, and write the results."""
    runs = runs_of(options)
    shared = {key: PROTOCOL[key] for key in ("common", "couplings", "networks", "settings")}
    small = {"miniature": PROTOCOL["miniature"] if options.miniature else None}
    claim(options.work / "settings.json", shared | small)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.with_parent:
        end_with_parent()
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False  # torch's default, whatever the machine's is
    play_all(runs, options.work, options.processes)
    missing = [run for run in runs if not run.file(options.work).exists()]
    for group in [[run] for run in missing] if options.device == "cpu" else [missing]:
        learn(group, options)
    write_results(options)


def main(words: list[str] | None = None) -> None:
    parser = program(__doc__ or "")
    own = ["defaults", "launcher"]
    parser.add_argument("--settings", nargs="+", default=own, help=", ".join(PROTOCOL["settings"]))
    parser.add_argument("--games", nargs="+", default=PROTOCOL["games"])
    parser.add_argument("--seeds", nargs="+", type=int, default=PROTOCOL["seeds"])
    parser.add_argument("--with-parent", action="store_true", help="end when it has ended")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums on every run
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # streams that run at once
    run_program(parser, words, work_through)
