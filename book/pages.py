"""What the book says about the notebooks: links, captions, the gallery."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imagesize

HEADING = re.compile(r"^#{1,4} +(.*)$", re.MULTILINE)
SECTION = re.compile(r"\s*## (\d+\.\d+) ")
CODE = re.compile(r"(\{[\w:]+\}|\[|`)?`([^`\n]+)`")  # and what would make it something else
VERDICTS = {  # as the book prints them
    "holds": "holds",
    "cited": "cited",
    "not reproduced": "**not reproduced**",
    "differs from the paper": "*differs from the paper*",
    "differs from the release": "*differs from the release*",
    "goal missed": "*goal missed*",
    "too few runs to tell": "too few runs to tell",
}
GALLERY = """# Gallery

Every committed figure, as the paper profile drew it (`make figures PROFILE=paper`). Each leads to
the section that draws it, and to the numbers it was drawn from. Click a figure to see it in full
size."""
FULL_WIDTH = 1400  # pixels at 300 dpi: what is wider is no figure of one column
WORDS_A_MINUTE = 150
MINUTES = re.compile(r"About \d+ minutes")
CHAPTER = re.compile(r"<!-- chapter: (\d\d) -->")
LIVE = '<p>Drag the sliders to move between the three worlds.</p><div data-live="fair"></div>'
LIVE_AFTER = '"fig_three_worlds"'  # the figure that the sliders move
ALT = re.compile(r"\s*<!-- alt: (.*?) -->", re.DOTALL)
PACKAGE = re.compile(r"^(jl|jmdp_lib)\.")  # as prose writes it before a name


class BookError(Exception):
    """Something that the book needs is not in the project; the message names it."""


@dataclass(frozen=True)
class Notebook:
    """An executed notebook, as JSON."""

    name: str
    content: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Notebook:
        return cls(path.stem, json.loads(path.read_text(encoding="utf-8")))

    @property
    def cells(self) -> list[dict[str, Any]]:
        return self.content["cells"]

    @property
    def title(self) -> str:
        found = next(filter(None, (HEADING.search(source(cell)) for cell in self.cells)), None)
        if found is None:
            raise BookError(f"{self.name}.ipynb has no heading")
        return found[1]

    @property
    def minutes(self) -> int:
        """How long its prose takes to read."""
        texts = [source(cell) for cell in self.cells if cell["cell_type"] == "markdown"]
        return round(len(" ".join(texts).split()) / WORDS_A_MINUTE)

    @property
    def public_names(self) -> list[str]:
        """The names of the library that it executes, as `workflow/pair.py` recorded them."""
        return self.content["metadata"].get("public_names", [])

    def claims(self) -> list[tuple[str, str, str]]:
        """(claim, value, verdict) of every such line, `|` between them, that its cells print."""
        outputs = [output for cell in self.cells for output in cell.get("outputs", [])]
        text = "".join("".join(output.get("text", "")) for output in outputs)
        lines = (tuple(line.rsplit(" | ", 2)) for line in text.splitlines())
        return [line for line in lines if len(line) == 3 and line[2] in VERDICTS]


def source(cell: Mapping[str, Any]) -> str:
    return "".join(cell["source"])


def tags(cell: Mapping[str, Any]) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def captions(notebook: Notebook) -> dict[int, tuple[str, str]]:
    """(caption, alt text) of each code cell whose figure is followed by a cell of its caption."""
    found: dict[int, tuple[str, str]] = {}
    for c, cell in enumerate(notebook.cells):
        if "caption" in tags(cell):
            text = source(cell)
            if not (alt := ALT.search(text)):
                raise BookError(
                    f"{notebook.name}.ipynb: a caption without <!-- alt: ... -->: {text}"
                )
            found[c - 1] = ALT.sub("", text).strip(), " ".join(alt[1].split())
    return found


def is_set_up(cell: Mapping[str, Any]) -> bool:
    """Whether a code cell is the one of parameters, or that of imports."""
    return "parameters" in tags(cell) or "figures.style()" in source(cell)


def is_folded(cell: Mapping[str, Any]) -> bool:
    """Whether a code cell only prepares, draws or checks claims: the book shows it on a click."""
    code = source(cell)
    checks = "claims.check(" in code and not re.search(r"\bjl\.(?!norm_weight|contraction_)", code)
    return "figures.save(" in code or checks or is_set_up(cell)


def prompt(cell: Mapping[str, Any]) -> str:
    """What one clicks to see a folded cell."""
    if "hide-cell" in tags(cell):
        return "Show the code of the solution"
    if is_set_up(cell):
        return "Show the parameters" if "parameters" in tags(cell) else "Show the imports"
    return "Show the check" if "claims." in source(cell) else "Show how it is drawn"


def linked(text: str, targets: Mapping[str, str]) -> str:
    """Inline code that names a notebook or a public object becomes a link to it."""

    def link(match: re.Match[str]) -> str:
        name = PACKAGE.sub("", re.split(r"[(\[]", match[2])[0])
        target = targets.get(name) or targets.get(name.partition(".")[0])
        return target.format(match[2]) if target and not match[1] else match[0]

    parts = re.split(r"(^```[\s\S]*?^```$|^#.*$)", text, flags=re.MULTILINE)
    return "".join(part if n % 2 else CODE.sub(link, part) for n, part in enumerate(parts))


def link_targets(
    notebooks: Iterable[Notebook], objects: Iterable[str], parameters: set[str]
) -> dict[str, str]:
    """What inline code can link to: notebooks, `name`, `package.name`, `Class.member`.

    And `member`, where it is one class's alone and no function has a parameter of that name.
    """
    targets: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    for path in objects:
        parts = path.split(".")
        start = next((n for n, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
        for first in range(start + 1):
            targets.setdefault(".".join(parts[first:]), path)
        if start < len(parts) - 1:
            members.setdefault(parts[-1], []).append(path)
    for name, owners in members.items():
        if len(owners) == 1 and name not in parameters:
            targets.setdefault(name, owners[0])
    roles = {name: f"{{{{py:obj}}}}`{{}} <{path}>`" for name, path in targets.items()}
    return roles | {nb.name: f"{{{{doc}}}}`{{}} </notebooks/{nb.name}>`" for nb in notebooks}


def figure_cells(notebook: Notebook, names: Iterable[str]) -> dict[str, tuple[int, str]]:
    """(cell of the text above it, heading above that) of each figure that the notebook saves."""
    found: dict[str, tuple[int, str]] = {}
    text, heading = 0, notebook.title
    for c, cell in enumerate(notebook.cells):
        if cell["cell_type"] == "markdown" and "caption" not in tags(cell):
            text = c
            if titles := HEADING.findall(source(cell)):
                heading = titles[-1]
        for name in names:
            if cell["cell_type"] == "code" and f'"{name}"' in source(cell):
                found.setdefault(name, (text, heading))
    return found


def claims_table(notebook: Notebook) -> dict[str, Any]:
    """What the notebook found, as an output that shows a table."""
    rows = [("claim", "value", "verdict"), ("---", "---", "---")]
    rows += [(claim, value, VERDICTS[verdict]) for claim, value, verdict in notebook.claims()]
    cells = [[cell.replace("|", r"\|").replace("$", r"\$") for cell in row] for row in rows]
    text = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    return {"output_type": "display_data", "data": {"text/markdown": text}, "metadata": {}}


def annotated(notebook: Notebook, figures: Mapping[str, int], targets: Mapping[str, str]) -> str:
    """The notebook as the book shows it.

    It has labels at its sections and above its figures, links in its prose, captions and alt texts
    at its figures, and folds the cells that only prepare, draw or check. `figures` says how wide
    each figure has to be on a telephone; a script reads it in the picture's class.
    """
    content: dict[str, Any] = json.loads(json.dumps(notebook.content))
    labels: dict[tuple[int, int], list[str]] = {}
    for name, (c, _) in figure_cells(notebook, figures).items():
        labels.setdefault((c, 0), []).append(f"{name}-{notebook.name}")
    for c, cell in enumerate(notebook.cells):
        for p, paragraph in enumerate(source(cell).split("\n\n")):
            if cell["cell_type"] == "markdown" and (mark := SECTION.match(paragraph)):
                labels.setdefault((c, p), []).append(f"sec-{mark[1]}")
    described, heading = captions(notebook), notebook.title
    for c, cell in enumerate(content["cells"]):
        if cell["cell_type"] == "markdown":
            heading = (HEADING.findall(source(cell)) or [heading])[-1]
            paragraphs = linked(source(cell), targets).split("\n\n")
            for p, paragraph in enumerate(paragraphs):
                here = "".join(f"({label})=\n" for label in labels.get((c, p), []))
                paragraphs[p] = here + paragraph
            text = "\n\n".join(paragraphs).replace("](../book/", "](../")
            cell["source"] = MINUTES.sub(f"About {notebook.minutes} minutes", text)
            continue
        caption, alt = described.get(c, ("", f"A figure of the section {heading}"))
        cell["metadata"]["mystnb"] = {"image": {"alt": alt}, "code_prompt_show": prompt(cell)}
        for name in figures:
            if f'"{name}"' in source(cell):
                cell["metadata"]["mystnb"]["image"]["classes"] = f"readable-{figures[name]}"
        if caption:
            cell["metadata"]["mystnb"]["figure"] = {"caption": linked(caption, targets)}
        if "summary" in tags(cell):
            cell["outputs"] = [claims_table(notebook)]
        if is_folded(cell) or "summary" in tags(cell):
            cell["metadata"]["tags"] = [*tags(cell), "hide-input"]
    content["cells"] = [shown for cell in content["cells"] for shown in _with_sliders(cell)]
    return json.dumps(content)


def _with_sliders(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """A cell as the book shows it: captions are at their figures, sliders below theirs."""
    if "caption" in tags(cell):
        return []
    moves = cell["cell_type"] == "code" and LIVE_AFTER in source(cell)
    text = f"```{{raw}} html\n{LIVE}\n```"
    sliders = {"cell_type": "markdown", "id": "sliders", "metadata": {}, "source": text}
    return [cell, sliders] if moves else [cell]


def with_chapters(text: str, notebooks: Iterable[Notebook]) -> str:
    """Each `<!-- chapter: NN -->` replaced by a link to that chapter and its reading time."""
    known = {nb.name[:2]: nb for nb in notebooks}

    def chapter(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise BookError(f"there is no chapter {match[1]}")
        nb = known[match[1]]
        title = re.split(r"[:?]", nb.title)[0]
        return f"[{title}](notebooks/{nb.name}.ipynb), {nb.minutes}\u00a0min."

    return CHAPTER.sub(chapter, text)


def gallery(figures: Path, notebooks: list[Notebook]) -> str:
    """A page of the committed figures, by notebook, each with its section, data and PDF."""
    lines = [GALLERY]
    shown: set[str] = set()
    for nb in notebooks:
        record = figures / "provenance" / f"{nb.name}.json"
        if not record.exists():
            continue
        made = json.loads(record.read_text())
        files = [Path(file) for file in made["figures"]]
        cells = figure_cells(nb, [file.stem for file in files])
        alts = _alts(nb, files)
        lines += ["", f"## {nb.title}", "", _provenance(nb, made), "", "::::{container} gallery"]
        images = [file for file in files if file.suffix == ".png"]
        for image in sorted(images, key=lambda file: cells.get(file.stem, (0,))[0]):
            if not (figures / image).exists():
                raise BookError(f"{record.name} lists {image}, which is not in figures/")
            shown.add(image.name)
            heading = cells.get(image.stem, (0, nb.title))[1]
            anchor = f"#{image.stem}-{nb.name}" if image.stem in cells else f"notebooks/{nb.name}"
            others = [f for f in files if f.stem == image.stem and f != image]
            downloads = [f"{{download}}`{f.suffix[1:].upper()} <figures/{f}>`" for f in others]
            width, _ = imagesize.get(figures / image)
            lines += [
                f":::{{figure}} figures/{image}",
                f":figclass: {'wide' if width > FULL_WIDTH else 'column'}",
                f":alt: {alts.get(image.stem, f'A figure of the section {heading}')}",
                "",
                f"[{heading}]({anchor}). {' · '.join(downloads)}",
                ":::",
            ]
        lines += ["::::"]
    orphans = sorted({path.name for path in figures.glob("*.png")} - shown)
    if orphans:
        raise BookError(f"figures/{orphans[0]} is in no figures/provenance/*.json")
    return "\n".join(lines) + "\n"


def _alts(nb: Notebook, files: list[Path]) -> dict[str, str]:
    """What is seen in the figures of a notebook, by their names."""
    return {
        file.stem: alt
        for c, (_, alt) in captions(nb).items()
        for file in files
        if f'"{file.stem}"' in source(nb.cells[c])
    }


def _provenance(nb: Notebook, made: Mapping[str, Any]) -> str:
    commit = f", commit `{made['commit'][:9]}`" if made.get("commit") else ""
    return (
        f"Drawn by {{doc}}`/notebooks/{nb.name}` in {made['wall_seconds']:.0f} s on "
        f"{made['hardware']['cores']} cores{commit}."
    )
