"""Atari games that the batch trains anew: where they are asked for, and nowhere else."""

import re
import shutil

import batch
import pytest
from programs import ROOT

PLAYED = """\
# %% tags=["parameters"]
result_files = ["figures/atari/td_errors.csv", "figures/atari/other.csv"]
out_dir = ""

# %%
import csv
from pathlib import Path

rows = [row for file in result_files for row in csv.DictReader((Path.cwd().parent / file).open())]

# %% tags=["summary"]
found = sorted({" ".join((row["game"], row["settings"])) for row in rows})
print(f"games and settings | {', '.join(found)} | holds")
"""
SMALL = "atari:\n  games: [Pong]\n  seeds: [0]\n  miniature: true\n"
COMMITTED = ["figures/atari/td_errors.csv", "figures/atari/other.csv"]


@pytest.fixture
def games(project):
    """A project with a notebook that reads what two committed files say of games."""
    project.notebook("03_played", PLAYED)
    project.profile("quick", SMALL)
    (project.root / "figures" / "atari").mkdir(parents=True)
    for file in COMMITTED:
        (project.root / file).write_text("game,settings\ncommitted,launcher\n")
    return project


# Read by every Python that starts: the program trains a miniature of its miniature.
SMALLER = """
import sys

if "experiments.release" in sys.orig_argv:
    from experiments.release.settings import PROTOCOL

    small = {"learn_from": 8, "steps": 24, "window": 4, "batch": 2, "states": 2, "horizon": 4}
    PROTOCOL["miniature"] |= small
"""


@pytest.mark.slow
def test_games_are_trained_anew_and_a_chapter_holds_for_them(
    games,
    run,
    tmp_path,
    monkeypatch,
):
    """All of it in miniature. Chapter 5 trains a miniature itself: it is run with the notebooks."""
    (tmp_path / "sitecustomize.py").write_text(SMALLER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    shutil.copytree(
        ROOT / "figures" / "atari", games.root / "figures" / "atari", dirs_exist_ok=True
    )
    shutil.copy(ROOT / "notebooks" / "06_table1.py", games.root / "notebooks")
    (games.root / "pyproject.toml").touch()  # where chapters look for the root
    profile = f"{SMALL}03_played:\n  result_files: [{COMMITTED[0]}]\n"
    games.profile("quick", profile)
    committed = (games.root / COMMITTED[0]).read_bytes()
    again = ("--atari", "cpu", "--only", "03_played", "06_table1")
    code, said = run(*again)
    assert code == 0, said
    assert "games and settings | Pong defaults, Pong launcher\n" in said
    assert "Table 1: numbers within a factor of 1.5" in said
    for name in batch.TABLES:  # as the chapters read them
        new, old = games.out("atari", f"{name}.csv"), ROOT / "figures" / "atari" / f"{name}.csv"
        assert new.read_text().partition("\n")[0] == old.read_text().partition("\n")[0], name

    assert (games.root / COMMITTED[0]).read_bytes() == committed
    (games.root / COMMITTED[0]).unlink()  # what is made anew need not be there
    games.profile("quick", profile.replace("[Pong]", "[Pong, Boxing]"))
    _, said = run(*again, "--", "--dry-run")  # would train the new game, and no game again
    assert dict(re.findall(r"^(\w+) +(\d+)$", said, re.MULTILINE))["atari"] == "1"


@pytest.mark.parametrize(
    ("profile", "device", "message"),
    [
        ("", "cpu", "needs an entry `atari:`"),
        ("atari: {games: [Pnog], seeds: [0]}", "cpu", "Pnog"),
        ("atari: {games: [Pong, pong], seeds: [0]}", "cpu", "distinct"),
        ("atari: {games: [Pong], seeds: [-1]}", "cpu", "seeds: 0: -1 is less than"),
        (SMALL.replace("true", "small"), "cpu", "miniature: 'small' is not of type 'boolean'"),
        (SMALL, "toaster", "is unknown"),
    ],
)
def test_wrong_games_are_refused_before_any_work(games, profile, device, message):
    games.profile("quick", profile)
    assert message in games.refusal("--atari", device)
