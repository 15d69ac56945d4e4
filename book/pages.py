"""The chapters as the book shows them, the gallery, and the table of public names."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imagesize
import nbformat
from nbformat import NotebookNode
from prose import FORMULA, tex

sys.path.append(str(Path(__file__).resolve().parents[1] / "workflow"))
from notebook_job import caption_of, claims_of, folded, tags

GALLERY = """
## {0}

{{doc}}`/notebooks/{1}` draws these; {{download}}`its record <figures/provenance/{1}.json>`
says how.

::::{{container}} gallery
{2}
::::
"""
FIGURE = """:::{{figure}} {0}.png
:figclass: {1}
:alt: {2}

[{3}]({4}) {{download}}`CSV <{0}.csv>` · {{download}}`PDF <{0}.pdf>`
:::"""
FULL_WIDTH = 1400  # pixels at 300 dpi: what is wider is no figure of one column


@dataclass(frozen=True)
class Notebook:
    """An executed notebook."""

    name: str
    content: NotebookNode

    @classmethod
    def read(cls, path: Path) -> Notebook:
        return cls(path.stem, nbformat.read(path, as_version=4))

    @property
    def cells(self) -> list[NotebookNode]:
        return self.content.cells

    @property
    def title(self) -> str:
        return self.cells[0].source.partition("\n")[0].removeprefix("# ")

    @property
    def code(self) -> str:
        return "\n".join(cell.source for cell in self.cells if cell.cell_type == "code")

    def captions(self) -> dict[int, tuple[str, str]]:
        """(caption, alt text) of each code cell that is followed by a cell of its caption."""
        cells = enumerate(self.cells)
        return {c - 1: caption_of(cell) for c, cell in cells if "caption" in tags(cell)}


# ---- pages of the repository ---------------------------------------------------------------------


def as_in_site(text: str) -> str:
    """A page of `book/` as the site has it: there pages lie beside the folders that they link to.

    An anchor becomes a label, and a link that names a section leads to the section.
    """
    text = re.sub(r'^<a id="([\w-]+)"></a>$', r"(\1)=", text, flags=re.MULTILINE)
    text = re.sub(r"\[(\d+\.\d+)\]\(\.\./notebooks/\w+\.ipynb\)", r"[\1](#sec-\1)", text)
    return text.replace("](../", "](")


# ---- chapters -----------------------------------------------------------------------------------


def prompt(cell: NotebookNode) -> str | None:
    """Label that unfolds a code cell which only prepares, draws or checks; None for others."""
    code = cell.source
    if "hide-cell" in tags(cell):
        return "Show the code of the solution"
    if "parameters" in tags(cell):
        return "Show the parameters"
    if "chapter.style()" in code:
        return "Show the imports"
    computes = re.search(r"\bjl\.(?!norm_weight|contraction_)", code)
    if "summary" in tags(cell) or ("claims.check(" in code and not computes):
        return "Show the check"
    if not folded(cell):
        return None
    return "Show how it is drawn" if drawn_by(cell) else "Show the preparation"


def claims_table(nb: NotebookNode) -> NotebookNode:
    """The claims of a notebook, as an output that shows a table."""
    lines = ["| claim | value | verdict |", "|---|---|---|"]
    for *rest, verdict in claims_of(nb):
        row = [*rest, verdict if verdict == "holds" else f"*{verdict}*"]
        cells = [re.sub(r"([|$])", r"\\\1", cell) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return nbformat.v4.new_output("display_data", {"text/markdown": "\n".join(lines)})


def drawn_by(cell: NotebookNode) -> list[str]:
    """The names of the figures that a cell draws."""
    return re.findall(r'chapter\.save\(\w+, "(\w+)"', cell.source)


def annotated(notebook: Notebook) -> str:
    """The notebook, as JSON, as the book shows it.

    It has captions and alt texts at its figures, and folds the cells that only prepare, draw or
    check.
    """
    content = copy.deepcopy(notebook.content)
    described = notebook.captions()
    for c, cell in enumerate(content.cells):
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace("](../book/", "](../")
            continue
        label = prompt(cell)
        cell.metadata.mystnb = {"code_prompt_show": label or "Show the code"}
        if c in described:
            caption, alt = described[c]
            figure = {"caption": caption}
            for name in drawn_by(cell):
                figure["name"] = f"{name}-{notebook.name}"
            cell.metadata.mystnb |= {"image": {"alt": alt}, "figure": figure}
        if "summary" in tags(cell):
            cell.outputs = [claims_table(notebook.content)]
        if label:
            cell.metadata.tags = [*tags(cell), "hide-input"]
    content.cells = [cell for cell in content.cells if "caption" not in tags(cell)]
    return nbformat.writes(content)


# ---- the gallery --------------------------------------------------------------------------------


def gallery(figures: Path, notebooks: list[Notebook]) -> str:
    """The committed figures, by notebook, each with its data and PDF."""
    text = ""
    images = {path.stem: path for path in figures.rglob("*.png")}
    for nb in notebooks:
        cells = enumerate(nb.cells)
        drawn = [(c, images.pop(name, None)) for c, cell in cells for name in drawn_by(cell)]
        shown = [in_gallery(nb, c, image, figures.parent) for c, image in drawn if image]
        if shown:
            text += GALLERY.format(nb.title, nb.name, "\n".join(shown))
    if images:
        sys.exit(f"error: no chapter draws {min(images)}.png")
    return text


def in_gallery(nb: Notebook, c: int, image: Path, root: Path) -> str:
    """An image that cell c of a notebook draws, with its title and links to its files."""
    described = nb.captions().get(c)
    caption, alt = described or (f"**{nb.title}**", f"A table of the chapter {nb.title}")
    place = f"#{image.stem}-{nb.name}" if described else f"notebooks/{nb.name}"
    look = "wide" if imagesize.get(image)[0] > FULL_WIDTH else "column"
    file = image.relative_to(root).with_suffix("")
    return FIGURE.format(file, look, alt, caption.split("**")[1], place)


# ---- public names -------------------------------------------------------------------------------


def public_names() -> dict[str, Any]:
    """`jmdp_lib`, its subpackages and all that they export, by full names."""
    library: Any = importlib.import_module("jmdp_lib")
    parts = {f"jmdp_lib.{name}": getattr(library, name) for name in library.__all__}
    found = {"jmdp_lib": library, **{path: x for path, x in parts.items() if inspect.ismodule(x)}}
    return found | {f"{p}.{name}": getattr(x, name) for p, x in found.items() for name in x.__all__}


def uses(code: str, path: str) -> bool:
    """True if code names a public object."""
    return bool(re.search(rf"\b{path.rpartition('.')[2]}\b", code))


def table(notebooks: Iterable[Notebook]) -> str:
    """One table of the public names, as users write them, each with the chapters that use it."""
    lines = ["| name | what it is or does | chapters |", "|---|---|---|"]
    for path, thing in public_names().items():
        first = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
        first = FORMULA.sub(lambda part: tex(part[0]), first).replace("|", "\\|")
        shown = [nb.name for nb in notebooks if uses(nb.code, path)]
        links = [f"{{doc}}`{int(name[:2])} </notebooks/{name}>`" for name in shown]
        name = f"{{py:obj}}`{path.removeprefix('jmdp_lib.')} <{path}>`"
        if not inspect.ismodule(thing):
            lines.append(f"| {name} | {first} | {', '.join(links)} |")
    return "\n".join(lines) + "\n"
