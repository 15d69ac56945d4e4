"""The release's runs as files that the chapters read.

Into the folder of results go, for all runs of a work folder,

    td_errors.csv    squared TD errors, means of `window` updates
    predictions.csv  what networks say at the evaluation states during training
    pairs.csv        what recursive pairs show there
    runs.csv         every run: how far it went, and where and with what it was made

The first two have the authors' two settings; crossed ones are in td_errors_extra.csv and
predictions_extra.csv.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from experiments.files import write_tables
from experiments.release.play import Pairs, pair_returns, simulated_variances
from experiments.release.results import KEY
from experiments.release.settings import LOSSES, PROTOCOL
from jmdp_lib import checks

PACKAGES = ["python", "torch", "numpy", "ale_py"]


def write_results(options: argparse.Namespace) -> None:
    """Write the tables of all runs of a work folder."""
    files = sorted((options.work / "runs").glob("*.csv"), key=place)
    every = pd.concat([pd.read_csv(file) for file in files])
    noted = ["device", "commit", "dirty", *PACKAGES]
    runs = every.drop_duplicates(KEY, keep="last")[[*KEY, "step", *noted]]
    tables = {"pairs": simulated_pairs(options), "runs": runs.rename(columns={"step": "steps"})}
    td = every[[*KEY, "td_step", *LOSSES]].rename(columns={"td_step": "step"})
    predicted = every.drop(columns=["td_step", *LOSSES, *noted])
    own = every.settings.isin(["defaults", "launcher"])
    for name, table in {"td_errors": td, "predictions": predicted}.items():
        tables |= {name: table[own], f"{name}_extra": table[~own]}
    write_tables(options.out, tables)


def simulated_pairs(options: argparse.Namespace) -> pd.DataFrame:
    """A row for each coupling, game, seed and size of the shock (evaluation's, training's)."""
    common = PROTOCOL["common"] | (PROTOCOL["miniature"] if options.miniature else {})
    rows = []
    for path in sorted((options.work / "pairs").glob("*.npz"), key=place):
        coupling, game, seed = path.stem.split("-")
        pairs = Pairs.load(path)
        for b in sorted({common["eval_b"], PROTOCOL["couplings"][coupling]["b"]}):
            rng = checks.generator(int(seed), f"release, shocks, {coupling}, {game}")
            found = simulated_variances(pair_returns(pairs, b, common["gamma"], rng))
            rows.append({"coupling": coupling, "game": game, "seed": int(seed), "b": b} | found)
    return pd.DataFrame(rows)


def place(path: Path) -> tuple[int, int, int]:
    """Where a file stands: settings and games as in settings.toml, other games last; then seeds."""
    names = [*PROTOCOL["settings"], *PROTOCOL["couplings"], *PROTOCOL["games"]]
    first, game, seed = path.stem.split("-")
    return names.index(first), names.index(game) if game in names else len(names), int(seed)
