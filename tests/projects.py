"""Small projects for tests of the batch: notebooks, profiles, and the command run on them."""

import contextlib
import io
import sys
import time

import batch
import psutil

GOOD = """\
# %% [markdown]
# # A notebook

# %% tags=["parameters"]
level = 1.0
num_points = 3
seed = 7
out_dir = ""

# %%
from pathlib import Path

if out_dir:
    Path(out_dir, "{figure}").write_text(f"{{level}} {{num_points}}")

# %% tags=["summary"]
# NBVAL_CHECK_OUTPUT
print(f"|S| is large | {{level}} | holds")
"""


def good(figure):
    """A notebook that writes a figure of this name."""
    return GOOD.format(figure=figure)


class Project:
    """A folder with notebooks and profiles, and the command run on it."""

    def __init__(self, root):
        self.root = root
        (root / "notebooks").mkdir(parents=True)
        (root / "workflow" / "profiles").mkdir(parents=True)

    def notebook(self, name, text):
        # Latin-1, so that a test can write what is not UTF-8; all else is ASCII
        (self.root / "notebooks" / f"{name}.py").write_text(text, encoding="latin-1")

    def profile(self, name, text):
        (self.root / "workflow" / "profiles" / f"{name}.yaml").write_text(text, encoding="latin-1")

    def command(self, *arguments):
        return [sys.executable, batch.__file__, "--root", str(self.root), "--cores=2", *arguments]

    def refusal(self, *arguments):
        """The errors of the same command, which refuses to start; in this process, for speed."""
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            assert batch.main(self.command(*arguments)[2:]) == 2
        assert not (self.root / "out").exists()
        return printed.getvalue()

    def out(self, *parts):
        return self.root.joinpath("out", "quick", *parts)

    def results(self):
        """Everything a user reads, with its time and content."""
        return {
            str(path.relative_to(self.out())): (path.stat().st_mtime_ns, path.read_bytes())
            for folder in ("notebooks", "figures", "provenance", "failed")
            for path in self.out(folder).rglob("*.*")
        }


def wait_until(condition):
    end = time.monotonic() + 300.0
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the awaited state did not come")
        time.sleep(0.05)


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
