"""The paper's Table 1 beside the release's experiment: which cells agree, and the table itself."""

from __future__ import annotations

from typing import Any

import pandas as pd

COLUMNS = {"coupled_ratio": "coupled / MC", "independent_ratio": "independent / MC"}


def verdict(rows: pd.DataFrame, protocol: dict[str, Any]) -> pd.DataFrame:
    """The paper's cells beside the seeds' mean, least and largest, and whether they agree."""
    told = protocol["tolerance"]
    chosen = rows[(rows.step == told["step"]) & (rows.b == told["b"])]
    chosen = chosen[chosen["where"] == told["where"]]
    cells = []
    for game, mine in chosen.groupby("game", sort=False):
        columns = ("coupled_ratio", "independent_ratio")
        for column, paper in zip(columns, protocol["paper"].get(game, ()), strict=False):
            values = mine[column]
            factor = values.mean() / paper
            cells.append(
                {
                    "game": game,
                    "column": column,
                    "paper": paper,
                    "mean": values.mean(),
                    "least": values.min(),
                    "largest": values.max(),
                    "seeds": len(values),
                    "within": bool(1.0 / told["factor"] <= factor <= told["factor"]),
                }
            )
    return pd.DataFrame(cells)


def paper_layout(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of `verdict` as the paper prints them: a row of the paper's and one of ours.

    The rows are those of a game and of whose numbers they are. A number of ours is the mean over
    the seeds, with the least and the largest in brackets; behind it stands the verdict.
    """
    shown: dict[tuple[str, str], dict[str, str]] = {}
    for game, mine in cells.groupby("game", sort=False):
        told = mine.set_index("column")
        printed: dict[str, str] = {}
        found: dict[str, str] = {}
        for column, label in COLUMNS.items():
            cell = told.loc[column]
            digits = 2 if column == "coupled_ratio" else 1
            printed |= {label: f"{cell.paper:.{digits}f}", f"verdict, {label}": ""}
            found[label] = (
                f"{cell['mean']:.{digits}f} ({cell.least:.{digits}f} to {cell.largest:.{digits}f})"
            )
            found[f"verdict, {label}"] = "agrees" if cell.within else "differs"
        shown[str(game), "the paper"] = printed
        shown[str(game), "release settings"] = found
    return pd.DataFrame(shown).T
