"""The trainings that chapters 5 and 12 report: their settings, and their results as files.

    python -m experiments.atari.protocol PART --work WORK [--out FOLDER]

PART is a table of protocol.toml, which has all settings. `experiments.atari.device` trains its runs
under WORK; this command writes what the chapters read of them, and how it was made.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.atari.experiment import Experiment
from experiments.atari.networks import Config
from experiments.atari.predictions import gap_table
from experiments.files import write_whole
from experiments.processes import end_with_parent

PROJECT = Path(__file__).resolve().parents[2]
PROTOCOL: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
TOLERANCE: dict[str, float] = PROTOCOL.pop("tolerance")
STATES_OF = {"paper": "calibrate"}  # parts that use the states of another one, and its folder
BLOCKS = ["mu", "sigma_diag", "sigma_same", "sigma_cross"]  # those of Figure 7
SIMULATED = ["mc_mean", "mc", "mc_independent"]
SIMULATED += [f"{name}_error" for name in SIMULATED] + ["mc_covariance"]
Frames = dict[str, pd.DataFrame]  # by the name of their file, without .csv


def settings(part: str, game: str) -> dict[str, Any]:
    """The table of a part, laid over that of the part that it is like."""
    table = PROTOCOL[part]
    base = settings(table["like"], game) if "like" in table else {"experiment": {}, "config": {}}
    of_game = table.get("games", {}).get(game, {})
    sizes = base["experiment"] | table.get("experiment", {}) | of_game
    return base | table | {"experiment": sizes, "config": base["config"] | table.get("config", {})}


def experiment_of(part: str, game: str, trial: str = "") -> Experiment:
    """The experiment of a part, with the config of one of its trials."""
    table = settings(part, game)
    config = table["config"] | table.get("trials", {}).get(trial, {})
    return Experiment(Config(name=game, **_tuples(config)), **_tuples(table["experiment"]))


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}


def label_of(part: str, trial: str) -> str:
    """The trial, as the files of a run name it: parts that share a folder do not clash."""
    return f"{part}_{trial}" if part in STATES_OF else trial


def read(part: str, files: str, options: argparse.Namespace) -> pd.DataFrame:
    """All "gaps-*.csv" of a part, or all "run-*/metrics.csv", with columns game and trial."""
    home = options.work / STATES_OF.get(part, part)
    trials = {label_of(part, trial): trial for trial in settings(part, "")["trials"]}
    frames = []
    for path in sorted(home.glob(f"*/{files}")):
        game, name, *_ = path.relative_to(home).parts
        label = name.removesuffix(".csv").split("-")[2]
        if label in trials:
            frames.append(pd.read_csv(path).assign(game=game, trial=trials[label]))
    if not frames:
        raise ValueError(f"{home} has no {files} of part {part}: train it first")
    found = pd.concat(frames, ignore_index=True)
    games = options.games or found.game
    seeds = options.seeds or found.seed
    return found[found.game.isin(games) & found.seed.isin(seeds)]


def results(part: str, options: argparse.Namespace) -> None:
    """Write what the chapters read of a part, and its provenance."""
    gaps = read(part, "gaps-*.csv", options)
    if part == "calibrate":
        frames = calibrated_results(gaps)
    elif part == "paper":
        frames = paper_results(gaps, read(part, "run-*/metrics.csv", options))
    else:
        frames = {part: trial_results(gaps)}
    for file, frame in frames.items():
        text = frame.to_csv(index=False, float_format="%.8g" if file == "simulated" else "%.6g")
        write_whole(options.out / f"{file}.csv", text)
    facts = json.loads((options.work / "facts.json").read_text()) | {
        "note": options.note,
        "seeds": sorted(gaps.seed.unique().tolist()),
        "experiments": [asdict(experiment_of(part, game)) for game in gaps.game.unique()],
        "trials": settings(part, "")["trials"],
    }
    write_whole(options.out / f"{part}.json", json.dumps(facts, indent=1) + "\n")


def calibrated_results(gaps: pd.DataFrame) -> Frames:
    """Of part calibrate: predictions by state, averages of all trials, and the simulated gaps.

    The predictions are those at the states of number 1, of the trial of each network and discount
    that has the least error at the states of number 0 in the games of `tune`; table: after one
    backup from the state's own table.
    """
    kinds = gaps.kind.str.extract(r"(?P<network>\w+)(?P<spread> spread)?(?P<table>\+table)?")
    named = gaps.assign(
        game=pd.Categorical(gaps.game, list(PROTOCOL["calibrate"]["games"])),
        network=kinds.network.replace("gram", "Gram"),
        trial=gaps.trial.mask(kinds.spread.notna(), "spread"),
    )
    alone = named[kinds.table.isna()]
    averages = _averages(alone)
    tuning = averages[(averages.states == 0) & averages.game.isin(PROTOCOL["tune"]["games"])]
    of_trial = tuning.groupby(["network", "gamma", "trial"]).error.mean().reset_index()
    best = of_trial.loc[of_trial.groupby(["network", "gamma"]).error.idxmin()].drop(columns="error")
    key = ["game", "network", "trial", "gamma", "seed", "state"]
    by_state = alone[alone.states == 1].set_index(key)[["coupled", "gap_mean"]]
    backed_up = named[kinds.table.notna() & (named.states == 1)].set_index(key).coupled
    by_state.insert(1, "table", backed_up)
    chosen = by_state.reset_index().merge(best, on=["network", "gamma", "trial"])
    once = ["game", "states", "gamma", "state"]
    return {
        "calibrated": chosen.sort_values(["game", "gamma", "network", "seed", "state"]),
        "calibrated_averages": averages,
        "simulated": alone.drop_duplicates(once).sort_values(once)[[*once, *SIMULATED]],
    }


def _averages(gaps: pd.DataFrame) -> pd.DataFrame:
    """Averages over states of the predicted and the simulated gap variance, and their error."""
    order = ["game", "states", "gamma", "network", "trial", "seed"]
    squares = gaps.assign(
        mc_error=gaps.mc_error**2, error=(gaps.coupled - gaps.mc) ** 2, size=1
    ).groupby(order, observed=True)
    found = squares[["coupled", "mc", "error"]].mean()
    found.insert(2, "mc_error", squares.mc_error.sum() ** 0.5 / squares.size())
    found["error"] = found.error**0.5 / found.mc
    return found.reset_index()


def paper_results(gaps: pd.DataFrame, metrics: pd.DataFrame) -> Frames:
    """Of part paper, by scale: training errors, held-out errors with floors, and gap ratios."""
    ended = metrics.groupby(["trial", "game", "seed"]).step.transform("max")
    whole = metrics[ended == ended.max()].rename(columns={"trial": "scale"})
    run = ["scale", "game", "seed", "step", "curve"]
    curves = whole[whole["curve"].isin(["td", "sampled", "floor"])].sort_values(run)
    training = curves["curve"] == "td"
    table = trial_results(gaps[gaps.states == 1]).rename(
        columns={"trial": "scale", "coupled": "ratio", "coupled_interval": "interval"}
    )
    return {
        "paper_curves": curves.loc[training, [*run, *BLOCKS]],
        "paper_floors": curves.loc[~training, [*run, *BLOCKS]],
        "paper_gaps": table.loc[
            table.kind == "gram", ["scale", "game", "gamma", "ratio", "interval"]
        ],
    }


def trial_results(gaps: pd.DataFrame) -> pd.DataFrame:
    """The ratios and errors of all trials."""
    tables = [gap_table(rows).assign(trial=trial) for trial, rows in gaps.groupby("trial")]
    columns = ["kind", "trial", "game", "gamma", "coupled", "coupled_interval", "error", "skill"]
    return pd.concat(tables)[columns]


def command_line() -> argparse.ArgumentParser:
    """All that the command understands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PROTOCOL, metavar="PART")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=PROJECT / "figures" / "atari")
    parser.add_argument("--settings", type=Path, help="a file of parts that replace those here")
    parser.add_argument("--games", nargs="+", help="of the results; all unless given")
    parser.add_argument("--seeds", nargs="+", type=int, help="of the results, as --games")
    parser.add_argument("--note", default="", help="a note for the provenance")
    parser.add_argument("--with-parent", action="store_true", help="end when it has ended")
    return parser


def main() -> None:
    options = command_line().parse_args()
    if options.with_parent:
        end_with_parent()
    if options.settings:
        PROTOCOL.update(tomllib.loads(options.settings.read_text()))
    results(options.part, options)


if __name__ == "__main__":
    main()
