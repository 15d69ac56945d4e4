"""Atari games that the batch trains anew, on request alone."""

import re
import shutil

import batch
import pytest
from programs import ROOT

SMALL = "atari:\n  games: [Pong]\n  seeds: [0]\n  miniature: true\n"


# Every Python that starts reads this: the program trains a miniature of its miniature.
SMALLER = """
import sys

if "experiments.release" in sys.orig_argv:
    from experiments.release.settings import PROTOCOL

    small = {"learn_from": 8, "steps": 24, "window": 4, "batch": 2, "states": 2, "horizon": 4}
    PROTOCOL["miniature"] |= small
"""


@pytest.mark.slow
def test_games_are_trained_anew_and_a_chapter_shows_them(project, run, tmp_path, monkeypatch):
    """All of it in miniature. Chapter 5 trains a miniature itself: it is run with the notebooks."""
    (tmp_path / "sitecustomize.py").write_text(SMALLER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    committed = project.root / "figures" / "atari"
    shutil.copytree(ROOT / "figures" / "atari", committed)
    shutil.copy(ROOT / "notebooks" / "06_table1.py", project.root / "notebooks")
    (project.root / "pyproject.toml").touch()  # where chapters look for the root
    project.profile("quick", SMALL)
    (committed / "pairs.csv").unlink()  # what is made anew need not be there
    again = ("--atari", "cpu", "--cores=1", "--only", "06_table1")
    code, printed = run(*again)
    assert code == 0, printed
    assert "Table 1: numbers within a factor of 1.5 | 0 of 2\n" in printed  # of one game
    for name in batch.TABLES:  # as the chapters read them
        new, old = project.out("atari", f"{name}.csv"), ROOT / "figures" / "atari" / f"{name}.csv"
        assert new.read_text().partition("\n")[0] == old.read_text().partition("\n")[0], name

    project.profile("quick", SMALL.replace("[Pong]", "[Pong, Boxing]"))
    _, printed = run(*again, "--", "--dry-run")  # would train the new game, and no game again
    assert dict(re.findall(r"^(\w+) +(\d+)$", printed, re.MULTILINE))["atari"] == "1"


@pytest.mark.parametrize(
    ("profile", "device", "message"),
    [
        ("", "cpu", "needs an entry `atari:`"),
        ("atari: {games: [Pnog], seeds: [0]}", "cpu", "Pnog"),
        ("atari: {games: [Pong, pong], seeds: [0]}", "cpu", "games must be distinct"),
        ("atari: {games: [Pong], seeds: [1, 1]}", "cpu", "seeds must be distinct"),
        ("atari: {games: [Pong], seeds: [-1]}", "cpu", "seeds must be at least 0"),
        (SMALL.replace("true", "small"), "cpu", "miniature: 'small' must be of type bool"),
        (SMALL, "toaster", "is unknown"),
    ],
)
def test_wrong_games_are_refused_before_any_work(project, profile, device, message):
    project.profile("quick", profile)
    assert message in project.refusal("--atari", device)
