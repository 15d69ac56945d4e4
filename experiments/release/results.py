"""What the chapters read from the release's runs, and the rules of settings.toml for it.

The tables are those that `records` writes.
"""

from __future__ import annotations

import pandas as pd

from experiments.release.limits import copies_recursion, shock_floors
from experiments.release.settings import PROTOCOL, settings_of

KEY = ["settings", "game", "seed"]


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
    columns = ["coupled_ratio", "independent_ratio"]
    paper = pd.DataFrame(rule["paper"], pd.Index(columns, name="column")).T.rename_axis("game")
    at = rows[rows.step == rows.step[rows.step <= rule["step"]].max()]
    seeds = at.melt("game", columns, "column").groupby(["game", "column"]).value
    ours = seeds.agg(mean="mean", least="min", largest="max", seeds="size")
    cells = paper.stack().rename("paper").to_frame().join(ours, how="inner")
    factor = cells["mean"] / cells.paper
    return cells.assign(within=factor.between(1 / rule["factor"], rule["factor"])).reset_index()
