"""What chapter 12 reads of learned and simulated gaps, and the rules of runs.toml for it.

The tables are those that `records` writes. A *case* is a game at a discount, with a shock of one
size: columns game, gamma and sigma.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import special

from experiments.atari.settings import RULES
from jmdp_lib import checks

MEMBER = ["gamma", "kind", "sigma"]
CASE = ["game", "sigma", "gamma"]
#: Columns of what was simulated, and the fields of `PairGaps` that they are.
SIMULATED = {
    "mc_mean": "mean",
    "mc": "variance",
    "mc_independent": "independent",
    "mc_error": "variance_error",
}


def averages(gaps: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Means of all columns over the rows with the same keys; mc_error is that of the mean.

    All rows have the same weight, and their simulations are independent.
    """
    groups = gaps.assign(mc_error=gaps.mc_error**2).groupby(keys, sort=False)
    means = groups.mean(numeric_only=True)
    means["mc_error"] = (means.mc_error / groups.size()) ** 0.5
    return means.reset_index()


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


def ratios(runs: pd.DataFrame, column: str = "coupled") -> pd.DataFrame:
    """Learned / simulated gap variance, averages over states: a row for each case and kind.

    runs: rows of PART.csv for one number of states.

    ratio: the mean over seeds. half: half a 95% interval for the given states (other states would
    have another average), from the simulation (normal) and the seeds (Student's t; zero if there is
    only one seed). verdict: whether the interval lies inside 1 +- the tolerance, outside, or
    neither; "-" where the simulated variance is not told from zero.
    """
    groups = runs.assign(ratio=runs[column] / runs.mc).groupby([*CASE, "kind"], sort=False)
    table = groups[["mc", "mc_error"]].first()
    table["ratio"] = groups.ratio.mean()
    quantile = special.stdtrit(np.maximum(groups.size() - 1, 1), 0.975)
    of_seeds = (quantile * groups.ratio.sem()).fillna(0.0)
    table["half"] = np.hypot(of_seeds, 1.96 * table.ratio * table.mc_error / table.mc)
    return table.assign(verdict=verdicts(table)).reset_index()


def verdicts(table: pd.DataFrame) -> np.ndarray:
    """The verdict of each row of `ratios`."""
    low, high = table.ratio - table.half, table.ratio + table.half
    least, most = 1.0 - RULES["ratio"], 1.0 + RULES["ratio"]
    unknown = table.mc <= RULES["known"] * table.mc_error
    inside = (low >= least) & (high <= most)
    outside = (high < least) | (low > most)
    return np.select([unknown, inside, outside], ["-", "inside", "outside"], "cannot tell")


def constants(simulated: pd.DataFrame) -> pd.DataFrame:
    """What needs no network, as rows of `ratios`: kinds "constant" and "tuning mean".

    The first is 2 sigma^2 gamma^2 / (1 - gamma^2), the gap variance if branches never meet and
    rewards do not vary; the second is the simulated average at the states of number 0.
    """
    of_case = averages(simulated, ["states", *CASE]).set_index(CASE)
    reported = of_case[of_case.states == 1]
    tuning = of_case[of_case.states == 0].reindex(reported.index)
    sigma, gamma = (reported.index.get_level_values(name) for name in ("sigma", "gamma"))
    formula = 2.0 * sigma**2 * gamma**2 / (1.0 - gamma**2)
    tables = []
    for kind, value, error in (
        ("constant", formula, 0.0),
        ("tuning mean", tuning.mc, tuning.mc_error),
    ):
        table = reported.assign(kind=kind, ratio=value / reported.mc)
        noise = np.hypot(reported.mc_error / reported.mc, error / value)
        table["half"] = 1.96 * table.ratio * noise
        tables.append(table.assign(verdict=verdicts(table)))
    return pd.concat(tables).reset_index()


def skills(runs: pd.DataFrame, simulated: pd.DataFrame, baseline: str) -> pd.Series:
    """1 - MSE / MSE of a baseline over states, the simulation's noise subtracted from both.

    runs, simulated: rows for one number of states. baseline: "constant", as in `constants`, or
    "mean", the simulated average of the game.

    If the baseline is right, its squared errors have the mean of the squared standard errors e^2 of
    the simulation, and about the variance 2 e^4. The skill is missing where it is right: within
    RULES["noise"] such deviations, or off by less than the share RULES["exact"] of the average.
    """
    checks.one_of("baseline", baseline, ("constant", "mean"))
    squares = (runs.error * runs.mc) ** 2
    mse = squares.groupby([runs[name] for name in [*CASE, "kind"]], sort=False).mean()
    found = {}
    for (game, sigma, gamma), states in simulated.groupby(CASE, sort=False):
        noise = states.mc_error**2
        mean = states.mc.mean()
        formula = 2.0 * sigma**2 * gamma**2 / (1.0 - gamma**2)
        guess = mean if baseline == "mean" else formula
        of_guess = ((guess - states.mc) ** 2 - noise).mean()
        spread = np.sqrt(2.0 * (noise**2).sum()) / len(states)
        is_right = of_guess <= max(RULES["noise"] * spread, (RULES["exact"] * mean) ** 2)
        found[game, sigma, gamma] = (noise.mean(), np.nan if is_right else of_guess)
    noise, of_guess = np.array([found[case[:3]] for case in mse.index]).T
    return (1.0 - (mse - noise) / of_guess).rename("skill")
