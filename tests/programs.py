"""The folder of the project, and programs that tests start."""

import os
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def finished(*command, cwd=ROOT, timeout=None, **environment):
    """A program that has ended, with these variables beside those of the process."""
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        env=os.environ | environment,
    )


def run(*command, **options):
    """The output of a program that must not fail; options as of `finished`."""
    done = finished(*command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
