"""What the figures of chapters 5 and 6 show."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.release import plots


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


def test_td_errors_of_each_seed_and_their_mean(ax: Axes) -> None:
    blocks = list(plots.BLOCK_STYLES)
    rows = [
        {"step": 100 * t, "seed": seed, **dict.fromkeys(blocks, float(2**t) * (1 + seed))}
        for t in range(4)
        for seed in (0, 1)
    ]
    plots.td_errors(ax, pd.DataFrame(rows))
    assert len(ax.lines) == 3 * len(blocks)  # two seeds and their mean
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [1, 2, 4, 8])
    np.testing.assert_allclose(ax.lines[2].get_ydata(), [1.5, 3, 6, 12])
