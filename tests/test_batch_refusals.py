"""What the batch refuses before any work, and how it says so."""

from __future__ import annotations

import batch
import pytest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("01_first: {levle: 1.0}", ["01_first", "'levle'", "level, num_points"]),
        ("03_third: {level: 1.0}", ["'03_third'", "02_second"]),
        ("01_first: {num_points: ten}", ["01_first: num_points", "integer", "'ten'"]),
        ("01_first: {num_points: true}", ["01_first: num_points", "integer", "True"]),
        ("01_first: {num_points: 3.0}", ["01_first: num_points", "integer", "3.0"]),
        ("01_first: {level: 1e-8}", ["01_first: level", "number", "1.0e-8"]),
        ("01_first: {out_dir: x}", ["01_first", "'out_dir'", "level, num_points, seed"]),
        ("01_first: [1, 2]", ["01_first", "[1, 2]"]),
        ("- 01_first", ["'object'"]),
        ("01_first: {", ["not valid YAML"]),
        ("01_first: {level: '\xff'}", ["not valid YAML"]),
        ("01_first: {a: 1, b: 2}\n04_none: {}", ["'a'", "'b'", "04_none"]),  # all at once
    ],
)
def test_a_bad_profile(project, text, expected):
    project.profile("quick", text)
    said = project.refusal("--profile", "quick")
    for part in ["quick.yaml", *expected]:
        assert part in said


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("# %%\nlevel = 1\n", ['tags=["parameters"]', "found 0"]),
        ('# %% tags=["parameters"]\nlevel = 2 * 3\nout_dir = ""\n', ["parameters cell", "BinOp"]),
        ('# %% tags=["parameters"]\nimport os\nout_dir = ""\n', ["import os"]),
        ('# %% tags=["parameters"]\nlevel = 1\n', ['out_dir = ""']),
        ('# %% tags=["parameters"]\nlevel = (\n', ["parameters cell"]),
        ("# %%\nlevel = '\xff'\n", ["utf-8"]),
    ],
)
def test_a_bad_parameters_cell(project, cells, expected):
    project.notebook("03_bad", cells)
    said = project.refusal("--profile", "quick")
    for part in ["03_bad.py", *expected]:
        assert part in said


def test_entries_of_lists_that_are_not_of_the_default_s_type(project):
    cell = 'gammas = [0.9]\nsizes = (3, 4)\nothers = []\nlabels = ["a"]\nout_dir = ""\n'
    project.notebook("01_first", f'# %% tags=["parameters"]\n{cell}')
    project.profile("quick", "01_first:\n  gammas: [1, 0.5]\n  sizes: [5]\n  others: [a, 1]\n")
    assert batch.make_plan(project.root, "quick")["notebooks"]["01_first"]["sizes"] == [5]
    wrong = "gammas: [0.9, 1e-8], sizes: [5, 0.5], labels: [b, 3]"
    project.profile("quick", f"01_first: {{{wrong}}}")
    said = project.refusal()
    assert "01_first: gammas: 1: '1e-8' is not of type 'number'; in YAML write 1.0e-8" in said
    assert "01_first: sizes: 1: 0.5 is not of type 'integer'" in said
    assert "01_first: labels: 1: 3 is not of type 'string'" in said


def test_an_empty_list_of_which_every_claim_would_hold(project):
    cell = 'gammas = [0.9]\nsizes = [[3], [4]]\nothers = []\nout_dir = ""\n'
    project.notebook("01_first", f'# %% tags=["parameters"]\n{cell}')
    project.profile("quick", "01_first: {gammas: [], sizes: [[5], []], others: []}")
    said = project.refusal().splitlines()
    assert [line.partition(" should ")[0] for line in said] == [
        "error: quick.yaml: 01_first: gammas: []",
        "quick.yaml: 01_first: sizes: 1: []",
    ]


def test_a_file_that_a_notebook_reads_and_that_is_not_there(project):
    cell = '# %% tags=["parameters"]\nresult_files = ["one.csv", "two.csv"]\nout_dir = ""\n'
    project.notebook("03_third", cell)
    (project.root / "one.csv").touch()
    assert project.refusal() == "error: 03_third.py: there is no file two.csv\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profile", "quik"], "unknown profile 'quik'; known profiles: paper, quick"),
        (["--only", "01_first", "09_nine"], "'09_nine'; known: 01_first, 02_second"),
        (["--cores", "0"], "--cores must be at least 1, found 0"),
        (["--slurm"], "--slurm: there is no command sbatch"),
    ],
)
def test_bad_options(project, monkeypatch, options, said):
    monkeypatch.setenv("PATH", str(project.root))  # there is no Slurm
    assert said in project.refusal(*options)


def test_a_link_to_a_disk_that_is_not_there(project):
    (project.root / "out").symlink_to("/disk/of/another/machine")
    assert project.refusal().endswith(
        "out is a link to /disk/of/another/machine, which is no folder\n"
    )
