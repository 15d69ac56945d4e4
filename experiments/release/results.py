"""The release's runs as files that the chapters read, and the rules of settings.toml for them.

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
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.files import write_whole
from experiments.release.limits import copies_recursion, shock_floors
from experiments.release.network import LOSSES
from experiments.release.play import Pairs, pair_returns, simulated_variances
from experiments.release.settings import PROTOCOL, settings_of
from experiments.release.training import load
from jmdp_lib import checks

KEY = ["settings", "game", "seed"]
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
    for path in sorted((work / "runs").glob("*.pt")):
        name, game, seed = path.stem.split("-")
        key = {"settings": name, "game": game, "seed": int(seed)}
        state = load(path)
        losses = np.concatenate([block.numpy() for block in state["losses"]])
        means = window_means(losses, common["learn_from"], common["window"])
        errors.append(means.assign(**key))
        predicted.append(pd.DataFrame(state["records"]).assign(**key))
        runs.append(key | {"steps": state["step"]} | _provenance(path.with_suffix(".json")))
    columns = [*KEY, "step"]
    td = _by_protocol(pd.concat(errors))[[*columns, *LOSSES]]
    records = _by_protocol(pd.concat(predicted))
    tables = {
        "pairs": simulated_pairs(work, told, common),
        "runs": _by_protocol(pd.DataFrame(runs)),
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
    for path in sorted((work / "pairs").glob("*.npz")):
        coupling, game, seed = path.stem.split("-")
        pairs = Pairs.load(path)
        for b in sorted({common["eval_b"], told["couplings"][coupling]["b"]}):
            rng = checks.generator(int(seed), f"release, shocks, {coupling}, {game}")
            found = simulated_variances(pair_returns(pairs, b, common["gamma"], rng))
            rows.append({"coupling": coupling, "game": game, "seed": int(seed), "b": b} | found)
    return _by_protocol(pd.DataFrame(rows))


def _by_protocol(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order in which settings.toml names settings and games, then by the rest."""
    places = {name: k for k, name in enumerate([*PROTOCOL["settings"], *PROTOCOL["games"]])}

    def place(column: pd.Series) -> pd.Series:
        numeric = pd.api.types.is_numeric_dtype(column)
        return column if numeric else column.map(lambda name: places.get(name, len(places)))

    by = [c for c in ("settings", "coupling", "game", "seed", "b", "step") if c in rows]
    return rows.sort_values(by, key=place, kind="stable", ignore_index=True)


def _provenance(path: Path) -> dict[str, Any]:
    """Where and with what a run was made; empty if it has not ended."""
    if not path.exists():
        return {}
    note = json.loads(path.read_text())
    versions = {name: note["versions"].get(name) for name in PACKAGES}
    return {key: note[key] for key in ("device", "commit", "dirty")} | versions


def falls(td: pd.DataFrame, step: int) -> pd.DataFrame:
    """The first window's error over the last one's up to `step`, a row for each run."""
    blocks = PROTOCOL["figure7"]["blocks"]
    groups = td[td.step <= step].sort_values("step").groupby(KEY, sort=False)[blocks]
    return groups.first() / groups.last()


def figure7(td: pd.DataFrame) -> pd.DataFrame:
    """The rule for Figure 7: a row for each setting, game and block.

    first, last: means over the seeds. fall: their ratio. seeds: how many reach the rule's fall by
    themselves, of `of`.
    """
    rule = PROTOCOL["figure7"]
    td = td[td.step <= rule["step"]].sort_values("step", kind="stable")
    each = td.melt([*KEY, "step"], rule["blocks"], "block").groupby([*KEY, "block"], sort=False)
    ends = each.value.agg(["first", "last"])
    by_block = ends.groupby(["settings", "game", "block"], sort=False)
    table = by_block.mean()
    table["fall"] = table["first"] / table["last"]
    reached = ends["first"] / ends["last"] >= rule["fall"]
    table["seeds"] = reached.groupby(["settings", "game", "block"], sort=False).sum()
    return table.assign(of=by_block.size())


def floors(td: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """For each row of `td` and each block: what the shock alone leaves of the error.

    The target in use is the network of the last record before it was copied, and at first, when
    there is none, that of the first record.
    """
    key = [*KEY, "copies"]
    records = predicted.sort_values("step")
    rows = td[[*KEY, "step"]].reset_index().sort_values("step")
    rows = pd.merge_asof(rows, records[[*key, "step"]], on="step", by=KEY, direction="forward")
    copied = records.groupby(key, as_index=False)["mean"].last()
    rows = rows.merge(copied.assign(copies=copied.copies + 1), on=key, how="left")
    first = rows[KEY].merge(records.groupby(KEY, as_index=False)["mean"].first(), on=KEY)
    rows["mean"] = rows["mean"].fillna(first["mean"])
    parts = []
    for name, part in rows.set_index("index").groupby("settings"):
        settings = settings_of(name)
        found = shock_floors(settings.b, part["mean"].to_numpy(), settings.gamma)
        parts.append(pd.DataFrame(found, index=part.index))
    return pd.concat(parts).loc[td.index]


def ratios(predicted: pd.DataFrame, pairs: pd.DataFrame, name: str, b: float) -> pd.DataFrame:
    """Predictions of one setting with the two ratios of Table 1, at shocks of size b."""
    settings = settings_of(name)
    mine = (pairs.coupling == settings.coupling) & (pairs.b == b)
    simulated = pairs[mine].drop(columns=["coupling"])
    rows = predicted[predicted.settings == name].merge(simulated, on=["game", "seed"])
    rows["coupled_ratio"] = rows.coupled / rows.gap_variance
    rows["independent_ratio"] = rows.independent / rows.gap_variance
    return rows


def recursion(rows: pd.DataFrame, gamma: float) -> pd.Series:
    """The second ratio by `limits`, without a network, from each run's first record on.

    rows: `ratios` of the launcher's setting, whose rewards the recursion has.
    """
    told = []
    for _, run in rows.groupby(["game", "seed"]):
        start = run.loc[run.step.idxmin()]
        copies = run.copies - start.copies
        _, variances = copies_recursion(copies.max(), gamma, start["mean"], start.independent / 2.0)
        told.append(2.0 * variances[copies] / run.gap_variance)
    return pd.concat(told).loc[rows.index]


def table1(rows: pd.DataFrame) -> pd.DataFrame:
    """The rule for Table 1: the paper's cells beside the seeds' mean, least and largest.

    At the rule's step, or at the last one of runs that end before it.
    """
    rule = PROTOCOL["table1"]
    step = rows.step[rows.step <= rule["step"]].max()
    cells = []
    for game, mine in rows[rows.step == step].groupby("game", sort=False):
        columns = ("coupled_ratio", "independent_ratio")
        for column, paper in zip(columns, rule["paper"].get(game, ()), strict=False):
            values = mine[column]
            factor = values.mean() / paper
            cell = {"game": game, "column": column, "paper": paper, "mean": values.mean()}
            cell |= {"least": values.min(), "largest": values.max(), "seeds": len(values)}
            within = 1.0 / rule["factor"] <= factor <= rule["factor"]
            cells.append(cell | {"within": bool(within)})
    return pd.DataFrame(cells)
