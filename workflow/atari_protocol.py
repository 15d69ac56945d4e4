"""Compare networks with equal effort, and run the paper's own training.

    python workflow/atari_protocol.py play PART GAME [SEED ...]   play pairs, or states of seeds
    python workflow/atari_protocol.py train PART GAME SEED [TRIAL ...]
    python workflow/atari_protocol.py compare PART GAME           trained networks with the pairs
    python workflow/atari_protocol.py choose                      the best trial of each kind
    python workflow/atari_protocol.py results                     write tables, curves and networks
    python workflow/atari_protocol.py curves                      learning curves, skill by depth
    python workflow/atari_protocol.py seed PART GAME SEED         train, and compare with the pairs
    python workflow/atari_protocol.py results PART                write its tables and curves
    python workflow/atari_protocol.py evaluate GAME --fresh 7     a network at states of your own

PART: `tune`, `final`, `paper` (TRIAL `natural` or `divided`), `curves` or `sticky` (TRIAL
STATESxSTEPS), and `reward` and `lottery`, which the batch trains anew (`play`, then `seed` of each
seed, then `results PART`). Work in progress is kept under --work. What is there is not made twice,
and a run that was killed continues there. The settings are in atari_protocol.toml.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from job import end_with_parent, git_state, hardware, versions, write_atomically

from jmdp_lib.atari import experiment as experiments
from jmdp_lib.atari.emulator import title
from jmdp_lib.atari.experiment import Experiment, by_state, gap_table, monte_carlo
from jmdp_lib.atari.networks import Config
from jmdp_lib.atari.training import Trained, load_checkpoint, require_device
from jmdp_lib.machine import replacing

PROJECT = Path(__file__).resolve().parents[1]
PROTOCOL: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
GAMES = [*PROTOCOL["tuning_games"], *PROTOCOL["new_games"]]
SIZED = ("curves", "sticky")  # parts whose trials are numbers of states and steps
RUNS = ("reward", "lottery")  # parts that the batch trains anew
SCALES = ("natural", "divided")  # the trials of the part `paper`


def check_words(part: str, game: str, seeds: Sequence[str], trials: Sequence[str] = ()) -> None:
    """Refuse a command that names what is not there, before work starts."""
    parts = ("tune", "final", "paper", *SIZED, *RUNS)
    if part not in parts:
        raise ValueError(f"PART must be one of {', '.join(parts)}, got {part!r}")
    known: dict[str, Any] = PROTOCOL[part]["games"] if part in SIZED else PROTOCOL["games"]
    if part in RUNS:
        title(game)
    elif game not in known:
        raise ValueError(f"part {part} has the games {', '.join(known)}, not {game!r}")
    sizes = known[game] if part in SIZED else SCALES if part == "paper" else PROTOCOL["trials"]
    if unknown := set(trials) - set(sizes):
        raise ValueError(f"part {part} has the trials {', '.join(sizes)}, not {unknown.pop()!r}")
    if wrong := [seed for seed in seeds if not seed.isdecimal()]:
        raise ValueError(f"SEED must be a whole number and not negative, got {wrong[0]!r}")


def experiment_of(part: str, game: str, trial: str = "", scale: float = 1.0) -> Experiment:
    """The experiment of a part. The part `paper` uses the states of `final`."""
    base = "lottery" if part in ("lottery", "sticky") else "reward"
    sizes = PROTOCOL[base]["experiment"]
    config = PROTOCOL["reward"]["config"] | PROTOCOL[base]["config"]
    own = PROTOCOL[part] if part in SIZED else {}
    if part in RUNS:
        sizes = sizes | PROTOCOL[part]["games"].get(game, {})
    elif base == "reward":
        sizes = sizes | PROTOCOL["experiment"] | PROTOCOL["games"][game]
        sizes["depths"] = PROTOCOL["depths"]
        trials = PROTOCOL["trials"] | {s: PROTOCOL["paper"] | {"scale": s} for s in SCALES}
        config = config | PROTOCOL["config"] | trials.get(trial, {})
    if own:
        each = own["games"][game]
        states = max(int(size.split("x")[0]) for size in each)  # the others are the first of these
        sizes = sizes | own["experiment"] | {"num_states": states}
        config = config | own["config"] | {"steps": int((trial or each[0]).split("x")[1])}
    if part == "tune":
        share, repeats = PROTOCOL["tuning_share"], PROTOCOL["tuning_repeats"]
        states, steps = int(sizes["num_states"] * share), int(config["steps"] * share)
        sizes = sizes | {"num_states": states, "repeats": repeats, "depths": []}
        config = config | {"steps": steps, "gammas": PROTOCOL["tuning_gammas"]}
    made = Config(name=game, **_tuples(config))
    return scaled(Experiment(made, **_tuples(sizes)), scale)


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}


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


def place_of(part: str, game: str, work: Path) -> tuple[Path, int]:
    """The folder of a part, and the number of its evaluation states."""
    number = PROTOCOL["tuning_fresh" if part in ("tune", *RUNS) else "fresh"]
    return work / ("final" if part == "paper" else part) / game, number


def train(part: str, game: str, seed: int, trial: str, options: argparse.Namespace) -> None:
    """Train one trial. The part `final` trains each kind with the trial chosen for it."""
    jobs: dict[str, tuple[str, ...]] = {trial: ()}
    if part == "final":
        chosen = json.loads((options.work / "chosen.json").read_text())
        jobs = {name: tuple(k for k in chosen if chosen[k] == name) for name in chosen.values()}
    for name, kinds in jobs.items():
        made = experiment_of(part, game, name, options.scale)
        made = replace(made, config=replace(made.config, kinds=kinds or made.config.kinds))
        home, _ = place_of(part, game, options.work)
        states = int(name.split("x")[0]) if part in SIZED else None
        experiments.learn(made, seed, home, options.device, options.processes, name, states)


def compare(part: str, game: str, options: argparse.Namespace, seeds: str = "*") -> None:
    """Write gaps-SEED-TRIAL.csv, by state, for every finished training of a game."""
    home, fresh = place_of(part, game, options.work)
    for path in sorted(home.glob(f"run-{seeds}-*/checkpoint.pt")):
        _, seed, trial = path.parent.name.split("-")
        out = home / f"gaps-{seed}-{trial}.csv"
        state = {} if out.exists() else load_checkpoint(path)
        if not state or state["step"] < state["of"]["steps"]:
            continue
        trained = Trained.load(path.parent, options.device)
        sizes = experiment_of(part, game, scale=options.scale)
        made = replace(sizes, config=trained.network.config)
        simulated = monte_carlo(made, home, options.processes, fresh)
        gaps = by_state(experiments.evaluate(made, int(seed), trained, *simulated))
        write_atomically(out, gaps.to_csv(index=False, float_format="%.8g"))


def read(work: Path, part: str, files: str = "gaps-*.csv") -> pd.DataFrame:
    """All gaps of a part, or all "run-*/metrics.csv", with columns game and trial."""
    frames = []
    for path in sorted((work / part).glob(f"*/{files}")):
        game, name, *_ = path.relative_to(work / part).parts
        trial = name.removesuffix(".csv").split("-")[2]
        frames.append(pd.read_csv(path).assign(game=game, trial=trial))
    return pd.concat(frames, ignore_index=True)


def choose(work: Path) -> pd.DataFrame:
    """For each kind the trial of least error on tuning states, if it finished in every game."""
    parts = [gap_table(gaps).assign(trial=t) for t, gaps in read(work, "tune").groupby("trial")]
    table = pd.concat(parts)[["kind", "trial", "game", "gamma", "coupled", "error", "skill"]]
    table = table[~table.kind.str.contains("+", regex=False)]
    each = table.groupby(["kind", "trial"]).error
    errors = each.mean().where(each.size() == each.size().max()).unstack("trial")
    print(errors.round(4).to_string())
    write_atomically(work / "chosen.json", json.dumps(errors.idxmin(axis=1).to_dict()) + "\n")
    return table


def keep(work: Path, out: Path) -> None:
    """Keep the near networks of the first seed, in half precision, for `Trained.load`."""
    trial, gammas = json.loads((work / "chosen.json").read_text())["near"], PROTOCOL["kept_gammas"]
    for game in GAMES:
        path = work / "final" / game / f"run-{PROTOCOL['seeds'][0]}-{trial}" / "checkpoint.pt"
        if path.exists():
            state, config = load_checkpoint(path), Trained.load(path.parent).network.config
            at = [config.members.index((gamma, "near")) for gamma in gammas]
            of = asdict(replace(config, gammas=tuple(gammas), kinds=("near",)))
            params = {name: weight[at].half() for name, weight in state["params"].items()}
            rest = {"of": of, "network": state["network"], "step": state["step"], "rows": []}
            (out / game).mkdir(parents=True, exist_ok=True)
            with replacing(out / game / "checkpoint.pt") as part:
                torch.save(rest | {"params": params}, part)


def results(options: argparse.Namespace) -> None:
    """Write everything that chapters 5 and 6 draw."""
    work = options.work
    gaps, curves = read(work, "final"), read(work, "final", "run-*/metrics.csv")
    paper = gaps.trial.isin(SCALES)
    gaps.loc[paper, "kind"] = "paper, " + gaps.trial + gaps.kind.str.removeprefix("gram")
    gaps = gaps.drop(columns="trial")
    plain = gaps[~gaps.kind.str.contains("+", regex=False)]
    files = {"fresh_table": gap_table(gaps), "fresh_gaps": plain, "trials": choose(work)}
    curves = curves[curves.trial.isin(SCALES) & curves["curve"].isin(["td", "floor"])]
    files["paper_curves"] = curves.drop(columns="sigma_pairs").rename(columns={"trial": "scale"})
    keep(work, options.out / "networks")
    each = [experiment_of("final", game, scale=options.scale) for game in GAMES]
    write("fresh", files, each, PROTOCOL["seeds"], options)


def run_results(part: str, options: argparse.Namespace) -> None:
    """Write what the games and seeds of the options gave in a part that the batch trains."""
    each = [experiment_of(part, game, scale=options.scale) for game in options.games]
    gaps, curves = (
        found[found.game.isin(options.games) & found.seed.isin(options.seeds)].drop(columns="trial")
        for found in (read(options.work, part), read(options.work, part, "run-*/metrics.csv"))
    )
    own = gaps[~gaps.kind.str.endswith("+table")]  # the table has the backups too
    files, name = {"gaps": own, "table": gap_table(gaps), "curves": curves}, each[0].noise
    files = {f"{name}_{file}": frame for file, frame in files.items()}
    log = options.work / f"{part}.log"
    minutes = [float(line) for line in log.read_text().split()] if log.exists() else []
    write(name, files, each, options.seeds, options, minutes)


def curves(options: argparse.Namespace) -> None:
    """Write a table of every size, with and without a shock."""
    tables = []
    for part in SIZED:
        for trial, gaps in read(options.work, part).groupby("trial", sort=False):
            states, steps = map(int, str(trial).split("x"))
            tables.append(gap_table(gaps).assign(states=states, steps=steps))
    each = [
        experiment_of(p, game, "", options.scale) for p in SIZED for game in PROTOCOL[p]["games"]
    ]
    write("sizes", {"sizes_table": pd.concat(tables)}, each, PROTOCOL["seeds"][:1], options)


def write(
    name: str, files: dict[str, pd.DataFrame], each: list[Experiment], seeds: list[int],
    options: argparse.Namespace, minutes: Sequence[float] = (),
) -> None:  # fmt: skip
    """Write the files and their provenance."""
    for file, frame in files.items():
        digits = 8 if file.endswith("gaps") else 5  # ranks are taken of gaps: no ties by rounding
        made = frame.to_csv(index=False, float_format=f"%.{digits}g")
        write_atomically(options.out / f"atari_{file}.csv", made)
    where = hardware()["cpu"]
    if options.device.startswith("cuda"):  # results may be collected where there is none
        where = torch.cuda.get_device_name() if torch.cuda.is_available() else options.device
    given = os.environ.get("JMDP_COMMIT")  # where there is no git, or another tree's
    facts = {
        **({"commit": given, "dirty": None} if given else git_state(PROJECT)),
        **versions(),
        "device": where,
        "cores": os.cpu_count(),
        "seeds": seeds,
        "minutes": minutes,  # of each job that ended; what a killed one took is not known
        "note": options.note,
        "experiments": [asdict(e) for e in each],
    }
    write_atomically(options.out / f"atari_{name}.json", json.dumps(facts, indent=1) + "\n")


def evaluate(game: str, options: argparse.Namespace) -> None:
    """Compare a kept network with Monte Carlo at states that nobody has looked at."""
    trained = Trained.load(options.out / "networks" / game)
    made = experiment_of("final", game, scale=options.scale)
    config = trained.network.config
    made = replace(made, config=config, num_evaluation=options.states, depths=())
    simulated = monte_carlo(made, options.work / "own" / game, options.processes, options.fresh)
    table = gap_table(experiments.evaluate(made, config.seed, trained, *simulated))
    print(table.round(3).T.to_string())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="+", metavar="VERB PART GAME SEED TRIAL")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all sizes, at most 1")
    parser.add_argument("--processes", type=int, help="how many processes play games")
    parser.add_argument("--fresh", type=int, default=2, help="seed of the states, not 0 or 1")
    parser.add_argument("--states", type=int, default=16, help="how many states to evaluate")
    parser.add_argument("--note", default="", help="a note for the provenance")
    parser.add_argument("--work", type=Path, default=Path("out/atari_protocol"))
    parser.add_argument("--out", type=Path, default=PROJECT / "figures")
    parser.add_argument("--games", nargs="+", default=PROTOCOL["tuning_games"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--with-parent", action="store_true", help="end when it has ended")
    options, started = parser.parse_args(), time.monotonic()
    if not 0.0 < options.scale <= 1.0:
        parser.error("--scale must lie in (0, 1]")
    if options.with_parent:
        end_with_parent()
    torch.set_num_threads(1)
    try:
        match options.what:
            case (("play" | "compare" | "seed"), part, game, *seeds):
                check_words(part, game, seeds)
            case "train", part, game, seed, *trials:
                check_words(part, game, [seed], trials)
        if options.what[0] in ("train", "seed", "compare"):
            require_device(options.device)
    except ValueError as error:
        parser.error(str(error))
    match options.what:
        case "play", part, game, *seeds:
            made = experiment_of(part, game, scale=options.scale)
            home, fresh = place_of(part, game, options.work)
            for seed in seeds:
                experiments.queried(made, int(seed), home, options.processes)
            if not seeds:
                monte_carlo(made, home, options.processes, fresh)
        case "train", part, game, seed, *trials:
            for trial in trials or (PROTOCOL[part]["games"][game] if part in SIZED else ["base"]):
                train(part, game, int(seed), trial, options)
        case "compare", part, game:
            compare(part, game, options)
        case "seed", part, game, seed:
            train(part, game, int(seed), "base", options)
            compare(part, game, options, seed)
        case "results", part:
            run_results(part, options)
        case ["choose"]:
            choose(options.work)
        case ["results"]:
            results(options)
        case ["curves"]:
            curves(options)
        case "evaluate", game:
            evaluate(game, options)
        case _:
            parser.error(f"unknown: {' '.join(options.what)}")
    if options.what[0] in ("play", "train", "seed"):
        with (options.work / f"{options.what[1]}.log").open("a") as log:
            log.write(f"{(time.monotonic() - started) / 60:.1f}\n")


if __name__ == "__main__":
    main()
