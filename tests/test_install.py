"""What is packed, what it says of itself, and that it installs and runs on its own."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from test_readme import BLOCKS, ROOT, run, write_examples

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
)
NO_CACHES = shutil.ignore_patterns("__pycache__")


def built(folder: Path) -> tuple[Path, Path]:
    """The source distribution of this project, and the wheel that is made of it, as pip would."""
    folder.mkdir()
    for name in SOURCE:
        shutil.copy(ROOT / name, folder)
    for name in ("jmdp_lib", "experiments", "tests", "workflow"):
        shutil.copytree(ROOT / name, folder / name, ignore=NO_CACHES)
    hook = "import setuptools.build_meta as hooks; hooks.build_{}('.')"
    run(sys.executable, "-c", hook.format("sdist"), cwd=folder)
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    [source] = (folder / "unpacked").iterdir()
    run(sys.executable, "-c", hook.format("wheel"), cwd=source)
    [wheel] = source.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    importlib.import_module("setuptools")  # builds them, in a process of its own
    return built(tmp_path_factory.mktemp("packing") / "source")


def test_the_source_distribution_has_the_library_and_no_part_of_the_tests_or_experiments(
    distributions: tuple[Path, Path],
) -> None:
    """Half of the tests, without conftest.py and what they import, would be of no use."""
    with tarfile.open(distributions[0]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames() if "/" in name}
    library = {p.relative_to(ROOT).as_posix() for p in (ROOT / "jmdp_lib").rglob("*.py")}
    assert library | set(SOURCE) | {"jmdp_lib/py.typed"} <= names
    assert not [name for name in names if name.startswith(("experiments", "tests", "workflow"))]


def test_the_wheel_has_all_that_the_package_has_and_says_that_it_is_typed(
    distributions: tuple[Path, Path],
) -> None:
    wanted = {p.relative_to(ROOT).as_posix() for p in (ROOT / "jmdp_lib").rglob("*") if p.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    packed = zipfile.ZipFile(distributions[1])
    assert {name for name in packed.namelist() if "dist-info" not in name} == wanted
    assert "jmdp_lib/py.typed" in wanted
    assert any(name.endswith("licenses/LICENSE") for name in packed.namelist())


def metadata_of(wheel: Path) -> Message:
    packed = zipfile.ZipFile(wheel)
    [name] = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_string(packed.read(name).decode())


def test_the_metadata_name_python_versions_science_types_and_no_address(
    distributions: tuple[Path, Path],
) -> None:
    found = metadata_of(distributions[1])
    kinds = found.get_all("Classifier")
    assert {"Typing :: Typed", "Intended Audience :: Science/Research"} <= set(kinds)
    python = "Programming Language :: Python :: "
    assert {f"{python}3.{minor}" for minor in (11, 12, 13)} <= set(kinds)
    assert found["Requires-Python"] == ">=3.11"
    assert not [kind for kind in kinds if kind.startswith("License")]  # an expression says it
    assert len(found["Keywords"].split(",")) >= 3
    assert found.get_all("Project-URL") is None or PROJECT["urls"]


def test_the_description_needs_nothing_that_a_package_index_lacks(
    distributions: tuple[Path, Path],
) -> None:
    """No picture, no relative link, no folder of the repository; and it is from the README."""
    found = metadata_of(distributions[1])
    assert found["Description-Content-Type"] == "text/markdown"
    text = found.get_payload()
    links = re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)\"", text)
    assert not [link for link in links if not "".join(link).startswith("https://")]
    for word in (
        '".[',
        "pip install . ",
        "this folder",
        "two commands",
        "make ",
        "<!--",
        "notebooks/",
    ):
        assert word not in text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for mark in ("A joint MDP also says what", "## In five lines", "pip install"):
        assert mark in text
    same = [line for line in text.splitlines() if line and "pip install" not in line]
    assert [line for line in same if line not in readme] == ["## Install"]


def with_address(folder: Path, line: str) -> Path:
    """A copy of the files that may name the repository's address, with a line of pyproject.toml."""
    (folder / "jmdp_lib").mkdir(parents=True)
    for name in (*SOURCE, "jmdp_lib/__init__.py"):
        shutil.copy(ROOT / name, folder / name)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    head, table, rest = project.partition("[project.urls]\n")
    assert table
    rest = re.sub(r"\ARepository = .*\n", "", rest)
    (folder / "pyproject.toml").write_text(head + table + line + rest, encoding="utf-8")
    return folder


def test_the_address_is_set_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README and CITATION.cff take it from pyproject.toml, and name none without it."""
    monkeypatch.syspath_prepend(ROOT / "workflow")
    release = importlib.import_module("release")
    texts = release.written(ROOT)
    assert texts == {name: (ROOT / name).read_text(encoding="utf-8") for name in texts}

    url = "https://example.org/companion"
    named = with_address(tmp_path / "named", f'Repository = "{url}"\n')
    texts = release.written(named)
    assert f"The repository is at <{url}>." in texts["README.md"]
    yaml = importlib.import_module("yaml")
    assert yaml.safe_load(texts["CITATION.cff"])["repository-code"] == url
    for name, text in texts.items():
        (named / name).write_text(text, encoding="utf-8")
    assert release.written(named) == texts  # a second time changes nothing

    shutil.copy(with_address(tmp_path / "unnamed", "") / "pyproject.toml", named)
    assert url not in "".join(release.written(named).values())


def test_the_book_leads_to_the_address(tmp_path: Path) -> None:
    importlib.import_module("myst_nb")
    url = "https://example.org/companion"
    root = with_address(tmp_path / "named", f'Repository = "{url}"\n')
    shutil.copytree(ROOT / "book" / "static", root / "static")
    shutil.copy(ROOT / "book" / "conf.py", root)
    for path in root.glob("*.md"):
        path.unlink()
    (root / "index.md").write_text("# A page\n")
    run(sys.executable, "-m", "sphinx", "-q", ".", tmp_path / "html", cwd=root)
    page = (tmp_path / "html" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'href="(https://example[^"]*)"', page) == [url]
    unnamed = with_address(tmp_path / "unnamed", "")
    shutil.copy(ROOT / "book" / "conf.py", unnamed)
    assert runpy.run_path(str(unnamed / "conf.py"))["html_theme_options"]["icon_links"] == []


def test_a_release_writes_its_version_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "workflow")
    release = importlib.import_module("release")
    texts = release.written(with_address(tmp_path / "copy", ""), "7.8.9")
    assert '__version__ = "7.8.9"' in texts["jmdp_lib/__init__.py"]
    assert "\nversion: 7.8.9\n" in texts["CITATION.cff"]
    assert "## Unreleased\n\n## 7.8.9 (" in texts["CHANGELOG.md"]
    with pytest.raises(ValueError, match="three numbers"):
        release.written(ROOT, "v1")


def needed(lines: list[str], extra: str = "") -> set[tuple[str, str]]:
    """The packages, each with an extra or "", that these requirements ask for."""
    asked = [Requirement(line) for line in lines]
    asked = [r for r in asked if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {(r.name, inner) for r in asked for inner in ("", *r.extras)}


def with_needs(lines: list[str]) -> set[str]:
    """The names of all packages that an installation of these requirements brings."""
    waiting, done = needed(lines), set()
    while waiting:
        name, extra = waiting.pop()
        done.add((name, extra))
        inner = importlib.metadata.requires(name) or []
        waiting |= needed(inner, extra) - done
    return {name for name, _ in done} - {"jmdp_lib"}


def link_packages(names: set[str], packages: Path) -> None:
    """Have an environment find packages of this one, and no others."""
    for name in names:
        distribution = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))


def new_environment(folder: Path) -> tuple[Path, Path]:
    """An empty virtual environment: its Python, and the folder of its packages."""
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    return folder / "venv" / "bin" / "python", packages


def take_what_is_compiled(packages: Path) -> None:
    """Give a wheel what Numba has compiled of this source, which it knows by size and time."""
    for path in (ROOT / "jmdp_lib").rglob("*.py"):
        installed = packages / path.relative_to(ROOT)
        assert installed.read_bytes() == path.read_bytes()
        shutil.copystat(path, installed)
    for path in (ROOT / "jmdp_lib").rglob("__pycache__/*.nb[ci]"):
        copy = packages / path.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)


# What a plain install lacks: every call names the extra that brings it.
LACKING = """
import importlib

import jmdp_lib as jl

jm = jl.windy_gridworld(3)
for extra, call in [
    ("atari", lambda: jl.simulators.CoupledEnv),
    ("atari", lambda: jl.JMDP.from_gymnasium("FrozenLake-v1")),
    ("atari", lambda: importlib.import_module("jmdp_lib.atari")),
    ("figures", lambda: importlib.import_module("jmdp_lib.figures")),
    ("torch", lambda: jl.jipe2(jm, jl.goal_policy(3), device="cuda")),
]:
    try:
        call()
    except ImportError as error:
        assert f'pip install "jmdp_lib[{extra}]"' in str(error), error
    else:
        raise AssertionError(f"{extra} was not missed")
"""


@pytest.mark.slow
def test_a_plain_wheel_runs_the_tabular_examples_and_names_what_it_lacks(
    tmp_path: Path, distributions: tuple[Path, Path]
) -> None:
    tabular = [block for block in BLOCKS if "gymnasium" not in block]
    assert len(tabular) == len(BLOCKS) - 1
    shorter = [block.replace("2_000", "20") for block in tabular]
    assert shorter != tabular
    files = write_examples(tmp_path, shorter)
    files.append(tmp_path / "lacking.py")
    files[-1].write_text(LACKING)
    python, packages = new_environment(tmp_path)
    shutil.unpack_archive(distributions[1], packages, "zip")  # installed, as it is pure Python
    [metadata] = packages.glob("jmdp_lib-*.dist-info")
    link_packages(with_needs(importlib.metadata.Distribution.at(metadata).requires), packages)
    take_what_is_compiled(packages)
    code = "import runpy, sys; [runpy.run_path(path) for path in sys.argv[1:]]"
    run(python, "-I", "-c", code, *files, cwd=tmp_path)


@pytest.mark.slow
def test_chapters_can_be_imported_from_where_the_extra_of_the_notebooks_is_installed_in_place(
    tmp_path: Path, distributions: tuple[Path, Path]
) -> None:
    """Chapters 5 and 6 import the experiments, which the wheel above does not have."""
    chapters = sorted((ROOT / "notebooks").glob("*.py"))
    for path in (ROOT / "README.md", ROOT / "book" / "running.md", *chapters):
        told = re.findall(r'pip install (.*?)"\.\[notebooks\]"', path.read_text())
        assert set(told) == {"-e "}, path
    python, packages = new_environment(tmp_path)
    source = distributions[0].parent
    hook = f"import setuptools.build_meta as hooks; hooks.build_editable({str(tmp_path)!r})"
    run(sys.executable, "-c", hook, cwd=source)
    [wheel] = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, packages, "zip")
    asked = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["notebooks"]
    link_packages(with_needs(asked), packages)
    nodes = [node for path in chapters for node in ast.parse(path.read_text()).body]
    imports = [ast.unparse(n) for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
    code = "\n".join(["from __future__ import annotations", *imports])
    found = run(python, "-I", "-c", f"{code}\nprint(plots.__file__)", cwd=tmp_path)
    assert Path(found.strip()) == source / "experiments" / "atari" / "plots.py"


# Files of tests that take little time, most of the core and some of what needs an extra.
CORE = "bad_input bounds environments examples figures model neural readme statistics trace"


@pytest.mark.slow
def test_the_cores_tests_pass_where_nothing_but_the_core_is_installed(tmp_path: Path) -> None:
    """What needs an extra is skipped, and the reason names the extra; nothing fails."""
    python, packages = new_environment(tmp_path)
    asked = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]
    link_packages(with_needs(asked), packages)
    done = subprocess.run(
        [
            python,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
            *(f"tests/test_{name}.py" for name in CORE.split()),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "SKIPPED_TESTS": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", done.stdout, re.MULTILINE)
    extras = {re.search(r'pip install "jmdp_lib\[(\w+)\]"$', reason)[1] for reason in skipped}
    assert extras >= {"atari", "figures", "torch"}
