"""The pages of the book: every link leads somewhere, and a real browser reads them offline."""

from __future__ import annotations

import copy
import functools
import html.parser
import re
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import api
import axe_core_python
import browser
import build
import pages
import pytest
from bs4 import BeautifulSoup
from conftest import served

ROOT = Path(__file__).resolve().parents[1]
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
    for number, section in enumerate(sections, 1):
        assert section["id"] == f"decision-{number}"
        assert len(section.select("dl > dt")) >= 3, section.h3.get_text()


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
FIGURES_OF |= {f"notebooks/{NOTEBOOKS[0]}.html": 0, "notebooks/03_correlation_grids.html": 9}
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


def check_figures(name: str, tab: browser.Page) -> None:
    opened = tab.evaluate(FULL_SIZE)
    assert all(figure["same"] for figure in opened), f"{name}: {opened}"
    assert len(opened) >= FIGURES_OF[name], name


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
            check_figures(name, tab)
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
def test_solutions_are_folded_and_open_on_a_click(address: str, tab: browser.Page) -> None:
    tab.open(address + f"notebooks/{NOTEBOOKS[0]}.html")
    folded = "[...document.querySelectorAll('details')]"
    answers = f"{folded}.filter(d => /Solution/.test(d.textContent))"
    assert tab.evaluate(f"{answers}.length") >= 2
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
