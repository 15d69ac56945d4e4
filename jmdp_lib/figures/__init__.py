"""Figures: data in, axes out. What draws takes an `ax` and returns it, or the image it drew there.

`style()` sets the one look; `save()` writes a figure as PDF and PNG with its data beside it.
"""

from jmdp_lib.figures.atari import (
    BLOCK_STYLES,
    KIND_STYLES,
    block_legend,
    gap_ratios,
    gap_scatter,
    screen,
    td_errors,
    text_table,
)
from jmdp_lib.figures.correlations import (
    correlation_bar,
    correlation_grid,
    correlation_matrix,
    correlation_table,
)
from jmdp_lib.figures.files import results, save, style
from jmdp_lib.figures.gaps import distribution, normal_quantiles, prediction, signs, sorted_ratios
from jmdp_lib.figures.interact import explore
from jmdp_lib.figures.pictures import gridworld, transition
from jmdp_lib.figures.residuals import block_decay, residual_decay, sweeps_by_gamma
from jmdp_lib.figures.scaling import SCALING_STYLES, scaling
from jmdp_lib.figures.theory import (
    against_exact,
    band,
    convergence,
    joint_law,
    matrix,
    moduli,
    pair_closure,
    pair_weights,
    partners,
    pattern,
)
from jmdp_lib.figures.worlds import cells, counts, gap_law, joint_returns

__all__ = [
    "BLOCK_STYLES",
    "KIND_STYLES",
    "SCALING_STYLES",
    "against_exact",
    "band",
    "block_decay",
    "block_legend",
    "cells",
    "convergence",
    "correlation_bar",
    "correlation_grid",
    "correlation_matrix",
    "correlation_table",
    "counts",
    "distribution",
    "explore",
    "gap_law",
    "gap_ratios",
    "gap_scatter",
    "gridworld",
    "joint_law",
    "joint_returns",
    "matrix",
    "moduli",
    "normal_quantiles",
    "pair_closure",
    "pair_weights",
    "partners",
    "pattern",
    "prediction",
    "residual_decay",
    "results",
    "save",
    "scaling",
    "screen",
    "signs",
    "sorted_ratios",
    "style",
    "sweeps_by_gamma",
    "td_errors",
    "text_table",
    "transition",
]
