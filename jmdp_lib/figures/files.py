"""The one look of all figures, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

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
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    nothing = {"CreationDate": None, "Creator": None, "Producer": None}
    fig.savefig(folder / f"{name}.pdf", metadata=nothing)
    fig.savefig(folder / f"{name}.png", metadata={"Software": None})
    frame = data if isinstance(data, pd.DataFrame) else pd.DataFrame(dict(data))
    frame.to_csv(folder / f"{name}.csv", index=False, float_format="%.12g")
