"""Atari games that the batch trains anew: where they are asked for, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable

import batch
import pytest
from projects import Project

PLAYED = """\
# %% tags=["parameters"]
result_files = ["figures/atari/paper_gaps.csv", "figures/atari/other.csv"]
out_dir = ""

# %%
import csv
from pathlib import Path

rows = [row for file in result_files for row in csv.DictReader((Path.cwd().parent / file).open())]

# %% tags=["summary"]
found = sorted({" ".join((row["game"], row["scale"])) for row in rows})
print(f"games and scales | {', '.join(found)} | holds")
"""
SMALL = "atari:\n  games: [Pong]\n  seeds: [0]\n  settings: small.toml\n"
SETTINGS = """\
[calibrate]
fresh = [1]
experiment = { num_states = 40, num_held_out = 10, num_evaluation = 2, repeats = 3, horizon = 5 }
config = { sigma = 1.0, kinds = ["gram"], steps = 4, batch = 16, hidden = 16 }

[paper]
like = "calibrate"
trials = { divided = { scale = "divided" }, natural = { scale = "natural" } }
"""
COMMITTED = ["figures/atari/paper_gaps.csv", "figures/atari/other.csv"]


@pytest.fixture
def games(project: Project) -> Project:
    """A project with a notebook that reads what two committed files say of games."""
    project.notebook("03_played", PLAYED)
    project.profile("quick", SMALL)
    (project.root / "small.toml").write_text(SETTINGS)
    (project.root / "figures" / "atari").mkdir(parents=True)
    for file in COMMITTED:
        (project.root / file).write_text("game,scale\ncommitted,natural\n")
    return project


@pytest.mark.slow
def test_games_are_trained_anew_and_none_twice(
    games: Project, run: Callable[..., tuple[int, str]]
) -> None:
    profile = f"{SMALL}03_played:\n  result_files: [{COMMITTED[0]}]\n"
    games.profile("quick", profile)
    # On one core: to spawn a process takes longer than it saves.
    again = ("--atari", "cpu", "--only", "03_played", "--cores", "1")
    code, said = run(*again)
    assert code == 0, said
    assert "games and scales | Pong divided, Pong natural\n" in said
    tables = {f"paper_{name}.csv" for name in ("gaps", "floors", "curves")}
    assert {p.name for p in games.out("atari").glob("paper*")} == {*tables, "paper.json"}

    committed_file = games.root / COMMITTED[0]
    assert committed_file.read_text().endswith("committed,natural\n")
    committed_file.unlink()  # what is made anew need not be there
    games.profile("quick", profile.replace("[Pong]", "[Pong, Boxing]"))
    _, said = run(*again, "--", "--dry-run")  # would train the new game, and no game again
    assert dict(re.findall(r"^(\w+) +(\d+)$", said, re.MULTILINE)) == {
        "atari_game": "1",
        "atari_results": "1",
        "notebook": "1",
        "total": "3",
    }


def test_notebooks_read_what_is_trained_anew_or_what_is_committed(games: Project) -> None:
    plan = batch.make_plan(games.root, "quick")
    assert plan["notebooks"]["03_played"] == {"result_files": COMMITTED}
    plan = batch.make_plan(games.root, "quick", "cpu")
    made = [COMMITTED[0].replace("figures", "out/quick"), COMMITTED[1]]
    assert plan["notebooks"]["03_played"] == {"result_files": made}


@pytest.mark.parametrize(
    ("changed", "device", "message"),
    [
        ({"games": "[Pnog]"}, "cpu", "Pnog"),
        ({"games": "[Pong, pong]"}, "cpu", "distinct"),
        ({"games": "Pong"}, "cpu", "games: 'Pong' is not of type 'array'"),
        ({"seeds": "[-1]"}, "cpu", "seeds: 0: -1 is less than"),
        ({"seeds": "0"}, "cpu", "seeds: 0 is not of type 'array'"),
        ({"settings": "none.toml"}, "cpu", "quick.yaml: there is no file none.toml"),
        ({}, "toaster", "is unknown"),
    ],
)
def test_wrong_games_are_refused_before_any_work(
    games: Project, changed: dict[str, str], device: str, message: str
) -> None:
    entry = {"games": "[Pong]", "seeds": "[0]"} | changed
    games.profile("quick", "\n  ".join(["atari:", *(f"{k}: {v}" for k, v in entry.items())]))
    assert message in games.refusal("--atari", device)


def test_a_profile_without_games_is_refused_before_any_work(games: Project) -> None:
    games.profile("quick", "")
    assert "needs an entry `atari:`" in games.refusal("--atari", "cpu")
