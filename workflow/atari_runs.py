"""The Atari experiments at full size: `python workflow/atari_runs.py --device cuda --out figures`.

The emulators are queried in processes while the device trains, several games and seeds at a time:
a training step is a few hundred small kernels, and one run alone leaves a GPU waiting for them.
Writes gaps (Table 1) and curves (Figure 7) of all games and seeds as small CSV files, and their
provenance; work in progress is kept under --work, and a run that was killed goes on from there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from jmdp_lib.atari.config import Config
from jmdp_lib.atari.experiment import (
    COUPLINGS,
    PAPER_GAMES,
    Experiment,
    by_state,
    curves,
    gather,
    learn,
    monte_carlo,
    run,
)
from jmdp_lib.atari.training import require_device

REWARD = Config(
    gammas=(0.1, 0.5, 0.9, 0.99), kinds=("gram", "local", "near"), sigma=1.0, steps=4_000,
    actions=3, near_dim=16, local_dim=16, weight_decay=1.0, eval_every=1_000, save_every=4_000,
)  # fmt: skip
# Smaller: it was trained on a CPU.
STICKY = replace(
    REWARD, gammas=(0.5, 0.9, 0.99), kinds=("near",), sigma=0.0, complete=False, steps=1_000,
    hidden=256, shared_dim=32, batch=256, polyak=0.5, eval_every=500, save_every=1_000,
)  # fmt: skip
# Queried states, and the share of them from which branches are followed. Atlantis' meet again, time
# after time: what there is to learn between states is learned from many such pairs.
SIZES = {
    "reward": {"Atlantis": (80_000, 0.5), "others": (20_000, 0.05)},
    "sticky": {"Atlantis": (40_000, 0.5), "others": (15_000, 0.05)},
}


def experiment_of(game: str, coupling: str) -> Experiment:
    """The paper profile."""
    config = REWARD if coupling == "reward" else STICKY
    states, share = SIZES[coupling].get(game) or SIZES[coupling]["others"]
    pairs = 3 if coupling == "reward" else 4
    return Experiment(replace(config, name=game), coupling, num_states=states, follow_share=share,
                      pairs_per_state=pairs)  # fmt: skip


def provenance(experiments: list[Experiment], seeds: list[int], device: str, took: float) -> str:
    """Versions, settings, hardware and time of a run, as JSON."""
    where = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor()
    facts = {
        "commit": os.environ.get("JMDP_COMMIT", "unknown"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": where,
        "matrix products": torch.get_float32_matmul_precision(),
        "cores": os.cpu_count(),
        "seeds": seeds,
        "minutes": round(took / 60, 1),
        "experiments": [asdict(e) for e in experiments],
    }
    return json.dumps(facts, indent=1) + "\n"


def train_one(experiment: Experiment, seed: int, home: Path, device: str, precision: str) -> str:
    """One training run, in a process of its own."""
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(1)
    learn(experiment, seed, home, device)
    return f"{experiment.game} {seed}: trained"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", nargs="+", default=list(PAPER_GAMES))
    parser.add_argument("--coupling", choices=COUPLINGS, default="reward")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("highest", "high"), default="highest",
                        help="of float32 matrix products on a GPU; high: TF32")  # fmt: skip
    parser.add_argument("--processes", type=int, help="that play")
    parser.add_argument("--trainers", type=int, default=1, help="that train, at a time")
    parser.add_argument("--work", type=Path, default=Path("out/atari"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    require_device(options.device)
    torch.set_float32_matmul_precision(options.precision)
    started = time.time()
    experiments = [experiment_of(game, options.coupling) for game in options.games]
    homes = {e.game: options.work / f"{e.game}-{e.coupling}" for e in experiments}

    def say(what: str) -> None:
        print(f"{time.time() - started:6.0f} s  {what}", flush=True)

    jobs = [(e, seed) for seed in options.seeds for e in experiments]
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(options.trainers, context) as trainers,
        ThreadPoolExecutor(1) as player,
    ):
        training: list[Future[str]] = []

        def play() -> None:
            for e, seed in jobs:
                home = homes[e.game]
                gather(e, seed, home, options.processes)
                say(f"{e.game} {seed}: states queried")
                task = (e, seed, home, options.device, options.precision)
                training.append(trainers.submit(train_one, *task))
            for e in experiments:
                monte_carlo(e, homes[e.game], options.processes)
                say(f"{e.game}: pairs played")

        player.submit(play).result()
        for done in as_completed(training):
            say(done.result())
        ends = [trainers.submit(run, e, seed, homes[e.game], options.device) for e, seed in jobs]
        gaps = pd.concat([end.result() for end in ends])
    curve = pd.concat([curves(homes[e.game]).assign(game=e.game) for e in experiments])
    options.out.mkdir(parents=True, exist_ok=True)
    for name, frame in (("gaps", by_state(gaps)), ("curves", curve)):
        path = options.out / f"atari_{options.coupling}_{name}.csv"
        frame.to_csv(path, index=False, float_format="%.5g")
    text = provenance(experiments, options.seeds, options.device, time.time() - started)
    (options.out / f"atari_{options.coupling}.json").write_text(text)
    say("done")


if __name__ == "__main__":
    main()
