"""How the book is made: docstrings and notebooks become pages, and what is missing stops it."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import api
import build
import pages
import pytest

from jmdp_lib import figures

ROOT = Path(__file__).resolve().parents[1]


def write_package(folder: Path, body: str) -> None:
    (folder / "halfdone").mkdir()
    (folder / "halfdone" / "__init__.py").write_text(f'"""A package."""\n{body}')


UNDOCUMENTED = """\
def function():
    pass

class Plain:
    pass

class Known:
    \'\'\'Known.\'\'\'
    def method(self):
        pass

#: Not documented by what a dict is.
other = {}
constant = {}
__all__ = ["Known", "Plain", "constant", "function", "other"]
"""


def test_undocumented_public_names_stop_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_package(tmp_path, UNDOCUMENTED)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--package", "halfdone", "--out", str(tmp_path / "html")]
    monkeypatch.setattr(sys, "argv", ["build.py", *options])
    assert build.main() == 1
    said = capsys.readouterr().err
    assert said.startswith("error: public names without a docstring")
    names = ("Known.method", "Plain", "constant", "function")
    assert said.strip().endswith(": " + ", ".join(f"halfdone.{name}" for name in names))
    assert not (tmp_path / "html").exists()


def test_docstrings_become_markdown() -> None:
    doc = "First line.\n\nname: what it\n    means\nother, more: too\n\n"
    doc += "Plain: text.\n\nExample:\n    >>> for x in y:\n    ...     x\n    1"
    assert api.markdown(doc) == (
        "First line.\n\n\n`name`\n: what it\n  means\n\n`other, more`\n: too\n\n"
        "\n`Plain`\n: text.\n\n**Example:**\n\n```pycon\n>>> for x in y:\n...     x\n1\n```"
    )


class Answering(Protocol):
    def answer(self) -> int: ...


@dataclass(frozen=True)
class Indexed:
    size: int
    index: dict[str, int] = field(default_factory=dict)


def test_signatures_are_those_that_a_reader_can_call() -> None:
    assert api._signature(Answering) == ""
    assert api._signature(Indexed) == "(size: int, index: dict[str, int] = ...)"


def test_formulas_need_no_backslash() -> None:
    assert api.tex("gamma <= $gamma^2 <= 1$, $Var G_pi$") == (
        r"gamma <= $\gamma^2 \le  1$, $\Var G_\pi$"
    )
    assert api.tex("$(alphabet) \\mu -> theta_1$") == r"$(alphabet) \mu \to  \theta_1$"
    assert api.tex("$gamma zeta_mu$") == r"$\gamma \zeta_\mu$"
    assert api.tex("$chi^2 log x$") == r"$\chi^2 \log x$"


def test_code_that_names_something_becomes_a_link() -> None:
    notebook = pages.Notebook("01_one", {"cells": []})
    objects = ["p.f", "p.C", "p.C.only", "p.C.both", "p.D", "p.D.both", "p.C.size", "p.figures.f"]
    targets = pages.link_targets([notebook], objects, {"size"})

    def link(text: str) -> str:
        return pages.linked(text, targets)

    assert link("`f(x)`") == "{py:obj}`f(x) <p.f>`"
    assert link("`C.only`, `only`") == "{py:obj}`C.only <p.C.only>`, {py:obj}`only <p.C.only>`"
    assert link("`jl.f`, `figures.f`") == "{py:obj}`jl.f <p.f>`, {py:obj}`figures.f <p.figures.f>`"
    assert link("`jl.figures.f`") == "{py:obj}`jl.figures.f <p.figures.f>`"
    assert link("`C.field`") == "{py:obj}`C.field <p.C>`"
    assert link("`01_one`") == "{doc}`01_one </notebooks/01_one>`"
    for text in (
        "`both`",
        "`size`",
        "`unknown`",
        "`np.f`",
        "[`f`](x)",
        "{py:obj}`f <p.f>` and x",
        "# `f`",
    ):
        assert link(text) == text
    assert link("```python\nx = `f`\n```") == "```python\nx = `f`\n```"


def test_a_figure_without_provenance_stops_the_build(tmp_path: Path) -> None:
    shutil.copy(ROOT / "figures" / "fig_random_maps.png", tmp_path / "fig_lost.png")
    with pytest.raises(pages.BookError, match=r"fig_lost\.png"):
        pages.gallery(tmp_path, [])


def test_claims_become_a_table_that_tells_verdicts_apart() -> None:
    lines = "|S| | 5 | holds\nx | 0.4 | not reproduced\ny | -1 | differs from the paper\n"
    lines += "z | 7 | goal missed\n"
    cells = [{"cell_type": "code", "source": "", "outputs": [{"text": lines}]}]
    table = pages.claims_table(pages.Notebook("01_one", {"cells": cells}))["data"]["text/markdown"]
    assert table.splitlines()[2:] == [
        r"| \|S\| | 5 | holds |",
        "| x | 0.4 | **not reproduced** |",
        "| y | -1 | *differs from the paper* |",
        "| z | 7 | *goal missed* |",
    ]
    assert set(pages.VERDICTS) == set(figures.Claims.VERDICTS)


def test_what_only_draws_or_checks_is_folded() -> None:
    def cell(code: str) -> dict[str, str]:
        return {"source": code}

    assert pages.is_folded(cell('figures.save(fig, "x", data, out_dir)'))
    assert pages.is_folded(cell('near = off < 1e-6\nclaims.check("near", near, near)'))
    assert not pages.is_folded(cell('m = jl.jipe2(jm, policy)\nclaims.check("x", 1, True)'))
    assert not pages.is_folded(cell("m = jl.jipe2(jm, policy)"))


def test_mathjax_is_the_expected_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(build.mathjax()) > 1_000_000
    monkeypatch.setattr(build, "MATHJAX_SHA256", "0" * 64)
    with pytest.raises(pages.BookError, match="MathJax"):
        build.mathjax()
