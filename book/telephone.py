"""How wide a figure has to be on a telephone, for its smallest text to be read."""

from __future__ import annotations

import math
import re
import zlib
from pathlib import Path

SMALLEST_TEXT = 9.0  # pixels
_PAGE = re.compile(rb"/MediaBox \[ *[\d.]+ +[\d.]+ +([\d.]+)")
_STREAM = re.compile(rb"stream\r?\n(.*?)endstream", re.DOTALL)
_FONT_SIZE = re.compile(rb"/[\w-]+ ([\d.]+) Tf")


def font_sizes(pdf: bytes) -> set[float]:
    """The sizes of all text of a PDF that matplotlib wrote, in points."""
    sizes: set[float] = set()
    for stream in _STREAM.findall(pdf):
        try:
            text = zlib.decompress(stream)
        except zlib.error:  # a picture, or not compressed
            continue
        sizes |= {float(size) for size in _FONT_SIZE.findall(text)}
    return sizes


def readable_width(path: Path) -> int:
    """The width in pixels at which the smallest text of a PDF has SMALLEST_TEXT pixels."""
    pdf = path.read_bytes()
    page = _PAGE.search(pdf)
    sizes = font_sizes(pdf)
    if page is None or not sizes:
        raise ValueError(f"{path.name} has no page, or no text on it")
    return math.ceil(float(page[1]) * SMALLEST_TEXT / min(sizes))
