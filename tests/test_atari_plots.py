"""What the figures of chapters 5, 6 and 12 show."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments.release import plots
from notebooks.tools.plots import gap_ratios, verdict_bars


@pytest.fixture
def ax():
    return Figure().subplots()


def test_a_screen_boxes_what_differs(ax):
    left = np.zeros((30, 60, 3), dtype=np.uint8)
    right = left.copy()
    right[5:8, 10:12] = 200  # two things, far apart
    right[20:24, 50:52] = 200
    plots.screen(ax, left, "same", left)
    assert not ax.patches
    plots.screen(ax, right, "after", left)
    boxes = sorted(patch.get_bbox().bounds for patch in ax.patches)
    assert boxes == [(7, 2, 7, 8), (47, 17, 7, 9)]


def test_gap_ratios_stand_in_groups_of_a_game(ax):
    rows = [
        {"game": game, "sigma": sigma, "kind": kind, "ratio": 1.0 + sigma, "half": 0.1}
        for game in ("Pong", "Boxing")
        for sigma in (0.0, 1.0)
        for kind in ("near", "constant")
    ]
    gap_ratios(ax, pd.DataFrame(rows), by="sigma")
    points = ax.containers[0][0]
    assert points.get_ydata().tolist() == [1.0, 2.0, 1.0, 2.0]
    assert np.diff(points.get_xdata()).tolist() == [1.0, 2.5, 1.0]
    assert [text.get_text() for text in ax.texts] == ["Pong", "Boxing"]


def test_verdict_bars_are_stacked(ax):
    verdict_bars(ax, pd.DataFrame({"outside": [3, 0], "inside": [1, 4]}, index=["near", "gram"]))
    widths = [[bar.get_width() for bar in bars] for bars in ax.containers]
    assert widths == [[4, 1], [0, 0], [0, 3]]
    assert [bar.get_x() for bar in ax.containers[2]] == [4, 1]
