"""The chapters as the book shows them, the gallery, and the table of public names."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imagesize
import nbformat
from nbformat import NotebookNode
from prose import FORMULA, tex

sys.path.append(str(Path(__file__).resolve().parents[1] / "workflow"))
from notebook_job import claims_of, folded

RECORD = (
    "{{doc}}`/notebooks/{0}` draws these; {{download}}`its record <figures/provenance/{0}.json>` "
    "says how."
)
FULL_WIDTH = 1400  # pixels at 300 dpi: what is wider is no figure of one column
ALT = re.compile(r"\s*<!-- alt: (.*?) -->", re.DOTALL)


class BookError(Exception):
    """Something that the book needs is not in the project; the message names it."""


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
        found: dict[int, tuple[str, str]] = {}
        for c, cell in enumerate(self.cells):
            if "caption" in tags(cell):
                if not (alt := ALT.search(cell.source)):
                    raise BookError(f"{self.name}.ipynb: a caption without <!-- alt: -->: {cell}")
                found[c - 1] = ALT.sub("", cell.source).strip(), " ".join(alt[1].split())
        return found


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


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
    """What one clicks to see a code cell that only prepares, draws or checks; None for others."""
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
    return "Show how it is drawn" if folded(cell) else None


def claims_table(nb: NotebookNode) -> NotebookNode:
    """What the notebook found, as an output that shows a table."""
    rows = [["claim", "value", "verdict"], ["---", "---", "---"]]
    rows += [[*rest, word if word == "holds" else f"*{word}*"] for *rest, word in claims_of(nb)]
    cells = [[cell.replace("|", r"\|").replace("$", r"\$") for cell in row] for row in rows]
    text = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    return nbformat.v4.new_output("display_data", {"text/markdown": text})


def figures_in(cell: NotebookNode, names: set[str]) -> list[str]:
    """Which of these figures a cell draws."""
    code = cell.source if cell.cell_type == "code" else ""
    return [name for name in re.findall(r'"(\w+)"', code) if name in names]


def annotated(notebook: Notebook, figures: set[str]) -> str:
    """The notebook, as JSON, as the book shows it.

    It has captions and alt texts at its figures, and folds the cells that only prepare, draw or
    check. Two of the same kind in a row are one. figures: the names of those that are committed,
    which can be linked to.
    """
    content = copy.deepcopy(notebook.content)
    described = notebook.captions()
    shown: list[NotebookNode] = []
    for c, cell in enumerate(content.cells):
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace("](../book/", "](../")
            shown += [cell] * ("caption" not in tags(cell))
            continue
        asked = prompt(cell)
        last = shown[-1] if shown else cell
        same = last.metadata.get("mystnb", {}).get("code_prompt_show") == asked
        if asked and same and not last.outputs:
            cell.source = f"{shown.pop().source}\n\n{cell.source}"
        options: dict[str, Any] = {"code_prompt_show": asked or "Show the code"}
        if c in described:
            caption, alt = described[c]
            options |= {"image": {"alt": alt}, "figure": {"caption": caption}}
            for name in figures_in(cell, figures):
                options["figure"]["name"] = f"{name}-{notebook.name}"
        cell.metadata.mystnb = options
        if "summary" in tags(cell):
            cell.outputs = [claims_table(notebook.content)]
        if asked:
            cell.metadata.tags = [*tags(cell), "hide-input"]
        shown.append(cell)
    content.cells = shown
    return nbformat.writes(content)


# ---- the gallery --------------------------------------------------------------------------------


def gallery(figures: Path, notebooks: list[Notebook]) -> str:
    """The committed figures, by notebook, each with its data and PDF."""
    lines: list[str] = []
    images = {path.stem: path for path in figures.rglob("*.png")}
    missing = set(images)
    for nb in notebooks:
        drawn = [(c, name) for c, cell in enumerate(nb.cells) for name in figures_in(cell, missing)]
        if drawn:
            lines += ["", f"## {nb.title}", "", RECORD.format(nb.name), ""]
            lines += ["::::{container} gallery"]
        for c, name in drawn:
            lines += _in_gallery(images[name], figures.parent, nb, nb.captions().get(c))
            missing.discard(name)
        lines += ["::::"] * bool(drawn)
    if missing:
        raise BookError(f"no chapter draws {min(missing)}.png")
    return "\n".join(lines) + "\n"


def _in_gallery(
    image: Path, root: Path, nb: Notebook, described: tuple[str, str] | None
) -> Iterator[str]:
    caption, alt = described or (f"**{nb.title}**", f"A table of the chapter {nb.title}")
    place = f"#{image.stem}-{nb.name}" if described else f"notebooks/{nb.name}"
    title = caption.split("**")[1]
    files = [image.with_suffix(suffix).relative_to(root) for suffix in (".csv", ".pdf")]
    downloads = [f"{{download}}`{file.suffix[1:].upper()} <{file}>`" for file in files]
    width, _ = imagesize.get(image)
    yield f":::{{figure}} {image.relative_to(root)}"
    yield f":figclass: {'wide' if width > FULL_WIDTH else 'column'}"
    yield f":alt: {alt}"
    yield ""
    yield f"[{title}]({place}) {' · '.join(downloads)}"
    yield ":::"


# ---- public names -------------------------------------------------------------------------------


def public_names() -> dict[str, Any]:
    """`jmdp_lib` and its sub-packages, each with what it exports, by the full names."""
    library: Any = importlib.import_module("jmdp_lib")
    found: dict[str, Any] = {}
    for package in (library, *(getattr(library, name) for name in library.__all__)):
        if inspect.ismodule(package):
            found[package.__name__] = package
            names = {name: getattr(package, name) for name in package.__all__}
            for name, thing in names.items():
                if not inspect.ismodule(thing):
                    found[f"{package.__name__}.{name}"] = thing
    return found


def uses(code: str, path: str) -> bool:
    """Whether code names a public object."""
    return bool(re.search(rf"\b{path.rpartition('.')[2]}\b", code))


def table(notebooks: Iterable[Notebook]) -> str:
    """One table of the public names, by package, each with the chapters that use it."""
    lines = ["| name | what it is or does | chapters |", "|---|---|---|"]
    for path, thing in public_names().items():
        first = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
        first = FORMULA.sub(lambda part: tex(part[0]), first).replace("|", "\\|")
        if inspect.ismodule(thing):
            lines.append(f"| **{{py:mod}}`{path}`** | {first} | |")
            continue
        shown = [nb.name for nb in notebooks if uses(nb.code, path)]
        links = [f"{{doc}}`{int(name[:2])} </notebooks/{name}>`" for name in shown]
        name = f"{{py:obj}}`{path.rpartition('.')[2]} <{path}>`"
        lines.append(f"| {name} | {first} | {', '.join(links)} |")
    return "\n".join(lines) + "\n"
