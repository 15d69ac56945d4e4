"""Figures that texts quote: each names its source, and is the number that stands there.

A figure is a number with a unit of time, memory or sizes, a share, or a ratio; on the page of
limitations every decimal is one. The comment that follows it names its source,

    <!-- benchmarks/gap_law.md: random, 60 states: time -->

a file, words that one row of it has, or `states=100` for a whole cell, and columns of that row, all
separated by semicolons. Rows of a file that is no table are its lines, and have no columns. A
comment belongs to all figures that stand before it in its paragraph or row of a table, from the
last comment on. A figure that no file has says `<!-- by hand: when and how -->`. In Python,
`# source: ` and the same follows the docstring, where only digits are figures.
"""

import ast
import csv
import re

import pytest
from programs import ROOT

# In base units.
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "second": 1.0, "seconds": 1.0, "processor seconds": 1.0}
UNITS |= {"min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0, "days": 86400.0}
UNITS |= {"GB": 1e9, "MB": 1e6, "%": 0.01, "times": 1.0, "fold": 1.0, "states": 1.0, "cells": 1.0}
VALUES = {"half a": 0.5, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}
VALUES |= {"eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "twenty": 20}
WORD = "|".join(rf"\b{word}" for word in VALUES)
NUMBER = rf"(?<![\w.^/{{-])(\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|\.\d+|{WORD})"
FIGURE = re.compile(rf"{NUMBER}(?:[ -]?({'|'.join(sorted(UNITS, key=len, reverse=True))}))?(?!\w)")
SMALL = re.compile(rf"(?:\d{{1,3}}|{WORD})[ -](?:states|cells)")  # those of an example, and no size
NOMINAL = "95%"  # of intervals
SOURCE = re.compile(r"<!-- ((?:by hand|[\w/]+\.(?:md|csv|py)): [^>]+?) -->")
# Not sentences: code, output of programs, formulas, tags of HTML, and addresses of links.
NO_TEXT = re.compile(
    r"^```.*?^```$|^<!-- begin.*?^<!-- end[^>]*-->$|`[^`]*`|\$[^$]*\$|<\w[^>]*>|\]\([^)]*\)",
    re.MULTILINE | re.DOTALL,
)


def value(number, unit):
    """A number in base units, and how far the true one may be from it, which was rounded."""
    scale = UNITS.get(unit, 1.0)
    if number in VALUES:
        return VALUES[number] * scale, 0.5 * scale
    digits = number.replace(",", "")
    after = len(digits.partition(".")[2])
    zeros = len(digits) - len(digits.rstrip("0"))
    half = 0.5 * 10.0 ** (-after if after else max(min(zeros, len(digits) - 2), 0))
    return float(digits) * scale, half * scale * (1.0 + 1e-9)


def rows_of(path):
    """The rows of a table as dictionaries, or the lines of any other file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines()))
    if path.suffix != ".md":
        return [{"": line} for line in text.splitlines()]
    rows, heads = [], None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            heads = None
        elif heads is None:
            heads = cells
        else:
            rows.append(dict(zip(heads, cells, strict=False)))
    return rows


def has_words(row, words):
    """True if every word is in a cell of this row, or is `head=cell`."""
    cells = [f"{head}={cell}" for head, cell in row.items()]
    return all(word in cells or any(word in cell for cell in row.values()) for word in words)


def listed(words):
    return [word.strip() for word in words.split(";")]


def quoted(source):
    """All numbers of a source, in base units."""
    file, words, *columns = source.split(": ")
    names = listed(columns[0]) if columns else [""]
    rows = [row for row in rows_of(ROOT / file) if row.keys() >= {*names}]
    rows = [row for row in rows if has_words(row, listed(words))]
    assert len(rows) == 1, f"{source}: {len(rows)} rows"
    return [value(*found)[0] for found in FIGURE.findall(" ; ".join(rows[0][x] for x in names))]


def sentences(text):
    """A text without code, formulas and tags, in paragraphs and rows of tables.

    A comment that is a paragraph of its own belongs to the one above it, which may be code.
    """
    text = re.sub(rf"\n\s*\n(?={SOURCE.pattern})", "\n", text)
    return re.split(r"\n\s*\n|\|\n", NO_TEXT.sub(" ", text))


def figures(text, decimals=False):
    """The figures of a text: as printed, number and unit, and the source or None."""
    for block in sentences(text):
        start = 0
        parts = [(m.start(), m.end(), m[1]) for m in SOURCE.finditer(block)]
        for end, after, source in [*parts, (len(block), len(block), None)]:
            for found in FIGURE.finditer(block[start:end]):
                is_one = found[2] or (decimals and "." in found[1])
                if is_one and found[0] != NOMINAL and not SMALL.fullmatch(found[0]):
                    yield found[0], found[1], found[2], source
            start = after


DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef
PAGES = {"README.md": False, "book/limitations.md": True, "book/own_simulator.md": False}
PAGES |= {"book/large_models.md": False}


def check(where, quotes):
    for shown, number, unit, source in quotes:
        assert source, f"{where}: {shown} names no source"
        if not source.startswith("by hand"):
            x, reach = value(number, unit)
            there = quoted(source)
            assert any(abs(x - y) <= reach for y in there), (
                f"{where}: {shown}, but {source}: {there}"
            )


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_of_a_page_is_that_of_its_source(page):
    quotes = list(figures((ROOT / page).read_text(encoding="utf-8"), decimals=PAGES[page]))
    assert quotes
    check(page, quotes)


def test_every_figure_of_a_chapter_that_names_a_source_is_its():
    num_found = 0
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        text = re.sub("^# ?", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found = [x for x in figures(text, decimals=True) if x[3]]
        check(path.name, found)
        num_found += len(found)
    assert num_found


def test_every_figure_of_a_docstring_is_that_of_its_source():
    for path in sorted((ROOT / "jmdp_lib").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            doc = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            quotes = [x[:3] for x in figures(doc or "") if x[1] not in VALUES]
            below = text.splitlines()[node.body[0].end_lineno :] if quotes else [""]
            source = re.match(r" *# source: (.*)", below[0])
            check(f"{path.name}: {(doc or '')[:60]}", [(*x, source and source[1]) for x in quotes])


LARGEST = "<!-- benchmarks/scaling.csv: goal policy; reachable; states=99856:"
WHOLE = "<!-- benchmarks/local.md: all pairs; 10,000: CPU, wall -->"


def test_a_figure_that_its_source_does_not_have_is_an_error():
    for text, fault in {
        "It takes 14 s.": "14 s names no source",
        f"4.0 GB {LARGEST} bytes --> in 14 s": "14 s names no source",
        f"It takes 19 s. {LARGEST} seconds -->": "19 s, but benchmarks/scaling.csv",
        f"It takes nine minutes {WHOLE}.": "nine minutes, but",
        "14 s <!-- benchmarks/scaling.csv: goal policy; reachable: seconds -->": "[0-9] rows",
    }.items():
        with pytest.raises(AssertionError, match=fault):
            check("a page", figures(text))
