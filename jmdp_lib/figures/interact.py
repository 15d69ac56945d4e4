"""A slider below a figure, for a reader with a live kernel; without one the figure stands alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure


def explore(
    draw: Callable[[float], Figure], value: float, low: float, high: float, step: float, name: str
) -> Any:
    """Show draw(value), and below it a slider that draws it anew; returns the slider.

    The figure is an ordinary output, which a stored notebook keeps; the slider replaces it in
    place. Outside IPython, or where ipywidgets is not installed, there is no slider but None.
    """
    try:
        from IPython.display import display
    except ImportError:
        return None
    handle = display(_drawn(draw, value), display_id=True)
    try:
        import ipywidgets
    except ImportError:
        return None
    if handle is None:
        return None
    slider = ipywidgets.FloatSlider(
        value=value, min=low, max=high, step=step, description=name, continuous_update=False,
        style={"description_width": "initial"},
    )  # fmt: skip
    slider.observe(lambda change: handle.update(_drawn(draw, change["new"])), "value")
    display(slider)
    return slider


def _drawn(draw: Callable[[float], Figure], value: float) -> Figure:
    """The figure, no longer pyplot's: it would be shown twice."""
    fig = draw(value)
    plt.close(fig)
    return fig
