"""The results of a part of runs.toml, as files and as chapter 12 reads them, and its rules.

PART.csv             of each run and member, averages over the states of a number
PART_states.csv      predictions at the reported states, those of number 1
PART_simulated.csv   simulated gaps by state
PART.json            with what and by which settings they were made

A *case* is a game at a discount, with a shock of one size: columns game, gamma and sigma.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from experiments.atari.settings import RULES, table_of
from experiments.files import write_tables, write_whole

MEMBER = ["gamma", "kind", "sigma"]
RUN = ["game", "states", *MEMBER, "trial", "seed"]
CASE = ["game", "sigma", "gamma"]
BUDGET = ["num_states", "steps"]


def averages(gaps: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Means of all columns over the rows with the same keys; mc_error is that of the mean.

    All rows have the same weight, and their simulations are independent.
    """
    groups = gaps.assign(mc_error=gaps.mc_error**2).groupby(keys, sort=False)
    means = groups.mean(numeric_only=True)
    means["mc_error"] = (means.mc_error / groups.size()) ** 0.5
    return means.reset_index()


def write(part: str, gaps: pd.DataFrame, out: Path, facts: dict[str, Any]) -> None:
    """Write the results of the finished runs of a part, from the learned and simulated gaps."""
    settings = table_of(part)
    budget = BUDGET if "budgets" in settings else []
    run = [*RUN, *budget]
    of_run = averages(gaps.assign(error=(gaps.coupled - gaps.mc) ** 2), run)
    of_run["error"] = of_run.error**0.5 / of_run.mc
    tables = {"": of_run[[*run, "coupled", "table", "mc", "mc_error", "error"]]}
    reported = gaps[gaps.states == 1]
    by_state = ["game", *MEMBER, "trial", "seed", *budget, "state"]
    if len(reported):
        tables["_states"] = reported[[*by_state, "coupled", "table", "gap_mean"]]
    once = ["game", "states", "sigma", "gamma", "state"]
    estimates = ["mc_mean", "mc", "mc_independent", "mc_error"]
    tables["_simulated"] = gaps.drop_duplicates(once)[[*once, *estimates]]
    write_tables(out, {f"{part}{ending}": table for ending, table in tables.items()})
    write_whole(out / f"{part}.json", json.dumps(facts | {"settings": settings}, indent=1) + "\n")


def best_trials(search: pd.DataFrame) -> dict[tuple[float, str, float], str]:
    """The trial of each member (gamma, kind, sigma) that has the least error in a search.

    The error is the mean over games and seeds.
    """
    errors = search.groupby([*MEMBER, "trial"]).error.mean()
    return {best[:3]: best[3] for best in errors.groupby(MEMBER).idxmin()}


def chosen_runs(runs: pd.DataFrame, search: pd.DataFrame) -> pd.DataFrame:
    """Those rows whose trial is the best of their member in a search."""
    best = best_trials(search)
    members = runs[MEMBER].itertuples(index=False, name=None)
    return runs[[best.get(member) == t for member, t in zip(members, runs.trial, strict=True)]]


def ratios(
    runs: pd.DataFrame, column: str = "coupled", tolerance: float = RULES["ratio"]
) -> pd.DataFrame:
    """Learned / simulated gap variance, averages over states: a row for each case and kind.

    runs: rows of PART.csv for one number of states. Different budgets have rows of their own.

    ratio: the mean over seeds. half: half a 95% interval for the given states (other states would
    have another average), from the simulation (normal) and the seeds (Student's t; zero if there is
    only one seed). verdict: whether the interval lies inside 1 +- the tolerance, outside, or
    neither; "-" where the simulated variance is not distinguished from zero.
    """
    groups = runs.assign(ratio=runs[column] / runs.mc).groupby(_learned(runs), sort=False)
    table = groups[["mc", "mc_error"]].first()
    table["ratio"] = groups.ratio.mean()
    quantile = special.stdtrit(np.maximum(groups.size() - 1, 1), 0.975)
    of_seeds = (quantile * groups.ratio.sem()).fillna(0.0)
    table["half"] = np.hypot(of_seeds, 1.96 * table.ratio * table.mc_error / table.mc)
    return table.assign(verdict=verdicts(table, tolerance)).reset_index()


def _learned(runs: pd.DataFrame) -> list[str]:
    """Columns in which networks differ, but for their seeds."""
    return [*CASE, "kind", *(name for name in BUDGET if name in runs)]


def verdicts(table: pd.DataFrame, tolerance: float = RULES["ratio"]) -> np.ndarray:
    """The verdict of each row of `ratios`."""
    low, high = table.ratio - table.half, table.ratio + table.half
    least, most = 1.0 - tolerance, 1.0 + tolerance
    unknown = table.mc <= RULES["known"] * table.mc_error
    inside = (low >= least) & (high <= most)
    outside = (high < least) | (low > most)
    return np.select([unknown, inside, outside], ["-", "inside", "outside"], "cannot tell")


def never_met(sigma: Any, gamma: Any) -> Any:
    """The gap variance if branches never meet and rewards do not vary."""
    return 2.0 * sigma**2 * gamma**2 / (1.0 - gamma**2)


def constants(simulated: pd.DataFrame, tolerance: float = RULES["ratio"]) -> pd.DataFrame:
    """Baselines that need no network, as rows of `ratios`: "constant" and "tuning mean".

    The first is `never_met`, the second the simulated average at the states of number 0.
    """
    of_case = averages(simulated, ["states", *CASE]).set_index(CASE)
    reported = of_case[of_case.states == 1]
    tuning = of_case[of_case.states == 0].reindex(reported.index)
    sigma, gamma = (reported.index.get_level_values(name) for name in ("sigma", "gamma"))
    tables = []
    for kind, value, error in (
        ("constant", never_met(sigma, gamma), 0.0),
        ("tuning mean", tuning.mc, tuning.mc_error),
    ):
        table = reported.assign(kind=kind, ratio=value / reported.mc)
        noise = np.hypot(table.ratio * reported.mc_error, error)
        table["half"] = 1.96 * noise / reported.mc
        tables.append(table.assign(verdict=verdicts(table, tolerance)))
    return pd.concat(tables).reset_index()


def skills(runs: pd.DataFrame, simulated: pd.DataFrame, baseline: str) -> pd.Series:
    """1 - MSE / MSE of a baseline over states, the simulation's noise subtracted from both.

    runs, simulated: rows for one number of states; different budgets have skills of their own.
    baseline: "constant", as in `constants`, or "mean", the simulated average of the game.

    If the baseline is right, its squared errors have the mean of the squared standard errors e^2 of
    the simulation, and about the variance 2 e^4. The skill is missing where it is right: within
    RULES["noise"] such deviations, or off by less than the share RULES["exact"] of the average.
    """
    squares = (runs.error * runs.mc) ** 2
    mse = squares.groupby([runs[name] for name in _learned(runs)], sort=False).mean()
    of_case = {}
    for (game, sigma, gamma), states in simulated.groupby(CASE, sort=False):
        noise = states.mc_error**2
        mean = states.mc.mean()
        guess = {"mean": mean, "constant": never_met(sigma, gamma)}[baseline]
        of_guess = ((guess - states.mc) ** 2 - noise).mean()
        spread = np.sqrt(2.0 * (noise**2).sum()) / len(states)
        is_right = of_guess <= max(RULES["noise"] * spread, (RULES["exact"] * mean) ** 2)
        of_case[game, sigma, gamma] = (noise.mean(), np.nan if is_right else of_guess)
    noise, of_guess = np.array([of_case[case[:3]] for case in mse.index]).T
    return (1.0 - (mse - noise) / of_guess).rename("skill")
