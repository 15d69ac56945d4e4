"""Figures: data in, axes out. Drawing functions take an `ax` and return it, or the image drawn."""

from jmdp_lib.machine import extra

with extra("figures"):
    from jmdp_lib.figures.curves import (
        agreement,
        joint_returns,
        plot_gap_law,
    )
    from jmdp_lib.figures.diagrams import (
        correlation_bar,
        correlation_grid,
        gridworld,
        transition,
    )

__all__ = ["gridworld", "transition"]
__all__ += ["correlation_bar", "correlation_grid"]
__all__ += ["agreement", "joint_returns", "plot_gap_law"]
