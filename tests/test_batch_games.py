"""Atari games that the batch trains anew: where they are asked for, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable

import batch
import pytest
from projects import Project

PLAYED = """\
# %% tags=["parameters"]
result_files = ["figures/atari_reward_gaps.csv", "figures/atari_sticky_gaps.csv"]
out_dir = ""

# %%
import csv
from pathlib import Path

rows = [row for file in result_files for row in csv.DictReader((Path.cwd().parent / file).open())]

# %% tags=["summary"]
found = sorted({" ".join((row["game"], row["noise"], row["seed"])) for row in rows})
print(f"games and seeds | {', '.join(found)} | holds")
"""
SMALL = "atari:\n  games: [Pong]\n  seeds: [0]\n  settings: small.toml\n"
SETTINGS = """\
[lottery]
fresh = 0
trials.base = {}
experiment = { num_states = 60, num_held_out = 10, num_evaluation = 3, repeats = 4, horizon = 10 }
config = { kinds = ["gram", "near"], steps = 20, batch = 16, hidden = 32, log_every = 5 }
"""
COMMITTED = [f"figures/atari_{noise}_gaps.csv" for noise in ("reward", "sticky")]


@pytest.fixture
def games(project: Project) -> Project:
    """A project with a notebook that reads what two committed files say of games."""
    project.notebook("03_played", PLAYED)
    project.profile("quick", SMALL)
    (project.root / "small.toml").write_text(SETTINGS)
    (project.root / "figures").mkdir()
    for file in COMMITTED:
        (project.root / file).write_text("game,noise,seed\ncommitted,sticky,9\n")
    return project


@pytest.mark.slow
def test_games_are_trained_anew_and_no_seed_twice(
    games: Project, run: Callable[..., tuple[int, str]]
) -> None:
    sticky = COMMITTED[1]
    profile = f"{SMALL}03_played:\n  result_files: [{sticky}]\n"
    games.profile("quick", profile)
    # On one core: to spawn a process takes longer than it saves.
    again = ("--atari", "cpu", "--only", "03_played", "--cores", "1")
    code, said = run(*again)
    assert code == 0, said
    assert "games and seeds  Pong sticky 0 " in said
    tables = {f"atari_sticky_{name}.csv" for name in ("gaps", "table", "curves")}
    assert {p.name for p in games.out("atari").glob("atari_*")} == {*tables, "atari_sticky.json"}

    committed_file = games.root / sticky
    assert committed_file.read_text().endswith("committed,sticky,9\n")
    committed_file.unlink()  # what is made anew need not be there
    games.profile("quick", profile.replace("[0]", "[0, 1]"))
    _, said = run(*again, "--", "--dry-run")  # would train the new seed, and no game or seed again
    assert dict(re.findall(r"^(\w+) +(\d+)$", said, re.MULTILINE)) == {
        "atari_seed": "1",
        "atari_results": "1",
        "notebook": "1",
        "total": "3",
    }


def test_notebooks_read_what_is_trained_anew_or_what_is_committed(games: Project) -> None:
    plan = batch.make_plan(games.root, "quick")
    assert plan["notebooks"]["03_played"] == {"result_files": COMMITTED}
    plan = batch.make_plan(games.root, "quick", "cpu")
    made = [file.replace("figures", "out/quick/atari") for file in COMMITTED]
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
