"""A Sphinx extension: statements in boxes, names and references as links, formulas of docstrings.

In a notebook a definition, a lemma or an exercise is a paragraph with a bold beginning, as in
`**Lemma 5.2.** Let ...`, which reads well anywhere, also in Jupyter. The book puts it into a box
that can be linked to. Numbers are the paper's; an exercise is numbered by its chapter. Where prose
says "Lemma 5.2", "section 1.4" or `jipe2`, it becomes a link.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.ext import autosummary
from sphinx.ext.napoleon import Config, docstring
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

KINDS = "Definition|Assumption|Lemma|Theorem|Remark"
LEAD = re.compile(rf"({KINDS}|Exercise) ([\dAB]+(?:\.\d+)?)( \(.*\))?\.")
SECTION = re.compile(r"(\d+\.\d+) ")
REFERENCE = re.compile(rf"(\b(?:{KINDS}|[Dd]ecision|section) (?:[\dAB]+\.\d+|\d+)\b(?!\.\d))")
INSIDE = (nodes.paragraph, nodes.math_block, nodes.bullet_list, nodes.enumerated_list)
# Code, formulas, links and headings, in which nothing is linked.
OPAQUE = (
    *(nodes.FixedTextElement, nodes.literal, nodes.math, nodes.reference, nodes.title),
    *(addnodes.pending_xref, addnodes.desc_signature),
)
PACKAGE = re.compile(r"^(jl|jmdp_lib)\.")  # as prose writes it before a name


# ---- statements ---------------------------------------------------------------------------------


class Statements(SphinxTransform):
    """Boxes for statements and exercises, and labels for these and for numbered sections."""

    default_priority = 400

    def apply(self, **options: Any) -> None:
        for section in self.document.findall(nodes.section):
            if number := SECTION.match(section[0].astext()):
                self.label(f"section {number[1]}", section)
        for paragraph in list(self.document.findall(nodes.paragraph)):
            if isinstance(paragraph.parent, nodes.section) and (lead := lead_of(paragraph)):
                self.put_into_box(paragraph, lead)

    def label(self, name: str, node: nodes.Element) -> None:
        """Let others refer to a node by a name, the first one of which counts."""
        labels = self.env.domaindata["std"]["anonlabels"]
        labels.setdefault(label_of(name), (self.env.docname, node["ids"][0]))

    def put_into_box(self, paragraph: nodes.paragraph, lead: re.Match[str]) -> None:
        kind, number, title = lead.groups()
        chapter = self.env.docname.rpartition("/")[2]
        if kind == "Exercise":
            number = f"{int(chapter[:2])}.{number}"
        name = f"{kind} {number}"
        box = nodes.admonition(classes=["statement", kind.lower()])
        box["ids"] = [nodes.make_id(f"{name}-{chapter}")]
        box += nodes.title("", name + (title or ""))
        around, place = paragraph.parent, paragraph.parent.index(paragraph)
        content = [paragraph]
        for following in around[place + 1 :]:
            if not goes_on(kind, content[-1], following):
                break
            content.append(following)
        del around[place : place + len(content)]
        around.insert(place, box)
        del paragraph[: paragraph.first_child_matching_class(nodes.strong) + 1]
        box.extend(content)
        self.label(name, box)


def lead_of(paragraph: nodes.Node) -> re.Match[str] | None:
    """The bold beginning of a paragraph, if it is that of a statement."""
    begin = next((child for child in paragraph.children if child.astext()), None)
    return LEAD.fullmatch(begin.astext()) if isinstance(begin, nodes.strong) else None


def goes_on(kind: str, last: nodes.Node, following: nodes.Node) -> bool:
    """True if a statement goes on: its sentence does, or "Then" follows; exercises always do."""
    if not isinstance(following, INSIDE) or lead_of(following):
        return False
    text = following.astext()
    if text.startswith("Proof"):
        return False
    said = re.sub(r"(\s|\\qquad|\\tag\{[^}]*\})+$", "", last.astext())
    return kind == "Exercise" or not said.endswith((".", "?", "!")) or text.startswith("Then ")


def label_of(name: str) -> str:
    """The label of "Lemma 5.2", "section 1.4" or "Decision 3", which is written in the prose."""
    return name.lower().replace("section", "sec").replace(" ", "-")


# ---- links --------------------------------------------------------------------------------------


class Links(SphinxPostTransform):
    """Names of functions, chapters and statements in prose become links."""

    default_priority = 5

    def run(self, **options: Any) -> None:
        codes = code_targets(self.env)
        labels = self.env.domaindata["std"]["anonlabels"]
        for text in [t for t in self.document.findall(nodes.Text) if not in_opaque(t)]:
            parts = [nodes.Text(part) for part in REFERENCE.split(text)]
            shown = [self.link(labels.get(label_of(part)), part) for part in parts]
            if len(parts) > 1:
                text.parent.replace(text, shown)
        for code in [c for c in self.document.findall(nodes.literal) if not in_opaque(c)]:
            name = PACKAGE.sub("", re.split(r"[(\[]", code.astext())[0])
            target = codes.get(name) or codes.get(name.partition(".")[0])
            code.parent.replace(code, self.link(target, code.deepcopy()))

    def link(self, target: tuple[str, str] | None, shown: nodes.Node) -> nodes.Node:
        if not target:
            return shown
        document, place = target
        here = self.env.docname
        return make_refnode(self.app.builder, here, document, place, [shown])


def in_opaque(node: nodes.Node) -> bool:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, OPAQUE):
            return True
    return False


def code_targets(env: Any) -> dict[str, tuple[str, str]]:
    """Targets of inline code: chapters, `name`, `package.name`, `Class.member`."""
    found = {doc.rpartition("/")[2]: (doc, "") for doc in env.found_docs if "/" in doc}
    for path, item in env.domaindata["py"]["objects"].items():
        full = path.partition(".")[2]
        for name in {full, *re.findall(r"[A-Z].*|\w+$", full)} - {""}:
            found.setdefault(name, (item.docname, item.node_id))
    return found


# ---- docstrings ---------------------------------------------------------------------------------

# Attributes are shown as arguments are, and an entry may have several names: `mean, second: ...`
STYLE: Any = Config(
    napoleon_custom_sections=[("Attributes", "params_style")],
    napoleon_use_param=False,
    napoleon_use_rtype=False,
)
FORMULA = re.compile(r"\$([^$]+)\$|(?<!`)(\|\w\|)")  # $n$, and |S|
# What formulas of docstrings, $gamma^2 <= 1$, write without a backslash; conf.py has the macros.
SIGNS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "->": r"\to "}
SIGNS |= {"~": r"\sim ", "...": r"\dots ", "||": r"\|"}
GREEK = "alpha|beta|chi|zeta|eta|gamma|kappa|lambda|mu|nu|phi|pi|rho|sigma|tau|theta|Pi|Sigma|Theta"
OTHERS = "sum|log|choose|max|inf|infty|hat|Var|Cov|Corr|CVaR|clip"
NAMES = rf"(?<![a-zA-Z\\])(?:{GREEK}|{OTHERS})(?![a-zA-Z])"
WORDS = re.compile("|".join([*map(re.escape, SIGNS), NAMES]))


def tex(formula: str) -> str:
    """A formula as MathJax reads it."""
    return WORDS.sub(lambda word: SIGNS.get(word[0], "\\" + word[0]), formula)


def on_docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: Any) -> None:
    """Turn Google style into lists, and formulas into those of Sphinx.

    Napoleon does not know what is documented: for it "What: it is", of a property, is a type.
    """
    text = FORMULA.sub(lambda x: f":math:`{tex(x[1] or x[2]).strip()}`", "\n".join(lines))
    lines[:] = docstring.GoogleDocstring(text, STYLE).lines()


def on_signature(*event: Any) -> tuple[str | None, ...]:
    """Show an alias such as `ArrayLike` by its name, in unions too."""
    return tuple(text and re.sub(r"\w+Ref\('(\w+)'\)", r"\1", text) for text in event[-2:])


BACK = re.compile(r"(/((?:\w+\.)+)(\w+)\.html#)[\w.]+\.(?=\3\b)")


def on_page(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Source leads back to the object. Viewcode knows one module for each file; the page has it."""
    if name.startswith("_modules/"):
        context["body"] = BACK.sub(r"\1\2", context["body"])


def setup(app: Any) -> None:
    app.setup_extension("sphinx.ext.autodoc")
    autosummary.periods_re = re.compile(r"(?<!\beq)(?<!\beqs)\.\s+")  # where a sentence ends
    app.add_transform(Statements)
    app.add_post_transform(Links)
    app.connect("autodoc-process-docstring", on_docstring)
    app.connect("autodoc-process-signature", on_signature)
    app.connect("html-page-context", on_page)
