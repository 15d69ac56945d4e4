"""The pages of the book in a real browser, without network."""

import html
import io
import re
from pathlib import Path

import axe_core_python
import matplotlib.image
import numpy as np
import pages
import pytest
from programs import ROOT

import jmdp_lib as jl

NOTEBOOKS = [pages.Notebook.read(path) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def texts(site):
    """The source of every page, by its address in the site."""
    return {
        path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")
    }


def html_pages(texts):
    """Names of the pages, without the theme's own and the library's source."""
    return sorted(name for name in texts if not name.startswith(("_static/", "_modules/")))


@pytest.fixture
def problems(tab, address):
    """Errors of pages, and their requests to other hosts, while a test reads them."""
    found = []
    own = (address, "data:", "blob:")
    tab.on("console", lambda line: line.type == "error" and found.append(line.text))
    tab.on("pageerror", lambda error: found.append(str(error)))
    tab.on("response", lambda r: r.status >= 400 and found.append(f"{r.status} {r.url}"))
    tab.on("request", lambda r: r.url.startswith(own) or found.append(f"another host: {r.url}"))
    return found


COMPLAINTS = """async () => {
    await window.MathJax?.startup?.promise;
    const count = choice => document.querySelectorAll(choice).length;
    const decoded = i => { i.loading = 'eager'; return i.decode().then(() => null, () => i.src); };
    const images = await Promise.all([...document.images].map(decoded));
    const errors = [...document.querySelectorAll('[data-mjx-error], g[data-mml-node=merror]')];
    const unread = count('.math') - count('.math mjx-container');
    const wide = document.documentElement.scrollWidth > window.innerWidth;
    return images.filter(Boolean).concat(errors.map(e => e.textContent || e.outerHTML))
        .concat(unread ? ['formulas that are not rendered'] : [], wide ? ['scrolls sideways'] : []);
}"""


TOO_WIDE = """() => {
    document.querySelectorAll('.bd-article details').forEach(e => { e.open = true; });
    return [...document.querySelectorAll('.bd-article .highlight pre')]
        .filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent);
}"""


@pytest.mark.parametrize("part", range(4))
def test_every_page_loads_without_errors(texts, address, tab, problems, part):
    """Nor does it ask another host, or scroll sideways."""
    for name in html_pages(texts)[part::4]:
        tab.set_viewport_size({"width": 390, "height": 800})
        tab.goto(address + name)
        assert problems + tab.evaluate(COMPLAINTS) == [], name
        tab.set_viewport_size({"width": 1280 - 15, "height": 800})  # beside a scroll bar
        assert tab.evaluate(TOO_WIDE) == [], name


# One page of each sort: axe-core takes seconds for a page.
LOOKED_AT = [
    *("gallery.html", "index.html", "api/jmdp_lib.large.ImplicitJMDP.html"),
    "notebooks/03_correlation_grids.html",
]
# The colours of code follow from its classes: the first word of each class stands for all.
FIRST_WORDS = """() => {
    const seen = new Set();
    for (const word of document.querySelectorAll('.highlight pre span[class]')) {
        const kind = word.closest('[class*=highlight-]')?.className + ' / ' + word.className;
        if (seen.has(kind)) word.replaceWith(word.textContent);
        else if (word.checkVisibility()) seen.add(kind);
    }
}"""
OBSTACLES = """() => axe.run({resultTypes: ['violations']}).then(found => found.violations
    .filter(v => ['serious', 'critical'].includes(v.impact))
    .map(v => v.id + ': ' + v.nodes.map(n => n.html.slice(0, 150)).slice(0, 3)))"""


@pytest.mark.parametrize("name", LOOKED_AT)
def test_axe_finds_nothing_serious(address, tab, name):
    tab.goto(address + name)
    tab.evaluate("window.MathJax?.startup?.promise?.then(() => true)")
    tab.evaluate(FIRST_WORDS)
    tab.add_script_tag(path=Path(axe_core_python.__file__).with_name("axe.min.js"))
    assert not tab.evaluate(OBSTACLES)


# What is wrong on A4 paper, with margins of 15 mm.
PAPER = """() => {
    const shown = e => e.checkVisibility({visibilityProperty: true, contentVisibilityAuto: true});
    const all = choice => [...document.querySelectorAll('.bd-article ' + choice)];
    const right = e => e.getBoundingClientRect().right;
    const edge = right(document.querySelector('.bd-article')) + 1;
    const cut = e => e.scrollWidth > e.clientWidth + 1 || right(e) > edge;
    const wide = all('pre, .bd-article mjx-container, .bd-article table').filter(shown).filter(cut);
    const solutions = all('details:not(.hide) p');
    const code = all('.tag_hide-cell .cell_input');
    const hidden = code.filter(e => !shown(e) || e.getAnimations().length);
    const folded = all('.tag_hide-input:not(.tag_hide-cell) .cell_input').filter(shown);
    return [...wide, ...hidden, ...solutions.filter(e => !shown(e)), ...folded]
        .map(e => e.textContent)
        .concat(document.documentElement.dataset.theme === 'light' ? [] : ['the theme'])
        .concat(solutions.length ? [] : ['no solutions']);
}"""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_paper_has_the_solutions_and_whole_lines_of_code(address, tab, notebook):
    tab.goto(f"{address}notebooks/{notebook.name}.html")
    tab.evaluate("window.MathJax.startup.promise.then(() => true)")
    tab.evaluate("document.documentElement.dataset.theme = 'dark'")
    tab.set_viewport_size({"width": 680, "height": 1000})
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate(PAPER) == []
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.emulate_media(media="screen")
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.locator(".bd-article details[open]").count() == 0


LEVELS = np.linspace(0.0, 1.0, 201)


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("index.html", ".live-gaps"),
        ("gallery.html", "figure img"),
        ("notebooks/03_correlation_grids.html", ".cell_output figure img"),
        ("notebooks/03_correlation_grids.html", ".explore img"),
    ],
)
def test_figures_on_a_dark_page_are_dimmed(address, tab, name, choice):
    """They keep their colours: captions name black and white, so nothing is inverted."""
    tab.goto(address + name)
    figure = tab.locator(f".bd-article {choice}").first
    figure.scroll_into_view_if_needed()
    levels = {}
    for theme in ("light", "dark"):
        tab.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        picture = matplotlib.image.imread(io.BytesIO(figure.screenshot()))
        levels[theme] = np.quantile(picture[16:-16, 16:-16, :3], LEVELS, axis=(0, 1))
    assert levels["light"].max() == 1.0
    assert np.abs(levels["dark"] - 0.8 * levels["light"]).mean() < 0.03
    assert levels["dark"].max() < 0.85


def test_search_finds_a_word(address, tab):
    tab.goto(address + "search.html?q=contraction")
    links = tab.locator("ul.search li a")
    links.first.wait_for()
    found = links.evaluate_all("links => links.map(a => a.href)")
    assert any("notebooks/01_theory_checks.html" in link for link in found), found


# ---- the figure with sliders --------------------------------------------------------------------


def fair(coupling, gamma, shock):
    """A model of the sliders' world, its two normal shocks on twelve nodes each."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    odds = np.outer(weights, weights).ravel() / weights.sum() ** 2

    def step(state, stall, outcome):
        sky, luck = nodes[outcome // 12], nodes[outcome % 12]
        other = coupling * sky + np.sqrt(1 - coupling**2) * luck
        return (12 + 3 * shock * sky if stall == 0 else 10 + 2 * shock * other), 0

    return jl.JMDP.from_step(1, 2, gamma, odds, step)


SET_SLIDERS = """settings => {
    const figure = document.querySelector('.live');
    for (const [name, value] of Object.entries(settings)) {
        const slider = figure.querySelector(`input[name=${name}]`);
        slider.value = value;
        slider.dispatchEvent(new Event('input'));
        slider.dispatchEvent(new Event('change'));
    }
    return Object.fromEntries([...figure.querySelectorAll('data')]
        .map(d => [d.dataset.number, Number(d.value)]));
}"""
# Coupling, discount factor, shock: the three worlds of chapter 0, settings between them, corners.
SETTINGS = [(1.0, 0.5, 1.0), (0.0, 0.5, 1.0), (-1.0, 0.5, 1.0), (0.35, 0.8, 0.6)]
SETTINGS += [(-0.6, 0.9, 1.5), (0.75, 0.0, 1.2), (-1.0, 0.9, 0.05)]


@pytest.mark.parametrize("name", ["index.html", "notebooks/00_start_here.html"])
def test_the_sliders_solve_what_jipe2_solves(address, tab, name):
    tab.goto(address + name)
    for coupling, gamma, shock in SETTINGS:
        settings = {"coupling": coupling, "gamma": gamma, "shock": shock}
        shown = tab.evaluate(SET_SLIDERS, settings)
        moments = jl.jipe2(fair(**settings), [[0.5, 0.5]], tol=1e-10).moments
        exact = {
            "correlation": moments.correlation[0, 0, 1],
            "gapMean": moments.gap_mean[0, 0, 1],
            "gapVariance": moments.gap_variance[0, 0, 1],
            "bound": moments.inferiority_bound[0, 0, 1],
        }
        for what, value in exact.items():
            assert shown[what] == pytest.approx(value, rel=1e-6, abs=1e-7), (coupling, gamma, what)
        gap = exact["gapMean"] ** 2 / max(exact["gapVariance"], 1e-12)
        assert shown["worse"] <= 1 / (1 + gap) + 0.05  # the simulated pairs obey the bound


def test_without_a_shock_no_number_is_made_up(address, tab):
    tab.goto(address + "index.html")
    tab.evaluate(SET_SLIDERS, {"coupling": 1.0, "gamma": 0.0, "shock": 0.0})
    shown = tab.locator("[data-number=correlation]").text_content()
    assert shown == "none: nothing is random"
    assert not tab.locator("[data-live] > p").first.is_visible()  # the printed figure


# ---- what is there ------------------------------------------------------------------------------


def test_every_notebook_figure_and_public_name_is_in_the_book(site, texts):
    assert all(f'href="notebooks/{nb.name}.html"' in texts["index.html"] for nb in NOTEBOOKS)
    assert all(f"/{path.name}" in texts["gallery.html"] for path in ROOT.glob("figures/**/*.png"))
    for name in pages.public_names():
        assert re.search(rf'href="api/{name}\.html[#"]', texts["reference.html"])
        page = texts[f"api/{name}.html"]
        objects = re.findall(
            r'<dl class="py (?:class|exception|function).*?id="([^"]+)"', page, re.S
        )
        assert objects == [name] or (f'id="module-{name}"' in page and not objects)
    for nb in NOTEBOOKS:
        download = site / "_sources" / "notebooks" / f"{nb.name}.ipynb"
        assert pages.Notebook.read(download).cells == nb.cells


def test_links_of_the_site_lead_somewhere(site, texts):
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in texts.items()}
    for name, text in texts.items():
        for link in set(re.findall(r'<a [^>]*href="([^"]*)"', text)):
            file, _, anchor = html.unescape(link).partition("#")
            target = (site / name).parent.joinpath(file).resolve() if file else site / name
            if "://" not in link:
                assert target.exists(), f"{name}: {link}"
                assert not anchor or anchor in anchors[str(target.relative_to(site))], (name, link)


def test_the_end_of_every_page_says_licence_version_and_year(texts):
    [owner] = re.findall(
        r"^Copyright \(c\) (\d{4} .*)$", (ROOT / "LICENSE").read_text(), re.MULTILINE
    )
    for name in html_pages(texts):
        _, _, footer = texts[name].partition('<footer class="bd-footer-content">')
        assert f"© Copyright {owner}." in footer, name
        assert f"version {jl.__version__}, MIT licence" in footer, name


def test_every_definition_lemma_and_exercise_is_in_a_box(texts):
    kinds = (
        r"^\*\*(?:Definition|Assumption|Lemma|Theorem|Remark|Exercise) [\dAB.]+(?: \(.*\))?\.\*\*"
    )
    for nb in NOTEBOOKS:
        prose = "\n\n".join(c.source for c in nb.cells if c["cell_type"] == "markdown")
        statements = len(re.findall(kinds, prose, re.MULTILINE))
        page = texts[f"notebooks/{nb.name}.html"]
        assert len(re.findall(r'class="[^"]*\bstatement\b', page)) == statements, nb.name


# A lemma ends with its last paragraph; prose has links to statements, sections and functions.
PROSE = [
    ("01_theory_checks", r"<p>Then .*</p>\n</div>\n<p><em>Proof"),
    ("08_learning", 'href="01_theory_checks.html#lemma-5-2-01-theory-checks">Lemma 5.2<'),
    ("00_start_here", r'href="01_theory_checks.html#[\w-]+">section 1.5<'),
    ("00_start_here", 'href="../api/jmdp_lib.jipe2.html#jmdp_lib.jipe2"><code'),
]


def test_prose_is_in_boxes_and_has_links(texts):
    for name, part in PROSE:
        assert re.search(part, texts[f"notebooks/{name}.html"]), part


def test_no_page_names_the_folder_it_was_built_in(site, texts):
    scripts = [path.read_text("utf-8") for path in site.rglob("*.js")]
    assert not [t for t in [*scripts, *texts.values()] if str(ROOT) in t or str(site) in t]
