"""What every chapter uses: one look, files of figures and data, a slider, checked claims.

An installation in place, `pip install -e ".[notebooks]"`, puts the project's folder on Python's path:
`from notebooks.tools import chapter` works in a kernel that was started in any folder.
"""

from __future__ import annotations

import ast
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike

_SLIDER = """<div class="explore"><label>{name} <input type="range" min="0" max="{last}" value="0"
oninput="const frames = this.closest('.explore').querySelectorAll('img');
frames.forEach((f, k) => f.style.display = k == this.value ? '' : 'none');
this.nextElementSibling.value = frames[this.value].alt.split(' ').pop()">
<output>{first}</output></label><br>{images}</div>"""


def style() -> None:
    """The look of every figure of the project.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> from notebooks.tools import chapter
        >>> with plt.style.context("default"):
        ...     chapter.style()
        ...     print(plt.rcParams["axes.spines.top"])
        ...
        False
    """
    plt.style.use(Path(__file__).with_name("jmdp.mplstyle"))


def results(files: Sequence[str]) -> pd.DataFrame:
    """The rows of CSV files, named from the project's root.

    It is the one that the notebook lies in; for a notebook elsewhere, that of this file.

    Example:
        >>> from notebooks.tools import chapter
        >>> table = chapter.results(["figures/atari/calibrated.csv"])
        >>> sorted(table.gamma.unique().tolist())
        [0.1, 0.5, 0.9, 0.99]
    """
    places = (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[2])
    root = next(folder for folder in places if (folder / "pyproject.toml").exists())
    return pd.concat([pd.read_csv(root / file) for file in files], ignore_index=True)


def _lay_out(fig: Figure) -> None:
    """Place the axes, once and without drawing them: savefig would draw them twice for it."""
    if engine := fig.get_layout_engine():
        engine.execute(fig)
    fig.set_layout_engine("none")


def save(
    fig: Figure, name: str, data: pd.DataFrame | Mapping[str, ArrayLike], out_dir: str
) -> None:
    """Write name.pdf, name.png and name.csv into out_dir; nothing where out_dir is empty.

    The files hold no dates or versions: the same figure gives the same bytes. In a notebook, a
    figure that pyplot would show is shown at once and closed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from notebooks.tools import chapter
        >>> from matplotlib.figure import Figure
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     chapter.save(Figure(), "empty", {"x": [1.0, 2.0]}, folder)
        ...     print(sorted(path.name for path in Path(folder).iterdir()))
        ...
        ['empty.csv', 'empty.pdf', 'empty.png']
    """
    table = pd.DataFrame(data)  # wrong data are found in every run
    if not out_dir:
        return
    path = Path(out_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    nothing = {"CreationDate": None, "Creator": None, "Producer": None}
    _lay_out(fig)
    box = fig.get_tightbbox().padded(plt.rcParams["savefig.pad_inches"])
    fig.savefig(f"{path}.pdf", bbox_inches=box, metadata=nothing)
    fig.savefig(f"{path}.png", bbox_inches=box, metadata={"Software": None})
    if "ipykernel" in sys.modules and getattr(fig, "number", None) in plt.get_fignums():
        from IPython import display

        plt.close(fig)  # drawing it again would take as long as writing it
        display.display(display.Image(f"{path}.png", retina=True))
    table.to_csv(f"{path}.csv", index=False, float_format="%.12g")


def explore(draw: Callable[[float], Figure], values: Sequence[float], name: str) -> None:
    """Show draw(value), with a slider over all values; the first is shown at the start.

    All frames are drawn now and are part of the output, so that the slider needs no kernel: it
    works in a stored notebook and in the book. Without HTML, only the first frame is shown. The
    axes of all frames are where they are in the first, so their number must be the same.

    Example:
        >>> from notebooks.tools import chapter
        >>> from matplotlib.figure import Figure
        >>> def draw(gamma):
        ...     fig = Figure(figsize=(2, 1))
        ...     fig.subplots().plot([1, gamma, gamma**2])
        ...     return fig
        ...
        >>> chapter.explore(draw, [0.5, 0.9], name="gamma")  # doctest: +ELLIPSIS
        {'text/html': ...
    """
    from IPython.display import display

    places: list[Bbox] = []
    images = still = ""
    for value in values:
        fig = draw(value)
        if not places:  # all are laid out as the first, which saves half the time
            _lay_out(fig)
            places = [ax.get_position(original=True) for ax in fig.axes]
        for ax, place in zip(fig.axes, places, strict=True):
            ax.set_position(place)
        look = " style='display:none'" if images else ""
        source = f"data:image/webp;base64,{_encoded(fig, 'webp')}"
        images += f"<img src='{source}' alt='{name} {value:g}'{look}>"
        still = still or _encoded(fig, "png")
        plt.close(fig)  # otherwise pyplot would show it, too
    html = _SLIDER.format(name=name, last=len(values) - 1, first=f"{values[0]:g}", images=images)
    display({"text/html": html, "image/png": still}, raw=True)


def _encoded(fig: Figure, kind: str) -> str:
    """A picture of the whole figure, as text."""
    file = BytesIO()
    fig.set_layout_engine("none")
    fig.savefig(file, bbox_inches=fig.bbox_inches, format=kind, dpi=130)
    return b64encode(file.getvalue()).decode()


def _literals(code: str) -> dict[str, object]:
    """Names and values of `name = literal` in a cell of parameters."""
    return {
        ast.unparse(line.targets[0]): ast.literal_eval(line.value)
        for line in ast.parse(code).body
        if isinstance(line, ast.Assign)
    }


def refuse_other_types() -> None:
    """Compare the parameters that papermill gives a notebook with the defaults above them.

    `papermill -p sweeps x` gives a word, on which a chapter's own checks fail obscurely.
    """
    kernel = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cells = kernel.user_ns.get("In", []) if kernel else []
    given = [k for k, code in enumerate(cells) if code.startswith("# Parameters\n")]
    for k in given:
        defaults = _literals(cells[k - 1])
        for name, value in _literals(cells[k]).items():
            default = defaults.get(name, value)
            allowed = (int, float) if isinstance(default, float) else type(default)
            if not isinstance(value, allowed):
                raise TypeError(f"{name}={value!r}: must be like its default, {default!r}")


class Claims:
    """`check` asserts a claim and remembers it; `print` lists `claim | value | verdict`.

    The verdict is "holds" if the claim was confirmed; "cited" if the value is only read from a
    committed file; "differs from the paper" if something else was found than the paper prints;
    "not reproduced" if a result of the paper was not found again; and "goal missed" if a goal of
    our own was not reached.
    A claim about a sample may say whether the sample is large enough to show it. If it is not, the
    verdict is "too few runs to tell", and nothing fails.

    Example:
        >>> from notebooks.tools import chapter
        >>> claims = chapter.Claims()
        >>> claims.check("one and one", 1 + 1, 1 + 1 == 2)
        >>> claims.check("a rate of at most 5%", "1 of 3", False, enough=False)
        >>> claims.check("calibrated within 5%", 1.07, 1.07 < 1.05, otherwise="goal missed")
        >>> claims.print()
        one and one | 2 | holds
        a rate of at most 5% | 1 of 3 | too few runs to tell
        calibrated within 5% | 1.07 | goal missed
    """

    TOO_FEW = "too few runs to tell"
    VERDICTS = (
        "holds",
        "cited",
        "not reproduced",
        "differs from the paper",
        "goal missed",
        TOO_FEW,
    )

    def __init__(self) -> None:
        refuse_other_types()
        self._lines: list[str] = []

    def check(
        self,
        claim: str,
        value: object,
        holds: object,
        verdict: str = "holds",
        enough: object = True,
        otherwise: str = "",
    ) -> None:
        """Record a claim with its value and verdict; fail unless `holds` is true.

        enough: whether there were enough runs to tell, such as `num_runs >= 20`. otherwise: the
        verdict where a result misses a rule that was stated before it was known.
        """
        if otherwise and not bool(holds):
            verdict, holds = otherwise, True
        if verdict not in self.VERDICTS:
            raise ValueError(f"the verdict must be one of {self.VERDICTS}, got {verdict!r}")
        if not bool(enough):
            self._lines.append(f"{claim} | {value} | {self.TOO_FEW}")
            return
        self._lines.append(f"{claim} | {value} | {verdict if bool(holds) else 'FAILS'}")
        assert bool(holds), self._lines[-1]

    def print(self) -> None:
        """One line per claim."""
        print("\n".join(self._lines))
