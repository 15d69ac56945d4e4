"""Shared set-up: tests skip for want of a package, and none leaves anything behind."""

import importlib.util
import os
import sys
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import HealthCheck, settings

# The same examples every time, but for `make test-random`, which draws new ones. Property tests
# take as long as they take: machines are noisy, and kernels compile.
settings.register_profile(
    "project",
    deadline=None,
    derandomize=not os.environ.get("RANDOM_TESTS"),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("project")

pytest_plugins = ("batch_fixtures", "site_fixtures")

# The modules that tests import beside those of `pip install ".[test]"`, by the extra of
# pyproject.toml that brings them.
EXTRAS = {
    "atari": "ale_py gymnasium",
    "book": "imagesize myst_nb sphinx",
    "box2d": "Box2D",
    "dev": "axe_core_python bs4 coverage mypy packaging playwright quantecon setuptools",
    "mujoco": "mujoco",
    "notebooks": "IPython jupytext matplotlib nbformat papermill yaml",
    "pandas": "pandas",
    "torch": "torch",
}
# Two are of Python: the batch and what measures need them.
BROUGHT_BY = dict.fromkeys(("fcntl", "resource"), "not on Windows") | {
    module: f'pip install "jmdp_lib[{extra}]"'
    for extra, modules in EXTRAS.items()
    for module in modules.split()
}


def missing(error):
    """The need of a test, if an error comes of a module that is not installed."""
    while error is not None:
        module = (getattr(error, "name", None) or "").partition(".")[0]
        if module in BROUGHT_BY and not importlib.util.find_spec(module):
            return f"needs {module}: {BROUGHT_BY[module]}"
        error = error.__cause__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """A file of tests that imports what is not installed is skipped, not an error."""
    report = yield
    reason = missing(report.call.excinfo.value) if report.failed else None
    if reason:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, f"Skipped: {reason}")
    return report


@pytest.hookimpl(wrapper=True)
def skip_what_is_missing(item):
    """And so is a single test, whether it or a fixture imports it."""
    try:
        return (yield)
    except ImportError as error:
        reason = missing(error)
        if reason:
            pytest.skip(reason)
        raise


pytest_runtest_setup = pytest_runtest_call = skip_what_is_missing


def state_of_the_process():
    """State of this process that one test may change and another may depend on."""
    state = {"folder": os.getcwd()}
    foreign = ("PYTEST_", "PYGAME_")  # set by pytest, and by Gymnasium when it is imported
    state |= {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    if matplotlib := sys.modules.get("matplotlib"):
        style = matplotlib.rcParams
        default = matplotlib.rcParamsOrig
        names = [name for name in style if name != "backend"]
        state |= {name: style[name] for name in names if style[name] != default[name]}
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        state |= {f"figure {number}": "open" for number in pyplot.get_fignums()}
    if torch := sys.modules.get("torch"):
        state |= {"doubles in torch": True} if torch.get_default_dtype() == torch.float64 else {}
    return state


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """Tests run in any order, so none may change what another one finds."""
    before = state_of_the_process()
    yield
    after = state_of_the_process()
    changed = [name for name in {*before, *after} if before.get(name) != after.get(name)]
    assert not changed, f"changed and not changed back: {sorted(changed)}"


@pytest.fixture
def leave(monkeypatch):
    """leave(size): from now on only so many bytes of memory seem to be available."""

    def set_available(size):
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=size))

    return set_available


def pytest_terminal_summary(terminalreporter):
    """Note what was skipped, and why: `make test` says it again in its last lines."""
    path = os.environ.get("SKIPPED_TESTS")
    for report in terminalreporter.stats.get("skipped", []) if path else []:
        with open(path, "a", encoding="utf-8") as file:
            reason = report.longrepr[2].removeprefix("Skipped: ")
            file.write(f"  {report.nodeid}: {reason}\n")
