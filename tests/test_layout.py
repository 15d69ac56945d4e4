"""The page for contributors: its picture, its rooms and its example; and how code is counted."""

from __future__ import annotations

import re
from pathlib import Path

import layout
import matplotlib.pyplot as plt
import pytest
from lines_of_code import lines_of_code

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "book" / "layout.md").read_text(encoding="utf-8")


def test_rooms_import_downwards_and_each_has_its_paragraph() -> None:
    rooms = layout.imports(ROOT / "jmdp_lib")
    rows = layout.layers(rooms)
    height = {room: y for y, row in enumerate(rows) for room in row}
    assert all(height[used] < height[room] for room in rooms for used in rooms[room])
    assert height["model"] < height["operators"] < height["solvers"] < height["figures"]
    told = PAGE.partition("## The rooms")[2].partition("\n## ")[0]
    bold = {
        name
        for line in re.findall(r"^\*\*`.*$", told, re.M)
        for name in re.findall(r"\*\*`(\w+)`\*\*", line)
    }
    assert bold == set(rooms)


def test_a_newcomer_sees_few_entries() -> None:
    """Those of `git ls-files`, so to say: no caches."""
    inside = [path for path in (ROOT / "jmdp_lib").iterdir() if not path.name.startswith("__")]
    assert len([path for path in inside if path.name != "py.typed"]) <= 10


def test_no_function_imports_from_above() -> None:
    """Inside a room the way leads down, too: a circle of files would need a late import."""
    late = [
        f"{path.name}: {line.strip()}"
        for folder in ("operators", "solvers")
        for path in (ROOT / "jmdp_lib" / folder).glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s+(from|import) jmdp_lib", line)
    ]
    assert late == []


def test_the_library_knows_nothing_of_the_experiments() -> None:
    above = [
        path.name
        for path in (ROOT / "jmdp_lib").rglob("*.py")
        if re.search(r"^\s*(from|import) experiments", path.read_text(encoding="utf-8"), re.M)
    ]
    assert above == []


def test_a_circle_of_imports_is_found() -> None:
    with pytest.raises(ValueError, match=r"circle: \['a', 'b'\]"):
        layout.layers({"a": {"b"}, "b": {"a", "c"}, "c": set()})


def test_arrows_leave_out_what_is_reached_by_way_of_another() -> None:
    rooms = {"top": {"middle", "base"}, "middle": {"base"}, "base": set()}
    assert layout.direct(rooms) == {"top": {"middle"}, "middle": {"base"}, "base": set()}


def test_the_picture_shows_every_room_once_and_no_box_covers_another() -> None:
    with plt.rc_context():  # the picture has the book's style, other tests have none
        (ax,) = layout.draw(ROOT / "jmdp_lib").axes
    shown = " ".join(text.get_text() for text in ax.texts).replace(r"\_", "_")
    for room in layout.imports(ROOT / "jmdp_lib"):
        assert room in shown
    boxes = [text.get_bbox_patch().get_window_extent() for text in ax.texts]
    apart = [not a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i]]
    assert all(apart)


def test_the_worked_example_runs() -> None:
    scope: dict = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(code, scope)
    tests = [name for name in scope if name.startswith("test_")]
    assert len(tests) == 2
    for name in tests:
        scope[name]()


def test_lines_of_code_are_neither_blank_nor_comments_nor_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text('"""Two\nlines."""\n\n# a comment\nx = """a\nb"""  # two lines\n\n\ndef f():\n'
                    '    """A docstring."""\n    return (\n\n        x\n    )\n')  # fmt: skip
    assert lines_of_code(file) == 2 + 1 + 3
