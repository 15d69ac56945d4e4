"""The trainings that chapter 12 reports: their settings, and their results as files.

    python -m experiments.atari.protocol PART --work WORK [--out FOLDER]

PART is a table of protocol.toml, which has all settings. `experiments.atari.device` trains its runs
under WORK; this command writes what the chapter reads of them, and how it was made.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from experiments.atari.networks import Config, check_numbers
from experiments.atari.predictions import SIMULATED, averages, gap_table
from experiments.atari.tables import Game
from experiments.files import write_whole
from jmdp_lib import checks
from jmdp_lib.atari.emulator import rom_id
from jmdp_lib.atari.env import Observed

PROJECT = Path(__file__).resolve().parents[2]
PROTOCOL: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
TOLERANCE: dict[str, float] = PROTOCOL.pop("tolerance")


@dataclass(frozen=True)
class Experiment:
    """A game whose actions share a reward shock, and the sizes of all parts.

    config: of training; its name is the game, its sigma the reward shock.
    obs: what the networks see (see `CoupledAtari`).
    num_states, num_evaluation: queried states to learn from, and to compare networks at.
    actions: queried at each of the num_states; None: all (see `collect`).
    follow_share: share of them whose branches are followed (see `collect`).
    pairs_per_state, repeats, horizon: of the recursive pairs: action pairs of each state, how
        often each is played, and for how many steps.
    """

    config: Config
    obs: Observed = "ram"
    num_states: int = 30_000
    num_evaluation: int = 64
    actions: int | None = None
    follow_share: float = 0.05
    pairs_per_state: int = 4
    repeats: int = 12
    horizon: int = 300

    def __post_init__(self) -> None:
        rom_id(self.config.name)  # refuses an unknown game
        checks.one_of("obs", self.obs, get_args(Observed))
        check_numbers(self)

    @property
    def game(self) -> Game:
        """How all its states are played: without sticky actions, so the shock is all the noise."""
        return Game(self.config.name, self.obs)


def use_settings(changed: Path | None) -> None:
    """Replace parts of the protocol by those of a file."""
    if changed:
        PROTOCOL.update(tomllib.loads(changed.read_text()))


def settings(part: str, game: str) -> dict[str, Any]:
    """The table of a part, laid over that of the part that it is like."""
    table = PROTOCOL[part]
    base = settings(table["like"], game) if "like" in table else {"experiment": {}, "config": {}}
    of_game = table.get("games", {}).get(game, {})
    sizes = base["experiment"] | table.get("experiment", {}) | of_game
    return base | table | {"experiment": sizes, "config": base["config"] | table.get("config", {})}


def experiment_of(part: str, game: str, trial: str = "", seed: int = 0) -> Experiment:
    """The experiment of a part, with the config of one of its trials."""
    table = settings(part, game)
    config = table["config"] | table["trials"].get(trial, {})
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
    return Experiment(Config(name=game, seed=seed, **values), **table["experiment"])


def read(part: str, work: Path) -> pd.DataFrame:
    """All gaps of a part that were written, with columns game and trial."""
    frames = []
    for path in sorted((work / part).glob("*/gaps-*.csv")):
        trial = path.stem.split("-")[2]
        frames.append(pd.read_csv(path).assign(trial=trial))
    if not frames:
        raise ValueError(f"{work / part} has no gaps: train the part first")
    return pd.concat(frames, ignore_index=True)


def results(part: str, work: Path, out: Path, note: str = "") -> None:
    """Write what the chapter reads of a part, and its provenance."""
    gaps = read(part, work)
    frames = calibrated_results(gaps) if part == "calibrate" else {part: trial_results(gaps)}
    for file, frame in frames.items():
        text = frame.to_csv(index=False, float_format="%.8g" if file == "simulated" else "%.6g")
        write_whole(out / f"{file}.csv", text)
    facts = json.loads((work / "facts.json").read_text()) | {
        "note": note,
        "seeds": sorted(gaps.seed.unique().tolist()),
        "settings": settings(part, ""),
    }
    write_whole(out / f"{part}.json", json.dumps(facts, indent=1) + "\n")


def calibrated_results(gaps: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Of part calibrate, by the name of their file: predictions, averages, and simulated gaps.

    The predictions are those at the states of number 1, of the trial of each network and discount
    that has the least error at the states of number 0 in the games of `tune`. Errors are root mean
    squares over states, over the average.
    """
    spread = gaps.kind.str.endswith(" spread")  # it counts as a trial of its network
    gaps = gaps.assign(
        game=pd.Categorical(gaps.game, list(PROTOCOL["calibrate"]["games"])),
        network=gaps.kind.str.removesuffix(" spread").replace("gram", "Gram"),
        trial=gaps.trial.mask(spread, "spread"),
        error=(gaps.coupled - gaps.mc) ** 2,
    )
    run = ["game", "states", "gamma", "network", "trial", "seed"]
    of_run = averages(gaps, run).sort_values(run)
    of_run["error"] = of_run.error**0.5 / of_run.mc
    tuning = of_run[(of_run.states == 0) & of_run.game.isin(PROTOCOL["tune"]["games"])]
    of_trial = tuning.groupby(["network", "gamma", "trial"]).error.mean().reset_index()
    best = of_trial.loc[of_trial.groupby(["network", "gamma"]).error.idxmin()]
    chosen = gaps[gaps.states == 1].merge(best[["network", "gamma", "trial"]])
    columns = ["game", "network", "trial", "gamma", "seed", "state", "coupled", "table", "gap_mean"]
    once = ["game", "states", "gamma", "state"]
    return {
        "calibrated": chosen.sort_values(["game", "gamma", "network", "seed", "state"])[columns],
        "calibrated_averages": of_run[[*run, "coupled", "mc", "mc_error", "error"]],
        "simulated": gaps.drop_duplicates(once).sort_values(once)[[*once, *SIMULATED]],
    }


def trial_results(gaps: pd.DataFrame) -> pd.DataFrame:
    """The ratios and errors of all trials."""
    tables = [gap_table(rows).assign(trial=trial) for trial, rows in gaps.groupby("trial")]
    columns = ["kind", "trial", "game", "gamma", "coupled", "coupled_interval", "error", "skill"]
    return pd.concat(tables)[columns]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PROTOCOL, metavar="PART")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=PROJECT / "figures" / "atari")
    parser.add_argument("--settings", type=Path, help="a file of parts that replace those here")
    parser.add_argument("--note", default="", help="a note for the provenance")
    options = parser.parse_args()
    try:
        use_settings(options.settings)
        results(options.part, options.work, options.out, options.note)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
