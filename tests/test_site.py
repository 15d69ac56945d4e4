"""The site: the figure with sliders, the first page, boxes and references, a telephone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import browser
import download
import nbformat
import numpy as np
import pages
import pytest
import statements
import telephone
from bs4 import BeautifulSoup
from scipy.special import ndtri

import jmdp_lib as jl
from jmdp_lib import figures

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# ---- the figure with sliders --------------------------------------------------------------------


def fair(coupling: float, gamma: float, gust: float) -> jl.JMDP:
    """The world of the sliders, its two normal shocks on twelve nodes each."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    odds = np.outer(weights, weights).ravel() / weights.sum() ** 2

    def step(state: int, stall: int, outcome: int) -> tuple[float, int]:
        sky, luck = nodes[outcome // 12], nodes[outcome % 12]
        other = coupling * sky + np.sqrt(1 - coupling**2) * luck
        return (12 + 3 * gust * sky if stall == 0 else 10 + 2 * gust * other), 0

    return jl.JMDP.from_step(1, 2, gamma, odds, step)


SET_SLIDERS = """(settings => {
    const figure = document.querySelector('.live');
    for (const [name, value] of Object.entries(settings)) {
        const slider = figure.querySelector(`input[name=${name}]`);
        slider.value = value;
        slider.dispatchEvent(new Event('input'));
        slider.dispatchEvent(new Event('change'));
    }
    return Object.fromEntries([...figure.querySelectorAll('data')]
        .map(d => [d.dataset.number, Number(d.value)]));
})"""
# Coupling, discount factor, gust: the three worlds of chapter 0, settings between them, corners.
SETTINGS = [(1.0, 0.5, 1.0), (0.0, 0.5, 1.0), (-1.0, 0.5, 1.0), (0.35, 0.8, 0.6)]
SETTINGS += [(-0.6, 0.9, 1.5), (0.75, 0.0, 1.2), (-1.0, 0.9, 0.05)]


def numbers_shown(tab: browser.Page, coupling: float, gamma: float, gust: float) -> dict:
    settings = f"{{coupling: {coupling}, gamma: {gamma}, gust: {gust}}}"
    return tab.evaluate(f"{SET_SLIDERS}({settings})")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index.html", "notebooks/00_start_here.html"])
def test_the_sliders_solve_what_jipe2_solves(address: str, tab: browser.Page, name: str) -> None:
    tab.open(address + name)
    for coupling, gamma, gust in SETTINGS:
        shown = numbers_shown(tab, coupling, gamma, gust)
        moments = jl.jipe2(fair(coupling, gamma, gust), [[0.5, 0.5]], tol=1e-10).moments
        exact = {
            "correlation": moments.correlation[0, 0, 1],
            "gapMean": moments.gap_mean[0, 0, 1],
            "gapVariance": moments.gap_variance[0, 0, 1],
            "bound": moments.inferiority_bound[0, 0, 1],
        }
        for what, value in exact.items():
            assert shown[what] == pytest.approx(value, rel=1e-6, abs=1e-7), (coupling, gamma, what)
    assert not tab.problems


@pytest.mark.slow
def test_the_cloud_of_the_sliders_is_that_of_simulated_pairs(
    address: str, tab: browser.Page
) -> None:
    tab.open(address + "index.html")
    sky = ndtri((np.arange(1000) + 0.5) / 1000)  # as in chapter 0
    odds = np.full(1000, 1 / 1000)
    for sign, coupling in ((1, "joint"), (1, "independent"), (-1, "joint")):
        rewards = np.stack([12 + 3 * sky, 10 + 2 * sign * sky], axis=-1)
        model = jl.JMDP([odds], [rewards], np.zeros((1, 1000, 2), int), 0.5)
        pairs = jl.simulate_pairs(model, [[0.5, 0.5]], 0, (0, 1), 40_000, 0, coupling=coupling)
        share = np.mean(pairs[:, 0] < pairs[:, 1])
        error = np.sqrt(share * (1 - share) / 3000)  # of the 3,000 pairs in the page
        correlation = sign if coupling == "joint" else 0
        assert abs(numbers_shown(tab, correlation, 0.5, 1.0)["worse"] - share) < 5 * error


@pytest.mark.slow
def test_without_a_gust_no_number_is_made_up(address: str, tab: browser.Page) -> None:
    tab.open(address + "index.html")
    numbers_shown(tab, 1.0, 0.0, 0.0)
    said = tab.evaluate("document.querySelector('[data-number=correlation]').textContent")
    assert said == "none: nothing is random"


@pytest.mark.slow
def test_the_figure_can_be_used_by_keyboard_and_ear(address: str, tab: browser.Page) -> None:
    tab.open(address + "index.html")
    named = "[...document.querySelectorAll('.live input')].map(e => e.labels[0].textContent)"
    assert tab.evaluate(named) == ["Coupling", "Discount factor γ", "Gust, size of the shock"]
    spoken = "document.querySelector('.live [aria-live]').textContent"
    tab.evaluate("document.querySelector('[data-world=umbrellas]').click()")
    assert "antithetic" in tab.evaluate(spoken)
    assert tab.evaluate("document.querySelector('input[name=coupling]').value") == "-1"
    tab.evaluate("document.querySelector('input[name=coupling]').focus()")
    tab.press("ArrowRight")
    tab.until("document.querySelector('input[name=coupling]').value == '-0.95'")
    assert tab.evaluate("document.querySelector('.live canvas').ariaLabel")


@pytest.mark.slow
def test_without_a_script_the_printed_figure_is_there(site: Path) -> None:
    page = BeautifulSoup((site / "index.html").read_text(encoding="utf-8"), "html.parser")
    assert page.select_one("[data-live=fair] figure img[alt]") is not None


# ---- the first page -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_first_page_leads_three_ways(site: Path) -> None:
    page = BeautifulSoup((site / "index.html").read_text(encoding="utf-8"), "html.parser")
    minutes = {
        path.stem: f"{pages.Notebook.read(path).minutes}\u00a0min" for path in CHAPTERS
    }  # computed, not typed
    ways = page.select(".path")
    assert len(ways) == 3
    for way in ways:
        chapters = way.select("li:has(a[href^='notebooks/'])")
        assert len(chapters) >= 4
        for chapter in chapters:
            name = Path(chapter.a["href"]).stem
            assert minutes[name] in chapter.get_text()
            assert len(chapter.get_text().split()) > 5  # and a line about it
    links = {a["href"] for a in page.select("article a")}
    assert {"https://arxiv.org/abs/2603.06946", "https://github.com/egecky/jmdp"} <= links
    code = page.select_one("article pre").get_text()
    assert "make figures" in code
    assert "make test" in code


def test_a_chapter_that_is_not_there_stops_the_build() -> None:
    with pytest.raises(pages.BookError, match="chapter 11"):
        pages.with_chapters("<!-- chapter: 11 -->", [])


# ---- set-up, boxes, references ------------------------------------------------------------------


def test_set_up_is_folded() -> None:
    parameters = {"source": "seed = 0", "metadata": {"tags": ["parameters"]}}
    imports = {"source": "import numpy as np\n\nfigures.style()"}
    assert pages.is_folded(parameters)
    assert pages.is_folded(imports)
    prompts = [pages.prompt(cell) for cell in (parameters, imports)]
    assert prompts == ["Show the parameters", "Show the imports"]


LEMMA = """## 1.4 Contraction

**Lemma 5.2.** Let $x$ and

$$y = 2x. \\tag{20}$$

Then $y > x$.

*Proof.* By Lemma 5.2. `Lemma 5.2`

**Exercise 1.** Why?

<details><summary>Solution</summary>"""


def test_a_statement_becomes_a_box_that_prose_leads_to() -> None:
    notebook = pages.Notebook("01_one", {"cells": [{"cell_type": "markdown", "source": LEMMA}]})
    targets = statements.reference_targets([notebook])
    assert targets["Lemma 5.2"] == "lemma-5.2-01_one"
    assert targets["Exercise 1.1"] == "exercise-1.1-01_one"
    shown = statements.cross_referenced(statements.boxed(LEMMA, "01_one"), targets)
    lemma, after = shown.split("\n::::\n", 1)
    assert "::::{admonition} Lemma 5.2\n:class: statement lemma\n:name: lemma-5.2-01_one" in lemma
    assert lemma.endswith("Then $y > x$.")
    assert "*Proof.* By [Lemma 5.2](#lemma-5.2-01_one). `Lemma 5.2`" in after
    assert "{admonition} Exercise 1.1" in after
    assert after.endswith("Why?\n::::\n\n<details><summary>Solution</summary>")


def test_references_lead_only_to_what_is_there() -> None:
    targets = {"section 1.4": "sec-1.4", "decision 3": "decision-3"}
    text = "section 1.4, section 1.40, Section 1.4, Decision 3 and **Decision 3: so.**"
    linked = "[section 1.4](#sec-1.4), section 1.40, Section 1.4, "
    linked += "[Decision 3](#decision-3) and **Decision 3: so.**"
    assert statements.cross_referenced(text, targets) == linked


@pytest.mark.slow
def test_every_definition_lemma_and_exercise_is_in_a_box(site: Path) -> None:
    for path in CHAPTERS:
        notebook = pages.Notebook.read(path)
        texts = [pages.source(c) for c in notebook.cells if c["cell_type"] == "markdown"]
        leads = [lead for text in texts for lead in statements.LEAD.finditer(text)]
        html = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        boxes = BeautifulSoup(html, "html.parser").select(".admonition.statement")
        assert len(boxes) == len(leads) >= 2, path.stem
        assert all(box.get("id") for box in boxes)


def test_a_citation_shows_what_it_cites() -> None:
    cited = statements.citations('(ref-one)=\n**One (2000).** *A "title".* Press.\n')
    page = statements.with_hovers('<a href="b.html#ref-one"><a href="#ref-two">', cited)
    title = "One (2000). A &quot;title&quot;. Press."
    assert page == f'<a href="b.html#ref-one" title="{title}"><a href="#ref-two">'


@pytest.mark.slow
def test_every_citation_of_a_chapter_has_its_hover(site: Path) -> None:
    html = (site / "notebooks" / "01_theory_checks.html").read_text(encoding="utf-8")
    links = BeautifulSoup(html, "html.parser").select("article a[href*='#ref-']")
    assert links
    assert all(len(link.get("title", "")) > 20 for link in links)


# ---- a notebook that is downloaded alone --------------------------------------------------------


def test_a_downloaded_notebook_says_what_to_install() -> None:
    for path in CHAPTERS:
        content = json.loads(download.standalone(pages.Notebook.read(path), ROOT))
        nbformat.validate(content)
        first = content["cells"][0]
        assert first["cell_type"] == "markdown"
        said = re.search(r"pip install (?:-e )?\"\.\[([\w,]+)\]\"(.*)", first["source"])
        assert said, path.stem
        code = "".join(pages.source(c) for c in content["cells"] if c["cell_type"] == "code")
        assert ("experiments" in code) == (said[1] == "notebooks")
        if said[1] != "notebooks":
            assert ("seaborn" in code) == ("seaborn" in said[2])
            assert ("jmdp_lib.atari" in code) == ("atari" in said[1])


@pytest.mark.slow
def test_a_downloaded_notebook_runs_in_an_empty_folder(tmp_path: Path) -> None:
    notebook = pages.Notebook.read(CHAPTERS[0])
    copy = tmp_path / "download.ipynb"
    copy.write_text(download.standalone(notebook, ROOT), encoding="utf-8")
    sizes = ["-p", "num_pairs", "100", "-p", "num_updates", "100"]
    command = [sys.executable, "-m", "papermill", copy.name, "run.ipynb", *sizes]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert pages.Notebook.read(tmp_path / "run.ipynb").claims()


def test_a_downloaded_notebook_brings_the_measurements_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = next(path for path in CHAPTERS if path.stem.startswith("07"))
    cells = json.loads(download.standalone(pages.Notebook.read(path), ROOT))["cells"]
    first = [c["source"] for c in cells if c["id"] == "files" or "parameters" in pages.tags(c)]
    assert len(first) == 2
    names: dict[str, list[str]] = {}
    exec("\n".join(map("".join, first)), names)
    found = figures.results(names["result_files"])
    assert len(found) > 10
    own = figures.results([str(ROOT / "benchmarks" / Path(f).name) for f in names["result_files"]])
    assert found.equals(own)


# ---- a telephone --------------------------------------------------------------------------------


def test_a_figure_is_as_wide_as_its_smallest_text_needs() -> None:
    for path in (ROOT / "figures").glob("*.pdf"):
        sizes = telephone.font_sizes(path.read_bytes())
        assert 4 < min(sizes) <= max(sizes) < 20, path.name
        assert 100 < telephone.readable_width(path) < 1100


# How large the smallest text of a figure is, in pixels, and whether all of the figure can be seen.
# The frames of chapter 3's slider are drawn in the size that their text needs.
FIGURES_ON_A_TELEPHONE = """Promise.all([...document.querySelectorAll('.cell_output figure img')]
    .filter(i => i.checkVisibility()).map(async i => {
        i.loading = 'eager';
        await i.decode();
        await new Promise(requestAnimationFrame);
        const needed = Number(/readable-(\\d+)/.exec(i.className)?.[1] || i.naturalWidth);
        const frame = i.closest('a');
        return {alt: i.alt.slice(0, 50), text: 9 * i.getBoundingClientRect().width / needed,
                reached: frame.scrollWidth >= i.getBoundingClientRect().width - 1
                    && ['auto', 'scroll'].includes(getComputedStyle(frame).overflowX)};
    }))"""
# Tables that are wider than the page, and whether each scrolls in a box of its own.
WIDE_TABLES = """[...document.querySelectorAll('.bd-article table')]
    .filter(t => t.checkVisibility() && t.getBoundingClientRect().right > innerWidth)
    .map(t => ({right: Math.round(t.getBoundingClientRect().right), html: t.outerHTML.slice(0, 200),
                boxed: getComputedStyle(t.parentElement).overflowX == 'auto'}))"""
# Words of tables and of the index that begin on one line and end on the next.
CUT_WORDS = """(() => {
    const cut = [], tables = document.querySelectorAll('.bd-article table');
    for (const table of tables) {
        const texts = document.createTreeWalker(table, NodeFilter.SHOW_TEXT), range = new Range();
        while (texts.nextNode()) {
            const text = texts.currentNode;
            const place = text.parentElement;
            if (!place.checkVisibility() || place.closest('mjx-container')) continue;
            for (const word of text.data.matchAll(/\\p{L}{3,}/gu)) {
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                const tops = [...range.getClientRects()].map(box => Math.round(box.top));
                if (new Set(tops).size > 1) cut.push(word[0]);
            }
        }
    }
    return cut;
})()"""
# Formulas in a line that scroll although they fit, or that have lost their full stop.
BAD_FORMULAS = """[...document.querySelectorAll('.bd-article span.math')].filter(formula => {
    const box = formula.querySelector('mjx-container'), svg = box?.querySelector('svg');
    if (!svg?.checkVisibility()) return false;
    const fits = svg.getBoundingClientRect().width <= box.clientWidth + 1.5;
    if (!fits) return false;
    const after = formula.nextSibling, short = formula.offsetWidth < innerWidth / 2;
    const lost = short && after?.nodeType == Node.TEXT_NODE && /^[.,;:]/.test(after.data);
    return lost || box.scrollWidth > box.clientWidth;
}).map(formula => formula.textContent.slice(0, 80))"""
# What is printed and scrolls. Only what has columns may: lines in which words stand apart.
PRINTED_TOO_WIDE = """[...document.querySelectorAll('.bd-article .cell_output pre')]
    .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
    .filter(e => e.textContent.split('\\n').filter(line => /\\S {2,}\\S/.test(line)).length < 2)
    .map(e => e.textContent.slice(0, 100))"""
# Printed tables, of a chapter and of an example in the reference.
PRINTED_TABLES = {
    "notebooks/07_scaling.html": ".cell_output pre.columns",
    "api/jmdp_lib.html": ".highlight-pycon pre .go.columns",
}
CODE_ON_A_TELEPHONE = """[...document.querySelectorAll('.highlight pre')]
    .filter(e => !e.closest('.cell_output') && !e.querySelector('.columns') && e.checkVisibility())
    .filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.textContent.slice(0, 100))"""


@pytest.mark.slow
def test_everything_can_be_read_on_a_telephone(site: Path, address: str, tab: browser.Page) -> None:
    names = sorted(path.relative_to(site).as_posix() for path in site.glob("notebooks/*.html"))
    names += sorted(path.relative_to(site).as_posix() for path in site.glob("api/*.html"))
    names += sorted(path.name for path in site.glob("*.html"))
    tab.resize(390, 800, mobile=True)
    num_figures = 0
    for name in names:
        tab.open(address + name)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390, name
        shown = tab.evaluate(FIGURES_ON_A_TELEPHONE)
        small = [f for f in shown if f["text"] < telephone.SMALLEST_TEXT - 0.1]
        assert not small, f"{name}: {small}"
        assert all(f["reached"] for f in shown), f"{name}: {shown}"
        wide = tab.evaluate(WIDE_TABLES)
        assert all(table["boxed"] and table["right"] < 500 for table in wide), f"{name}: {wide}"
        for faults in (CUT_WORDS, BAD_FORMULAS, PRINTED_TOO_WIDE, CODE_ON_A_TELEPHONE):
            assert not (found := tab.evaluate(faults)), f"{name}: {found}"
        num_figures += len(shown)
    tab.resize(1280, 900)
    assert num_figures >= 40


@pytest.mark.slow
def test_printed_text_wraps_and_printed_tables_keep_their_columns(
    address: str, tab: browser.Page
) -> None:
    for name in ("09_gap_law", "10_which_action", "11_simulators"):
        tab.open(address + f"notebooks/{name}.html")
        assert not (found := tab.evaluate(PRINTED_TOO_WIDE)), f"{name}: {found}"
    tab.resize(390, 800, mobile=True)
    for name, tables in PRINTED_TABLES.items():
        tab.open(address + name)
        found = tab.evaluate(
            f"[...document.querySelectorAll('{tables}')].map(e => getComputedStyle(e).whiteSpace)"
        )
        assert len(found) >= 1, name
        assert set(found) == {"pre"}, name
    tab.resize(1280, 900)


@pytest.mark.slow
def test_a_figure_says_that_there_is_more_to_the_right(address: str, tab: browser.Page) -> None:
    tab.resize(390, 800, mobile=True)
    for name in ("own_simulator.html", "notebooks/09_gap_law.html"):
        tab.open(address + name)
        tab.until("document.querySelectorAll('a.figure-alone.more-to-the-right').length > 0")
        hint = (
            "getComputedStyle(document.querySelector('a.figure-alone.scrolls'), '::after').content"
        )
        assert "swipe" in tab.evaluate(hint), name
        tab.evaluate("document.querySelector('a.figure-alone.scrolls').scrollLeft = 9999")
        tab.until("!document.querySelector('a.figure-alone.scrolls').matches('.more-to-the-right')")
    tab.resize(1280, 900)
