"""The picture of "How the code is laid out": which room of the library imports which."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from textwrap import wrap

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from jmdp_lib import figures


def imports(package: Path) -> dict[str, set[str]]:
    """The rooms of a package, its folders and the files beside them, each with those it imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        if room != "__init__":
            found.setdefault(room, set())
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    top, *inside = node.module.split(".")
                    names = inside[:1] or [name.name for name in node.names]
                    found[room] |= set(names) - {room} if top == package.name else set()
    return found


def layers(rooms: dict[str, set[str]]) -> list[list[str]]:
    """Rooms in rows: each imports only what is in rows before its own. A circle is an error."""
    rows: list[list[str]] = []
    placed: set[str] = set()
    while len(placed) < len(rooms):
        rows.append([room for room in rooms if room not in placed and rooms[room] <= placed])
        if not rows[-1]:
            raise ValueError(f"rooms import each other in a circle: {sorted(set(rooms) - placed)}")
        placed.update(rows[-1])
    for y in range(len(rows) - 2, 0, -1):  # up again, to just below the lowest that imports it
        for room in list(rows[y]):
            users = [k for k, row in enumerate(rows) for other in row if room in rooms[other]]
            rows[y].remove(room)
            rows[min(users, default=y + 1) - 1].append(room)
    return rows


def direct(rooms: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the imports of rooms that are reached by way of another one too."""

    @functools.cache
    def below(room: str) -> frozenset[str]:
        return frozenset(rooms[room]).union(*(below(other) for other in rooms[room]))

    return {
        room: {one for one in used if not any(one in below(other) for other in used)}
        for room, used in rooms.items()
    }


def places(rows: list[list[str]], arrows: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
    """(x, y) of every room, x between 0 and 1, so that arrows are short: neighbours pull."""
    x = {room: (i + 0.5) / len(row) for row in rows for i, room in enumerate(row)}
    near = {room: [*arrows[room], *(o for o in arrows if room in arrows[o])] for room in x}
    for row in 10 * rows:
        pull = {room: sum(x[o] for o in near[room]) / max(1, len(near[room])) for room in row}
        for i, room in enumerate(sorted(row, key=lambda room: pull[room] or x[room])):
            x[room] = (i + 0.5) / len(row)
    return {room: (x[room], float(y)) for y, row in enumerate(rows) for room in row}


def draw(package: Path) -> Figure:
    """A box a room, folders with their files, and arrows to what a room imports.

    What imports nothing is a floor that all others stand on, and has no arrows.
    """
    rooms = imports(package)
    floor, *rows = layers(rooms)
    arrows = direct({room: used - set(floor) for room, used in rooms.items() if room not in floor})
    figures.style()
    fig, ax = plt.subplots(figsize=(7.5, 1.05 * len(rows) + 0.5), dpi=200)
    box = {"boxstyle": "round,pad=0.4", "fc": "white", "ec": "0.4"}
    drawn = {}
    for room, place in places(rows, arrows).items():
        files = sorted(path.stem for path in (package / room).glob("[a-z]*.py"))
        text = "\n".join([rf"$\bf{{{room}}}$".replace("_", r"\_"), *wrap(", ".join(files), 26)])
        look = {**box, "fc": "#D6E6F2"} if files else box
        drawn[room] = ax.text(*place, text, ha="center", va="center", fontsize=7, bbox=look)
    ax.text(0.5, -0.8, "  ".join(floor), ha="center", va="center", fontsize=7, bbox=box)
    ax.set(xlim=(0, 1), ylim=(-1, len(rows) - 0.5))
    ax.axis("off")
    fig.draw_without_rendering()  # how large the boxes are is known only now
    frame = {
        room: text.get_window_extent().padded(9).transformed(ax.transData.inverted())
        for room, text in drawn.items()
    }
    for room, other in ((room, other) for room, used in arrows.items() for other in sorted(used)):
        start, end = (drawn[room], frame[room].y0), (drawn[other], frame[other].y1)
        ends = [(text.get_position()[0], y) for text, y in (start, end)]
        ax.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=8, color="0.5", lw=0.9,
                                     zorder=0, shrinkA=0, shrinkB=0))  # fmt: skip
    plt.close(fig)
    return fig
