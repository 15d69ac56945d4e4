"""The release's runs, as files and as the chapters read them, and the rules of settings.toml.

Into the folder of results go, for all runs of a work folder,

    td_errors.csv    squared TD errors, means of `window` updates
    predictions.csv  predictions at the evaluation states during training
    pairs.csv        simulated variances there
    runs.csv         every run: how far it went, and where and with what it was made

The first two have the authors' two settings; crossed ones are in td_errors_extra.csv and
predictions_extra.csv.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from experiments.files import write_tables
from experiments.release.limits import copies_recursion, shock_floors
from experiments.release.rollouts import Pairs, pair_returns, simulated_variances
from experiments.release.settings import LOSSES, PROTOCOL, settings_of
from jmdp_lib import randomness

KEY = ["settings", "game", "seed"]
MADE_WITH = ["device", "commit", "dirty", "python", "torch", "numpy", "ale_py"]


def write_results(options: argparse.Namespace) -> None:
    """Write the tables of all runs of a work folder."""
    files = sorted((options.work / "runs").glob("*.csv"), key=place)
    every = pd.concat([pd.read_csv(file) for file in files])
    runs = every.drop_duplicates(KEY, keep="last")[[*KEY, "step", *MADE_WITH]]
    tables = {"pairs": simulated_pairs(options), "runs": runs.rename(columns={"step": "steps"})}
    td = every[[*KEY, "td_step", *LOSSES]].rename(columns={"td_step": "step"})
    predicted = every.drop(columns=["td_step", *LOSSES, *MADE_WITH])
    own = every.settings.isin(["defaults", "launcher"])
    for name, table in {"td_errors": td, "predictions": predicted}.items():
        tables |= {name: table[own], f"{name}_extra": table[~own]}
    write_tables(options.out, tables)


def simulated_pairs(options: argparse.Namespace) -> pd.DataFrame:
    """A row for each coupling, game, seed and size of the shock (evaluation's, training's)."""
    common = PROTOCOL["common"]
    rows = []
    for path in sorted((options.work / "pairs").glob("*.npz"), key=place):
        coupling, game, seed = path.stem.split("-")
        pairs = Pairs.load(path)
        for b in sorted({common["eval_b"], PROTOCOL["couplings"][coupling]["b"]}):
            rng = randomness.generator(int(seed), f"release, shocks, {coupling}, {game}")
            key = {"coupling": coupling, "game": game, "seed": int(seed), "b": b}
            rows.append(key | simulated_variances(pair_returns(pairs, b, common["gamma"], rng)))
    return pd.DataFrame(rows)


def place(path: Path) -> tuple[int, int, int]:
    """Place of a file: settings and games as in settings.toml, other games last; then seeds."""
    names = [*PROTOCOL["settings"], *PROTOCOL["couplings"], *PROTOCOL["games"]]
    first, game, seed = path.stem.split("-")
    return names.index(first), names.index(game) if game in names else len(names), int(seed)


def falls(td: pd.DataFrame, step: int) -> pd.DataFrame:
    """The first window's error over the last one's up to `step`, a row for each run."""
    groups = td[td.step <= step].groupby(KEY, sort=False)[PROTOCOL["figure7"]["blocks"]]
    return groups.first() / groups.last()


def figure7(td: pd.DataFrame, step: int) -> pd.DataFrame:
    """The rule for Figure 7 at a step: a row for each setting, game and block.

    first, last: means over the seeds. fall: their ratio. seeds: how many reach the rule's fall by
    themselves, of `of`. Runs that end before the step are judged at their end.
    """
    rule = PROTOCOL["figure7"]
    each = td[td.step <= step].melt(KEY, rule["blocks"], "block")
    ends = each.groupby([*KEY, "block"], sort=False).value.agg(["first", "last"])
    ends["reached"] = ends["first"] / ends["last"] >= rule["fall"]
    by_block = ends.groupby(["settings", "game", "block"], sort=False)
    table = by_block[["first", "last"]].mean()
    table["fall"] = table["first"] / table["last"]
    return table.assign(seeds=by_block.reached.sum(), of=by_block.size())


def floors(td: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Floors of the errors of each row of `td` and each block: the noise of the shock alone."""
    used = pd.concat(run.assign(mean=target_mean(run)) for _, run in predicted.groupby(KEY))
    by_step = (table.sort_values("step") for table in (td.reset_index(), used))
    rows = pd.merge_asof(*by_step, on="step", by=KEY, direction="forward")
    rows = rows.set_index("index").loc[td.index]
    b = rows.settings.map(lambda name: settings_of(name).b)
    gamma = PROTOCOL["common"]["gamma"]
    return pd.DataFrame(shock_floors(b, rows["mean"].to_numpy(), gamma), td.index)


def target_mean(run: pd.DataFrame) -> pd.Series:
    """Mean of the target network in use at each record of a run.

    That is the network of the last record before it was copied, and at first, when there is none,
    that of the first record.
    """
    copied = run["mean"].where(run.copies.diff(-1) != 0)
    return copied.shift().ffill().fillna(run["mean"].iloc[0])


def ratios(predicted: pd.DataFrame, pairs: pd.DataFrame, name: str, b: float) -> pd.DataFrame:
    """Predictions of one setting with the two ratios of Table 1, at shocks of size b."""
    coupling = settings_of(name).coupling
    simulated = pairs[(pairs.coupling == coupling) & (pairs.b == b)]
    rows = predicted[predicted.settings == name].merge(simulated, on=["game", "seed"])
    rows["coupled_ratio"] = rows.coupled / rows.gap_variance
    rows["independent_ratio"] = rows.independent / rows.gap_variance
    return rows


def recursion(rows: pd.DataFrame, gamma: float) -> pd.Series:
    """The second ratio by `limits`, without a network, from each run's first record on.

    rows: `ratios` of the launcher's setting, whose rewards the recursion has.
    """
    runs = []
    for _, run in rows.groupby(["game", "seed"]):
        start = run.iloc[0]
        copies = run.copies - start.copies
        _, variances = copies_recursion(copies.max(), gamma, start["mean"], start.independent / 2.0)
        runs.append(2.0 * variances[copies] / run.gap_variance)
    return pd.concat(runs).loc[rows.index]


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
