"""`make book`: a static site out of the executed notebooks, the figures and the docstrings.

Pages are gathered in a folder of their own, laid out like the project, and Sphinx runs there with
warnings as errors. The result needs no network: MathJax is one file out of a pinned package.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

from pages import Notebook, annotated, as_in_site, gallery, table
from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parents[1]
MATHJAX = "sphinx-mathjax-offline"  # a package whose data is MathJax 3.2.2


def gather(root: Path, stage: Path) -> None:
    """Everything that Sphinx reads, under `stage`."""
    shutil.copytree(root / "book", stage, ignore=shutil.ignore_patterns("*.md", "__pycache__"))
    packed = distribution(MATHJAX).locate_file(f"{MATHJAX}/static/mathjax/tex-svg.js")
    shutil.copy(str(packed), stage / "static")
    unwanted = shutil.ignore_patterns("*.md", "atari*")
    shutil.copytree(root / "figures", stage / "figures", ignore=unwanted)
    notebooks = [Notebook.read(path) for path in sorted((root / "notebooks").glob("*.ipynb"))]
    (stage / "notebooks").mkdir()
    for nb in notebooks:
        (stage / "notebooks" / f"{nb.name}.ipynb").write_text(annotated(nb))
    filled = {"public names": table(notebooks), "gallery": gallery(root / "figures", notebooks)}
    for path in (root / "book").glob("*.md"):
        if path.stem != "layout":
            text = as_in_site(path.read_text(encoding="utf-8"))
            for what, content in filled.items():
                text = text.replace(f"<!-- {what} -->", content)
            (stage / path.name).write_text(text)


def build(root: Path, out: Path) -> int:
    """The site in `out`, which is replaced only if all went well."""
    with tempfile.TemporaryDirectory(prefix="book") as folder:
        stage, html = Path(folder) / "source", Path(folder) / "html"
        gather(root, stage)
        options = ["-b", "html", "-W", "--keep-going", "-q", "-d", f"{folder}/doctrees"]
        if code := build_main([*options, str(stage), str(html)]):
            return code
        for path in (root / "notebooks").glob("*.ipynb"):  # readers download them as they are
            shutil.copy(path, html / "_sources" / "notebooks")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(html, out)
    print(f"The book is at {out / 'index.html'}")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "book")
    sys.exit(build(ROOT, parser.parse_args().out))
