"""Compare networks with equal effort, and train one much as the authors' release does.

    python -m experiments.atari.protocol ARGUMENTS, which are

    PART GAME                   play pairs to compare with
    PART GAME SEED [TRIAL ...]  train, and compare with the pairs
    PART                        write its tables and curves; of plays and all parts below it,
                                what `experiments.atari.device` has trained
    evaluate GAME --fresh 7     a network at states of your own

PART is a table of protocol.toml, which has all settings. `tune` trains every trial, and its
results choose the best trial of each kind; `final` trains each kind with that, and its results
hold those of `paper` too. `curves` and `sticky` share a table. `reward` and `lottery` are trained
anew by the batch. Work in progress is kept under --work. What is there is not made twice, and a run
that was killed continues there. Pairs that nobody has played yet are played by the first training.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from experiments.atari.checkpoints import load_checkpoint
from experiments.atari.experiment import Experiment, evaluate, monte_carlo, run
from experiments.atari.networks import Config
from experiments.atari.predictions import gap_table
from experiments.atari.training import Trained, require_device
from jmdp_lib import checks
from jmdp_lib.machine import replacing

PROJECT = Path(__file__).resolve().parents[2]
sys.path.append(str(PROJECT / "workflow"))

from job import end_with_parent, provenance, write_atomically  # noqa: E402

PROTOCOL: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
TOLERANCE: dict[str, float] = PROTOCOL.pop("tolerance")
PARTS = [name for name, table in PROTOCOL.items() if isinstance(table, dict)]
RUNS = ("reward", "lottery")  # parts that the batch trains anew, for any game
SIZED = ("curves", "sticky")  # parts whose trials are numbers of states and steps
# Parts that use the states of another one, and share its folder.
STATES_OF = {"paper": "calibrate", "ablation": "plays", "converged": "plays", "rivals": "plays"}
LABELLED = tuple(STATES_OF)  # parts whose files name the part before the trial
Frames = dict[str, pd.DataFrame]  # by the name of their file, without atari_ and .csv


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
    config = table["config"] | table["trials"].get(trial, {})
    return Experiment(Config(name=game, **_tuples(config)), **_tuples(table["experiment"]))


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}


def check(options: argparse.Namespace) -> None:
    """Refuse a command that names what is not there, before work starts."""
    part = options.part
    table = settings(part, options.game)
    if part not in RUNS and options.game not in table["games"]:
        games = ", ".join(table["games"])
        raise ValueError(f"part {part} has the games {games}, not {options.game!r}")
    if unknown := set(options.trials) - table["trials"].keys():
        known = ", ".join(table["trials"])
        raise ValueError(f"part {part} has the trials {known}, not {unknown.pop()!r}")
    experiment_of(part, options.game)
    if options.seed is not None:
        checks.at_least("SEED", options.seed, 0)
        require_device(options.device)


def place_of(part: str, options: argparse.Namespace) -> Path:
    """The folder of a part, or of the part whose states it uses; it has one for each game."""
    return Path(options.work, STATES_OF.get(part, part))


def play(part: str, game: str, options: argparse.Namespace) -> None:
    """Play the pairs that networks are compared with."""
    home = place_of(part, options) / game
    fresh = settings(part, game)["fresh"]
    monte_carlo(experiment_of(part, game), home, options.processes, fresh)


def train(part: str, game: str, options: argparse.Namespace) -> None:
    """Train trials and compare them. The part `final` trains each kind with its chosen trial."""
    table = settings(part, game)
    kinds_of_trial = dict.fromkeys(options.trials or table["trials"], table["config"]["kinds"])
    if part == "final":
        chosen = chosen_trials(options)
        kinds_of_trial = {
            trial: [kind for kind in chosen if chosen[kind] == trial] for trial in chosen.values()
        }
    for trial, kinds in kinds_of_trial.items():
        experiment = experiment_of(part, game, trial)
        experiment = replace(experiment, config=replace(experiment.config, kinds=tuple(kinds)))
        states = int(trial.split("x")[0]) if part in SIZED else None
        home = place_of(part, options) / game
        run(
            experiment,
            options.seed,
            home,
            options.device,
            options.processes,
            trial,
            states,
            table["fresh"],
        )


def labelled(part: str, trial: str) -> bool:
    """Whether a run whose files name this trial is the part's: some parts share a folder."""
    others = [name for name in LABELLED if name != part]
    if part in LABELLED:
        return trial.startswith(f"{part}_")
    return not any(trial.startswith(f"{name}_") for name in others)


def read(part: str, files: str, options: argparse.Namespace) -> pd.DataFrame:
    """All "gaps-*.csv" of a part, or all "run-*/metrics.csv", with columns game and trial."""
    home = place_of(part, options)
    frames = []
    for path in sorted(home.glob(f"*/{files}")):
        game, name, *_ = path.relative_to(home).parts
        trial = name.removesuffix(".csv").split("-")[2]
        if labelled(part, trial):
            own = trial.removeprefix(f"{part}_")
            frames.append(pd.read_csv(path).assign(game=game, trial=own))
    found = pd.concat(frames, ignore_index=True)
    games = options.games or found.game
    seeds = options.seeds or found.seed
    return found[found.game.isin(games) & found.seed.isin(seeds)]


def chosen_trials(options: argparse.Namespace) -> dict[str, str]:
    """The trial of each kind of network that `choose` has chosen."""
    return json.loads((options.work / "chosen.json").read_text())


def choose(table: pd.DataFrame, options: argparse.Namespace) -> None:
    """Choose, for each kind, the trial of least error, if it finished in every game."""
    each = table.groupby(["kind", "trial"]).error
    errors = each.mean().where(each.size() == each.size().max()).unstack("trial")
    print(errors.round(4).to_string())
    chosen = json.dumps(errors.idxmin(axis=1).to_dict())
    write_atomically(options.work / "chosen.json", chosen + "\n")


def store_networks(options: argparse.Namespace) -> None:
    """Store the near networks of the first seed, in half precision, for `Trained.load`."""
    trial = chosen_trials(options)["near"]
    gammas = PROTOCOL["stored_gammas"]
    seed = PROTOCOL["final"]["seeds"][0]
    for path in place_of("final", options).glob(f"*/run-{seed}-{trial}/checkpoint.pt"):
        state = load_checkpoint(path)
        config = Trained.load(path.parent).network.config
        members = [config.members.index((gamma, "near")) for gamma in gammas]
        stored = {
            "of": asdict(replace(config, gammas=tuple(gammas), kinds=("near",))),
            "rows": [],
            "version": state.get("version"),
            "network": state["network"],
            "step": state["step"],
            "params": {name: weight[members].half() for name, weight in state["params"].items()},
        }
        home = options.out / "networks" / config.name
        home.mkdir(parents=True, exist_ok=True)
        with replacing(home / "checkpoint.pt") as file:
            torch.save(stored, file)


def results(part: str, options: argparse.Namespace) -> None:
    """Write what chapters 5 and 6 draw of a part, and its provenance."""
    parts = SIZED if part in SIZED else (part,)
    found = {name: read(name, "gaps-*.csv", options) for name in parts}
    gaps = pd.concat(found.values())
    games = [(name, game) for name in parts for game in found[name].game.unique()]
    experiments = [experiment_of(name, game) for name, game in games]
    name, make = RESULTS.get(part, (experiments[0].noise, run_results))
    for file, frame in make(part, gaps, options).items():
        digits = 8 if file.endswith("gaps") else 5  # ranks are taken of gaps: no ties by rounding
        text = frame.to_csv(index=False, float_format=f"%.{digits}g")
        write_atomically(options.out / f"atari_{file}.csv", text)
    facts = run_facts(part, options) | {
        "seeds": sorted(gaps.seed.unique().tolist()),
        "experiments": [asdict(experiment) for experiment in experiments],
    }
    write_atomically(options.out / f"atari_{name}.json", json.dumps(facts, indent=1) + "\n")


def run_facts(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """How and where the runs of a part were made."""
    device = options.device
    if device.startswith("cuda") and torch.cuda.is_available():  # or collected where there is none
        device = torch.cuda.get_device_name()
    log = options.work / f"{part}.log"
    minutes = [*map(float, log.read_text().split())] if log.exists() else []
    facts = provenance(PROJECT) | {"device": device, "minutes": minutes}
    elsewhere = options.work / "facts.json"  # where `experiments.atari.device` has trained
    if elsewhere.exists():
        facts = json.loads(elsewhere.read_text())
    return facts | {"note": options.note}


def by_networks_alone(gaps: pd.DataFrame) -> pd.DataFrame:
    """The rows of what networks predict without the emulator's help."""
    return gaps[~gaps.kind.str.contains("+", regex=False)]


def tune_results(part: str, gaps: pd.DataFrame, options: argparse.Namespace) -> Frames:
    """The errors of all trials; the best of each kind is chosen."""
    tables = [gap_table(rows).assign(trial=trial) for trial, rows in gaps.groupby("trial")]
    table = by_networks_alone(pd.concat(tables))
    choose(table, options)
    return {"trials": table[["kind", "trial", "game", "gamma", "coupled", "error", "skill"]]}


def final_results(part: str, gaps: pd.DataFrame, options: argparse.Namespace) -> Frames:
    """Table 1 at fresh states, the release-like training included; networks are stored."""
    store_networks(options)
    of_paper = gaps.trial.isin(PROTOCOL["paper"]["trials"])
    kinds = "paper, " + gaps.trial + gaps.kind.str.removeprefix("gram")
    gaps.loc[of_paper, "kind"] = kinds
    alone = by_networks_alone(gaps).drop(columns="trial")
    return {"fresh_table": gap_table(gaps), "fresh_gaps": alone}


def paper_results(part: str, gaps: pd.DataFrame, options: argparse.Namespace) -> Frames:
    """The curves of the release-like training, in two scales of returns."""
    curves = read(part, "run-*/metrics.csv", options).drop(columns="sigma_pairs")
    of_paper = curves.trial.isin(PROTOCOL["paper"]["trials"])
    curves = curves[of_paper & curves["curve"].isin(["td", "floor"])]
    return {"paper_curves": curves.rename(columns={"trial": "scale"})}


def size_results(part: str, gaps: pd.DataFrame, options: argparse.Namespace) -> Frames:
    """A table for each number of states and steps."""
    tables = []
    for trial, rows in gaps.groupby("trial", sort=False):
        states, steps = map(int, str(trial).split("x"))
        tables.append(gap_table(rows).assign(states=states, steps=steps))
    return {"sizes_table": pd.concat(tables)}


def search_results(part: str, gaps: pd.DataFrame, options: argparse.Namespace) -> Frames:
    """The errors of all trials, as `tune_results` writes them; nothing is chosen here."""
    tables = [gap_table(rows).assign(trial=trial) for trial, rows in gaps.groupby("trial")]
    table = by_networks_alone(pd.concat(tables))
    return {"search": table[["kind", "trial", "game", "gamma", "coupled", "error", "skill"]]}


def seed_results(part: str, gaps: pd.DataFrame, options: argparse.Namespace) -> Frames:
    """A table for each seed, the trial of each kind beside it."""
    alone = by_networks_alone(gaps)
    tables = [
        gap_table(rows.drop(columns="trial")).assign(seed=seed, trial=trial)
        for (seed, trial), rows in alone.groupby(["seed", "trial"])
    ]
    return {f"{part}_table": pd.concat(tables)}


def converged_results(part: str, gaps: pd.DataFrame, options: argparse.Namespace) -> Frames:
    """A table with the scale as the kind, and the ratios during training."""
    alone = by_networks_alone(gaps).assign(kind=gaps.trial).drop(columns="trial")
    table = gap_table(alone)
    simulated = table.groupby("game").mc.first()
    paths = sorted(place_of(part, options).glob("*/records-*.csv"))
    records = pd.concat([pd.read_csv(path) for path in paths], ignore_index=True)
    for name in ("coupled", "independent"):
        records[name] /= records.game.map(simulated)
    return {"converged_table": table, "converged_curves": records}


def plays_results(part: str, gaps: pd.DataFrame, options: argparse.Namespace) -> Frames:
    """Table 1 and the plays of some steps, all seeds; the gaps of the network alone, by state."""
    whole = gaps.drop(columns="trial")
    tables = [gap_table(rows).assign(seed=seed) for seed, rows in whole.groupby("seed")]
    by_seed = pd.concat(tables)[["seed", "game", "gamma", "kind", "coupled", "skill"]]
    alone = by_networks_alone(whole)
    return {"plays_table": gap_table(whole), "plays_seeds": by_seed, "plays_gaps": alone}


def rivals_results(part: str, gaps: pd.DataFrame, options: argparse.Namespace) -> Frames:
    """Table 1 of the Gram and the local network, all seeds: also those that `final` has trained."""
    alone = by_networks_alone(gaps).drop(columns="trial")
    earlier = pd.read_csv(PROJECT / "figures" / "atari_fresh_gaps.csv")
    earlier = earlier[earlier.kind.isin(alone.kind) & earlier.game.isin(alone.game)]
    run = ["game", "kind", "seed", "gamma", "state"]
    whole = pd.concat([earlier, alone]).drop_duplicates(run, keep="last", ignore_index=True)
    return {"rivals_table": gap_table(whole), "rivals_gaps": alone}


def run_results(part: str, gaps: pd.DataFrame, options: argparse.Namespace) -> Frames:
    """Gaps, table and curves of a part that the batch trains anew."""
    noise = gaps.noise.iloc[0]
    return {
        f"{noise}_gaps": by_networks_alone(gaps).drop(columns="trial"),
        f"{noise}_table": gap_table(gaps),
        f"{noise}_curves": read(part, "run-*/metrics.csv", options).drop(columns="trial"),
    }


# The file of a part's provenance, and what makes its results; of other parts: noise, `run_results`.
RESULTS = {
    "tune": ("tune", tune_results),
    "final": ("fresh", final_results),
    "paper": ("paper", paper_results),
    "search": ("search", search_results),
    "ablation": ("ablation", seed_results),
    "followed": ("followed", seed_results),
    "more": ("more", seed_results),
    "longer": ("longer", seed_results),
    "converged": ("converged", converged_results),
    "plays": ("plays", plays_results),
    "rivals": ("rivals", rivals_results),
    **dict.fromkeys(SIZED, ("sizes", size_results)),
}


def evaluate_stored(game: str, options: argparse.Namespace) -> None:
    """Compare a stored network with Monte Carlo at states that nobody has looked at."""
    trained = Trained.load(options.out / "networks" / game)
    config = trained.network.config
    experiment = experiment_of("final", game)
    experiment = replace(experiment, config=config, num_evaluation=options.states, depths=())
    home = options.work / "own" / game
    simulated = monte_carlo(experiment, home, options.processes, options.fresh)
    table = gap_table(evaluate(experiment, config.seed, trained, *simulated))
    print(table.round(3).T.to_string())


def command_line() -> argparse.ArgumentParser:
    """All that the command understands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*PARTS, "evaluate"], metavar="PART")
    parser.add_argument("game", nargs="?", metavar="GAME")
    parser.add_argument("seed", nargs="?", type=int, metavar="SEED")
    parser.add_argument("trials", nargs="*", metavar="TRIAL")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--settings", type=Path, help="a file of parts that replace those here")
    parser.add_argument("--processes", type=int, help="how many processes play games")
    parser.add_argument("--fresh", type=int, default=2, help="seed of the states, not 0 or 1")
    parser.add_argument("--states", type=int, default=16, help="how many states to evaluate")
    parser.add_argument("--note", default="", help="a note for the provenance")
    parser.add_argument("--work", type=Path, default=Path("out/atari_protocol"))
    parser.add_argument("--out", type=Path, default=PROJECT / "figures")
    parser.add_argument("--games", nargs="+", help="of the results; all unless given")
    parser.add_argument("--seeds", nargs="+", type=int, help="of the results, as --games")
    parser.add_argument("--with-parent", action="store_true", help="end when it has ended")
    return parser


def main() -> None:
    parser = command_line()
    options = parser.parse_args()
    if options.with_parent:
        end_with_parent()
    if options.settings:
        PROTOCOL.update(tomllib.loads(options.settings.read_text()))
    torch.set_num_threads(1)
    if options.part == "evaluate":
        evaluate_stored(options.game, options)
    elif options.game is None:
        results(options.part, options)
    else:
        try:
            check(options)
        except ValueError as error:
            parser.error(str(error))
        work_on(options)


def work_on(options: argparse.Namespace) -> None:
    """Play or train, and note how many minutes it took."""
    started = time.monotonic()
    job = play if options.seed is None else train
    job(options.part, options.game, options)
    with (options.work / f"{options.part}.log").open("a") as log:
        log.write(f"{(time.monotonic() - started) / 60:.1f}\n")


if __name__ == "__main__":
    main()
