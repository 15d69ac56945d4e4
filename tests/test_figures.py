"""Figures of the chapters show what they were given, and what they read from models."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

import jmdp_lib as jl
from notebooks.tools import figures, plots


@pytest.fixture
def ax():
    fig, axes = plt.subplots()
    yield axes
    plt.close(fig)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def patches(ax, kind):
    return [patch for patch in ax.patches if isinstance(patch, kind)]


def test_gridworld_shows_the_policy_and_where_gusts_lead(ax):
    figures.gridworld(ax, jl.windy_gridworld(3), jl.goal_policy(3), columns=3)
    assert len(patches(ax, Rectangle)) == 9
    # eight calm moves; two cells below the goal are blown away, six gusts keep
    assert len(patches(ax, FancyArrowPatch)) == 8 + 2
    assert len(patches(ax, Circle)) == 6
    assert "Goal" in texts(ax)
    assert any("in a gust, probability 0.2" in text for text in texts(ax))
    ax.clear()
    figures.gridworld(ax, jl.windy_gridworld(3, gust_prob=0.0), jl.goal_policy(3), columns=3)
    assert not [text for text in texts(ax) if "gust" in text]


def test_transition_says_what_each_action_earns(ax):
    figures.transition(ax, jl.coupled_reward_chain(3, rewards="signed"), 0)
    shown = " ".join(texts(ax))
    assert "pays 1 or \u22121" in shown
    assert "pays \u22121 or 1" in shown


def test_correlations_are_shown_and_nan_is_hatched(ax):
    matrix = np.array([[1.0, -0.25, np.nan], [-0.001, 0.999, np.nan], [np.nan] * 3])
    figures.correlation_grid(ax, matrix[None], 1, "abc")
    cells = patches(ax, Rectangle)[:9]
    assert [bool(cell.get_hatch()) for cell in cells] == np.isnan(matrix).ravel().tolist()
    assert texts(ax) == ["1", "\u2212.25", "0\u2212", "1"]


def test_correlation_grid_is_laid_out_as_the_grid(ax):
    correlation = np.array([[[1.0, v], [v, 1.0]] for v in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)])
    figures.correlation_grid(ax, correlation, 3, "ab", goal=2)
    place = {t.get_text(): t.get_position() for t in ax.texts if t.get_position()[0] % 1 != 0.5}
    assert place[".20"][0] > place[".10"][0]  # columns go right
    assert place[".40"][1] > place[".10"][1]  # rows go down: the y axis is inverted
    assert ax.yaxis_inverted()
    assert "Goal" in texts(ax)


# ---- two actions together -----------------------------------------------------------------------


def test_joint_returns_are_blue_where_the_first_wins(ax, monkeypatch):
    """And orange elsewhere, on one scale."""
    monkeypatch.setattr("notebooks.tools.figures._CELLS", 4)
    pairs = np.array([[3.0, 1.0], [3.0, 1.0], [1.0, 2.0]])
    figures.joint_returns(ax, pairs, (0.0, 4.0))
    blue, orange = ax.collections
    for mesh, cell, count in ((blue, [1, 3], 2.0), (orange, [2, 1], 1.0)):
        counts = np.ma.filled(mesh.get_array(), 0.0)
        assert np.argwhere(counts).tolist() == [cell]
        assert counts.max() == count
    assert [mesh.cmap.name for mesh in (blue, orange)] == ["Blues", "Oranges"]
    assert blue.norm is orange.norm


def test_gap_law_says_how_often_the_gap_is_negative(ax, monkeypatch):
    monkeypatch.setattr("notebooks.tools.figures._BARS", 8)
    figures.plot_gap_law(ax, np.array([-1.5, 0.0, 0.5, 3.5]), 4.0)
    assert "0.25" in texts(ax)[0]
    bars = [bar for bar in patches(ax, Rectangle) if bar.get_height() > 0]
    assert {bar.get_x(): bar.get_facecolor()[0] > 0.5 for bar in bars} == {
        -2.0: True,  # orange
        0.0: False,
        3.0: False,
    }


# ---- learned returns ----------------------------------------------------------------------------


def test_a_screen_boxes_what_differs(ax):
    left = np.zeros((30, 60, 3), dtype=np.uint8)
    right = left.copy()
    right[5:8, 10:12] = 200  # two things, far from each other
    right[20:24, 50:52] = 200
    plots.screen(ax, right, "after", left)
    boxes = sorted(patch.get_bbox().bounds for patch in ax.patches)
    assert boxes == [(7, 2, 7, 8), (47, 17, 7, 9)]


def test_gap_ratios_stand_in_groups_of_a_game(ax):
    rows = [(game, sigma, 1 + sigma, 0.1) for game in ("Pong", "Boxing") for sigma in (0.0, 1.0)]
    table = pd.DataFrame(rows, columns=["game", "sigma", "ratio", "half"]).assign(kind="near")
    plots.gap_ratios(ax, table, by="sigma")
    points = ax.containers[0][0]
    assert points.get_ydata().tolist() == [1.0, 2.0, 1.0, 2.0]
    assert np.diff(points.get_xdata()).tolist() == [1.0, 2.5, 1.0]
    assert texts(ax) == ["Pong", "Boxing"]


def test_verdict_bars_are_stacked(ax):
    counts = pd.DataFrame({"outside": [3, 1], "inside": [1, 4]}, index=["near", "gram"])
    plots.verdict_bars(ax, counts)  # the first row is drawn last, on top
    assert [(bar.get_x(), bar.get_width()) for bar in ax.containers[2]] == [(4, 1), (1, 3)]
