"""Models that nobody enumerates, for local.py and chapter 7: a grid, an inventory, a queue network."""

from __future__ import annotations

import numpy as np

import jmdp_lib as jl

_MOVES = (-1, 0), (0, 1), (1, 0), (0, -1)


def grid(size: int, gamma: float) -> jl.ImplicitJMDP:
    """`windy_gridworld` with states (row, column), whatever its size."""
    goal = (0, size - 1)

    def tables(cell):
        moved = [cell if cell == goal else (cell[0] + r, cell[1] + c) for r, c in _MOVES]
        rows = [[(r, c if cell == goal else c - gust) for r, c in moved] for gust in (0, 1)]
        rows = [[tuple(min(max(x, 0), size - 1) for x in to) for to in row] for row in rows]
        return [0.8, 0.2], [[float(to == goal) for to in row] for row in rows], rows

    return jl.ImplicitJMDP(tables, 4, gamma, (0.0, 1.0))
