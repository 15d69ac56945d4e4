"""Shared set-up: what is not installed is skipped, and no test leaves anything behind."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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

ROOT = Path(__file__).resolve().parents[1]

# The modules that tests import beside those of `pip install ".[test]"`, by the extra of
# pyproject.toml that brings them; tests/test_project.py holds the two equal.
EXTRAS = {
    "atari": ["ale_py", "gymnasium"],
    "book": ["imagesize", "myst_nb", "sphinx"],
    "box2d": ["Box2D"],
    "dev": [
        "axe_core_python",
        "bs4",
        "coverage",
        "cvxpy",
        "mypy",
        "packaging",
        "playwright",
        "quantecon",
        "setuptools",
    ],
    "figures": ["matplotlib", "pandas"],
    "mujoco": ["mujoco"],
    "notebooks": ["IPython", "jsonschema", "jupytext", "nbformat", "papermill", "yaml"],
    "torch": ["torch"],
}
NOT_ON_WINDOWS = ("fcntl", "resource")  # of Python; the batch and what measures need them
BROUGHT_BY = {module: extra for extra, modules in EXTRAS.items() for module in modules}


def missing(error: BaseException | None) -> str | None:
    """What a test needs, if an error comes of a module that an extra or the system lacks."""
    while error is not None:
        module = (getattr(error, "name", None) or "").partition(".")[0]
        if module in BROUGHT_BY and not importlib.util.find_spec(module):
            return f'needs {module}: pip install "jmdp_lib[{BROUGHT_BY[module]}]"'
        if module in NOT_ON_WINDOWS and not importlib.util.find_spec(module):
            return f"needs {module}: not on Windows"
        error = error.__cause__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """A file of tests that imports what is not installed is skipped, not an error."""
    report = yield
    reason = missing(report.call.excinfo.value) if report.failed else None
    if reason:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, f"Skipped: {reason}")
    return report


@pytest.hookimpl(wrapper=True)
def skip_what_is_missing(item: pytest.Item) -> Generator[None, Any, Any]:
    """And so is a single test, whether it or a fixture imports it."""
    try:
        return (yield)
    except ImportError as error:
        reason = missing(error)
        if reason:
            pytest.skip(reason)
        raise


pytest_runtest_setup = pytest_runtest_call = skip_what_is_missing


def state_of_the_process() -> dict[str, object]:
    """What one test may change and another may depend on."""
    found: dict[str, object] = {"folder": os.getcwd()}
    foreign = ("PYTEST_", "PYGAME_")  # set by pytest, and by Gymnasium when it is imported
    found |= {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    if matplotlib := sys.modules.get("matplotlib"):
        style = matplotlib.rcParams
        default = matplotlib.rcParamsOrig
        names = [name for name in style if name != "backend"]
        found |= {name: style[name] for name in names if style[name] != default[name]}
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        found |= {f"figure {number}": "open" for number in pyplot.get_fignums()}
    if torch := sys.modules.get("torch"):
        found |= {"doubles in torch": True} if torch.get_default_dtype() == torch.float64 else {}
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Tests run in any order, so none may change what another one finds."""
    before = state_of_the_process()
    yield
    after = state_of_the_process()
    changed = [name for name in {*before, *after} if before.get(name) != after.get(name)]
    assert not changed, f"changed and not changed back: {sorted(changed)}"


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """leave(size): from now on only so many bytes of memory seem to be available."""

    def set_available(size: float) -> None:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=size))

    return set_available


# ---- the batch, on small projects ----------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Any:
    """A `projects.Project` of two notebooks that succeed."""
    import projects

    made = projects.Project(tmp_path / "a project")  # the space is on purpose
    made.notebook("01_first", projects.good("first.txt"))
    made.notebook("02_second", projects.good("second.txt"))
    made.profile("quick", "01_first:\n  level: 2.5\n")
    made.profile("paper", "")
    return made


@pytest.fixture
def run(
    project: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The command in this process, which has imported what it needs: its code, and what it said."""
    import batch

    monkeypatch.setattr(batch.signal, "signal", lambda *_: None)

    def run(*arguments: str) -> tuple[int, str]:
        code = batch.main(project.command(*arguments)[2:])
        return code, capfd.readouterr().out

    return run


@pytest.fixture
def family() -> Iterator[list[psutil.Process]]:
    """Processes that a test leaves alone for a while; none survives it, even when it fails."""
    import projects

    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        if projects.alive(process):
            process.kill()


# ---- the book, for tests that read it ------------------------------------------------------------


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book, built once, whichever process asks first."""
    import fcntl

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with open(base / "book.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "book").exists():
            command = [sys.executable, ROOT / "book" / "build.py", "--out", base / "book"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return base / "book"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """The address of the book, for a browser of this machine."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    """A page of the system's Chromium, driven by playwright."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        message = (
            "no browser to read the book with: install Chromium (Debian: apt install chromium)"
        )
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    # Whatever a page asks of another host fails, and is seen.
    flags.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=flags)
        page = browser.new_page()
        page.set_default_timeout(180_000)
        yield page
        browser.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Note what was skipped, and why: `make test` says it again in its last lines."""
    path = os.environ.get("SKIPPED_TESTS")
    for report in terminalreporter.stats.get("skipped", []) if path else []:
        with open(path, "a", encoding="utf-8") as file:
            reason = report.longrepr[2].removeprefix("Skipped: ")
            file.write(f"  {report.nodeid}: {reason}\n")
