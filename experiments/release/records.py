"""The release's runs as files that the chapters read.

Into the folder of results go, for all runs of a work folder,

    td_errors.csv    squared TD errors, means of `window` updates
    predictions.csv  what networks say at the evaluation states during training
    pairs.csv        what recursive pairs show there
    runs.csv         every run: how far it went, and where and with what it was made

The first two have the authors' two settings, up to the steps of settings.toml. What there is of
crossed settings and further steps is in td_errors_extra.csv and predictions_extra.csv.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.files import write_whole
from experiments.release.play import Pairs, pair_returns, simulated_variances
from experiments.release.results import KEY
from experiments.release.settings import LOSSES, PROTOCOL
from experiments.release.training import load
from jmdp_lib import checks

PACKAGES = ("python", "torch", "numpy", "ale_py")


def run_of(work: Path, label: str) -> Path:
    """The file of a run's training."""
    return work / "runs" / f"{label}.pt"


def window_means(losses: Any, first_step: int, window: int) -> pd.DataFrame:
    """Means of the `window` updates that end at a step: of the first ones, then of every window.

    losses: (T, 5) of the updates at first_step, first_step + 1, ... The first row's updates and
    the second row's overlap nowhere; one update between them is in neither.
    """
    values = np.asarray(losses, np.float64)
    last = first_step + len(values) - 1
    ends = [first_step + window - 1, *range(first_step + 2 * window, last + 1, window)]
    means = [values[end - first_step - window + 1 : end - first_step + 1].mean(0) for end in ends]
    return pd.DataFrame(means, columns=list(LOSSES)).assign(step=ends)


def write_results(work: Path, out: Path) -> None:
    """Write the tables of all runs of a work folder."""
    told = json.loads((work / "settings.json").read_text())
    common = told["common"] | (told["miniature"] or {})
    errors, predicted, runs = [], [], []
    for path in in_order((work / "runs").glob("*.pt")):
        name, game, seed = path.stem.split("-")
        key = {"settings": name, "game": game, "seed": int(seed)}
        state = load(path)
        losses = np.concatenate([block.numpy() for block in state["losses"]])
        means = window_means(losses, common["learn_from"], common["window"])
        errors.append(means.assign(**key))
        predicted.append(pd.DataFrame(state["records"]).assign(**key))
        runs.append(key | {"steps": state["step"]} | _provenance(path.with_suffix(".json")))
    columns = [*KEY, "step"]
    td = pd.concat(errors)[[*columns, *LOSSES]]
    records = pd.concat(predicted)
    tables = {
        "pairs": simulated_pairs(work, told, common),
        "runs": pd.DataFrame(runs),
    }
    for name, table in {"td_errors": td, "predictions": records}.items():
        own = table.settings.isin(["defaults", "launcher"]) & (table.step <= common["steps"])
        table = table[[*columns, *table.columns.difference(columns, sort=False)]]
        tables |= {name: table[own], f"{name}_extra": table[~own]}
    for name, table in tables.items():
        text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_whole(out / f"{name}.csv", text)


def simulated_pairs(work: Path, told: dict[str, Any], common: dict[str, Any]) -> pd.DataFrame:
    """A row for each coupling, game, seed and size of the shock (evaluation's, training's)."""
    rows = []
    for path in in_order((work / "pairs").glob("*.npz")):
        coupling, game, seed = path.stem.split("-")
        pairs = Pairs.load(path)
        for b in sorted({common["eval_b"], told["couplings"][coupling]["b"]}):
            rng = checks.generator(int(seed), f"release, shocks, {coupling}, {game}")
            found = simulated_variances(pair_returns(pairs, b, common["gamma"], rng))
            rows.append({"coupling": coupling, "game": game, "seed": int(seed), "b": b} | found)
    return pd.DataFrame(rows)


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Files of runs in the order in which settings.toml names settings and games, then by seed."""
    names = [*PROTOCOL["settings"], *PROTOCOL["couplings"], *PROTOCOL["games"]]
    places = {name: k for k, name in enumerate(names)}

    def place(path: Path) -> tuple[int, int, int]:
        first, game, seed = path.stem.split("-")
        return places[first], places.get(game, len(places)), int(seed)

    return sorted(paths, key=place)


def _provenance(path: Path) -> dict[str, Any]:
    """Where and with what a run was made; empty if it has not ended."""
    if not path.exists():
        return {}
    note = json.loads(path.read_text())
    versions = {name: note["versions"].get(name) for name in PACKAGES}
    return {key: note[key] for key in ("device", "commit", "dirty")} | versions
