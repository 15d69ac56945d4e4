"""Which ingredient of a network its errors credit: the local term, the near term, a known shock."""

from __future__ import annotations

import pandas as pd

#: Kinds of networks that differ in one ingredient: (with it, without it).
INGREDIENTS = {
    "local term": (("local learned", "gram"), ("local", "gram known")),
    "near term": (("near learned", "local learned"), ("near", "local")),
    "shock known": (
        ("gram known", "gram"),
        ("local", "local learned"),
        ("near", "near learned"),
    ),
}


def credits(table: pd.DataFrame, factor: float) -> pd.DataFrame:
    """A row per ingredient, pair of kinds, gamma and game: the error with it over that without it.

    table: a row per kind, gamma, game and seed, with a column error. ratio: the mean over seeds.
    largest: over seeds. credited: the ratio is below 1 / factor, and below 1 in every seed.

    Example:
        >>> import pandas as pd
        >>> from experiments.atari.credit import credits
        >>> kinds = ["gram", "gram known", "local learned", "local", "near learned", "near"]
        >>> rows = {"kind": kinds, "error": [0.9, 0.8, 0.1, 0.1, 0.1, 0.05]}
        >>> table = pd.DataFrame(rows).assign(gamma=0.99, game="Pong", seed=0)
        >>> found = credits(table, factor=1.25)
        >>> found[found.credited].ingredient.tolist()
        ['local term', 'local term', 'near term', 'shock known']
    """
    errors = table.pivot_table(
        index=["gamma", "game", "seed"], columns="kind", values="error", sort=False
    )
    rows = []
    for ingredient, pairs in INGREDIENTS.items():
        for with_it, without in pairs:
            by_seed = (errors[with_it] / errors[without]).groupby(level=["gamma", "game"])
            found = pd.DataFrame({"ratio": by_seed.mean(), "largest": by_seed.max()}).reset_index()
            names = {"ingredient": ingredient, "with_it": with_it, "without": without}
            rows.append(found.assign(**names))
    every = pd.concat(rows, ignore_index=True)
    return every.assign(credited=(every.ratio < 1.0 / factor) & (every.largest < 1.0))
