"""The results of a part of runs.toml as files.

PART.csv             of each run and member, averages over the states of a number
PART_states.csv      predictions at the reported states, those of number 1
PART_simulated.csv   simulated gaps by state, unless the part has those of another one
PART.json            with what and by which settings they were made
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.atari.recursive_pairs import PairRecords, pair_gaps
from experiments.atari.results import MEMBER, SIMULATED, averages
from experiments.atari.settings import table_of
from experiments.files import write_whole

RUN = ["game", "states", *MEMBER, "trial", "seed"]


def simulated_gaps(
    records: PairRecords, members: Sequence[tuple[float, str, float]]
) -> pd.DataFrame:
    """What pairs show at each state, for the discounts and shocks of all members."""
    cases = sorted({(gamma, sigma) for gamma, _, sigma in members})
    found = pair_gaps(records, *zip(*cases, strict=True))
    frames = [
        pd.DataFrame({name: getattr(found, of)[c] for name, of in SIMULATED.items()}).assign(
            gamma=gamma, sigma=sigma, state=found.state_rows
        )
        for c, (gamma, sigma) in enumerate(cases)
    ]
    return averages(pd.concat(frames), ["gamma", "sigma", "state"])


def write(part: str, files: Sequence[Path], out: Path, facts: dict[str, Any]) -> None:
    """Write the results of the finished runs of a part, from the gaps of each."""
    gaps = pd.concat([pd.read_csv(file) for file in files], ignore_index=True)
    of_run = averages(gaps.assign(error=(gaps.coupled - gaps.mc) ** 2), RUN)
    of_run["error"] = of_run.error**0.5 / of_run.mc
    tables = {"": of_run[[*RUN, "coupled", "table", "mc", "mc_error", "error"]]}
    reported = gaps[gaps.states == 1]
    by_state = ["game", *MEMBER, "trial", "seed", "state"]
    if len(reported):
        tables["_states"] = reported[[*by_state, "coupled", "table", "gap_mean"]]
    settings = table_of(part, "")
    once = ["game", "states", "sigma", "gamma", "state"]
    if "reference" not in settings:
        tables["_simulated"] = gaps.drop_duplicates(once)[[*once, *SIMULATED]]
    save(out, part, tables, facts | {"settings": settings})


def save(out: Path, part: str, tables: dict[str, pd.DataFrame], facts: dict[str, Any]) -> None:
    """Write tables, by the ending of their name, and how they were made."""
    for ending, table in tables.items():
        text = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_whole(out / f"{part}{ending}.csv", text)
    write_whole(out / f"{part}.json", json.dumps(facts, indent=1) + "\n")
