"""The book: it builds, every link leads somewhere, and a real browser reads every page offline."""

from __future__ import annotations

import copy
import functools
import html.parser
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import axe_core_python
import browser
import pytest
from bs4 import BeautifulSoup
from conftest import served

from jmdp_lib import figures

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book"))

import api  # noqa: E402
import build  # noqa: E402
import pages  # noqa: E402

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


class Links(html.parser.HTMLParser):
    """What a page leads to, or loads: tags and addresses."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        place = {"a": "href", "img": "src", "link": "href", "script": "src"}.get(tag)
        self.found += [(tag, value or "") for name, value in attributes if name == place]


@functools.cache
def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@functools.cache
def anchors(path: Path) -> set[str]:
    return set(re.findall(r' id="([^"]+)"', path.read_text(encoding="utf-8")))


def html_pages(site: Path) -> list[str]:
    names = (path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    others = ("_static/", "_modules/")  # the theme's own, and the source of the library
    return sorted(name for name in names if not name.startswith(others))


# ---- what goes in -------------------------------------------------------------------------------


def write_package(folder: Path, body: str) -> None:
    (folder / "halfdone").mkdir()
    (folder / "halfdone" / "__init__.py").write_text(f'"""A package."""\n{body}')


UNDOCUMENTED = """\
def function():
    pass

class Plain:
    pass

class Known:
    \'\'\'Known.\'\'\'
    def method(self):
        pass

#: Not documented by what a dict is.
other = {}
constant = {}
__all__ = ["Known", "Plain", "constant", "function", "other"]
"""


def test_undocumented_public_names_stop_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_package(tmp_path, UNDOCUMENTED)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--package", "halfdone", "--out", str(tmp_path / "html")]
    monkeypatch.setattr(sys, "argv", ["build.py", *options])
    assert build.main() == 1
    said = capsys.readouterr().err
    assert said.startswith("error: public names without a docstring")
    names = ("Known.method", "Plain", "constant", "function")
    assert said.strip().endswith(": " + ", ".join(f"halfdone.{name}" for name in names))
    assert not (tmp_path / "html").exists()


def test_docstrings_become_markdown() -> None:
    doc = "First line.\n\nname: what it\n    means\nother, more: too\n\n"
    doc += "Plain: text.\n\nExample:\n    >>> for x in y:\n    ...     x\n    1"
    assert api.markdown(doc) == (
        "First line.\n\n\n`name`\n: what it\n  means\n\n`other, more`\n: too\n\n"
        "\n`Plain`\n: text.\n\n**Example:**\n\n```pycon\n>>> for x in y:\n...     x\n1\n```"
    )


def test_formulas_need_no_backslash() -> None:
    assert api.tex("gamma <= $gamma^2 <= 1$, $Var G_pi$") == (
        r"gamma <= $\gamma^2 \le  1$, $\Var G_\pi$"
    )
    assert api.tex("$(alphabet) \\mu -> theta_1$") == r"$(alphabet) \mu \to  \theta_1$"
    assert api.tex("$gamma zeta_mu$") == r"$\gamma \zeta_\mu$"
    assert api.tex("$chi^2 log x$") == r"$\chi^2 \log x$"


def test_code_that_names_something_becomes_a_link() -> None:
    notebook = pages.Notebook("01_one", {"cells": []})
    objects = ["p.f", "p.C", "p.C.only", "p.C.both", "p.D", "p.D.both", "p.C.size"]
    targets = pages.link_targets([notebook], objects, {"size"})

    def link(text: str) -> str:
        return pages.linked(text, targets)

    assert link("`f(x)`") == "{py:obj}`f(x) <p.f>`"
    assert link("`C.only`, `only`") == "{py:obj}`C.only <p.C.only>`, {py:obj}`only <p.C.only>`"
    assert link("`jl.f`, `figures.f`") == "{py:obj}`jl.f <p.f>`, {py:obj}`figures.f <p.f>`"
    assert link("`jmdp_lib.sub.C`") == "{py:obj}`jmdp_lib.sub.C <p.C>`"
    assert link("`C.field`") == "{py:obj}`C.field <p.C>`"
    assert link("`01_one`") == "{doc}`01_one </notebooks/01_one>`"
    for text in (
        "`both`",
        "`size`",
        "`unknown`",
        "`np.f`",
        "[`f`](x)",
        "{py:obj}`f <p.f>` and x",
        "# `f`",
    ):
        assert link(text) == text
    assert link("```python\nx = `f`\n```") == "```python\nx = `f`\n```"


def test_a_decision_without_a_number_stops_the_build() -> None:
    cells = [
        {"cell_type": "markdown", "source": "# One\n\n**Decision 4: so.**"},
        {"cell_type": "code", "source": "", "outputs": [{"text": "decision 4: x | 1.5 | holds\n"}]},
    ]
    notebook = pages.Notebook("01_one", {"cells": cells})
    shown = pages.with_evidence("<!-- evidence: 4 -->", [notebook])
    assert shown == ":The number: x: **1.5**\n:Shown in: [One](#decision-4-01_one)"
    with pytest.raises(pages.BookError, match="decision 5"):
        pages.with_evidence("<!-- evidence: 5 -->", [notebook])


def test_a_figure_without_provenance_stops_the_build(tmp_path: Path) -> None:
    shutil.copy(ROOT / "figures" / "fig_examples.png", tmp_path / "fig_lost.png")
    with pytest.raises(pages.BookError, match=r"fig_lost\.png"):
        pages.gallery(tmp_path, [])


def test_the_map_has_every_item_and_equation_of_the_paper() -> None:
    text = (ROOT / "book" / "paper.md").read_text().split("## The thirteen decisions")[0]
    rows = [row.split("|") for row in text.splitlines() if row.startswith("| ")][1:]
    items = " ".join(row[1] for row in rows)
    for item in (
        *(f"Figure {number}," for number in range(1, 8)),
        *(f"Definition {number}" for number in ("3.1", "3.2", "4.1", "4.2", "4.3", "4.6", "5.1")),
        *(f"Assumption {number}" for number in ("4.5", "B.1", "B.2")),
        *(f"Lemma {number}" for number in ("5.2", "A.1", "A.3", "B.3")),
        *(f"Theorem {number}" for number in ("5.3", "5.4", "A.2", "A.4", "B.4")),
        *("Example 1", "Example 2", "Remark 4.4", "Table 1"),
    ):
        assert item in items, item
    found: set[int] = set()
    for first, last in re.findall(r"\((\d+)\)(?: to \((\d+)\))?", " ".join(row[2] for row in rows)):
        found |= set(range(int(first), int(last or first) + 1))
    assert found == set(range(1, 90))
    places = [row[3] for row in rows]
    assert all("](" in place or "`0" in place for place in places)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_chapter_says_what_it_teaches_and_how_long_it_takes(name: str) -> None:
    notebook = pages.Notebook.read(ROOT / "notebooks" / f"{name}.ipynb")
    texts = [pages.source(c) for c in notebook.cells if c["cell_type"] == "markdown"]
    for words in ("**What you will learn.**", "**What it needs.**", "**How long it takes.**"):
        assert words in texts[0]
    minutes = int(re.search(r"About (\d+) minutes", texts[0])[1])
    assert abs(minutes - len(" ".join(texts).split()) / 150) <= 5  # at 150 words a minute
    assert any("**What to read next.**" in text for text in texts)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_exercises_have_folded_solutions_that_check_claims(name: str) -> None:
    cells = pages.Notebook.read(ROOT / "notebooks" / f"{name}.ipynb").cells
    asked = [c for c, cell in enumerate(cells) if "**Exercise " in pages.source(cell)]
    assert len(asked) >= 2
    for number, c in enumerate(asked, 1):
        assert f"**Exercise {number}.**" in pages.source(cells[c])
        assert "<details><summary>Solution</summary>" in pages.source(cells[c])
        assert pages.tags(cells[c + 1]) == ["hide-cell"]
        check = rf'claims\.check\(\s*"exercise {number}: '
        assert re.search(check, pages.source(cells[c + 1]))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_figure_has_a_number_a_caption_and_alt_text(name: str) -> None:
    notebook = pages.Notebook.read(ROOT / "notebooks" / f"{name}.ipynb")
    captions = pages.captions(notebook)
    drawn = [
        c
        for c, cell in enumerate(notebook.cells)
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
    ]
    assert list(captions) == drawn
    for number, (c, (caption, alt)) in enumerate(captions.items(), 1):
        assert caption.startswith(f"**Figure {int(name[:2])}.{number}.**")
        assert len(alt) > 60
        images = [o for o in notebook.cells[c]["outputs"] if "image/png" in o.get("data", {})]
        assert [o["metadata"]["image/png"]["alt"] for o in images] == [alt] * len(images)


def test_claims_become_a_table_that_tells_verdicts_apart() -> None:
    lines = "|S| | 5 | holds\nx | 0.4 | not reproduced\ny | -1 | differs from the paper\n"
    lines += "z | 7 | goal missed\n"
    cells = [{"cell_type": "code", "source": "", "outputs": [{"text": lines}]}]
    table = pages.claims_table(pages.Notebook("01_one", {"cells": cells}))["data"]["text/markdown"]
    assert table.splitlines()[2:] == [
        r"| \|S\| | 5 | supported |",
        "| x | 0.4 | **not reproduced** |",
        "| y | -1 | *differs from the paper* |",
        "| z | 7 | *goal missed* |",
    ]
    assert set(pages.VERDICTS) == set(figures.Claims.VERDICTS)


def test_what_only_draws_or_checks_is_folded() -> None:
    def cell(code: str) -> dict[str, str]:
        return {"source": code}

    assert pages.is_folded(cell('figures.save(fig, "x", data, out_dir)'))
    assert pages.is_folded(cell('near = off < 1e-6\nclaims.check("near", near, near)'))
    assert not pages.is_folded(cell('m = jl.jipe2(jm, policy)\nclaims.check("x", 1, True)'))
    assert not pages.is_folded(cell("m = jl.jipe2(jm, policy)"))


def test_mathjax_is_the_expected_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(build.mathjax()) > 1_000_000
    monkeypatch.setattr(build, "MATHJAX_SHA256", "0" * 64)
    with pytest.raises(pages.BookError, match="MathJax"):
        build.mathjax()


# ---- what comes out -----------------------------------------------------------------------------


@pytest.mark.slow
def test_every_notebook_and_figure_is_in_the_book(site: Path) -> None:
    landing = parsed(site / "index.html")
    links = {a["href"] for a in landing.select("article a[href^='notebooks/']")}
    assert links == {f"notebooks/{name}.html" for name in NOTEBOOKS}
    gallery = parsed(site / "gallery.html")
    shown = {Path(image["src"]).name for image in gallery.select(".gallery img")}
    assert shown == {path.name for path in (ROOT / "figures").glob("*.png")}
    for name in NOTEBOOKS:  # the download has all cells of the notebook, executed
        copy = pages.Notebook.read(site / "_sources" / "notebooks" / f"{name}.ipynb")
        own = pages.Notebook.read(ROOT / "notebooks" / f"{name}.ipynb")
        added = ("to-run-it", "files")
        assert [cell for cell in copy.cells if cell["id"] not in added] == own.cells


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    for page in api.read("jmdp_lib"):
        shown = parsed(site / "api" / f"{page.module}.html")
        sources = {
            tag["id"]: tag.select_one("a:has(.viewcode-link)") for tag in shown.select("dt[id]")
        }
        for entry in page.entries():
            for path in [entry.path] + [member.path for member in entry.members]:
                assert entry.kind == "data" or sources[path]["href"].startswith("../_modules/")
        examples = sum("Example:" in e.doc for x in page.entries() for e in (x, *x.members))
        assert len(shown.select(".highlight-pycon .gp")) >= examples
        article = copy.copy(shown.select_one("article"))
        for element in article.select(".math, code, pre, .sig"):
            element.decompose()
        raw = re.search(r".*(\^|\$|<=|>=|_\{|\|\||T_2|\bVar\b|E\[).*", article.get_text())
        assert raw is None, raw[0]


@pytest.mark.slow
def test_each_decision_has_its_number_and_place(site: Path) -> None:
    paper = parsed(site / "paper.html")
    sections = [heading.parent for heading in paper.select("article h3")]
    assert [s.h3.get_text().split(".")[0] for s in sections] == [str(n) for n in range(1, 14)]
    for section in sections:
        assert section.select("dd strong"), section.h3.get_text()
        assert section.select("dd a[href^='notebooks/']"), section.h3.get_text()


@pytest.mark.slow
def test_links_lead_to_pages_and_anchors_that_exist(site: Path) -> None:
    broken = []
    for name in html_pages(site):
        for tag, link in Links(site / name).found:
            target, anchor = urldefrag(urljoin(f"file:///{name}", link))
            parts = urlsplit(target)
            if parts.scheme != "file":
                if tag != "a" and parts.scheme != "data":
                    broken.append(f"{name}: {tag} from another host: {target[:100]}")
                continue
            path = site / unquote(parts.path).lstrip("/")
            path = path / "index.html" if path.is_dir() else path
            if not path.is_file():
                broken.append(f"{name}: {link}")
            elif anchor and unquote(anchor) not in anchors(path):
                broken.append(f"{name}: no anchor {link}")
    assert not broken, "\n".join(broken)


@pytest.mark.slow
def test_no_page_names_the_folder_it_was_built_in(site: Path) -> None:
    texts = [path.read_text("utf-8") for path in site.rglob("*") if path.suffix in {".html", ".js"}]
    assert not [text for text in texts if str(ROOT) in text or str(site) in text]


# ---- what a reader sees -------------------------------------------------------------------------


PAGE_REPORT = """({
    formulas: document.querySelectorAll('.math').length,
    rendered: document.querySelectorAll('.math mjx-container').length,
    errors: [...document.querySelectorAll('[data-mjx-error], mjx-merror, g[data-mml-node=merror]')]
        .map(e => e.textContent || e.outerHTML),
    unnamed: [...document.images].filter(i => !i.alt || /[0-9a-f]{20}/.test(i.alt)).map(i => i.src),
    nameless: [...document.querySelectorAll('summary, button, a[href], input')]
        .filter(e => e.checkVisibility() && !(e.textContent.trim() || e.title || e.ariaLabel
            || e.labels?.length || e.placeholder || e.querySelector('img[alt]')))
        .map(e => e.outerHTML.slice(0, 200)),
    keyless: [...document.querySelectorAll('mjx-container')]
        .filter(e => e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0
            && getComputedStyle(e).overflowX != 'visible')
        .map(e => e.textContent.slice(0, 80)),
    broken: [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src),
})"""
# axe-core takes seconds for a page: one of each sort, and of the chapters the one with the slider.
LOOKED_AT = ("gallery.html", "index.html", "layout.html", "own_simulator.html", "paper.html")
LOOKED_AT += ("notebooks/03_correlation_grids.html",)
# Nearly all of it went into the contrast of thousands of words of code. Their colours follow from
# their classes, so that the first of each class stands for all; the others become plain text.
FIRST_WORDS = """(() => {
    const seen = new Set();
    for (const word of document.querySelectorAll('.highlight pre span[class]')) {
        const kind = word.closest('[class*=highlight-]')?.className + ' / ' + word.className;
        if (seen.has(kind)) word.replaceWith(word.textContent);
        else if (word.checkVisibility()) seen.add(kind);
    }
})()"""
AXE = Path(axe_core_python.__file__).with_name("axe.min.js").read_text("utf-8")
OBSTACLES = """axe.run({resultTypes: ['violations']}).then(found => found.violations
    .filter(v => ['serious', 'critical'].includes(v.impact))
    .map(v => v.id + ': ' + v.nodes.map(n => n.html.slice(0, 150)).slice(0, 3)))"""


# Every figure is a link to its picture, which opens in the size that it was drawn in.
FIGURES_OF = {"index.html": 1, "gallery.html": 40, "paper.html": 0, "background.html": 0}
FIGURES_OF |= {f"notebooks/{NOTEBOOKS[0]}.html": 0, "notebooks/03_correlation_grids.html": 10}
FULL_SIZE = """Promise.all([...document.querySelectorAll('figure img, .cell_output img')]
    .map(async i => {
        i.loading = 'eager';
        await i.decode();
        const whole = new Image();
        whole.src = i.closest('a')?.href || '';
        await whole.decode().catch(() => null);
        const same = whole.naturalWidth == i.naturalWidth && !whole.src.startsWith('data:');
        return {src: i.src.slice(0, 80), link: whole.src.slice(0, 80), same};
    }))"""


def check_on_a_telephone(name: str, tab: browser.Page) -> None:
    tab.resize(390, 800, mobile=True)
    tab.until("matchMedia('(width: 390px)').matches")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390, name
    opened = tab.evaluate(FULL_SIZE)
    assert all(figure["same"] for figure in opened), f"{name}: {opened}"
    assert len(opened) >= FIGURES_OF[name], name
    tab.resize(1280, 900)
    tab.until("matchMedia('(width: 1280px)').matches")


def obstacles(tab: browser.Page) -> list[str]:
    """What axe-core finds serious or critical; the page is not the same afterwards."""
    tab.evaluate(FIRST_WORDS)
    tab.evaluate(AXE)
    return tab.evaluate(OBSTACLES)


@pytest.mark.slow
def test_a_browser_reads_every_page_offline(site: Path, address: str, tab: browser.Page) -> None:
    formulas = {}
    for name in html_pages(site):
        tab.open(address + name)
        tab.evaluate(  # images below the window are loaded only when they are asked for
            "Promise.all([...document.images].map(i => {i.loading = 'eager'; return i.decode()}))"
            ".then(() => true, () => false)"
        )
        report = tab.evaluate(PAGE_REPORT)
        assert not tab.problems, f"{name}: {tab.problems}"
        assert not report["errors"], f"{name}: {report['errors']}"
        assert not report["broken"], f"{name}: {report['broken']}"
        for what in ("unnamed", "nameless", "keyless"):
            assert not report[what], f"{name}: {what}: {report[what]}"
        if name in FIGURES_OF:
            check_on_a_telephone(name, tab)
        if name in LOOKED_AT:
            assert not (found := obstacles(tab)), f"{name}: {found}"
        assert report["rendered"] == report["formulas"], name
        away = [u for u in tab.requests if not u.startswith((address, "data:", "blob:"))]
        assert not away, f"{name} asks another host: {away}"
        formulas[name] = report["formulas"]
    assert all(formulas[f"notebooks/{name}.html"] for name in NOTEBOOKS)
    assert formulas["paper.html"] > 20


BAD_PAGE = r"""<link rel="icon" href="data:,">
<script>window.MathJax = {tex: {packages: {"[-]": ["noundefined"]}}}</script>
<script src="tex-svg.js"></script>
<img src="missing.png"><img src="http://example.invalid/away.png">
<span class="math">\(\unknown\)</span>
<script>console.error("said so"); setTimeout(() => { throw Error("thrown") }, 0)</script>"""


@pytest.mark.slow
def test_the_browser_sees_what_is_wrong(tmp_path: Path, tab: browser.Page) -> None:
    (tmp_path / "index.html").write_text(BAD_PAGE)
    (tmp_path / "tex-svg.js").write_bytes(build.mathjax())
    with served(tmp_path) as address:
        tab.open(address)
        report = tab.evaluate(PAGE_REPORT)
        assert "http://example.invalid/away.png" in tab.requests
    problems = "\n".join(tab.problems)
    for problem in ("404", "missing.png", "ERR_NAME_NOT_RESOLVED", "said so", "thrown"):
        assert problem in problems
    assert len(report["broken"]) == 2
    assert report["rendered"] == 1
    assert "unknown" in report["errors"][0]


@pytest.mark.slow
def test_a_page_opened_on_a_telephone_fits_it(address: str, tab: browser.Page) -> None:
    tab.resize(390, 800, mobile=True)
    name = f"notebooks/{NOTEBOOKS[0]}.html"
    tab.open(address + name)
    check_on_a_telephone(name, tab)


@pytest.mark.slow
def test_solutions_are_folded_and_open_on_a_click(address: str, tab: browser.Page) -> None:
    tab.open(address + f"notebooks/{NOTEBOOKS[0]}.html")
    folded = "[...document.querySelectorAll('details')]"
    answers = f"{folded}.filter(d => /exercise [12]:|Solution/.test(d.textContent))"
    assert tab.evaluate(f"{answers}.length") >= 4
    assert tab.evaluate(f"{answers}.every(d => !d.open)")
    tab.evaluate(f"{answers}[0].querySelector('summary').click()")
    tab.until(f"{answers}[0].open")


@pytest.mark.slow
def test_the_slider_works_without_a_kernel(address: str, tab: browser.Page) -> None:
    tab.open(address + "notebooks/03_correlation_grids.html")
    shown = "[...document.querySelectorAll('.explore img')].filter(i => i.style.display != 'none')"
    before = tab.evaluate(f"{shown}.map(i => i.alt)")
    assert len(before) == 1
    tab.evaluate(
        "(() => { const slider = document.querySelector('.explore input');"
        " slider.value = 4; slider.dispatchEvent(new Event('input')); })()"
    )
    after = tab.evaluate(f"{shown}.map(i => i.alt)")
    assert len(after) == 1
    assert after != before
    assert tab.evaluate("document.querySelector('.explore output').value") == after[0].split()[-1]
    assert tab.evaluate(f"{shown}[0].decode().then(() => true, () => false)")


@pytest.mark.slow
def test_search_finds_a_word(address: str, tab: browser.Page) -> None:
    tab.open(address + "search.html")
    tab.evaluate(
        "(() => { const form = [...document.querySelectorAll('form')]"
        ".find(f => f.querySelector('input[name=q]'));"
        " form.querySelector('input[name=q]').value = 'contraction'; form.submit(); })()"
    )
    tab.until("location.search.includes('contraction') && document.readyState == 'complete'")
    tab.until("document.querySelectorAll('ul.search li a').length > 0")
    found = tab.evaluate("[...document.querySelectorAll('ul.search li a')].map(a => a.href)")
    assert any("notebooks/01_theory_checks.html" in link for link in found), found
    assert not tab.problems
