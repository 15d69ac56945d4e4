"""Size of the project in tokens of code, and the faults that `make lint` refuses.

Comments, docstrings and layout are no tokens, so that packed lines gain nothing. The list of public
names, `__init__.pyi`, is not counted. Refused are lines that the formatter skips on request,
and functions of the library and of the programs beside it that have more than 40 lines without
their docstring.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The uppermost layer of the import contract has the extensions; all others are the core.
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
EXTENSIONS = {ROOT / "jmdp_lib" / name for name in CONTRACTS[0]["layers"][0].split(" | ")}
FAST = ROOT / "jmdp_lib" / "fast"
FOLDERS = ("jmdp_lib", "tests", "experiments", "workflow", "book", "notebooks", "benchmarks")
SHORT_FUNCTIONS = ("jmdp_lib", "experiments", "workflow", "book")
MOST_LINES = 40
UNFORMATTED = re.compile(r"#\s*fmt: *(skip|off)")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT}
LAYOUT |= {tokenize.ENCODING, tokenize.ENDMARKER}


def num_tokens(path: Path) -> int:
    """Tokens of code in a file; a statement that is only a string is a docstring."""
    total = 0
    statement: list[int] = []
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NEWLINE:
                total += len(statement) if statement != [tokenize.STRING] else 0
                statement = []
            elif token.type not in LAYOUT:
                statement.append(token.type)
    return total


def unformatted(path: Path) -> Iterator[str]:
    """Lines of a file that the formatter is told to leave alone."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if UNFORMATTED.search(line):
            yield f"{path.relative_to(ROOT)}:{number}: let ruff format this"


def num_lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def long_functions(path: Path) -> Iterator[str]:
    """Functions of a file that have too many lines, without their docstrings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = num_lines(node)
            if ast.get_docstring(node) is not None:
                lines -= num_lines(node.body[0])
            if lines > MOST_LINES:
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield f"{where}: {node.name} has {lines} lines, more than {MOST_LINES}"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    files = {name: sorted((ROOT / name).rglob("*.py")) for name in FOLDERS}
    library = files["jmdp_lib"]
    core = [path for path in library if not set(path.parents) & EXTENSIONS]
    for name, paths in {
        "jmdp_lib, the paper's path": [path for path in core if FAST not in path.parents],
        "jmdp_lib, the subpackage fast": [path for path in core if FAST in path.parents],
        "jmdp_lib, the core: both": core,
        "jmdp_lib": library,
        "tests": files["tests"],
        "experiments": files["experiments"],
        "workflow and book": files["workflow"] + files["book"],
        "notebooks": files["notebooks"],
    }.items():
        print(f"{name:35} {sum(map(num_tokens, paths)):7,} tokens in {len(paths):2} files")
    refused = [fault for paths in files.values() for path in paths for fault in unformatted(path)]
    for name in SHORT_FUNCTIONS:
        refused += [fault for path in files[name] for fault in long_functions(path)]
    sys.exit("\n".join(refused) or None)


if __name__ == "__main__":
    main()
