"""Compare networks with equal effort, and run the paper's own training (atari_protocol.toml).

    python workflow/atari_protocol.py play PART GAME [SEED ...]   play pairs, or states of seeds
    python workflow/atari_protocol.py train PART GAME SEED [TRIAL ...]
    python workflow/atari_protocol.py compare PART GAME           trained networks with the pairs
    python workflow/atari_protocol.py choose                      the best trial of each kind
    python workflow/atari_protocol.py results                     write tables, curves and networks
    python workflow/atari_protocol.py curves                      learning curves, skill by depth
    python workflow/atari_protocol.py evaluate GAME --fresh 7     a network at states of your own

PART: `tune`, `final`, `paper` (TRIAL `natural` or `divided`), `curves` or `sticky` (TRIAL
STATESxSTEPS). Work in progress is kept under --work, and nothing that is there is made twice.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from atari_runs import REWARD, STICKY, provenance, scaled
from job import write_atomically

from jmdp_lib.atari import experiment as experiments
from jmdp_lib.atari.experiment import Experiment, by_state, gap_table, monte_carlo
from jmdp_lib.atari.training import Trained, load_checkpoint
from jmdp_lib.machine import replacing

PROJECT = Path(__file__).resolve().parents[1]
PROTOCOL: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
GAMES = [*PROTOCOL["tuning_games"], *PROTOCOL["new_games"]]
SIZED = ("curves", "sticky")  # parts whose trials are numbers of states and steps


def experiment_of(part: str, game: str, trial: str = "", scale: float = 1.0) -> Experiment:
    """The experiment of a part. The part `paper` uses the states of `final`."""
    own = PROTOCOL[part] if part in SIZED else {}
    if part == "sticky":
        full, changes = STICKY, own["config"]
    else:
        full = replace(REWARD, **PROTOCOL["experiment"] | PROTOCOL["games"][game])
        full = replace(full, depths=tuple(PROTOCOL["depths"]))
        trials = PROTOCOL["trials"]
        changes = PROTOCOL["paper"] | {"scale": trial} if part == "paper" else trials.get(trial, {})
        changes = PROTOCOL["config"] | own.get("config", changes)
    if own:
        sizes = own["games"][game]
        states = max(int(size.split("x")[0]) for size in sizes)  # the others are the first of these
        full = replace(full, **_tuples(own["experiment"]), num_states=states)
        changes = changes | {"steps": int((trial or sizes[0]).split("x")[1])}
    config = replace(full.config, name=game, **_tuples(changes))
    if part == "tune":
        share, gammas = PROTOCOL["tuning_share"], tuple(PROTOCOL["tuning_gammas"])
        config = replace(config, steps=int(config.steps * share), gammas=gammas)
        states = int(full.num_states * share)
        full = replace(full, num_states=states, repeats=PROTOCOL["tuning_repeats"], depths=())
    return scaled(replace(full, config=config), scale)


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}


def place_of(part: str, game: str, work: Path) -> tuple[Path, int]:
    """The folder of a part, and the number of its evaluation states."""
    number = PROTOCOL["tuning_fresh" if part == "tune" else "fresh"]
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


def compare(part: str, game: str, options: argparse.Namespace) -> None:
    """Write gaps-SEED-TRIAL.csv, by state, for every finished training of a game."""
    home, fresh = place_of(part, game, options.work)
    for path in sorted(home.glob("run-*/checkpoint.pt")):
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


def read(work: Path, part: str) -> pd.DataFrame:
    """All gaps of a part, with a column trial."""
    paths = sorted((work / part).glob("*/gaps-*.csv"))
    frames = [pd.read_csv(path).assign(trial=path.stem.split("-")[2]) for path in paths]
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
    work, scales = options.work, ("natural", "divided")
    gaps = read(work, "final")
    paper = gaps.trial.isin(scales)
    gaps.loc[paper, "kind"] = "paper, " + gaps.trial + gaps.kind.str.removeprefix("gram")
    gaps = gaps.drop(columns="trial")
    plain = gaps[~gaps.kind.str.contains("+", regex=False)]
    files = {"fresh_table": gap_table(gaps), "fresh_gaps": plain, "trials": choose(work)}
    curves = []
    for path in sorted((work / "final").glob("*/run-*/metrics.csv")):
        scale = path.parent.name.split("-")[2]
        if scale in scales:
            found = pd.read_csv(path).assign(game=path.parents[1].name, scale=scale)
            curves.append(found[found["curve"].isin(["td", "floor"])].drop(columns="sigma_pairs"))
    files["paper_curves"] = pd.concat(curves)
    keep(work, options.out / "networks")
    each = [experiment_of("final", game, scale=options.scale) for game in GAMES]
    write("fresh", files, each, PROTOCOL["seeds"], options)


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
    options: argparse.Namespace,
) -> None:  # fmt: skip
    """Write the files and their provenance."""
    for file, frame in files.items():
        digits = 8 if file == "fresh_gaps" else 5  # ranks are taken of gaps: no ties by rounding
        made = frame.to_csv(index=False, float_format=f"%.{digits}g")
        write_atomically(options.out / f"atari_{file}.csv", made)
    text = provenance(each, seeds, options.device, [], options.note)
    write_atomically(options.out / f"atari_{name}.json", text)


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
    options = parser.parse_args()
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main()
