"""The making of the book: docstrings and notebooks become pages, and errors stop it."""

import re
import shutil

import nbformat
import pages
import prose
import pytest
from programs import ROOT

DOCSTRING = r"""What it is: `f` of $gamma^2 <= ... zeta_mu \mu -> log x$

Args:
    name: what it
        means
    mean, second: (S, A)

Example:
    >>> f(2)
"""


def test_docstrings_become_restructured_text():
    lines = DOCSTRING.splitlines()
    prose.on_docstring(None, "property", "", None, None, lines)
    shown = [line for line in lines if line]
    assert shown[0] == r"What it is: `f` of :math:`\gamma^2 \le  \dots  \zeta_\mu \mu \to  \log x`"
    assert shown[1:] == [
        ":Parameters: * **name** -- what it",
        "               means",
        "             * **mean, second** -- (S, A)",
        ".. rubric:: Example",
        ">>> f(2)",
    ]


# ---- links, as a forge shows the files -----------------------------------------------------------

TEXTS = {
    p: p.read_text() for f in ("", "book", "benchmarks", "figures") for p in (ROOT / f).glob("*.md")
}
TEXTS |= {
    path: "\n\n".join(
        c.source for c in pages.Notebook.read(path).cells if c.cell_type == "markdown"
    )
    for path in (ROOT / "notebooks").glob("*.ipynb")
}
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def anchors(text):
    """What a forge lets a link to a file of Markdown end in."""
    headings = re.findall(
        r"^#+ (.*)$", CODE.sub(lambda code: code[0].strip("`"), text), re.MULTILINE
    )
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_work_where_the_files_are_read(page):
    text = CODE.sub("", TEXTS[page])
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]*)\"", text)
    for link in map("".join, links):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(TEXTS[target]), link
    assert not re.findall(r"\{(?:doc|ref|numref|download)\}|^\(\S+\)=$", text, re.MULTILINE)


def test_numbers_of_sections_lead_to_their_chapters():
    links = re.findall(r"\[(\d+)(\.\d+)\]\((\S+)\)", TEXTS[ROOT / "book" / "paper.md"])
    assert len(links) > 50
    for chapter, section, file in links:
        notebook = (ROOT / "book" / file).resolve()
        assert notebook.name.startswith(f"{chapter:0>2}_")
        assert f"## {chapter}{section} " in TEXTS[notebook]


def test_every_work_of_the_bibliography_can_be_found():
    text = TEXTS[ROOT / "book" / "background.md"]
    works = re.findall(r'^<a id="ref-\w+"></a>\n(.*)$', text, re.MULTILINE)
    dois = re.findall(r"\]\(https://doi\.org/(10\.\d{4,5}/[^\s)]+)\)", text)
    assert len(works) > 40
    assert len(set(dois)) == len(dois) >= 0.8 * len(works)
    assert all(re.search(r"\]\(https?://|ISBN [\d-]+", work) for work in works)


# ---- figures and claims --------------------------------------------------------------------------


def test_a_figure_that_no_chapter_draws_stops_the_build(tmp_path):
    shutil.copy(ROOT / "figures" / "book" / "fig_random_maps.png", tmp_path / "fig_lost.png")
    with pytest.raises(SystemExit, match=r"fig_lost\.png"):
        pages.gallery(tmp_path, [])


MARKDOWN = "text/markdown"


def cell(code, *tags, outputs=None):
    made = nbformat.v4.new_code_cell(code, outputs=outputs or [])
    made.metadata.tags = list(tags)
    return made


def notebook(*cells):
    return nbformat.v4.new_notebook(cells=list(cells))


def test_claims_become_a_table_that_tells_verdicts_apart():
    lines = "|S| | 5 | holds\nx | 0.4 | not reproduced\ny | -1 | differs from the paper\n"
    printed = nbformat.v4.new_output("stream", text=lines)
    table = pages.claims_table(notebook(cell("", "summary", outputs=[printed]))).data[MARKDOWN]
    assert table.splitlines()[2:] == [
        r"| \|S\| | 5 | holds |",
        "| x | 0.4 | *not reproduced* |",
        "| y | -1 | *differs from the paper* |",
    ]


def test_cells_that_only_prepare_draw_or_check_are_folded():
    prompts = {
        'chapter.save(fig, "x", data, out_dir)': "Show how it is drawn",
        'near = off < 1e-6\nclaims.check("near", near, near)': "Show the check",
        'm = jl.jipe2(jm, policy)\nclaims.check("x", 1, True)': None,
        "chapter.style()": "Show the imports",
        "m = jl.jipe2(a, b)": None,
    }
    assert {code: pages.prompt(cell(code)) for code in prompts} == prompts
    assert pages.prompt(cell("seed = 0", "parameters")) == "Show the parameters"
    assert pages.prompt(cell("def draw(ax): ...", "hide-input")) == "Show the preparation"
    assert pages.prompt(cell("claims.print()", "summary")) == "Show the check"
    shown = pages.annotated(pages.Notebook("01_one", notebook(*map(cell, prompts))))
    assert shown.count("hide-input") == 3
