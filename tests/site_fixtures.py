"""The book, built once, its address, and a tab of a real browser to read it in."""

import functools
import http.server
import os
import shutil
import sys
import threading

import pytest
from programs import run


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The book, built once, whichever process asks first."""
    import fcntl

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with open(base / "book.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "book").exists():
            run(sys.executable, "book/build.py", "--out", base / "book")
    return base / "book"


@pytest.fixture(scope="session")
def address(site):
    """The address of the book, for a browser of this machine."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")
def browser():
    """The system's Chromium, driven by playwright."""
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
    with (
        sync_playwright() as driver,
        driver.chromium.launch(executable_path=executable, args=flags) as browser,
    ):
        yield browser


@pytest.fixture
def tab(browser):
    """A tab of its own."""
    with browser.new_page(viewport={"width": 1280, "height": 900}) as page:
        page.set_default_timeout(180_000)
        yield page
