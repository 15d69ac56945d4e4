"""Statements in boxes, and references to them.

In a notebook a definition, a lemma or an exercise is a paragraph with a bold beginning, as in
`**Lemma 5.2.** Let ...`, which reads well anywhere. The book puts it into a box that can be linked
to. Numbers are the paper's; an exercise is numbered by its chapter.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pages import Notebook, source

KINDS = "Definition|Assumption|Lemma|Theorem|Remark"
LEAD = re.compile(
    rf"\*\*(?P<kind>{KINDS}|Exercise) (?P<number>[\dAB]+(?:\.\d+)?)(?P<title> \([^*]*\))?\.\*\*\s*"
)
LABELS = re.compile(r"((?:\([\w.-]+\)=\n)*)(.*)", re.DOTALL)
SECTION = re.compile(r"^## (\d+\.\d+) ", re.MULTILINE)
REFERENCE = re.compile(
    rf"(?<!\*\*)\b(?:{KINDS}|[Dd]ecision|section) (?:[\dAB]+\.\d+|\d+)\b(?!\.\d)"
)
# Code, formulas, links, headings and comments, in which nothing is linked.
OPAQUE = re.compile(
    r"(^```[\s\S]*?^```$|^:::.*$|^:name:.*$|^#.*$|^\([\w.-]+\)=$|<!--[\s\S]*?-->|\$\$[\s\S]*?\$\$"
    r"|\$[^$]*\$|\[[^\]]*\]\([^)]*\)|(?:\{[\w:]+\})?`[^`\n]*`)",
    re.MULTILINE,
)
CITED = re.compile(r"^\((ref-[\w-]+)\)=\n(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Statement:
    """The beginning of a statement: what it is called, where it is."""

    kind: str
    name: str
    label: str
    title: str

    @classmethod
    def read(cls, match: re.Match[str], notebook: str) -> Statement:
        kind, number = match["kind"], match["number"]
        if kind == "Exercise":
            number = f"{int(notebook[:2])}.{number}"
        label = f"{kind}-{number}-{notebook}".lower()
        return cls(kind.lower(), f"{kind} {number}", label, match["title"] or "")


def reference_targets(notebooks: Iterable[Notebook]) -> dict[str, str]:
    """The label of what prose calls "Lemma 5.2" or "section 1.4": its first place.

    "decision 3" is a section of the page "Reading the paper".
    """
    targets = {f"decision {number}": f"decision-{number}" for number in range(1, 14)}
    for nb in notebooks:
        text = "\n\n".join(source(cell) for cell in nb.cells if cell["cell_type"] == "markdown")
        for match in LEAD.finditer(text):
            statement = Statement.read(match, nb.name)
            targets.setdefault(statement.name, statement.label)
        for number in SECTION.findall(text):
            targets.setdefault(f"section {number}", f"sec-{number}")
    return targets


def cross_referenced(text: str, targets: Mapping[str, str]) -> str:
    """References in prose become links, where there is something to lead to."""

    def link(match: re.Match[str]) -> str:
        target = targets.get(match[0].replace("Decision", "decision"))
        return f"[{match[0]}](#{target})" if target else match[0]

    parts = OPAQUE.split(text)
    return "".join(part if n % 2 else REFERENCE.sub(link, part) for n, part in enumerate(parts))


def with_statements(notebook: str, name: str, targets: Mapping[str, str]) -> str:
    """A notebook, as JSON, with boxes and references in its prose and its captions."""
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = cross_referenced(boxed(source(cell), name), targets)
        elif figure := cell["metadata"].get("mystnb", {}).get("figure"):
            figure["caption"] = cross_referenced(figure["caption"], targets)
    return json.dumps(content)


def is_open(paragraph: str, following: str) -> bool:
    """Whether a statement goes on after this paragraph: its sentence does, or "Then" follows."""
    text = re.sub(r"(\s|\$\$|\\qquad|\\tag\{[^}]*\})+$", "", paragraph)
    return not text.endswith((".", "?", "!")) or following.startswith("Then ")


def boxed(text: str, notebook: str) -> str:
    """The statements of a cell of prose, in boxes."""
    paragraphs = text.split("\n\n")
    shown: list[str] = []
    while paragraphs:
        first = paragraphs.pop(0)
        labels, body = LABELS.fullmatch(first).groups()  # type: ignore[union-attr]
        lead = LEAD.match(body)
        if not lead:
            shown.append(first)
            continue
        content = [body[lead.end() :]]
        while paragraphs and _goes_on(lead["kind"], content[-1], paragraphs[0]):
            content.append(paragraphs.pop(0))
        shown.append(labels + _box(Statement.read(lead, notebook), "\n\n".join(content)))
    return "\n\n".join(shown)


def _goes_on(kind: str, paragraph: str, following: str) -> bool:
    if LEAD.match(following) or following.startswith(("<details", "#", "*Proof")):
        return False
    return kind == "Exercise" or is_open(paragraph, following)


def _box(statement: Statement, content: str) -> str:
    return (
        f"::::{{admonition}} {statement.name}{statement.title}\n"
        f":class: statement {statement.kind}\n:name: {statement.label}\n\n{content}\n::::"
    )


def citations(background: str) -> dict[str, str]:
    """The text of every reference of the bibliography, without its markup, by its label."""
    return {label: re.sub(r"[*_]", "", text) for label, text in CITED.findall(background)}


def with_hovers(page: str, cited: Mapping[str, str]) -> str:
    """An HTML page whose citations show what they cite under the pointer."""

    def titled(match: re.Match[str]) -> str:
        text = cited.get(match[2])
        return f'{match[1]} title="{html.escape(text)}"' if text else match[0]

    return re.sub(r'(href="[^"]*#(ref-[\w-]+)")', titled, page)


def add_hovers(site: Path, cited: Mapping[str, str]) -> None:
    for path in (*site.glob("*.html"), *site.glob("notebooks/*.html")):
        page = path.read_text(encoding="utf-8")
        path.write_text(with_hovers(page, cited), encoding="utf-8")
