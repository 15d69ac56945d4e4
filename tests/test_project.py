"""The project's own files agree with one another."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import batch
import conftest
import jupytext
import nbformat
import notebook_job
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import jmdp_lib

ROOT = Path(__file__).resolve().parents[1]
OWN = {"experiments", "jmdp_lib"}  # what an installation in place brings
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))
PROFILES = sorted(p.stem for p in (ROOT / "workflow" / "profiles").glob("*.yaml"))
by_source = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


# Reads all that is installed.
packages_distributions = functools.cache(importlib.metadata.packages_distributions)


@functools.cache
def committed(source: Path) -> nbformat.NotebookNode:
    """The notebook beside a source."""
    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


@functools.cache
def planned(profile: str) -> dict[str, dict[str, object]]:
    """The parameters that a profile gives to each notebook."""
    return batch.make_plan(ROOT, profile)["notebooks"]


def constraint_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pins() -> dict[str, str]:
    found = {}
    for line in constraint_lines():
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)(; .+)?", line)
        assert match, f"constraints.txt: {line!r} is not an exact public version"
        found[canonicalize_name(match[1])] = match[2]
    return found


def test_a_pin_with_a_marker_has_the_one_of_the_requirement() -> None:
    markers = {canonicalize_name(r.name): r.marker for r in requirements() if r.marker}
    pinned = [Requirement(line) for line in constraint_lines() if ";" in line]
    assert {canonicalize_name(r.name): r.marker for r in pinned} == markers


def extras() -> dict[str, list[Requirement]]:
    """What every extra of pyproject.toml asks for; "" is what a plain install brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {name: [Requirement(line) for line in group] for name, group in groups.items()}


def requirements() -> list[Requirement]:
    """Those of all extras, less the extras that one extra brings along."""
    return [r for group in extras().values() for r in group if r.name != "jmdp_lib"]


def brought(extra: str) -> set[str]:
    """All packages that an extra brings beside those of a plain install."""
    found: set[str] = set()
    for requirement in extras()[extra]:
        if requirement.name == "jmdp_lib":
            found |= {name for inner in requirement.extras for name in brought(inner)}
        else:
            found.add(canonicalize_name(requirement.name))
    return found


def test_environment_yml_has_the_constraints() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    assert [line for line in pip if line != "-e ."] == constraint_lines()
    assert "-e ." in pip
    assert "pip" in environment["dependencies"]
    assert environment["channels"] == ["conda-forge"]


def test_binder_gets_jupyter_and_all_that_the_notebooks_import() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = next(d for d in environment["dependencies"] if str(d).startswith("python="))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert Version(python.removeprefix("python=")) in SpecifierSet(project["requires-python"])
    # A server, and ipykernel, whose kernel is the python3 that every notebook names.
    assert {"jupyterlab", "ipykernel"} <= set(pins())
    assert notebook_job.KERNELSPEC["name"] == "python3"
    distributions = packages_distributions()
    for source in SOURCES:
        for module in imported_modules(source.read_text()) - sys.stdlib_module_names - OWN:
            owners = {canonicalize_name(name) for name in distributions.get(module, [])}
            known = owners & set(pins())
            assert known, f"{source.name} imports {module}, which environment.yml does not install"


def test_what_is_imported_is_declared_and_what_a_user_must_install_is_imported() -> None:
    distributions = packages_distributions()
    folders = (*sorted(OWN), "workflow", "book", "tests", "benchmarks")
    files = [path for name in folders for path in sorted((ROOT / name).rglob("*.py"))]
    own = {path.stem for path in files} | OWN | set(sys.stdlib_module_names)
    declared, used = {canonicalize_name(r.name) for r in requirements()}, set()
    for path in files:
        for module in imported_modules(path.read_text()) - own:
            owners = {canonicalize_name(name) for name in distributions.get(module, [])}
            assert owners & declared, f"{path.name} imports {module}, which pyproject does not name"
            if path.is_relative_to(ROOT / "jmdp_lib"):
                used |= owners
    needed = brought("") | brought("atari") | brought("figures") | brought("torch")
    assert needed <= used, f"jmdp_lib never imports {sorted(needed - used)}"


def test_a_plain_install_is_light_and_all_installs_all() -> None:
    heavy = {"ale-py", "gymnasium", "matplotlib", "pandas", "seaborn", "torch"}
    assert not brought("") & heavy
    assert heavy <= brought("notebooks")
    assert brought("all") | brought("") == {canonicalize_name(r.name) for r in requirements()}
    assert '-c constraints.txt -e ".[all]"' in (ROOT / "Makefile").read_text()


def test_importing_the_library_imports_nothing_that_a_plain_install_lacks() -> None:
    code = "import sys, jmdp_lib; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    distributions = packages_distributions()
    optional = brought("atari") | brought("figures") | brought("torch")
    for name in loaded:
        owners = {canonicalize_name(owner) for owner in distributions.get(name, [])}
        assert not optional & owners, name
    # A second of imports that a solver does not need.
    assert not loaded & {"scipy.special", "scipy.stats", "scipy.optimize", "jmdp_lib.atari"}


def test_every_extra_that_the_library_names_exists_and_brings_what_is_imported() -> None:
    distributions = packages_distributions()
    for path in [path for name in OWN for path in sorted((ROOT / name).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.With(
                    items=[
                        ast.withitem(
                            ast.Call(ast.Name("extra") | ast.Attribute(attr="extra"), args)
                        )
                    ]
                ):
                    names = [ast.literal_eval(name) for name in args]
                    have = {package for name in names for package in brought(name)}
                    for module in imported_modules(ast.unparse(node)) - {"jmdp_lib"}:
                        owners = {canonicalize_name(name) for name in distributions[module]}
                        assert owners & have, f"{path.name}: {names} do not bring {module}"


def imported_modules(code: str) -> set[str]:
    """The top-level names of all absolute imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return {name.partition(".")[0] for name in names}


def test_citation_names_the_paper_and_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert str(citation["cff-version"]) == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert str(citation["version"]) == jmdp_lib.__version__
    assert jmdp_lib.__version__ == importlib.metadata.version("jmdp_lib")
    assert citation["license"] == project["license"]
    assert [a["name"] for a in citation["authors"]] == [a["name"] for a in project["authors"]]
    paper = citation["preferred-citation"]
    assert paper["title"] in " ".join((ROOT / "README.md").read_text().split())
    assert [a["family-names"] for a in paper["authors"]] == ["Kaya", "Ghasemi", "Hashemi"]
    assert (paper["type"], paper["year"]) == ("conference-paper", 2026)
    assert "UAI" in paper["conference"]["name"]


def test_constraints_are_sorted_and_named_once() -> None:
    names = [line.split("==")[0].lower() for line in constraint_lines()]
    assert names == sorted(set(names))


@pytest.mark.parametrize("requirement", requirements(), ids=lambda r: r.name)
def test_ranges_admit_the_pins(requirement: Requirement) -> None:
    assert requirement.specifier, f"{requirement.name} has no range in pyproject.toml"
    version = pins().get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement.name} is not pinned in constraints.txt"
    assert version in requirement.specifier


def test_there_are_notebooks_and_names_are_in_order() -> None:
    assert SOURCES
    # a name the batch does not see would never be run
    assert [p.stem for p in SOURCES] == batch.notebook_names(ROOT)
    assert {p.stem for p in (ROOT / "notebooks").glob("*.ipynb")} == {p.stem for p in SOURCES}


@by_source
def test_notebook_is_paired_with_its_source(source: Path) -> None:
    made = committed(source)
    wanted = jupytext.read(source, fmt="py:percent")

    def inputs(nb: nbformat.NotebookNode) -> list[tuple[str, str, list[str]]]:
        return [(c.cell_type, c.source, c.metadata.get("tags", [])) for c in nb.cells]

    assert inputs(made) == inputs(wanted), f"{source.name} and its .ipynb differ: make notebooks"
    assert made.metadata.kernelspec == notebook_job.KERNELSPEC


@by_source
def test_notebook_is_committed_executed_and_free_of_noise(source: Path) -> None:
    made = committed(source)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert all(set(cell.metadata) <= {"tags"} for cell in made.cells)
    outputs = [output for cell in code for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    # a live widget has an id of its own in every run
    assert not [kind for o in outputs for kind in o.get("data", {}) if "widget" in kind]


@by_source
def test_summary_cell_is_last_marked_and_has_output(source: Path) -> None:
    made = committed(source)
    last = [cell for cell in made.cells if cell.cell_type == "code"][-1]
    assert "summary" in last.metadata.get("tags", [])
    assert last.source.startswith("# NBVAL_CHECK_OUTPUT\n")
    text = "".join(output.text for output in last.outputs if output.get("name") == "stdout")
    verdicts = [line.rsplit("|", 2)[-1].strip() for line in text.splitlines() if "|" in line]
    assert "holds" in verdicts
    assert "FAILS" not in verdicts


@by_source
def test_parameters_are_literals_and_out_dir_is_empty(source: Path) -> None:
    assert notebook_job.parameter_defaults(source)["out_dir"] == ""


@by_source
def test_every_number_among_the_parameters_says_its_least_value(source: Path) -> None:
    """In the comment behind it; what is no number has none, and every seed will do."""
    defaults = notebook_job.parameter_defaults(source)
    [cell] = notebook_job.tagged(notebook_job.read_source(source), "parameters")
    said = {line.split(" = ")[0]: line.partition("  # ")[2] for line in cell.source.splitlines()}
    for name, value in defaults.items():
        first = value[0] if isinstance(value, list) else value
        if name != "seed" and not isinstance(first, str):
            assert re.search(r"at least|at most|one of|\d to \d", said[name]), name


def test_profiles_fit_the_notebooks() -> None:
    assert PROFILES == ["paper", "quick", "smoke"]
    for profile in PROFILES:
        assert sorted(planned(profile)) == [p.stem for p in SOURCES]


def test_only_what_the_batch_can_train_is_trained_anew() -> None:
    notebooks = batch.make_plan(ROOT, "paper", "cpu")["notebooks"]
    assert notebooks["05_ale_td_curves"]["gap_files"] == ["out/paper/atari/atari_paper_gaps.csv"]
    assert notebooks["12_calibrated_gaps"]["play_files"] == ["figures/atari_plays.csv"]


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("name", "least"), [("05_ale_td_curves", 2)], ids=["05"])
def test_parameters_fit_the_settings_that_a_notebook_makes_of_them(
    profile: str, name: str, least: int
) -> None:
    """Make every dataclass that depends on parameters alone: it checks what it is given."""
    path = ROOT / "notebooks" / f"{name}.py"
    known = {**notebook_job.parameter_defaults(path)}
    known |= planned(profile)[name]
    made = 0
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(ast.unparse(node), known)
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        calls = [ast.unparse(n.func) for n in ast.walk(node.value) if isinstance(n, ast.Call)]
        names = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        settings = calls and all(dataclasses.is_dataclass(known.get(call)) for call in calls)
        if settings and names <= set(known):
            known[node.targets[0].id] = eval(ast.unparse(node.value), known)
            made += 1
    assert made >= least


JUPYTER = """
import sys
from jupyterlab.labapp import LabApp

server = LabApp.initialize_server(argv=["--allow-root", *sys.argv[1:]])
print(server.root_dir, server.file_to_run, sep="\\n")
"""


@pytest.mark.slow
def test_links_of_notebooks_lead_somewhere_in_the_jupyter_that_the_readme_starts() -> None:
    """Its root was notebooks/, and a link to ../book/ led nowhere."""
    pages = [ROOT / "README.md", ROOT / "notebooks" / "00_start_here.py"]
    commands = {c for p in pages for c in re.findall(r"/jupyter lab (.*\.ipynb)", p.read_text())}
    [options] = commands
    command = [sys.executable, "-c", JUPYTER, *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    root, opened = map(Path, done.stdout.split("\n")[:2])
    assert opened == ROOT / "notebooks" / "00_start_here.ipynb"
    links = [
        (source.parent / link).resolve()
        for source in SOURCES
        for link in re.findall(r"\]\((\.\./[^)#]+)", source.read_text())
    ]
    assert len(links) > 20
    assert not [link for link in links if not (link.exists() and link.is_relative_to(root))]


def checked(nb: nbformat.NotebookNode) -> list[str]:
    """The text that the cells printed whose output nbval compares."""
    cells = [c for c in nb.cells if c.source.startswith("# NBVAL_CHECK_OUTPUT")]
    return ["".join(o.text for o in c.outputs if o.get("name") == "stdout") for c in cells]


def nbval_options() -> list[str]:
    """Those of pytest in the rule of the Makefile, less the notebooks."""
    rule = re.search(r"^nbval:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert rule is not None
    _, *options, notebooks = rule[1].replace("\\\n", "").split()
    assert notebooks == "notebooks/*.ipynb"
    return options


def test_make_test_runs_every_committed_notebook_by_nbval() -> None:
    """As it stands, its parameters those of the smoke profile, its claims compared."""
    assert "--nbval-lax" in nbval_options()
    assert yaml.safe_load((ROOT / "workflow" / "profiles" / "smoke.yaml").read_text()) is None
    for source in SOURCES:
        assert [text for text in checked(committed(source)) if text], source.name


@pytest.mark.slow
def test_names_and_verdicts_of_claims_are_compared_and_numbers_are_not(tmp_path: Path) -> None:
    """A digit of chapter 7 depends on the processor: 0.56 was committed, 0.43 was found."""
    committed = "6x6, 208 sweeps: |S| / error | [0.56, 1e-3] | holds\n"
    nb = nbformat.v4.new_notebook()
    for found in (
        committed.replace("0.56", "-0.43").replace("208", "209"),
        committed.replace("holds", "FAILS"),
        committed.replace("error", "bound"),
    ):
        cell = nbformat.v4.new_code_cell(f"# NBVAL_CHECK_OUTPUT\nprint({found!r}, end='')")
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=committed)]
        cell.execution_count = 1
        nb.cells.append(cell)
    nbformat.write(nb, tmp_path / "claims.ipynb")
    command = [sys.executable, *nbval_options(), str(tmp_path / "claims.ipynb")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    failed = re.findall(r"^FAILED .*::Cell (\d)", done.stdout, re.MULTILINE)
    assert sorted(failed) == ["1", "2"], done.stdout + done.stderr


def test_no_two_notebooks_write_the_same_figure() -> None:
    files: list[str] = []
    for source in SOURCES:
        saved = re.findall(r"figures\.save\(\s*\w+,\s*\"(\w+)\"", source.read_text())
        record = ROOT / "figures" / "provenance" / f"{source.stem}.json"
        made = {Path(file).stem for file in json.loads(record.read_text())["figures"]}
        assert set(saved) <= made, source.name
        files += made
    assert len(files) == len(set(files)) > 0


@pytest.mark.slow
def test_notebooks_of_the_smoke_profile_run_through_the_batch() -> None:
    """`make test` has run them before the tests, so that there is nothing left to do here."""
    command = re.search(r"^smoke:.*\n\t\$\(PY\) (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert command is not None
    done = subprocess.run(
        [sys.executable, *command[1].split()], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "claims hold" in done.stdout
    names = command[1].partition("--only ")[2].split()
    assert len(names) > 1
    for name in names:
        places = [ROOT / folder / "provenance" for folder in ("out/smoke", "figures")]
        smoke, paper = (json.loads((place / f"{name}.json").read_text()) for place in places)
        assert smoke["figures"] == paper["figures"]


def test_the_changelog_names_every_chapter() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    chapters = re.findall(r"^\| (\d+) ", text, re.MULTILINE)
    assert [int(number) for number in chapters] == [int(path.stem[:2]) for path in SOURCES]
    assert "## Unreleased\n" in text
    assert f"\n## {jmdp_lib.__version__}" in text


def test_the_page_for_contributors_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = re.findall(r"`([\w./]+/[\w./]*|[\w]+\.(?:md|toml|txt|yml|cff))`", text)
    assert {"jmdp_lib/environments.py", "jmdp_lib/solvers/", "book/layout.md"} <= set(files)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [name for name in [*files, *links] if not (ROOT / name).exists()] == [
        "notebooks/NN_name.py",
        "out/paper",
    ]


def test_the_workflow_runs_everything_on_linux_and_the_core_elsewhere() -> None:
    """It cannot be run here: its syntax, and that what it calls is there."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert set(workflow) == {"name", True, "permissions", "jobs"}  # YAML reads `on` as true
    jobs = workflow["jobs"]
    for job in jobs.values():
        assert set(job) <= {"runs-on", "steps", "strategy", "timeout-minutes"}
        assert all(len(set(step) & {"uses", "run"}) == 1 for step in job["steps"])
    assert jobs["all"]["runs-on"] == "ubuntu-latest"
    assert [step["run"] for step in jobs["all"]["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    matrix = jobs["core"]["strategy"]["matrix"]
    assert matrix["os"] == ["macos-latest", "windows-latest"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    commands = " ".join(step.get("run", "") for step in jobs["core"]["steps"])
    assert '-e ".[test]"' in commands
    assert "test" in extras()


def test_ci_says_so_and_no_make_target_installs_system_packages() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "export CI=true" in script
    assert script.rstrip().endswith("exec make test")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert not re.findall(r"\b(apt|apt-get|brew|sudo|dnf|yum)\b", makefile)


def test_pre_commit_uses_the_projects_own_tools() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = config["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff", "ruff-format", "notebooks"]
    assert all(hook["language"] == "system" for hook in hooks)
    file, word = re.search(r" tests/(\w+)\.py -k (\w+)$", hooks[2]["entry"]).groups()
    assert file == Path(__file__).stem
    tests = [test for test in globals() if test.startswith("test_") and word in test]
    assert tests == ["test_notebook_is_paired_with_its_source"]


def test_deprecations_are_ignored_by_package_and_ours_are_errors() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    first, *filters = settings["pytest"]["ini_options"]["filterwarnings"]
    assert first == "error"
    own = ["jmdp_lib.model", "test_project", "conftest", "batch", "notebook_job", "api", "size"]
    *by_module, swig = filters
    for entry in by_module:
        kind, module = entry.split(":")[2:4]
        assert kind.endswith("DeprecationWarning")
        assert module
        assert not [name for name in own if re.match(module, name)]
        assert [name for name in ("numba.core", "zmq", "sphinx") if re.match(module, name)]
    assert swig.endswith(" has no __module__ attribute:DeprecationWarning")


SWIG = """
import contextlib
import warnings


def test_it():
    for name in ("SwigPyPacked", "SwigPyObject", "swigvarlink"):
        warnings.warn(f"builtin type {name} has no __module__ attribute", DeprecationWarning)
    with contextlib.suppress(ImportError):
        import Box2D
"""


def test_box2d_can_be_imported_where_warnings_are_errors(tmp_path: Path) -> None:
    """It ended in a segmentation fault; where it is not installed, its warnings are given."""
    (tmp_path / "test_it.py").write_text(SWIG)
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_extras_that_tests_name_bring_what_they_import() -> None:
    """What conftest.py skips for, and the extra that it names, against pyproject.toml."""
    distributions = packages_distributions()
    for extra, modules in conftest.EXTRAS.items():
        for module in modules:
            owners = {canonicalize_name(name) for name in distributions.get(module, [])}
            handed_on = {name for requirement in extras()[extra] for name in requirement.extras}
            known = not owners or owners & brought(extra) or module in handed_on
            assert known, f"jmdp_lib[{extra}] does not bring {module}"
    plain = {*brought(""), *brought("test")}
    folders = ("tests", "workflow", "book", "benchmarks")
    own = {path.stem for name in folders for path in (ROOT / name).glob("*.py")}
    own |= OWN | set(sys.stdlib_module_names)
    for path in sorted((ROOT / "tests").glob("*.py")):
        for module in imported_modules(path.read_text(encoding="utf-8")) - own:
            owners = {canonicalize_name(name) for name in distributions.get(module, [])}
            assert owners & plain or module in conftest.BROUGHT_BY, f"{path.name}: {module}"


@pytest.mark.slow
def test_what_was_skipped_is_said_in_the_last_lines(tmp_path: Path) -> None:
    """A test that is skipped for want of a browser or of Slurm, even where another one fails."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tests/conftest.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "stamp").write_text(str(tmp_path))  # there is nothing to set up
    code = "import pytest\n\ndef test_a():\n    assert False\n\n"
    code += "def test_b():\n    pytest.skip('needs Slurm')\n"
    (tmp_path / "tests" / "test_it.py").write_text(code)
    command = ["make", "-C", str(tmp_path), "test-fast", "-o", "lint", "STAMP=stamp"]
    done = subprocess.run([*command, f"PY={sys.executable}"], capture_output=True, text=True)
    assert done.returncode != 0
    told = done.stdout.partition("\nSkipped:\n")[2].splitlines()
    assert told[0] == "  tests/test_it.py::test_b: needs Slurm"
    assert not [line for line in told[1:] if "make" not in line]


PROPERTY = """
from hypothesis import given, strategies

seen = []


@given(strategies.integers())
def test_one(number):
    seen.append(number)


@given(strategies.text())
def test_two(word):
    seen.append(word)


def test_three():
    pass


def teardown_module():
    print(sorted(map(ascii, seen)))
"""


@pytest.mark.slow
def test_in_ci_property_tests_see_the_same_examples_in_every_order(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_bytes((ROOT / "tests" / "conftest.py").read_bytes())
    (tmp_path / "test_it.py").write_text(PROPERTY)
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", "-p", "no:cacheprovider", "-sv"]
    said = [
        subprocess.run(
            [*command, f"--randomly-seed={seed}", "test_it.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "CI": "true", "SKIPPED_TESTS": ""},
        ).stdout
        for seed in (1, 2)
    ]
    orders = [re.findall(r"::(test_\w+)", text) for text in said]
    assert orders[0] != orders[1]
    assert all("--randomly-seed=" in text for text in said)  # so that an order can be repeated
    examples = [re.findall(r"\['.*\]$", text, re.MULTILINE) for text in said]
    assert examples[0] == examples[1]
    assert len(examples[0][0]) > 200
