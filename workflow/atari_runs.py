"""The Atari experiments at full size: `python workflow/atari_runs.py --device cuda --out figures`.

The batch (`make figures PROFILE=paper ATARI=cuda`) calls each part as a job of its own: `game`
plays pairs, `seed` trains once and compares the result with the pairs, `results` writes CSV files
of all gaps, their table (Table 1) and the curves (Figure 7), with their provenance. `all` does one
after the other. Work in progress is kept under --work, and a run that was killed continues there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from job import end_with_parent, git_state, hardware, versions, write_atomically

from jmdp_lib.atari import games
from jmdp_lib.atari.experiment import Experiment, by_state, gap_table, monte_carlo, run
from jmdp_lib.atari.networks import Config
from jmdp_lib.atari.training import require_device

PROJECT = Path(__file__).resolve().parents[1]
PAPER_GAMES = ["Pong", "BattleZone", "Boxing", "Atlantis"]
REWARD = Experiment(
    Config(
        name="Pong", gammas=(0.1, 0.5, 0.9, 0.99), kinds=("gram", "local", "near"), sigma=1.0,
        steps=10_000, actions=3, near_dim=16, local_dim=16, weight_decay=0.1, log_every=200,
        eval_every=2_000,
    ), obs="ram+paddles", num_states=20_000, num_held_out=4_000, pairs_per_state=3,
)  # fmt: skip
STICKY_CONFIG = replace(
    REWARD.config, kinds=("gram", "near"), sigma=0.0, complete=False, steps=5_000, weight_decay=1.0,
    log_every=100, eval_every=1_000, save_every=2_000,
)  # fmt: skip
# States differ more: more of them, each played less often.
STICKY = Experiment(
    STICKY_CONFIG, num_states=100_000, actions=3, spacing=2, num_evaluation=256,
    pairs_per_state=2, repeats=6,
)  # fmt: skip
# Branches in Atlantis meet again and again, so covariances between states are learned from many
# such pairs. Pong needs many states, because only few show that a game ends. Of 18 actions, half
# show nearly as often as all which of them have one future. Without a shock all variance comes from
# rewards, which are rare and must be predicted. So there are many states, each with no more actions
# than one step looks at.
SIZES: dict[tuple[str, str], dict[str, Any]] = {
    ("reward", "Pong"): {"num_states": 160_000, "actions": 3},
    ("reward", "BattleZone"): {"num_states": 60_000, "actions": 9},
    ("reward", "Boxing"): {"num_states": 80_000, "actions": 9},
    ("reward", "Atlantis"): {"num_states": 120_000, "follow_share": 0.5},
    ("sticky", "Atlantis"): {"follow_share": 0.1},
}


def experiment_of(game: str, noise: str, scale: float = 1.0) -> Experiment:
    """The experiment of the paper profile, its sizes multiplied by `scale`."""
    full = REWARD if noise == "reward" else STICKY
    config = replace(full.config, name=game)
    return scaled(replace(full, config=config, **SIZES.get((noise, game), {})), scale)


def scaled(full: Experiment, scale: float) -> Experiment:
    """All sizes multiplied by a scale; below one it serves to try the machinery."""
    config = full.config
    if scale >= 1.0:
        return full

    def shrunk(size: int, least: int) -> int:
        return max(least, int(size * scale))

    logged = shrunk(config.log_every, 2)
    small = replace(
        config, steps=shrunk(config.steps, 10 * logged) // logged * logged,
        batch=shrunk(config.batch, 16), hidden=shrunk(config.hidden, 32), log_every=logged,
        eval_every=5 * logged, save_every=5 * logged,
    )  # fmt: skip
    return replace(
        full, config=small, num_states=shrunk(full.num_states, 60),
        num_held_out=shrunk(full.num_held_out, 10), num_evaluation=shrunk(full.num_evaluation, 3),
        repeats=4, horizon=shrunk(full.horizon, 10), depths=full.depths[:1], deep_repeats=4,
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
        **({"commit": given, "dirty": None} if given else git_state(PROJECT)),
        **versions(),
        "device": where,
        "cores": os.cpu_count(),
        "seeds": seeds,
        "minutes": minutes,  # of each job that ended; what a killed one took is not known
        "note": note,
        "experiments": [asdict(e) for e in experiments],
    }
    return json.dumps(facts, indent=1) + "\n"


def parsed() -> argparse.Namespace:
    """Parse the options; exit with a message if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("all", "game", "seed", "results")
    parser.add_argument("part", nargs="?", choices=parts, default="all")
    parser.add_argument("--games", nargs="+", choices=games(), metavar="GAME", default=PAPER_GAMES)
    parser.add_argument("--noise", choices=("reward", "sticky"), default="reward")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all sizes, at most 1")
    parser.add_argument("--processes", type=int, help="how many processes play games")
    parser.add_argument("--note", default="", help="a note for the provenance")
    parser.add_argument("--with-parent", action="store_true", help="end when the parent ends")
    parser.add_argument("--work", type=Path, default=Path("out/atari"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for name, given in (("games", options.games), ("seeds", options.seeds)):
        if len(set(given)) < len(given):
            parser.error(f"--{name}: each once, found {given}")
    if min(options.seeds) < 0 or not 0.0 < options.scale <= 1.0:
        parser.error("--seeds must not be negative, and --scale must lie in (0, 1]")
    return options


def main() -> None:
    options = parsed()
    plays, trains = options.part in ("all", "game"), options.part in ("all", "seed")
    if trains:
        require_device(options.device)
    if options.with_parent:
        end_with_parent()
    torch.set_num_threads(1)
    experiments = [experiment_of(g, options.noise, options.scale) for g in options.games]
    homes = [options.work / f"{e.config.name}-{e.noise}" for e in experiments]
    times, started = options.work / f"{options.noise}.log", time.monotonic()
    for experiment, home in zip(experiments, homes, strict=True):
        if plays:
            monte_carlo(experiment, home, options.processes)
            print(f"{home.name}: pairs played", flush=True)
        for seed in options.seeds if trains else ():
            run(experiment, seed, home, options.device, options.processes)
            print(f"{home.name} {seed}: trained", flush=True)
    if plays or trains:
        with times.open("a") as file:
            file.write(f"{(time.monotonic() - started) / 60:.1f}\n")
    if options.part in ("all", "results"):
        minutes = [float(line) for line in times.read_text().split()] if times.exists() else []
        text = provenance(experiments, options.seeds, options.device, minutes, options.note)
        write_results(homes, options.seeds, options.noise, text, options.out)


def write_results(homes: list[Path], seeds: list[int], noise: str, text: str, out: Path) -> None:
    """Write gaps by state, their table, and the curves of all runs, each file atomically."""
    runs = [(home, seed) for seed in seeds for home in homes]
    gaps = pd.concat([pd.read_csv(home / f"gaps-{seed}.csv") for home, seed in runs])
    curves = pd.concat(
        [pd.read_csv(home / f"run-{seed}" / "metrics.csv").assign(game=home.name.split("-")[0])
         for home, seed in runs]
    )  # fmt: skip
    write_atomically(out / f"atari_{noise}.json", text)
    own = gaps[~gaps.kind.str.endswith("+table")]  # the table has the backups too
    for name, frame in (("gaps", by_state(own)), ("table", gap_table(gaps)), ("curves", curves)):
        digits = 8 if name == "gaps" else 5  # ranks are taken of gaps: no ties by rounding
        made = frame.to_csv(index=False, float_format=f"%.{digits}g")
        write_atomically(out / f"atari_{noise}_{name}.csv", made)


if __name__ == "__main__":
    main()
