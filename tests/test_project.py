"""The project's own files agree with one another."""

import ast
import configparser
import functools
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import batch
import nbformat
import notebook_job
import pair
import psutil
import pytest
import suite
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from programs import PYPROJECT, ROOT, finished, run
from projects import alive, wait_until

import jmdp_lib

OWN = {"experiments", "jmdp_lib", "notebooks"}  # what an installation in place brings
PROJECT = PYPROJECT["project"]
# What every extra asks for; "" is what a plain install brings.
EXTRAS = {
    name: list(map(Requirement, lines))
    for name, lines in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items()
}
# Those of all extras, less the extras that one extra brings along.
REQUIREMENTS = [r for extra in EXTRAS.values() for r in extra if r.name != "jmdp_lib"]
SOURCES = sorted((ROOT / "notebooks").glob("[0-9]*.py"))
PROFILES = sorted((ROOT / "workflow" / "profiles").glob("*.yaml"))
by_source = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


# Reads all that is installed.
packages_distributions = functools.cache(importlib.metadata.packages_distributions)


def owners(module):
    """The packages that have a module."""
    return {canonicalize_name(name) for name in packages_distributions().get(module, [])}


def brought(*extras):
    """All packages that these extras name; "" is a plain install."""
    names = set()
    for requirement in (r for extra in extras for r in EXTRAS[extra]):
        inner = requirement.name == "jmdp_lib"
        names |= brought(*requirement.extras) if inner else {canonicalize_name(requirement.name)}
    return names


def imported_modules(code):
    """Top-level names of the absolute imports that lead beyond this project and Python."""
    nodes = [*ast.walk(ast.parse(code))]
    names = [alias.name for x in nodes if isinstance(x, ast.Import) for alias in x.names]
    names += [x.module for x in nodes if isinstance(x, ast.ImportFrom) and x.module and not x.level]
    return {name.partition(".")[0] for name in names} - OWN - set(sys.stdlib_module_names)


def test_imports_are_declared_and_declared_packages_imported():
    """Packages of extras that the library does not need may stay without an import."""
    folders = (*sorted(OWN), "workflow", "book", "tests", "benchmarks")
    files = [path for name in folders for path in sorted((ROOT / name).rglob("*.py"))]
    own = {path.stem for path in files}
    declared, used = {canonicalize_name(r.name) for r in REQUIREMENTS}, set()
    for path in files:
        for module in imported_modules(path.read_text()) - own:
            assert owners(module) & declared, f"{path.name}: pyproject does not name {module}"
            if path.is_relative_to(ROOT / "jmdp_lib"):
                used |= owners(module)
    assert brought("", "atari", "pandas", "torch") <= used


def extras_of(source):
    """The extras that a chapter tells its readers to install."""
    [names] = re.findall(r'pip install -e "\.\[([\w,]+)\]"', source.read_text())
    return set(names.split(","))


def test_named_extras_bring_all_that_is_imported():
    """Extras of chapters, for their readers, and of the library's messages."""
    named = [(source.read_text(), {"", *extras_of(source)}) for source in SOURCES]
    for path in [path for name in OWN for path in (ROOT / name).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.unparse(node) if isinstance(node, ast.With) else ""
            if call := re.match(r"with (?:\w+\.)?extra\((.*)\):", text):
                named.append((text, set(re.findall(r"\w+", call[1]))))
    for text, extras in named:
        have = brought(*extras)
        assert not [m for m in imported_modules(text) if not owners(m) & have], text


# Runs the imports of chapters without torch, and prints a line for each chapter.
WITHOUT_TORCH = """
import ast, sys

class NoTorch:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)

sys.meta_path.insert(0, NoTorch)
for path in sys.argv[1:]:
    code = ast.parse(open(path).read())
    imports = [n for n in code.body if isinstance(n, ast.Import | ast.ImportFrom)]
    imports += [n for n in code.body if ast.unparse(n).startswith("with extra(")]
    try:
        exec(compile(ast.Module(imports, []), path, "exec"))
        print("imported")
    except ImportError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_chapter_imports_no_torch_or_names_its_extra():
    assert "torch" not in brought("notebooks")
    done = run(sys.executable, "-c", WITHOUT_TORCH, *SOURCES, cwd=ROOT / "notebooks")
    for source, line in zip(SOURCES, done.splitlines(), strict=True):
        if line != "imported":
            assert "torch" in extras_of(source), source.name
            assert re.search(r'pip install "jmdp_lib\[.*torch', line), f"{source.name}: {line}"


def test_a_solver_imports_nothing_that_it_does_not_need():
    """A plain install lacks some of these: see also `test_install`."""
    code = "import sys, jmdp_lib as jl; jl.jipe2(jl.example_1(), [0]); print(*sys.modules)"
    loaded = run(sys.executable, "-c", code).split()
    slow = "scipy.special scipy.stats scipy.optimize jmdp_lib.atari ale_py gymnasium matplotlib"
    assert not {*loaded} & {*slow.split(), "pandas", "torch"}


# `make` of this project, where there is nothing to set up.
MAKE = ("make", "-f", ROOT / "Makefile", f"PY={sys.executable}", "STAMP=", "STALE=", "WORKERS=0")


def make(*targets, folder=ROOT):
    return finished(*MAKE, *targets, cwd=folder)


# A test that waits for a program which does not end when it is asked to.
STUBBORN = """
import subprocess, sys

CODE = '''
import signal, time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("reached", "w").close()
time.sleep(900)
'''


def test_a():
    subprocess.run([sys.executable, "-c", CODE])
"""


@pytest.mark.slow
def test_a_signal_to_make_test_ends_all_that_it_has_started(tmp_path, family):
    """The outer make alone gets it: the inner one, pytest and its workers went on."""
    assert suite.PATIENCE <= 5.0
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "test_it.py").write_text(STUBBORN)
    command = [*map(str, MAKE), "test", "ALL=test-quick", "WORKERS=2"]
    running = psutil.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    family.append(running)
    wait_until(lambda: (tmp_path / "reached").exists() or not alive(running))
    started = running.children(recursive=True)
    family += started
    assert len(started) >= 6  # the program, make, pytest with two workers, a child
    running.terminate()
    assert running.wait(timeout=300) != 0
    assert not any(map(alive, started))


@pytest.mark.slow
def test_what_was_skipped_is_said_in_the_last_lines(tmp_path):
    """Even where another test fails."""
    (tmp_path / "tests").mkdir()
    for name in ("Makefile", "pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("batch_fixtures", "site_fixtures"):
        (tmp_path / "tests" / f"{name}.py").touch()
    code = "import pytest\n\ndef test_a():\n    assert False\n\n"
    code += "def test_b():\n    pytest.skip('needs Slurm')\n"
    (tmp_path / "tests" / "test_it.py").write_text(code)
    done = make("test-fast", "FAST=test-quick", folder=tmp_path)
    assert done.returncode != 0
    skipped, *others = done.stdout.partition("\nSkipped:\n")[2].splitlines()
    assert skipped == "  tests/test_it.py::test_b: needs Slurm"
    assert not [line for line in others if "make" not in line]


def test_make_clean_keeps_trained_networks_and_a_link(tmp_path):
    """The link leads to another disk."""
    out, networks = tmp_path / "out", "paper/atari/calibrate/Pong/run/checkpoint.pt"
    (tmp_path / "disk").mkdir()
    out.symlink_to("disk")
    kept = {networks, "paper/.snakemake/metadata/a"}
    made = {"quick/.figures/a.png", "paper/notebooks/a.ipynb", "skipped.txt", "book/index.html"}
    for name in made | kept:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).touch()
    printed = make("clean", folder=tmp_path).stdout
    assert "\nout/paper/atari\nare kept: trained networks, which make clean-atari" in printed
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == kept
    make("clean-atari", "clean", folder=tmp_path)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_package_is_pinned_once_within_its_range(machine):
    """pyproject.toml has the ranges."""
    here = {"sys_platform": "linux", "platform_machine": machine}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {}
    for pin in [Requirement(line) for line in lines if not line.startswith("#")]:
        if not pin.marker or pin.marker.evaluate(here):
            assert pins.setdefault(canonicalize_name(pin.name), pin) is pin
    for requirement in REQUIREMENTS:
        assert requirement.specifier, requirement.name
        if not requirement.marker or requirement.marker.evaluate(here):
            [pinned] = pins[canonicalize_name(requirement.name)].specifier
            assert pinned.operator == "=="
            assert pinned.version in requirement.specifier


# Systems that `make` sets up, beside the one that it has.
PLACES = [
    ("3.11.0", "aarch64-manylinux_2_28"),
    ("3.14.0", "x86_64-pc-windows-msvc"),
    ("3.14.0", "aarch64-apple-darwin"),
]
SOURCES_ONLY = ("connection-pool", "immutables")  # of Snakemake; the second for Python 3.14 alone


@pytest.mark.slow
@pytest.mark.parametrize(("python", "system"), PLACES)
def test_the_pins_can_be_installed_on_every_python_and_system(python, system, monkeypatch):
    """Wheels of an ordinary index are enough, and no such system gets packages of CUDA."""
    pytest.importorskip("uv", reason="needs uv, which make installs")
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", "14.0")
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--extra", "all"]
    command += ["--constraints", "constraints.txt", "--only-binary", ":all:"]
    command += [f"--no-binary={name}" for name in SOURCES_ONLY]
    command += ["--python-version", python, "--python-platform", system, "pyproject.toml"]
    done = finished(*command)
    if "Failed to fetch" in done.stderr:
        pytest.skip("needs a package index that can be reached")
    assert done.returncode == 0, done.stderr
    assert "\nnvidia-" not in done.stdout


def test_the_version_and_the_preprint_are_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {jmdp_lib.__version__}" in changes
    assert jmdp_lib.__version__ == importlib.metadata.version("jmdp_lib") == citation["version"]
    preprint = citation["preferred-citation"]
    [number] = [one["value"].removeprefix("arXiv:") for one in preprint["identifiers"]]
    book = (ROOT / "book" / "index.md").read_text(encoding="utf-8")
    assert {*re.findall(r"https://arxiv.org/abs/[\d.]+", book)} == {preprint["url"]}
    assert preprint["url"].endswith(f"/{number}")


# ---- committed results --------------------------------------------------------------------------

FIGURES = ROOT / "figures"
RECORDS = [json.loads(path.read_text()) for path in FIGURES.glob("provenance/*.json")]


def test_committed_figures_are_as_their_records_say():
    """Each has one record, and was made at a commit from files that are there."""
    recorded = []
    for record in RECORDS:
        made = {Path(file).name: fingerprint for file, fingerprint in record["files"].items()}
        for figure in record["figures"]:
            [committed] = FIGURES.rglob(figure)
            assert notebook_job.fingerprint(committed) == made[figure], figure
        assert record["dirty"] is False
        recorded += record["figures"]
    committed = [*FIGURES.glob("*.*"), *FIGURES.glob("book/*")]
    assert sorted(recorded) == sorted(path.name for path in committed if path.suffix != ".md")


def test_no_record_names_a_file_that_moved():
    for path in FIGURES.glob("*/*.json"):
        for name in re.findall(r"(?<![\w/.])\w[\w/]+\.(?:csv|py|toml)\b", path.read_text()):
            assert list(ROOT.glob(name)) or list(FIGURES.rglob(name)), (path, name)


def test_no_index_takes_the_package_yet():
    """Its README leads to files of the repository, which has no address."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    inside = re.search(r'(\]\(|src="|href=")(?!https?:|#)', readme)
    ready = PROJECT["urls"] and not inside
    assert ready or "Private :: Do Not Upload" in PROJECT["classifiers"]


# ---- notebooks ----------------------------------------------------------------------------------


@by_source
def test_a_notebook_is_its_source_executed_and_claims_hold(source):
    made = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    paired = pair.stable(notebook_job.read_source(source))
    one, other = ([(c.cell_type, c.source, c.metadata) for c in nb.cells] for nb in (made, paired))
    assert one == other, f"{source.name} and its .ipynb differ: make notebooks"
    assert made.metadata.kernelspec == notebook_job.KERNELSPEC
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert code[-1].source.startswith("# NBVAL_CHECK_OUTPUT\n")  # nbval compares the claims
    verdicts = {verdict for *_, verdict in notebook_job.claims_of(made)}
    assert verdicts - {"FAILS"} == verdicts >= {"holds"}


def test_profiles_fit_the_notebooks():
    """Their values pass the checks that a chapter begins with."""
    checks = {}
    for source in SOURCES:
        cells = [c.source for c in notebook_job.read_source(source).cells if c.cell_type == "code"]
        nodes = ast.parse(cells[1]).body  # below the parameters
        asserts = ast.Module([node for node in nodes if isinstance(node, ast.Assert)], [])
        checks[source.stem] = compile(asserts, source.name, "exec")
    defaults = {source.stem: notebook_job.parameter_defaults(source) for source in SOURCES}
    for path in PROFILES:
        plan = batch.make_plan(ROOT, path.stem)["notebooks"]
        assert sorted(plan) == sorted(checks)
        for name, given in plan.items():
            exec(checks[name], defaults[name] | given)
    smoke = yaml.safe_load((ROOT / "workflow" / "profiles" / "smoke.yaml").read_text())
    assert smoke.keys() == {"atari"}  # the committed notebooks have its parameters


def test_only_what_the_batch_can_train_is_trained_anew():
    notebooks = batch.make_plan(ROOT, "paper", "cpu")["notebooks"]
    for chapter in ("05_ale_td_curves", "06_table1"):
        assert notebooks[chapter]["pair_files"] == ["out/paper/atari/pairs.csv"]
    crossed = notebooks["05_ale_td_curves"]["crossed_td_files"]
    assert crossed == ["figures/atari/td_errors_extra.csv"]
    assert notebooks["12_calibrated_gaps"]["run_files"][0] == "figures/atari/calibrated.csv"


def test_names_and_verdicts_of_claims_are_compared():
    """Numbers are not: a digit of chapter 7 depends on the processor, 0.56 or 0.43."""
    rules = configparser.RawConfigParser()
    rules.read(ROOT / "workflow" / "nbval.cfg")

    def compared(claim):
        for rule in rules.sections():
            claim = re.sub(rules[rule]["regex"], rules[rule]["replace"], claim)
        return claim

    committed = "6x6, 208 sweeps: |S| / error | [0.56, 1e-3] | holds\n"
    same = committed.replace("0.56", "-0.43").replace("208", "209")
    assert compared(same) == compared(committed)
    for old, new in {"holds": "FAILS", "error": "bound"}.items():
        assert compared(committed.replace(old, new)) != compared(committed)
