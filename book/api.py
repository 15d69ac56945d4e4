"""Reference pages out of docstrings, which are Markdown. A public name without one is an error."""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from sphinx.pycode import ModuleAnalyzer

FIELD = re.compile(r"([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*): (.*)")
# What formulas of docstrings, $gamma^2 <= 1$, write without a backslash; conf.py has the macros.
SIGNS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "->": r"\to "}
SIGNS |= {"~": r"\sim ", "...": r"\dots ", "||": r"\|"}
GREEK = "alpha|beta|chi|zeta|eta|gamma|kappa|lambda|mu|nu|phi|pi|rho|sigma|tau|theta|Pi|Sigma|Theta"
OTHERS = "sum|log|choose|max|inf|infty|hat|Var|Cov|Corr|CVaR|clip"
NAMES = rf"(?<![a-zA-Z\\])(?:{GREEK}|{OTHERS})(?![a-zA-Z])"
WORDS = re.compile("|".join([*map(re.escape, SIGNS), NAMES]))


class UndocumentedError(Exception):
    """Public names that have no docstring of their own."""


@dataclass(frozen=True)
class Entry:
    """One public object: where it is found, and what Sphinx calls its kind."""

    path: str  # jmdp_lib.atari.CoupledAtari.query
    kind: str  # function, class, data, method, property
    signature: str
    doc: str
    options: tuple[str, ...] = ()
    members: tuple[Entry, ...] = ()

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass
class Page:
    """The public names of one package, in sections that follow the files they are written in."""

    module: str
    doc: str
    sections: dict[str, list[Entry]] = field(default_factory=dict)

    def entries(self) -> Iterator[Entry]:
        for section in self.sections.values():
            yield from section

    def public(self) -> Iterator[Entry]:
        """Without the classes of results, which have the names of their own modules."""
        return (entry for entry in self.entries() if entry.path == f"{self.module}.{entry.name}")


def read(package: str) -> list[Page]:
    """The pages of a package and its subpackages; every name where it is first met.

    Beside the public names a page describes the classes that these return or keep.
    """
    modules = list(_packages(package))
    public = {id(getattr(module, name)) for module in modules for name in module.__all__}
    seen: set[int] = set()
    pages = []
    for module in modules:
        page = Page(module.__name__, inspect.getdoc(module) or "")
        waiting = [(module, name) for name in module.__all__]
        for owner, name in waiting:  # results are appended on the way
            thing = getattr(owner, name)
            if id(thing) not in seen and not inspect.ismodule(thing):
                seen.add(id(thing))
                home, entry = _entry(owner, name, thing)
                page.sections.setdefault(_section(module, home), []).append(entry)
                results = _results(home, entry) if owner is module else ()
                new = [result for result in results if id(result) not in public]
                waiting += [(sys.modules[result.__module__], result.__name__) for result in new]
        if page.sections:
            pages.append(page)
    _refuse_undocumented(pages)
    return pages


def _refuse_undocumented(pages: list[Page]) -> None:
    missing = [page.module for page in pages if not page.doc]
    entries = [e for page in pages for entry in page.entries() for e in (entry, *entry.members)]
    missing += [entry.path for entry in entries if not entry.doc]
    if missing:
        raise UndocumentedError(
            f"public names without a docstring (a comment `#:` above, for a constant): "
            f"{', '.join(missing)}"
        )


def _packages(package: str) -> Iterator[ModuleType]:
    root = importlib.import_module(package)
    yield root
    for found in pkgutil.walk_packages(root.__path__, package + "."):
        if found.ispkg:
            module = importlib.import_module(found.name)
            if hasattr(module, "__all__"):
                yield module


def _section(module: ModuleType, home: str) -> str:
    """The first line of what the file, or the subpackage, of an object says about itself."""
    inside = home
    if home.startswith(module.__name__ + "."):
        depth = module.__name__.count(".") + 2
        inside = ".".join(home.split(".")[:depth])
    doc = inspect.getdoc(sys.modules.get(inside)) or "Names"
    return doc.splitlines()[0].rstrip(".")


def _entry(module: ModuleType, name: str, thing: Any) -> tuple[str, Entry]:
    """The module that defines an object, and the object."""
    path = f"{module.__name__}.{name}"
    if inspect.isclass(thing):
        doc = vars(thing).get("__doc__") or ""
        members = [_member(path, key, value) for key, value in vars(thing).items()]
        inner = tuple(member for member in members if member is not None)
        signature = _signature(thing)
        return thing.__module__, Entry(path, "class", signature, inspect.cleandoc(doc), (), inner)
    if inspect.isroutine(thing):
        return thing.__module__, Entry(path, "function", _signature(thing), _own_doc(thing))
    home, doc = _constant(module.__name__, name, thing)
    return home, Entry(path, "data", "", doc)


def _member(path: str, name: str, value: Any) -> Entry | None:
    if name.startswith("_"):
        return None
    where = f"{path}.{name}"
    if isinstance(value, property | functools.cached_property):
        function = value.fget if isinstance(value, property) else value.func
        returns = str(inspect.signature(function).return_annotation) if function else ""
        return Entry(where, "property", "", _own_doc(function), (f":type: {returns}",))
    if isinstance(value, classmethod | staticmethod):
        signature = _signature(value.__func__, skip=isinstance(value, classmethod))
        flag = f":{type(value).__name__}:"
        return Entry(where, "method", signature, _own_doc(value.__func__), (flag,))
    if inspect.isfunction(value):
        return Entry(where, "method", _signature(value, skip=True), _own_doc(value))
    return None  # a field, described with the class


def _results(home: str, entry: Entry) -> Iterator[type]:
    """The classes of the same package that a function returns, or that a class keeps or returns."""
    types = [m.signature.rpartition("->")[2] + "".join(m.options) for m in entry.members]
    types.append(entry.signature if entry.kind == "class" else entry.signature.rpartition("->")[2])
    for word in re.findall(r"\w+", " ".join(types)):
        found = vars(sys.modules[home]).get(word)
        if inspect.isclass(found) and found.__module__.startswith(home.partition(".")[0] + "."):
            yield found


def _own_doc(function: Any) -> str:
    return inspect.cleandoc(getattr(function, "__doc__", None) or "")


def _constant(package: str, name: str, thing: object) -> tuple[str, str]:
    """The module of the package that assigns a constant, and its `#:` comment there."""
    top = package.partition(".")[0]
    for home, module in list(sys.modules.items()):
        if home.split(".")[0] == top and vars(module).get(name) is thing:
            docs = ModuleAnalyzer.for_module(home).find_attr_docs()
            if ("", name) in docs:
                return home, "\n".join(docs["", name]).strip()
    return package, ""


def _signature(thing: Any, skip: bool = False) -> str:
    """As written in the source: annotations without quotes, without `self` or `cls`."""
    if inspect.isclass(thing) and issubclass(thing, Exception | enum.Enum):
        return ""
    if getattr(thing, "_is_protocol", False):  # nobody makes one
        return ""
    signature = inspect.signature(thing)
    if skip:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    if inspect.isclass(thing):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    text = re.sub(r"ForwardRef\(('[^']*')\)", r"\1", str(signature))
    text = text.replace("<factory>", "...")  # an expression, which Sphinx can read
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def tex(text: str) -> str:
    """The text with its formulas as MathJax reads them."""
    formula = re.compile(r"\$[^$]+\$")
    return formula.sub(lambda f: WORDS.sub(lambda w: SIGNS.get(w[0], "\\" + w[0]), f[0]), text)


def markdown(doc: str) -> str:
    """A docstring with its `name: meaning` lines as a list and its example as code."""
    blocks = []
    for number, block in enumerate(re.split(r"\n\s*\n", doc)):
        head, _, rest = block.partition("\n")
        if re.fullmatch(r"Attributes\b.*:", head):
            blocks += [f"**{head}**", _fields(inspect.cleandoc("\n" + rest))]
        elif head == "Example:":
            blocks += [f"**{head}**", f"```pycon\n{inspect.cleandoc(rest)}\n```"]
        elif number and FIELD.match(head):
            blocks.append(_fields(block))
        else:
            blocks.append(block)
    return "\n\n".join(blocks)


def _fields(block: str) -> str:
    """A definition list; a line that names nothing goes on with the one before."""
    lines = []
    for line in block.splitlines():
        found = FIELD.fullmatch(line)
        lines.append(f"\n`{found[1]}`\n: {found[2]}" if found else f"  {line.strip()}")
    return "\n".join(lines)


def table(pages: list[Page], chapters: dict[str, list[str]]) -> str:
    """One table of the public names, by sub-package, each with the chapters that execute it.

    chapters: the full names that each notebook executes.
    """
    lines = ["| name | what it is or does | chapters |", "|---|---|---|"]
    for page in pages:
        lines.append(f"| **`{page.module}`** | {_first_line(page.doc)} | |")
        for entry in page.public():
            shown = [notebook for notebook, names in chapters.items() if entry.path in names]
            links = [f"{{doc}}`{int(name[:2])} </notebooks/{name}>`" for name in shown]
            name = f"{{py:obj}}`{entry.name} <{entry.path}>`"
            lines.append(f"| {name} | {_first_line(entry.doc)} | {', '.join(links)} |")
    return tex("\n".join(lines)) + "\n"


def _first_line(doc: str) -> str:
    return doc.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def render(page: Page) -> str:
    """A reference page: what the package says of itself, and its names in full."""
    lines = [f"# `{page.module}`", "", page.doc, "", f"```{{py:module}} {page.module}", "```"]
    for title, entries in page.sections.items():
        lines += ["", f"## {title}", ""]
        lines += [_directive(entry.path.removesuffix(f".{entry.name}"), entry) for entry in entries]
    return tex("\n".join(lines)) + "\n"


def _directive(owner: str, entry: Entry, fence: str = "::::") -> str:
    """An object and its members; owner: the module whose name is before the object's own."""
    name = entry.path.removeprefix(owner + ".")
    lines = [f"{fence}{{py:{entry.kind}}} {name}{entry.signature}", f":module: {owner}"]
    lines += [*entry.options, "", markdown(entry.doc), ""]
    lines += [_directive(owner, member, ":::") for member in entry.members]
    return "\n".join([*lines, fence, ""])
