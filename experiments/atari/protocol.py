"""Compare networks with equal effort, and run the paper's own training.

    python -m experiments.atari.protocol ARGUMENTS, which are

    PART GAME                   play pairs to compare with
    PART GAME SEED [TRIAL ...]  train, and compare with the pairs
    PART                        write its tables and curves
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

from experiments.atari.experiment import Experiment, evaluate, monte_carlo, run
from experiments.atari.networks import Config
from experiments.atari.predictions import gap_table
from experiments.atari.training import Trained, load_checkpoint, require_device
from jmdp_lib import checks
from jmdp_lib.machine import replacing

PROJECT = Path(__file__).resolve().parents[2]
sys.path.append(str(PROJECT / "workflow"))

from job import end_with_parent, provenance, write_atomically  # noqa: E402

PROTOCOL: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
PARTS = [name for name, table in PROTOCOL.items() if isinstance(table, dict)]
RUNS = ("reward", "lottery")  # parts that the batch trains anew, for any game
SIZED = ("curves", "sticky")  # parts whose trials are numbers of states and steps


def settings(part: str, game: str) -> dict[str, Any]:
    """The table of a part, laid over that of the part that it is like."""
    own = PROTOCOL[part]
    base = settings(own["like"], game) if "like" in own else {"experiment": {}, "config": {}}
    beyond = own.get("games", {}).get(game, {})
    sizes = base["experiment"] | own.get("experiment", {}) | beyond
    return base | own | {"experiment": sizes, "config": base["config"] | own.get("config", {})}


def experiment_of(part: str, game: str, trial: str = "") -> Experiment:
    """The experiment of a part, with the config of one of its trials."""
    given = settings(part, game)
    config = given["config"] | given["trials"].get(trial, {})
    return Experiment(Config(name=game, **_tuples(config)), **_tuples(given["experiment"]))


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}


def check(options: argparse.Namespace) -> None:
    """Refuse a command that names what is not there, before work starts."""
    part, game, given = options.part, options.game, settings(options.part, options.game)
    if part not in RUNS and game not in given["games"]:
        raise ValueError(f"part {part} has the games {', '.join(given['games'])}, not {game!r}")
    if unknown := set(options.trials) - given["trials"].keys():
        known = ", ".join(given["trials"])
        raise ValueError(f"part {part} has the trials {known}, not {unknown.pop()!r}")
    experiment_of(part, game)
    if options.seed is not None:
        checks.at_least("SEED", options.seed, 0)
        require_device(options.device)


def place_of(part: str, options: argparse.Namespace) -> Path:
    """The folder of a part, which has one for each game; `paper` uses the states of `final`."""
    return Path(options.work, "final" if part == "paper" else part)


def play(part: str, game: str, options: argparse.Namespace) -> None:
    """Play the pairs that networks are compared with."""
    home, fresh = place_of(part, options) / game, settings(part, game)["fresh"]
    monte_carlo(experiment_of(part, game), home, options.processes, fresh)


def train(part: str, game: str, options: argparse.Namespace) -> None:
    """Train trials and compare them. The part `final` trains each kind with its chosen trial."""
    given = settings(part, game)
    kinds = dict.fromkeys(options.trials or given["trials"], given["config"]["kinds"])
    if part == "final":
        chosen = json.loads((options.work / "chosen.json").read_text())
        kinds = {trial: [k for k in chosen if chosen[k] == trial] for trial in chosen.values()}
    for trial, some in kinds.items():
        made = experiment_of(part, game, trial)
        made = replace(made, config=replace(made.config, kinds=tuple(some)))
        states = int(trial.split("x")[0]) if part in SIZED else None
        where = place_of(part, options) / game, options.device, options.processes
        run(made, options.seed, *where, trial, states, given["fresh"])


def read(part: str, files: str, options: argparse.Namespace) -> pd.DataFrame:
    """All "gaps-*.csv" of a part, or all "run-*/metrics.csv", with columns game and trial."""
    frames, home = [], place_of(part, options)
    for path in sorted(home.glob(f"*/{files}")):
        game, name, *_ = path.relative_to(home).parts
        trial = name.removesuffix(".csv").split("-")[2]
        frames.append(pd.read_csv(path).assign(game=game, trial=trial))
    found = pd.concat(frames, ignore_index=True)
    asked = options.games or found.game, options.seeds or found.seed
    return found[found.game.isin(asked[0]) & found.seed.isin(asked[1])]


def choose(table: pd.DataFrame, options: argparse.Namespace) -> None:
    """Keep, for each kind, the trial of least error, if it finished in every game."""
    each = table.groupby(["kind", "trial"]).error
    errors = each.mean().where(each.size() == each.size().max()).unstack("trial")
    print(errors.round(4).to_string())
    chosen = json.dumps(errors.idxmin(axis=1).to_dict())
    write_atomically(options.work / "chosen.json", chosen + "\n")


def keep(options: argparse.Namespace) -> None:
    """Keep the near networks of the first seed, in half precision, for `Trained.load`."""
    trial = json.loads((options.work / "chosen.json").read_text())["near"]
    gammas, seed = PROTOCOL["kept_gammas"], PROTOCOL["final"]["seeds"][0]
    for path in place_of("final", options).glob(f"*/run-{seed}-{trial}/checkpoint.pt"):
        state, config = load_checkpoint(path), Trained.load(path.parent).network.config
        at = [config.members.index((gamma, "near")) for gamma in gammas]
        of = asdict(replace(config, gammas=tuple(gammas), kinds=("near",)))
        params = {name: weight[at].half() for name, weight in state["params"].items()}
        rest: dict[str, Any] = {"of": of, "rows": [], "version": state.get("version")}
        rest |= {"network": state["network"], "step": state["step"]}
        home = options.out / "networks" / config.name
        home.mkdir(parents=True, exist_ok=True)
        with replacing(home / "checkpoint.pt") as part:
            torch.save(rest | {"params": params}, part)


def results(part: str, options: argparse.Namespace) -> None:
    """Write what chapters 5 and 6 draw of a part, and its provenance."""
    parts = SIZED if part in SIZED else (part,)
    found = {name: read(name, "gaps-*.csv", options) for name in parts}
    each = [experiment_of(name, game) for name in parts for game in found[name].game.unique()]
    gaps = pd.concat(found.values())
    alone, paper = ~gaps.kind.str.contains("+", regex=False), PROTOCOL["paper"]["trials"]
    by_trial = gaps.groupby("trial", sort=part == "tune")
    match part:
        case "tune":
            table = pd.concat([gap_table(some).assign(trial=trial) for trial, some in by_trial])
            table = table[~table.kind.str.contains("+", regex=False)]
            choose(table, options)
            columns = ["kind", "trial", "game", "gamma", "coupled", "error", "skill"]
            name, files = "tune", {"trials": table[columns]}
        case "final":
            keep(options)
            told = "paper, " + gaps.trial + gaps.kind.str.removeprefix("gram")
            gaps.loc[gaps.trial.isin(paper), "kind"] = told
            kept = gaps[alone].drop(columns="trial")
            name, files = "fresh", {"fresh_table": gap_table(gaps), "fresh_gaps": kept}
        case "paper":
            curves = read(part, "run-*/metrics.csv", options).drop(columns="sigma_pairs")
            curves = curves[curves.trial.isin(paper) & curves["curve"].isin(["td", "floor"])]
            name, files = "paper", {"paper_curves": curves.rename(columns={"trial": "scale"})}
        case "curves" | "sticky":
            tables = []
            for trial, some in by_trial:
                states, steps = map(int, str(trial).split("x"))
                tables.append(gap_table(some).assign(states=states, steps=steps))
            name, files = "sizes", {"sizes_table": pd.concat(tables)}
        case _:
            curves = read(part, "run-*/metrics.csv", options).drop(columns="trial")
            name, own = each[0].noise, gaps[alone].drop(columns="trial")
            files = {
                f"{name}_gaps": own,
                f"{name}_table": gap_table(gaps),
                f"{name}_curves": curves,
            }
    for file, frame in files.items():
        digits = 8 if file.endswith("gaps") else 5  # ranks are taken of gaps: no ties by rounding
        made = frame.to_csv(index=False, float_format=f"%.{digits}g")
        write_atomically(options.out / f"atari_{file}.csv", made)
    device, log = options.device, options.work / f"{part}.log"
    if device.startswith("cuda") and torch.cuda.is_available():  # or collected where there is none
        device = torch.cuda.get_device_name()
    facts = provenance(PROJECT) | {
        "device": device,
        "seeds": sorted(gaps.seed.unique().tolist()),
        "minutes": [*map(float, log.read_text().split())] if log.exists() else [],
        "note": options.note,
        "experiments": [asdict(e) for e in each],
    }
    write_atomically(options.out / f"atari_{name}.json", json.dumps(facts, indent=1) + "\n")


def evaluate_kept(game: str, options: argparse.Namespace) -> None:
    """Compare a kept network with Monte Carlo at states that nobody has looked at."""
    trained = Trained.load(options.out / "networks" / game)
    config = trained.network.config
    made = experiment_of("final", game)
    made = replace(made, config=config, num_evaluation=options.states, depths=())
    simulated = monte_carlo(made, options.work / "own" / game, options.processes, options.fresh)
    table = gap_table(evaluate(made, config.seed, trained, *simulated))
    print(table.round(3).T.to_string())


def main() -> None:
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
    options, started = parser.parse_args(), time.monotonic()
    part, game = options.part, options.game
    if options.with_parent:
        end_with_parent()
    if options.settings:
        PROTOCOL.update(tomllib.loads(options.settings.read_text()))
    torch.set_num_threads(1)
    if part == "evaluate":
        evaluate_kept(game, options)
    elif game is None:
        results(part, options)
    else:
        try:
            check(options)
        except ValueError as error:
            parser.error(str(error))
        (play if options.seed is None else train)(part, game, options)
        with (options.work / f"{part}.log").open("a") as log:
            log.write(f"{(time.monotonic() - started) / 60:.1f}\n")


if __name__ == "__main__":
    main()
