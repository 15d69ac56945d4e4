"""The description that a package index shows: those parts of the README that need no other file.

All else about the package is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")


def between(start: str, end: str) -> str:
    """The part of the README between two marks."""
    return README.partition(start)[2].partition(end)[0].strip()


def description() -> str:
    """What the project is, how it is installed, and five lines of it."""
    intro = between("<!-- begin intro -->", "<!-- end intro -->")
    lines = between("<!-- begin lines -->", "<!-- end lines -->")
    library = between("## Only the library", "<!-- end start -->")
    library = library.replace('-e ".[', '"jmdp_lib[').replace("in this folder: ", "")
    library = re.sub(r"pip install \. {3}", "pip install jmdp_lib", library)
    return f"# The joint-MDP companion\n\n{intro}\n\n{lines}\n\n## Install\n\n    {library}\n"


setup(long_description=description(), long_description_content_type="text/markdown")
