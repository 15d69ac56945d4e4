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
RETURNED = ("Solution", "StepSize", "atari.Snapshot")
RETURNED += ("simulators.Outcome", "simulators.StepSimulator")
by_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


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
