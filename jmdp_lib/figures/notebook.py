"""What every notebook uses: the one look, files of figures and data, a slider, checked claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import ArrayLike


def style() -> None:
    """The look of every figure of the project."""
    plt.style.use(Path(__file__).with_name("jmdp.mplstyle"))


def results(files: Sequence[str]) -> pd.DataFrame:
    """The rows of CSV files, named from the project's root, the folder that holds notebooks/."""
    here = Path.cwd()
    root = here.parent if here.name == "notebooks" else here
    return pd.concat([pd.read_csv(root / file) for file in files], ignore_index=True)


def save(
    fig: Figure, name: str, data: pd.DataFrame | Mapping[str, ArrayLike], out_dir: str
) -> None:
    """Write name.pdf, name.png and name.csv into out_dir; nothing where out_dir is empty.

    The files hold no dates or versions: the same figure gives the same bytes.
    """
    if not out_dir:
        return
    path = Path(out_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    nothing = {"CreationDate": None, "Creator": None, "Producer": None}
    fig.savefig(f"{path}.pdf", metadata=nothing)
    fig.savefig(f"{path}.png", metadata={"Software": None})
    pd.DataFrame(data).to_csv(f"{path}.csv", index=False, float_format="%.12g")


def explore(
    draw: Callable[[float], Figure], value: float, low: float, high: float, step: float, name: str
) -> Any:
    """Show draw(value), and below it a slider that draws it anew; returns the slider.

    The figure is an ordinary output, which a stored notebook keeps; the slider replaces it in
    place. Without a live kernel, or where ipywidgets is not installed, the result is None.
    """
    from IPython.display import display

    def drawn(value: float) -> Figure:
        fig = draw(value)
        plt.close(fig)  # otherwise pyplot would show it a second time
        return fig

    handle = display(drawn(value), display_id=True)
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
    slider.observe(lambda change: handle.update(drawn(change["new"])), "value")
    display(slider)
    return slider


class Claims:
    """`check` asserts a claim and remembers it; `print` lists `claim | value | verdict`.

    The verdict "holds" is for what was claimed and found. What was found instead of something that
    the paper prints "differs from the paper"; a goal that was missed was "not reproduced".
    """

    VERDICTS = ("holds", "not reproduced", "differs from the paper")

    def __init__(self) -> None:
        self._lines: list[str] = []

    def check(self, claim: str, value: object, holds: object, verdict: str = "holds") -> None:
        """Record what was found with its value and verdict, and fail if it was not found."""
        if verdict not in self.VERDICTS:
            raise ValueError(f"the verdict must be one of {self.VERDICTS}, got {verdict!r}")
        self._lines.append(f"{claim} | {value} | {verdict if bool(holds) else 'FAILS'}")
        assert bool(holds), self._lines[-1]

    def print(self) -> None:
        """One line per claim."""
        print("\n".join(self._lines))
