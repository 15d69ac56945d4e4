"""The Atari experiments at full size: `python workflow/atari_runs.py --device cuda --out figures`.

`all` queries the emulators in processes while the device trains, several games and seeds at a time.
The batch (`make figures PROFILE=paper ATARI=cuda`) calls the parts, a job each: `game` plays pairs,
`seed` is one training run and its comparison with them, `results` collects CSV files of all gaps,
their table (Table 1) and curves (Figure 7) with their provenance. Work in progress is kept under
--work, and a run that was killed goes on from there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path

import pandas as pd
import torch
from job import end_with_parent, git_state, hardware, versions, write_atomically

from jmdp_lib.atari.config import Config
from jmdp_lib.atari.emulator import title
from jmdp_lib.atari.experiment import (
    COUPLINGS,
    PAPER_GAMES,
    Experiment,
    by_state,
    gap_table,
    gather,
    learn,
    monte_carlo,
    run,
)
from jmdp_lib.atari.training import require_device

WORKFLOW = Path(__file__).resolve().parent
REWARD = Config(
    gammas=(0.1, 0.5, 0.9, 0.99), kinds=("gram", "local", "near"), sigma=1.0, steps=10_000,
    actions=3, near_dim=16, local_dim=16, weight_decay=0.1, log_every=200, eval_every=2_000,
)  # fmt: skip
STICKY = replace(
    REWARD, kinds=("gram", "near"), sigma=0.0, complete=False, steps=5_000, weight_decay=1.0,
    log_every=100, eval_every=1_000, save_every=2_000,
)  # fmt: skip
# Queried states, actions of each (None: all), and the share from which branches are followed.
# Atlantis' meet again, time after time: what there is to learn between states is learned from many
# such pairs. In Pong games end, which only few states show: many states. Of 18 actions, half show
# nearly as often as all which ones have one future. Without a shock all variance is that of
# rewards, which are rare and have to be foreseen: many states, and of each no more actions than a
# step looks at.
SIZES: dict[str, dict[str, tuple[int, int | None, float]]] = {
    "reward": {
        "Pong": (160_000, 3, 0.05),
        "BattleZone": (60_000, 9, 0.05),
        "Boxing": (80_000, 9, 0.05),
        "Atlantis": (120_000, None, 0.5),
        "others": (20_000, None, 0.05),
    },
    "sticky": {"Atlantis": (100_000, 3, 0.1), "others": (100_000, 3, 0.05)},
}


def experiment_of(game: str, coupling: str, scale: float = 1.0) -> Experiment:
    """The paper profile; a scale below one shrinks everything, for trying the machinery."""
    config = REWARD if coupling == "reward" else STICKY
    states, actions, share = SIZES[coupling].get(game) or SIZES[coupling]["others"]
    full = Experiment(replace(config, name=game), coupling, num_states=states, actions=actions,
                      follow_share=share)  # fmt: skip
    if coupling == "reward":
        full = replace(full, obs="ram+paddles", num_held_out=4_000, pairs_per_state=3)
    else:  # states differ more: more of them, each played less often
        full = replace(full, spacing=2, num_evaluation=256, pairs_per_state=2, repeats=6)
    if scale >= 1.0:
        return full

    def shrunk(size: int, least: int) -> int:
        return max(least, int(size * scale))

    logged = shrunk(config.log_every, 2)
    small = replace(
        full.config, steps=shrunk(config.steps, 10 * logged) // logged * logged,
        batch=shrunk(config.batch, 16), hidden=shrunk(config.hidden, 32), log_every=logged,
        eval_every=5 * logged, save_every=5 * logged,
    )  # fmt: skip
    return replace(
        full, config=small, num_states=shrunk(states, 60),
        num_held_out=shrunk(full.num_held_out, 10), num_evaluation=shrunk(full.num_evaluation, 3),
        repeats=4, horizon=shrunk(300, 10),
    )  # fmt: skip


def provenance(
    experiments: list[Experiment], seeds: list[int], device: str, minutes: list[float], note: str
) -> str:
    """Versions, settings, hardware and time of a run, as JSON."""
    where = hardware()["cpu"]
    if device.startswith("cuda"):  # results may be collected where there is none
        where = torch.cuda.get_device_name() if torch.cuda.is_available() else device
    given = os.environ.get("JMDP_COMMIT")  # where there is no git, or another tree's
    facts = {
        **({"commit": given, "dirty": None} if given else git_state(WORKFLOW.parent)),
        **versions(),
        "device": where,
        "matrix products": torch.get_float32_matmul_precision(),
        "cores": os.cpu_count(),
        "seeds": seeds,
        "minutes": minutes,  # of each call: the next one goes on where one was killed
        "note": note,
        "experiments": [asdict(e) for e in experiments],
    }
    return json.dumps(facts, indent=1) + "\n"


def game_name(text: str) -> str:
    """A game by its one name: BattleZone for battle_zone."""
    try:
        return title(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seed_number(text: str) -> int:
    """A number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number >= 0, found {text}")
    return int(text)


def fraction(text: str) -> float:
    """A number in (0, 1]."""
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"must lie in (0, 1], found {text}")
    return value


def prepare(precision: str) -> None:
    """What holds in every process that trains or predicts."""
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(1)


def train_one(experiment: Experiment, seed: int, home: Path, device: str) -> None:
    """One training run, in a process of its own."""
    learn(experiment, seed, home, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "part", nargs="?", choices=("all", "game", "seed", "results"), default="all"
    )
    parser.add_argument("--games", nargs="+", type=game_name, default=list(PAPER_GAMES))
    parser.add_argument("--coupling", choices=COUPLINGS, default="reward")
    parser.add_argument("--seeds", nargs="+", type=seed_number, default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("highest", "high"), default="highest",
                        help="of float32 matrix products on a GPU; high: TF32")  # fmt: skip
    parser.add_argument("--scale", type=fraction, default=1.0, help="of all sizes, at most 1")
    parser.add_argument("--processes", type=int, help="that play")
    parser.add_argument("--trainers", type=int, default=1, help="that train, at a time")
    parser.add_argument("--note", default="", help="for the provenance")
    parser.add_argument("--with-parent", action="store_true", help="end when it has ended")
    parser.add_argument("--work", type=Path, default=Path("out/atari"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for name in ("games", "seeds"):
        if len(set(getattr(options, name))) < len(getattr(options, name)):
            parser.error(f"--{name}: each once, found {getattr(options, name)}")
    if options.part in ("all", "seed"):
        require_device(options.device)
    if options.with_parent:
        end_with_parent()
    prepare(options.precision)
    experiments = [experiment_of(g, options.coupling, options.scale) for g in options.games]
    homes = {e.game: options.work / f"{e.game}-{e.coupling}" for e in experiments}
    for home in homes.values():
        home.mkdir(parents=True, exist_ok=True)
    jobs = [(e, seed) for seed in options.seeds for e in experiments]
    diary = Diary(options.work / f"{options.coupling}.log")
    if options.part == "all":
        run_all(jobs, homes, options, diary)
    elif options.part == "game":
        for e in experiments:
            monte_carlo(e, homes[e.game], options.processes)
            diary(f"{e.game}: pairs played")
    elif options.part == "seed":
        for e, seed in jobs:
            run(e, seed, homes[e.game], options.device, options.processes)
            diary(f"{e.game} {seed}: trained")
    if options.part in ("all", "results"):
        text = provenance(experiments, options.seeds, options.device, diary.minutes, options.note)
        write_results(jobs, homes, options.coupling, text, options.out)


class Diary:
    """Says what was done, and keeps it: a run that was killed took its time too."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.path, self.now, self.started = path, now, now()

    def __call__(self, what: str) -> None:
        took = self.now() - self.started
        print(f"{took:6.0f} s  {what}", flush=True)
        with self.path.open("a") as file:
            file.write(f"{self.started:.2f} {took:.0f} {what}\n")

    @property
    def minutes(self) -> list[float]:
        """Of every call, up to its last word."""
        if not self.path.exists():
            return []
        took: dict[str, float] = {}
        for line in self.path.read_text().splitlines():
            started, seconds, _ = line.split(" ", 2)
            took[started] = float(seconds)
        return [round(seconds / 60, 1) for seconds in took.values()]


def run_all(
    jobs: list[tuple[Experiment, int]], homes: dict[str, Path], options: argparse.Namespace,
    say: Diary,
) -> None:  # fmt: skip
    """Play in this process's children while others train: the device never waits for states."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(options.trainers, context, prepare, (options.precision,))
    with pool as trainers:
        training: dict[Future[None], tuple[Experiment, int, Path, str]] = {}

        def queried(job: tuple[Experiment, int]) -> bool:
            return (homes[job[0].game] / f"tables-{job[1]}.npz").exists()

        def play() -> None:
            for e, seed in sorted(jobs, key=queried, reverse=True):  # training starts at once
                gather(e, seed, homes[e.game], options.processes)
                say(f"{e.game} {seed}: states queried")
                task = (e, seed, homes[e.game], options.device)
                training[trainers.submit(train_one, *task)] = task
                for ended in filter(Future.done, training):
                    ended.result()  # an error is told now, not after all has been played
            for e in {e.game: e for e, _ in jobs}.values():
                monte_carlo(e, homes[e.game], options.processes)
                say(f"{e.game}: pairs played")

        try:
            play()
        except BaseException:
            trainers.shutdown(wait=False, cancel_futures=True)
            raise
        ends, left = [], set(training)
        while left:
            ended, left = wait(left, timeout=60.0, return_when=FIRST_COMPLETED)
            if not ended:
                say(f"{len(left)} in training")  # a run that is killed now took this long
            for done in ended:
                done.result()
                e, seed, *_ = training[done]
                say(f"{e.game} {seed}: trained")
                ends.append(trainers.submit(run, *training[done]))  # its gaps, whatever comes
        for end in ends:
            end.result()
    say("done")


def write_results(
    jobs: list[tuple[Experiment, int]], homes: dict[str, Path], coupling: str, text: str, out: Path
) -> None:
    """Gaps by state, their table, and curves of all jobs as files, each whole or not there."""
    places = [(e, seed, homes[e.game]) for e, seed in jobs]
    gaps = pd.concat([pd.read_csv(home / f"gaps-{seed}.csv") for _, seed, home in places])
    curves = pd.concat(
        [pd.read_csv(home / f"run-{seed}" / "metrics.csv").assign(game=e.game)
         for e, seed, home in places]
    )  # fmt: skip
    texts = {f"atari_{coupling}.json": text}
    own = gaps[~gaps.kind.str.endswith("+table")]  # the table has the backups too
    for name, frame, digits in (
        ("gaps", by_state(own), 8),  # ranks are taken of them: no ties by rounding
        ("table", gap_table(gaps), 5),
        ("curves", curves, 5),
    ):
        made = frame.to_csv(index=False, float_format=f"%.{digits}g")
        texts[f"atari_{coupling}_{name}.csv"] = made
    for name, content in texts.items():
        write_atomically(out / name, content)


if __name__ == "__main__":
    main()
