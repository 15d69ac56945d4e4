"""`release.py [VERSION]`: write the version and the repository's address wherever they stand.

The address is `Repository` of `[project.urls]` in pyproject.toml; without one, none is written. The
version goes into `jmdp_lib/__init__.py`, CITATION.cff and CHANGELOG.md; unless given, it stays.
CONTRIBUTING.md says what else belongs to a release.
"""

from __future__ import annotations

import re
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from job import write_atomically

ROOT = Path(__file__).resolve().parents[1]
INIT = "jmdp_lib/__init__.py"
CITATION = "CITATION.cff"
README = "README.md"
CHANGES = "CHANGELOG.md"


def address(root: Path) -> str:
    """Where the project lives, or ""."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project.get("urls", {}).get("Repository", ""))


def replaced(pattern: str, new: str, text: str) -> str:
    """The text with its only match replaced, as it stands."""
    made, count = re.subn(pattern, lambda _: new, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{pattern!r} is found {count} times, not once")
    return made


def with_version(texts: dict[str, str], version: str) -> dict[str, str]:
    """The texts of files, by their names, of a version that is released today."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"a version is three numbers, such as 0.2.0; found {version!r}")
    heading = f"## Unreleased\n\n## {version} ({datetime.now(UTC):%Y-%m-%d})"
    return texts | {
        INIT: replaced(r"^__version__ = .*$", f'__version__ = "{version}"', texts[INIT]),
        CITATION: replaced(r"^version: .*$", f"version: {version}", texts[CITATION]),
        CHANGES: replaced("^## Unreleased$", heading, texts[CHANGES]),
    }


def with_address(texts: dict[str, str], url: str) -> dict[str, str]:
    """The texts of files, by their names, that name this address of the repository, or none."""
    unnamed = re.sub(r"^repository-code: .*\n", "", texts[CITATION], flags=re.MULTILINE)
    entry = f'repository-code: "{url}"\n' if url else ""
    sentence = f"The repository is at <{url}>." if url else ""
    begin, end = "<!-- begin address -->", "<!-- end address -->"
    return texts | {
        CITATION: replaced(r"^license: ", f"{entry}license: ", unnamed),
        README: replaced(f"{begin}.*{end}", f"{begin}{sentence}{end}", texts[README]),
    }


def written(root: Path, version: str | None = None) -> dict[str, str]:
    """What the files of a project should say, by their names."""
    names = (INIT, CITATION, README, CHANGES)
    texts = {name: (root / name).read_text(encoding="utf-8") for name in names}
    return with_address(with_version(texts, version) if version else texts, address(root))


def main(arguments: list[str]) -> None:
    for name, text in written(ROOT, *arguments[:1]).items():
        write_atomically(ROOT / name, text)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"error: {error}")
