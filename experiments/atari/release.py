"""Run the experiment behind the paper's Table 1 under the settings of the authors' release.

    python -m experiments.atari.release --work DIR --device cuda                 all games and seeds
    python -m experiments.atari.release --work DIR --seeds 10 --games Pong,Boxing
    python -m experiments.atari.release table --work DIR [--out FOLDER]          its table

Settings, seeds, games and tolerances are in release.toml. Play runs in processes, one per core; all
networks are trained side by side by this process, while others play the recursive pairs. What is
there is not made twice, and a run that was killed goes on from the last save. `table` writes
atari_release.csv and atari_release.json, into figures/ unless told otherwise.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product
from pathlib import Path

from experiments.atari import release_play
from experiments.atari.release_settings import PROTOCOL, Settings, settings_of
from jmdp_lib import checks
from jmdp_lib.atari import emulator

PROJECT = Path(__file__).resolve().parents[2]
sys.path.append(str(PROJECT / "workflow"))

from job import end_with_parent, provenance, write_atomically  # noqa: E402

Run = tuple[str, int]  # a game and a seed


def folder_of(work: Path, run: Run) -> Path:
    game, seed = run
    return work / f"{game}_{seed}"


def runs_of(options: argparse.Namespace) -> list[Run]:
    """All games and seeds of a command, checked."""
    games = [emulator.title(game) for game in options.games.split(",")]
    if not all(seed.isdecimal() for seed in options.seeds.split(",")):
        raise ValueError(f"--seeds must be integers such as 10,11, got {options.seeds!r}")
    runs = list(product(games, map(int, options.seeds.split(","))))
    if len(set(runs)) < len(runs):
        raise ValueError(f"a game or a seed is named twice: {options.games}, {options.seeds}")
    return runs


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: this machine, or its torch, has no GPU for CUDA")
    if device == "cuda":
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.allow_tf32 = False


def check_folder(work: Path, settings: Settings) -> None:
    """Note the settings in a new work folder; refuse one that was made with others."""
    path = work / "settings.json"
    told = json.dumps(asdict(settings), indent=1)
    if path.exists() and json.loads(path.read_text()) != json.loads(told):
        raise ValueError(f"{work} holds a run with other settings: see {path}, or use a new folder")
    write_atomically(path, told)


@contextmanager
def players(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that play. They end with this one, and use one core each."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, end_with_parent)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def play(
    pool: ProcessPoolExecutor, runs: list[Run], settings: Settings, work: Path
) -> list[Future[None]]:
    """Collect what is missing, and start the pairs that are missing."""
    sizes = (settings.steps, settings.states)
    collecting = {}
    for run in runs:
        folder = folder_of(work, run)
        if not release_play.is_collected(folder):
            collecting[pool.submit(release_play.collect, *run, *sizes, folder)] = run
    for done in as_completed(collecting):
        game, seed = collecting[done]
        print(f"{game}, seed {seed}: collected in {done.result():.0f} s", flush=True)
    pairs = []
    for run, where in product(runs, release_play.WHERE):
        folder = folder_of(work, run)
        if not (folder / f"pairs_{where}.npz").exists():
            length = (settings.pairs, settings.horizon)
            pairs.append(pool.submit(release_play.simulate, *run, where, *sizes, *length, folder))
    return pairs


def learn(runs: list[Run], settings: Settings, options: argparse.Namespace) -> None:
    """Train the networks that are not finished, side by side."""
    from experiments.atari.release_training import Learner, saved_step, train

    learners = []
    for run in runs:
        folder = folder_of(options.work, run)
        if saved_step(folder) < settings.steps:
            play = release_play.load_collected(folder)
            learner = Learner(settings, *run, play, options.device, options.graphs)
            learner.restore(folder)
            learners.append(learner)
    train(learners, [folder_of(options.work, (one.game, one.seed)) for one in learners])


def prepare(options: argparse.Namespace) -> tuple[list[Run], Settings]:
    """What a command is to run; bad input is refused here, before work starts."""
    settings = settings_of(options.smoke)
    runs = runs_of(options)
    check_device(options.device)
    checks.at_least("--processes", options.processes, 1)
    options.work.mkdir(parents=True, exist_ok=True)
    check_folder(options.work, settings)
    return runs, settings


def run_all(runs: list[Run], settings: Settings, options: argparse.Namespace) -> None:
    """Play, train, and note where and how long."""
    started = time.perf_counter()
    note = {
        "runs": runs,
        "device": device_name(options.device),
        "graphs": options.graphs and options.device == "cuda",
        **provenance(PROJECT),
    }
    path = options.work / f"call_{time.strftime('%Y%m%d_%H%M%S', time.gmtime())}.json"
    write_atomically(path, json.dumps(note, indent=1))
    with players(options.processes) as pool:
        pairs = play(pool, runs, settings, options.work)
        collected = time.perf_counter()
        learn(runs, settings, options)
        trained = time.perf_counter()
        for done in as_completed(pairs):
            done.result()
    ended = time.perf_counter()
    spent = {"collect": collected - started, "train": trained - collected, "all": ended - started}
    note["seconds"] = {part: round(seconds, 1) for part, seconds in spent.items()}
    write_atomically(path, json.dumps(note, indent=1))
    print(f"done in {ended - started:.0f} s", flush=True)


def device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else device


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
    parser.add_argument("--games", default=",".join(PROTOCOL["games"]), help="Pong,Boxing")
    parser.add_argument("--seeds", default=",".join(map(str, PROTOCOL["seeds"])), help="10,11")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--out", type=Path, default=PROJECT / "figures")
    parser.add_argument("--smoke", action="store_true", help="in miniature")
    parser.add_argument(
        "--graphs", action=argparse.BooleanOptionalAction, default=True, help="CUDA graphs"
    )
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
