"""Run the experiment behind the paper's Table 1 under the settings of the authors' release.

    python -m experiments.atari.release --work DIR --device cuda                 all games and seeds
    python -m experiments.atari.release --work DIR --seeds 10 --games Pong Boxing
    python -m experiments.atari.release table --work DIR [--out FOLDER]          its table

Settings, seeds, games and tolerances are in release.toml. Play runs in processes, one per core;
then all networks are trained side by side by this process. What is there is not made twice, and a
run that was killed goes on from the last save. `table` writes release.csv and
release.json, into figures/atari unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path

import torch

from experiments.atari import release_play
from experiments.atari.files import write_whole
from experiments.atari.release_settings import PROTOCOL, Settings, settings_of
from experiments.atari.release_training import Learner, train
from experiments.atari.tables import in_processes
from experiments.atari.training import require_device
from jmdp_lib import checks
from jmdp_lib.atari import emulator

PROJECT = Path(__file__).resolve().parents[2]
sys.path.append(str(PROJECT / "workflow"))

from job import provenance  # noqa: E402

Run = tuple[str, int]  # a game and a seed


def folder_of(work: Path, run: Run) -> Path:
    game, seed = run
    return work / f"{game}_{seed}"


def runs_of(options: argparse.Namespace) -> list[Run]:
    """All games and seeds of a command, checked."""
    games = [emulator.title(game) for game in options.games]
    runs = list(product(games, [checks.at_least("--seeds", seed, 0) for seed in options.seeds]))
    if len(set(runs)) < len(runs):
        raise ValueError(f"a game or a seed is named twice: {options.games}, {options.seeds}")
    return runs


def check_folder(work: Path, settings: Settings) -> None:
    """Note the settings in a new work folder; refuse one that was made with others."""
    path = work / "settings.json"
    told = json.dumps(asdict(settings), indent=1)
    if path.exists() and json.loads(path.read_text()) != json.loads(told):
        raise ValueError(f"{work} holds a run with other settings: see {path}, or use a new folder")
    write_whole(path, told)


def play(runs: list[Run], settings: Settings, options: argparse.Namespace) -> None:
    """Collect what is missing, and play the pairs that are missing."""
    sizes = (settings.steps, settings.states)
    jobs = [(*run, *sizes, folder_of(options.work, run)) for run in runs]
    in_processes(release_play.collect, jobs, options.processes, "steps")
    length = (settings.pairs, settings.horizon)
    pairs = [
        (*run, where, *sizes, *length, folder_of(options.work, run))
        for run, where in product(runs, release_play.WHERE)
    ]
    in_processes(release_play.simulate, pairs, options.processes, "pairs")


def learn(runs: list[Run], settings: Settings, options: argparse.Namespace) -> None:
    """Train all networks side by side, each from where it was saved."""
    folders = [folder_of(options.work, run) for run in runs]
    learners = []
    for run, folder in zip(runs, folders, strict=True):
        collected = release_play.Collected.load(folder / "steps.npz")
        learner = Learner(settings, *run, collected, options.device)
        learner.restore(folder)
        learners.append(learner)
    train(learners, folders)


def prepare(options: argparse.Namespace) -> tuple[list[Run], Settings]:
    """What a command is to run; bad input is refused here, before work starts."""
    settings = settings_of(options.smoke)
    runs = runs_of(options)
    require_device(options.device)
    checks.at_least("--processes", options.processes, 1)
    options.work.mkdir(parents=True, exist_ok=True)
    check_folder(options.work, settings)
    return runs, settings


def run_all(runs: list[Run], settings: Settings, options: argparse.Namespace) -> None:
    """Play, train, and note where and how long."""
    on_cuda = options.device == "cuda"
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    device = torch.cuda.get_device_name() if on_cuda else options.device
    note = {"runs": runs, "device": device, **provenance(PROJECT)}
    path = options.work / f"call_{time.strftime('%Y%m%d_%H%M%S', time.gmtime())}.json"
    started = time.perf_counter()
    play(runs, settings, options)
    learn(runs, settings, options)
    note["seconds"] = round(time.perf_counter() - started, 1)
    write_whole(path, json.dumps(note, indent=1))
    print(f"done in {note['seconds']:.0f} s", flush=True)


def recorded_runs(options: argparse.Namespace) -> tuple[list[Run], Settings]:
    """The games and seeds of a work folder with records and pairs, and their settings."""
    path = options.work / "settings.json"
    if not path.exists():
        raise ValueError(f"there is no run in {options.work}: it has no settings.json")
    settings = Settings.of(json.loads(path.read_text()))
    needed = ["learner.pt", *(f"pairs_{where}.npz" for where in release_play.WHERE)]
    found = []
    for folder in options.work.iterdir():
        game, _, seed = folder.name.rpartition("_")
        if seed.isdecimal() and all((folder / name).exists() for name in needed):
            found.append((game, int(seed)))
    if not found:
        raise ValueError(f"nothing to write yet: no game in {options.work} has records and pairs")
    order = {game: place for place, game in enumerate(PROTOCOL["games"])}
    return sorted(found, key=lambda run: (order.get(run[0], len(order)), run)), settings


def write_results(runs: list[Run], settings: Settings, options: argparse.Namespace) -> None:
    """Write what has been recorded so far, and print the paper's cells."""
    from experiments.atari.release_table import write_table

    write_table(runs, settings, PROTOCOL, options.work, options.out)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=["run", "table"], default="run")
    parser.add_argument("--work", type=Path, required=True, help="folder of work in progress")
    parser.add_argument("--games", nargs="+", default=PROTOCOL["games"])
    parser.add_argument("--seeds", nargs="+", type=int, default=PROTOCOL["seeds"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--out", type=Path, default=PROJECT / "figures" / "atari")
    parser.add_argument("--smoke", action="store_true", help="in miniature")
    options = parser.parse_args(words)
    commands = {"run": (prepare, run_all), "table": (recorded_runs, write_results)}
    check, work = commands[options.command]
    try:
        runs, settings = check(options)
    except ValueError as error:
        parser.error(str(error))
    work(runs, settings, options)


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums on every run
    main()
