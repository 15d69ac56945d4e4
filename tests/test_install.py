"""The packages: what they hold, and that a wheel runs on its own."""

import importlib
import importlib.metadata
import re
import shutil
import sys
import tarfile
import zipfile

import pytest
from packaging.requirements import Requirement
from programs import PYPROJECT, ROOT, run
from test_readme import BLOCKS, write_examples

PROJECT = PYPROJECT["project"]
SOURCE = (
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
)
NO_CACHES = shutil.ignore_patterns("__pycache__")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The source distribution of this project, and the wheel that is made of it, as pip would."""
    importlib.import_module("setuptools")  # builds them, in a process of its own
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCE:
        shutil.copy(ROOT / name, folder)
    for name in ("jmdp_lib", "experiments", "tests", "workflow"):
        shutil.copytree(ROOT / name, folder / name, ignore=NO_CACHES)
    hook = "import setuptools.build_meta as hooks; hooks.build_{}('.')"
    run(sys.executable, "-c", hook.format("sdist"), cwd=folder)
    [sdist] = folder.glob("*.tar.gz")
    run("tar", "-xf", sdist, cwd=folder)
    source = folder / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-c", hook.format("wheel"), cwd=source)
    [wheel] = source.glob("*.whl")
    return sdist, wheel


def test_the_packages_hold_the_library_and_nothing_else(distributions):
    files = [path for path in (ROOT / "jmdp_lib").rglob("*.*") if "__pycache__" not in path.parts]
    library = {path.relative_to(ROOT).as_posix() for path in files}
    with tarfile.open(distributions[0]) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert library | set(SOURCE) <= names
    assert not [name for name in names if name.startswith(("experiments", "tests", "workflow"))]
    wheel = zipfile.ZipFile(distributions[1]).namelist()
    assert {name for name in wheel if "dist-info" not in name} == library
    assert "jmdp_lib/py.typed" in library
    assert any(name.endswith("licenses/LICENSE") for name in wheel)


def needed(lines, extra=""):
    """The packages, each with an extra or "", that these requirements name."""
    named = [Requirement(line) for line in lines]
    named = [r for r in named if r.marker is None or r.marker.evaluate({"extra": extra})]
    return {(r.name, inner) for r in named for inner in ("", *r.extras)}


def with_needs(lines):
    """The names of all packages that an installation of these requirements brings."""
    waiting, done = needed(lines), set()
    while waiting:
        name, extra = waiting.pop()
        done.add((name, extra))
        inner = importlib.metadata.requires(name) or []
        waiting |= needed(inner, extra) - done
    return {name for name, _ in done} - {"jmdp_lib"}


def link_packages(names, packages):
    """Link packages of this environment into another one."""
    for name in names:
        distribution = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))


def new_environment(folder):
    """An empty virtual environment: its Python, and the folder of its packages."""
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    return folder / "venv" / "bin" / "python", packages


def copy_compiled_code(packages):
    """Copy Numba's compiled code to a wheel, with the times of files by which it is found."""
    for path in (ROOT / "jmdp_lib").rglob("*.py"):
        installed = packages / path.relative_to(ROOT)
        assert installed.read_bytes() == path.read_bytes()
        shutil.copystat(path, installed)
    for path in (ROOT / "jmdp_lib").rglob("__pycache__/*.nb[ci]"):
        copy = packages / path.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)


# Calls that a plain install refuses: each names the extra that it needs.
LACKING = """
import importlib

import jmdp_lib as jl

jm = jl.windy_gridworld(3)
for extra, call in [
    ("atari", lambda: jl.simulators.CoupledEnv),
    ("atari", lambda: importlib.import_module("jmdp_lib.atari")),
    ("pandas", lambda: jl.jipe2(jm, jl.goal_policy(3)).moments.to_frame()),
    ("torch", lambda: jl.jipe2(jm, jl.goal_policy(3), device="cuda")),
]:
    try:
        call()
    except ImportError as error:
        assert f'pip install "jmdp_lib[{extra}]"' in str(error), error
    else:
        raise AssertionError(f"{extra} was not needed")
"""


# The examples in less time.
SHORTER = {"2_000": "20", "100_000": "1_000", "range(100)": "range(3)", "width=0.02": "width=0.5"}


def test_a_plain_wheel_runs_the_tabular_examples(tmp_path, distributions):
    """And it names the extras that it lacks."""
    tabular = [x for x in BLOCKS if "gymnasium" not in x and "matplotlib" not in x]
    assert len(tabular) == len(BLOCKS) - 2
    for long, short in SHORTER.items():
        assert long in "".join(tabular)
        tabular = [block.replace(long, short) for block in tabular]
    files = write_examples(tmp_path, tabular)
    files.append(tmp_path / "lacking.py")
    files[-1].write_text(LACKING)
    python, packages = new_environment(tmp_path)
    shutil.unpack_archive(distributions[1], packages, "zip")  # installed, as it is pure Python
    [metadata] = packages.glob("jmdp_lib-*.dist-info")
    link_packages(with_needs(importlib.metadata.Distribution.at(metadata).requires), packages)
    copy_compiled_code(packages)
    code = "import runpy, sys; [runpy.run_path(path) for path in sys.argv[1:]]"
    run(python, "-I", "-c", code, *files, cwd=tmp_path)


# Files of fast tests, some of which need an extra. All others are collected, too, where Python has
# no more than on Windows.
CORE = "environments figures model neural readme"
PLUGIN = """
import sys

sys.modules["fcntl"] = None


def pytest_collection_modifyitems(items):
    stems = {f"test_{name}" for name in CORE.split()}
    items[:] = [item for item in items if item.path.stem in stems]
"""


def test_the_tests_of_the_core_pass_without_extras(tmp_path):
    """Tests that need an extra or more than Windows has are skipped, and say so."""
    python, packages = new_environment(tmp_path)
    plain = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]
    link_packages(with_needs(plain), packages)
    (packages / "plugin.py").write_text(f"CORE = {CORE!r}\n{PLUGIN}")
    command = [python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    report = run(*command, "-p", "plugin", cwd=ROOT, SKIPPED_TESTS="")
    extras = set(re.findall(r"^SKIPPED .*\[(\w+)\]\"$", report, re.MULTILINE))
    assert extras >= {"atari", "dev", "notebooks", "pandas", "torch"}
    assert int(re.search(r"(\d+) passed", report)[1]) >= 10
