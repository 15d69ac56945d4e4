"""`make book`: a static site out of the executed notebooks, the figures and the docstrings.

Pages are gathered in a folder of their own, laid out like the project, and Sphinx runs there with
warnings as errors. The result needs no network: MathJax is one file out of a pinned package.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from api import Page, UndocumentedError, read, render, table
from download import standalone
from pages import (
    BookError,
    Notebook,
    annotated,
    gallery,
    link_targets,
    linked,
    with_chapters,
)
from sphinx.cmd.build import build_main
from statements import (
    add_hovers,
    citations,
    cross_referenced,
    reference_targets,
    with_statements,
)
from telephone import readable_width

ROOT = Path(__file__).resolve().parents[1]
MATHJAX_PACKAGE = "sphinx-mathjax-offline"
MATHJAX_FILE = "sphinx-mathjax-offline/static/mathjax/tex-svg.js"
# es5/tex-svg.js of mathjax 3.2.2
MATHJAX_SHA256 = "d4295dc33744836935c1399feece5159577b34c5c8ffb9f1c6324cd82e03a882"


def mathjax() -> bytes:
    """MathJax in one file, checked."""
    try:
        content = Path(str(distribution(MATHJAX_PACKAGE).locate_file(MATHJAX_FILE))).read_bytes()
    except (PackageNotFoundError, FileNotFoundError):
        raise BookError(f"{MATHJAX_PACKAGE} is not installed: pip install -e '.[book]'") from None
    if hashlib.sha256(content).hexdigest() != MATHJAX_SHA256:
        raise BookError(f"{MATHJAX_FILE} is not the file of MathJax 3.2.2 that is expected")
    return content


def gather(root: Path, stage: Path, reference: list[Page]) -> None:
    """Everything that Sphinx reads, under `stage`."""
    shutil.copytree(root / "book", stage, ignore=shutil.ignore_patterns("*.md", "__pycache__"))
    shutil.copy(root / "pyproject.toml", stage)  # conf.py reads it
    (stage / "static" / "tex-svg.js").write_bytes(mathjax())
    files = [p for p in (root / "figures").iterdir() if p.suffix in {".png", ".pdf", ".csv"}]
    for folder in ("figures", "notebooks", "api"):
        (stage / folder).mkdir()
    for path in files:
        shutil.copy(path, stage / "figures")

    notebooks = [Notebook.read(path) for path in sorted((root / "notebooks").glob("*.ipynb"))]
    # `gap_law` is a distribution, and what draws it is `figures.gap_law`.
    pages = sorted(reference, key=lambda page: page.module.endswith(".figures"))
    entries = [e for page in pages for x in page.entries() for e in (x, *x.members)]
    parameters = {name for entry in entries for name in re.findall(r"(\w+): ", entry.signature)}
    targets = link_targets(notebooks, [entry.path for entry in entries], parameters)
    figures = {path.stem: readable_width(path) for path in files if path.suffix == ".pdf"}
    references = reference_targets(notebooks)
    for nb in notebooks:
        shown = with_statements(annotated(nb, figures, targets), nb.name, references)
        (stage / "notebooks" / f"{nb.name}.ipynb").write_text(shown)
    for page in reference:
        (stage / "api" / f"{page.module}.md").write_text(linked(render(page), targets))
    (stage / "gallery.md").write_text(gallery(root / "figures", notebooks))
    names = table(reference, {nb.name: nb.public_names for nb in notebooks})
    texts = {path.name: path for path in (root / "book").glob("*.md")}
    for name, path in {**texts, "_readme.md": root / "README.md"}.items():
        text = with_chapters(path.read_text(encoding="utf-8"), notebooks)
        text = cross_referenced(text, references)
        text = text.replace("](book/static/", "](static/")  # the README's own pictures
        text = text.replace("<!-- public names -->", names)
        (stage / name).write_text(linked(text, targets))


def build(root: Path, out: Path, package: str) -> int:
    """The site in `out`, which is replaced only if all went well."""
    reference = read(package)
    with tempfile.TemporaryDirectory(prefix="book") as folder:
        stage, html = Path(folder) / "source", Path(folder) / "html"
        gather(root, stage, reference)
        options = ["-b", "html", "-W", "--keep-going", "-q", "-d", f"{folder}/doctrees"]
        if code := build_main([*options, str(stage), str(html)]):
            return code
        add_hovers(html, citations((root / "book" / "background.md").read_text(encoding="utf-8")))
        for path in (root / "notebooks").glob("*.ipynb"):
            download = html / "_sources" / "notebooks" / path.name
            download.write_text(standalone(Notebook.read(path), root), encoding="utf-8")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(html, out)
    print(f"The book is at {out / 'index.html'}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "book")
    parser.add_argument("--package", default="jmdp_lib", help="whose reference pages to make")
    arguments = parser.parse_args()
    try:
        return build(ROOT, arguments.out, arguments.package)
    except (BookError, UndocumentedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
