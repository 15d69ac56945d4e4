"""The chapters and the map of the paper: what each of them has to say."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pages
import pytest

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Given by default, or returned, without being named.
RETURNED = ("Solution", "StepSize", "atari.Game", "atari.Snapshot")
RETURNED += ("simulators.Outcome", "simulators.StepSimulator")
by_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


@by_chapter
def test_exercises_have_folded_solutions_that_check_claims(path: Path) -> None:
    cells = pages.Notebook.read(path).cells
    asked = [c for c, cell in enumerate(cells) if "**Exercise " in cell.source]
    assert len(asked) >= 2
    for number, c in enumerate(asked, 1):
        assert f"**Exercise {number}.**" in cells[c].source
        assert "<details><summary>Solution</summary>" in cells[c].source
        assert pages.tags(cells[c + 1]) == ["hide-cell"]
        assert re.search(r"^(assert|claims\.check)\b", cells[c + 1].source, re.MULTILINE)


@by_chapter
def test_every_figure_has_a_number_a_caption_and_alt_text(path: Path) -> None:
    notebook = pages.Notebook.read(path)
    captions = notebook.captions()
    drawn = [
        c
        for c, cell in enumerate(notebook.cells)
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
    ]
    assert list(captions) == drawn
    for number, (c, (caption, alt)) in enumerate(captions.items(), 1):
        assert caption.startswith(f"**Figure {int(path.stem[:2])}.{number}.**")
        assert len(alt) > 60
        images = [o for o in notebook.cells[c]["outputs"] if "image/png" in o.get("data", {})]
        assert [o["metadata"]["image/png"]["alt"] for o in images] == [alt] * len(images)


def test_no_two_chapters_draw_figures_of_one_name() -> None:
    """The batch shows the figures of all of them in one folder."""
    code = "\n".join(pages.Notebook.read(path).code for path in CHAPTERS)
    names = re.findall(r'figures\.save\(\w+, "(\w+)"', code)
    assert len(names) == len(set(names)) > 30


def test_every_public_name_is_used_by_a_chapter() -> None:
    """Errors that are caught, protocols that are implemented and defaults need no name there."""
    names = pages.public_names()
    code = "\n".join(pages.Notebook.read(path).code for path in CHAPTERS)

    def is_idle(thing: Any) -> bool:
        error = isinstance(thing, type) and issubclass(thing, Exception)
        return error or inspect.ismodule(thing) or getattr(thing, "_is_protocol", False)

    unused = {path for path, x in names.items() if not is_idle(x) and not pages.uses(code, path)}
    returned = {f"jmdp_lib.{name}" for name in RETURNED}
    assert unused <= returned


def test_the_map_has_every_item_and_equation_of_the_paper() -> None:
    text = (ROOT / "book" / "paper.md").read_text().split("## The thirteen decisions")[0]
    rows = [row.split("|") for row in text.splitlines() if row.startswith("| ")][1:]
    items = " ".join(row[1] for row in rows)
    for item in (
        *(f"Figure {number}," for number in range(1, 8)),
        *(f"Definition {number}" for number in ("3.1", "3.2", "4.1", "4.2", "4.3", "4.6", "5.1")),
        *(f"Assumption {number}" for number in ("4.5", "B.1", "B.2")),
        *(f"Lemma {number}" for number in ("5.2", "A.1", "A.3", "B.3")),
        *(f"Theorem {number}" for number in ("5.3", "5.4", "A.2", "A.4", "B.4")),
        *("Example 1", "Example 2", "Remark 4.4", "Table 1"),
    ):
        assert item in items, item
    found: set[int] = set()
    for first, last in re.findall(r"\((\d+)\)(?: to \((\d+)\))?", " ".join(row[2] for row in rows)):
        found |= set(range(int(first), int(last or first) + 1))
    assert found == set(range(1, 90))
    places = [row[3] for row in rows]
    assert all("](" in place or "`0" in place for place in places)
