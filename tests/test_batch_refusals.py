"""Wrong input is refused before any work, in a line that names it."""

import re

import batch
import pytest

CELL = '# %% tags=["parameters"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("01_first: {num_points: true}", "01_first: num_points: True must be of type int"),
        ("01_first: {num_points: 3.0}", r"01_first: num_points: 3\.0 must be of type int"),
        ("01_first: {level: 1e-8}", r"01_first: level: '1e-8' must be of type float.*1\.0e-8"),
        ("01_first: {out_dir: x}", "01_first.*'out_dir'.*level, num_points, seed"),
        ("01_first: [1, 2]", r"01_first.*\[1, 2\]"),
        ("- 01_first", "must be of type dict"),
        ("01_first: {", "not valid YAML"),
        ("01_first: {a: 1, b: 2}\n04_none: {}", "'a'.*'b'.*04_none.*02_second"),  # all at once
    ],
)
def test_a_bad_profile(project, text, message):
    project.profile("quick", text)
    assert re.search(rf"quick\.yaml.*{message}", project.refusal("--profile", "quick"), re.DOTALL)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("# %%\nlevel = 1\n", r'tags=\["parameters"\].*found 0'),
        (f'{CELL}level = 2 * 3\nout_dir = ""\n', "parameters cell.*BinOp"),
        (f'{CELL}import os\nout_dir = ""\n', "import os"),
        (f"{CELL}level = 1\n", 'out_dir = ""'),
        ("# %%\nlevel = '\xff'\n", "utf-8"),
        (f'{CELL}result_files = ["pair.py", "two.csv"]\nout_dir = ""\n', "no file two.csv\n$"),
    ],
)
def test_a_bad_parameters_cell(project, cells, message):
    project.notebook("03_bad", cells)
    (project.root / "pair.py").touch()
    assert re.search(rf"03_bad\.py.*{message}", project.refusal(), re.DOTALL)


def test_bad_entries_of_lists_and_empty_lists(project):
    """Every claim of an empty list would hold."""
    cell = 'gammas = [0.9]\nsizes = (3, 4)\nothers = []\nlabels = ["a"]\npairs = [[3], [4]]\n'
    project.notebook("01_first", f'{CELL}{cell}out_dir = ""\n')
    project.profile("quick", "01_first:\n  gammas: [1, 0.5]\n  sizes: [5]\n  others: [a, 1]\n")
    assert batch.make_plan(project.root, "quick")["notebooks"]["01_first"]["sizes"] == [5]
    wrong = "gammas: [0.9, 1e-8], sizes: [5, 0.5], labels: [], others: [], pairs: [[5], []]"
    project.profile("quick", f"01_first: {{{wrong}}}")
    message = project.refusal()
    assert "01_first: gammas: 1: '1e-8' must be of type float; in YAML write 1.0e-8" in message
    assert "01_first: sizes: 1: 0.5 must be of type int" in message
    assert re.findall("01_first: (.*) should ", message) == ["labels: []", "pairs: 1: []"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile", "quik"], "unknown profile 'quik'; known profiles: paper, quick"),
        (["--only", "01_first", "09_nine"], "'09_nine'; known: 01_first, 02_second"),
        (["--cores", "0"], "--cores must be at least 1, found 0"),
        (["--slurm"], "--slurm: there is no command sbatch"),
    ],
)
def test_bad_options(project, monkeypatch, options, message):
    monkeypatch.setenv("PATH", str(project.root))  # there is no Slurm
    assert message in project.refusal(*options)


def test_a_link_to_a_disk_that_is_not_there(project):
    (project.root / "out").symlink_to("/disk/of/another/machine")
    message = "out is a link to /disk/of/another/machine, which is no folder\n"
    assert project.refusal().endswith(message)
