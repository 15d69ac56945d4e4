"""What the figures of chapters 5 and 6 show."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.atari import plots


@pytest.fixture
def ax() -> Axes:
    return Figure().subplots()


def test_a_screen_boxes_what_differs(ax: Axes) -> None:
    left = np.zeros((30, 60, 3), dtype=np.uint8)
    right = left.copy()
    right[5:8, 10:12] = 200  # two things, far apart
    right[20:24, 50:52] = 200
    plots.screen(ax, left, "same", left)
    assert not ax.patches
    plots.screen(ax, right, "after", left)
    boxes = sorted(patch.get_bbox().bounds for patch in ax.patches)
    assert boxes == [(7, 2, 7, 8), (47, 17, 7, 9)]


def test_td_errors_are_moving_averages_of_each_seed(ax: Axes) -> None:
    blocks = list(plots.BLOCK_STYLES)
    rows = [
        {"step": 100 * t, "seed": seed, **dict.fromkeys(blocks, float(2**t) * (1 + seed))}
        for t in range(4)
        for seed in (0, 1)
    ]
    plots.td_errors(ax, pd.DataFrame(rows), window=3)
    assert len(ax.lines) == 3 * len(blocks)  # two seeds and their mean
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [1.5, 7 / 3, 14 / 3, 6.0])
    np.testing.assert_allclose(ax.lines[2].get_ydata(), 1.5 * np.array([1.5, 7 / 3, 14 / 3, 6.0]))


def test_gap_ratios_hide_no_row(ax: Axes) -> None:
    rows = [
        {"game": game, "gamma": gamma, "kind": kind, "coupled": 1.0, "coupled_interval": 0.1}
        for game in ("A", "B")
        for gamma in (0.1, 0.9)
        for kind in plots.KIND_STYLES
    ]
    plots.gap_ratios(ax, pd.DataFrame(rows))
    points = [line.get_xdata() for line in ax.lines if len(np.atleast_1d(line.get_xdata())) == 4]
    assert len(points) == len(plots.KIND_STYLES)
    assert len(np.unique(np.concatenate(points))) == len(rows)  # none hides another


def release_rows() -> pd.DataFrame:
    """Two seeds and three steps of one game."""
    steps = np.array([10, 20, 30])
    ratios = {"coupled_ratio": [4.0, 2.0, 1.0], "independent_ratio": [10.0, 50.0, 90.0]}
    one = pd.DataFrame({"step": steps, "seed": 0, "recursion_ratio": 2.0 * steps, **ratios})
    factors = dict.fromkeys(plots.RATIO_STYLES, 3.0) | {"recursion_ratio": 2.0}
    other = one.assign(seed=1, **{column: one[column] * by for column, by in factors.items()})
    return pd.concat([one, other], ignore_index=True)


def test_release_ratios_show_the_recursion_and_the_paper_at_its_step(ax: Axes) -> None:
    plots.release_ratios(ax, release_rows(), [1.5, 60.0], 20, 16.0)
    points = [line for line in ax.lines if line.get_marker() == "o"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in points] == [(20, 1.5), (20, 60)]
    colors = [color for _, color in plots.RATIO_STYLES.values()]
    assert [line.get_color() for line in points] == colors
    assert ax.lines[0].get_xdata() == [20, 20]  # the mark
    assert ax.lines[1].get_ydata() == [16, 16]
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), [30.0, 60.0, 90.0])  # mean of both seeds
    assert ax.get_yscale() == "log"
