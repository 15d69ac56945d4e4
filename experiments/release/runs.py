"""Train the networks of the paper's Figure 7 and Table 1 under the authors' own settings.

    python -m experiments.release --work DIR --device cuda          both settings, games and seeds
    python -m experiments.release --work DIR --settings defaults --seeds 0 --steps 200000
    python -m experiments.release --work DIR --miniature            does all of it run?

Settings, games, seeds and rules are in settings.toml. Processes play, one per core, and this one
trains all networks side by side. What is there is not made twice. A run that was stopped goes on
from its last save: give the same command again. At the end the results of all runs of the work
folder are written. Those in figures/atari were made with --out figures/atari.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from experiments.files import claim, save_once, write_whole
from experiments.processes import end_with_parent, in_processes, program, require_device
from experiments.release.play import Collected, collect, simulate
from experiments.release.records import run_of, write_results
from experiments.release.settings import PROTOCOL, Settings, settings_of
from experiments.release.training import Data, Learner, data_on, load, train
from jmdp_lib import checks
from jmdp_lib.atari import emulator
from jmdp_lib.machine import extra

with extra("torch"):
    import torch

__all__ = ["main", "outlive_terminal"]
PROJECT = Path(__file__).resolve().parents[2]
sys.path.append(str(PROJECT / "workflow"))

from job import outlive_terminal, provenance  # noqa: E402


class Run(NamedTuple):
    """One training: the name of its settings, these, a game and a seed."""

    name: str
    settings: Settings
    game: str
    seed: int

    @property
    def label(self) -> str:
        return f"{self.name}-{self.game}-{self.seed}"

    @property
    def played(self) -> str:
        """What it shares with runs of the same coupling."""
        return f"{self.settings.coupling}-{self.game}-{self.seed}"

    def play_file(self, work: Path) -> Path:
        return work / "plays" / f"{self.played}-{self.settings.steps}.npz"


def runs_of(options: argparse.Namespace) -> list[Run]:
    """All settings, games and seeds of a command, checked."""
    names = options.settings
    games = [emulator.title(game) for game in options.games]
    seeds = [checks.at_least("--seeds", seed, 0) for seed in options.seeds]
    every = list(product(names, games, seeds))
    if len(set(every)) < len(every):
        raise ValueError(f"something is named twice: {names}, {options.games}, {options.seeds}")
    chosen = {name: settings_of(name, options.miniature, options.steps) for name in names}
    return [Run(name, chosen[name], game, seed) for name, game, seed in every]


def kept_settings(miniature: bool) -> dict[str, Any]:
    """What all runs of a work folder share."""
    kept = {key: PROTOCOL[key] for key in ("common", "couplings", "networks", "settings")}
    return kept | {"miniature": PROTOCOL["miniature"] if miniature else None}


def prepare(options: argparse.Namespace) -> list[Run]:
    """What a command is to run; bad input is refused here, before work starts."""
    runs = runs_of(options)
    require_device(options.device)
    checks.at_least("--processes", options.processes, 1)
    claim(options.work / "settings.json", kept_settings(options.miniature))
    options.out.mkdir(parents=True, exist_ok=True)
    for run in runs:
        if (path := run_of(options.work, run.label)).exists():
            load(path)
    return runs


def learn(runs: list[Run], options: argparse.Namespace) -> None:
    """Train all networks side by side, each from where it was saved."""
    data: dict[str, Data] = {}
    groups: dict[int, list[Learner]] = defaultdict(list)
    for run in runs:
        if run.played not in data:
            play = Collected.load(run.play_file(options.work))
            data[run.played] = data_on(options.device, play, run.settings)
        learner = Learner(*run, data[run.played])
        learner.restore(run_of(options.work, run.label))
        groups[learner.step].append(learner)
    for group in groups.values():
        labels = [f"{learner.name}-{learner.game}-{learner.seed}" for learner in group]
        train(group, [run_of(options.work, label) for label in labels])


def work_through(runs: list[Run], options: argparse.Namespace) -> None:
    """Play, train, and note where and how long; recursive pairs are played beside the training."""
    missing = [run for run in runs if not is_finished(run, options.work)]
    once = {run.played: run for run in missing}.values()
    plays = [(run.play_file(options.work), collect, *run[1:]) for run in once]
    pairs = [
        (options.work / "pairs" / f"{played}.npz", simulate, *run[1:])
        for played, run in {run.played: run for run in runs}.items()
    ]
    started = time.perf_counter()
    if plays:
        in_processes(save_once, plays, options.processes, "plays")
    with ThreadPoolExecutor(1) as beside:
        played = beside.submit(in_processes, save_once, pairs, options.processes, "pairs")
        learn(missing, options)
        played.result()
    device = torch.cuda.get_device_name() if options.device != "cpu" else "cpu"
    note = {
        "device": device,
        "seconds": round(time.perf_counter() - started),
        **provenance(PROJECT),
    }
    for run in missing:
        write_whole(
            run_of(options.work, run.label).with_suffix(".json"), json.dumps(note, indent=1)
        )


def is_finished(run: Run, work: Path) -> bool:
    path = run_of(work, run.label)
    return path.with_suffix(".json").exists() and load(path)["step"] >= run.settings.steps


def command_line() -> argparse.ArgumentParser:
    """All that the command understands."""
    parser = program(__doc__ or "")
    own = ["defaults", "launcher"]
    parser.add_argument("--settings", nargs="+", default=own, help=", ".join(PROTOCOL["settings"]))
    parser.add_argument("--games", nargs="+", default=PROTOCOL["games"])
    parser.add_argument("--seeds", nargs="+", type=int, default=PROTOCOL["seeds"])
    parser.add_argument("--steps", type=int, help="train up to this step instead")
    parser.add_argument("--with-parent", action="store_true", help="end when it has ended")
    return parser


def main(words: list[str] | None = None) -> None:
    parser = command_line()
    options = parser.parse_args(words)
    if options.with_parent:
        end_with_parent()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums on every run
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # streams that run at once
    options.out = options.out or options.work / "results"
    try:
        runs = prepare(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if options.device != "cpu":
        torch.cuda.set_device(torch.device(options.device).index or 0)
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False  # torch's default, whatever the machine's is
    work_through(runs, options)
    write_results(options.work, options.out)
