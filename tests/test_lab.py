"""The chapters in a real Jupyter server, as JupyterLab opens and saves them."""

import http.client
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from programs import ROOT, run
from projects import wait_until

CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("[0-9]*.py"))
pytestmark = pytest.mark.slow


class Lab:
    """A server for a copy of the chapters, with its contents API."""

    def __init__(self, root, address):
        self.root, self.address = root, address

    def file(self, chapter, suffix):
        return self.root / "notebooks" / f"{chapter}{suffix}"

    def age(self, chapter, **seconds):
        """Set the times of a chapter's files: `py=0, ipynb=60`."""
        for suffix, second in seconds.items():
            os.utime(self.file(chapter, f".{suffix}"), (1e9 + second, 1e9 + second))

    def request(self, chapter, body=None):
        """The server's answer when a chapter is opened, or saved with this content."""
        place = f"/api/contents/notebooks/{chapter}.ipynb"
        own = {"Authorization": "token lab"}
        with closing(http.client.HTTPConnection(urlsplit(self.address).netloc)) as server:
            server.request("PUT" if body else "GET", place, body and json.dumps(body), own)
            return json.load(server.getresponse())


def addresses(base):
    """The address of the server that keeps its files in `base`, once it answers."""
    try:
        running = [
            json.loads(path.read_text())["url"] for path in base.glob("RUNTIME/jpserver-*.json")
        ]
        return [address for address in running if urlopen(f"{address}api").read()]
    except (OSError, ValueError):  # not yet
        return []


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    base = tmp_path_factory.mktemp("lab")
    root = base / "project"
    for name in ("notebooks", "workflow"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    own = {f"JUPYTER_{name}_DIR": str(base / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [f"--config={root}/workflow/lab.py", "--IdentityProvider.token=lab"]
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]
    with open(base / "log", "w") as log:
        server = subprocess.Popen(command, cwd=base, env=os.environ | own, stdout=log, stderr=log)
    try:
        wait_until(lambda: bool(addresses(base)))
        yield Lab(root, addresses(base)[0])
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_opens_and_is_saved_as_it_was(lab, chapter):
    """Either file may be the newer one: git writes the two in any order.

    Lab notes the kernel's language, takes that for an edit, and saves after a while.
    """
    before = [lab.file(chapter, suffix).read_bytes() for suffix in (".py", ".ipynb")]
    for times in ({"py": 60, "ipynb": 0}, {"py": 0, "ipynb": 60}):
        lab.age(chapter, **times)
        opened = lab.request(chapter)
        assert "content" in opened, opened["message"]
        assert any(cell.get("outputs") for cell in opened["content"]["cells"])
    language = {"name": "python", "version": "3.14.1", "file_extension": ".py"}
    opened["content"]["metadata"]["language_info"] = language
    lab.request(chapter, opened)
    assert [lab.file(chapter, suffix).read_bytes() for suffix in (".py", ".ipynb")] == before


def test_a_chapter_that_was_run_is_saved_as_it_was(lab):
    """Erased progress bars, the line on compiling and lost alt texts are no change."""
    chapter = "09_gap_law"
    before = lab.file(chapter, ".ipynb").read_bytes()
    opened = lab.request(chapter)
    warned = {
        "output_type": "stream",
        "name": "stderr",
        "text": "jmdp_lib compiles it\nWarning: few",
    }
    for cell in opened["content"]["cells"]:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output["metadata"] = {"image/png": {"width": 500}}
        if cell["cell_type"] == "code":
            erased = {**warned, "text": "\r" + 66 * " " + "\r"}
            compiled = {**warned, "text": "jmdp_lib compiles what is called, once\n"}
            cell["outputs"] = [erased, compiled, *cell["outputs"]]
    lab.request(chapter, opened)
    assert lab.file(chapter, ".ipynb").read_bytes() == before
    cell["outputs"] = [warned]  # which stays, but for the line
    lab.request(chapter, opened)
    assert '"Warning: few"' in lab.file(chapter, ".ipynb").read_text()
    assert "compiles it" not in lab.file(chapter, ".ipynb").read_text()
    lab.file(chapter, ".ipynb").write_bytes(before)


def test_make_lab_hands_on_its_options():
    command = run("make", "-n", "lab", "STAMP=", "STALE=", "LAB=--allow-root --no-browser")
    assert "/lab.py --allow-root --no-browser notebooks/00_start_here.ipynb" in command
