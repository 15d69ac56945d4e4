"""Lines of code per folder, without blank lines, comments and docstrings: `make lint` prints it."""

from __future__ import annotations

import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


def lines_of_code(path: Path) -> int:
    """Lines with code on them; a statement that is only a string is a docstring."""
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NEWLINE:
                if [part.type for part in statement] != [tokenize.STRING]:
                    lines.update(*(range(t.start[0], t.end[0] + 1) for t in statement))
                statement = []
            elif token.type not in SILENT:
                statement.append(token)
    return len(lines)


def main() -> None:
    rooms = [path.parent for path in sorted(ROOT.glob("jmdp_lib/*/__init__.py"))]
    others = [ROOT / name for name in ("experiments", "workflow", "book", "tests")]
    for folder in [ROOT / "jmdp_lib", *rooms, *others]:
        files = sorted(folder.rglob("*.py"))
        total, name = sum(map(lines_of_code, files)), folder.relative_to(ROOT).as_posix()
        print(f"{name:22} {total:5} lines of code in {len(files):2} files")


if __name__ == "__main__":
    main()
