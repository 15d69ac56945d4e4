"""What the batch runs, what it leaves alone, and what it says of it."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable

import batch
import nbformat
import pytest
from projects import PADDING, Project, good

FAILING = """\
# %% tags=["parameters"]
out_dir = ""

# %%
from pathlib import Path

if out_dir:
    Path(out_dir, "half.txt").write_text("made before the failure")
raise RuntimeError("this one is broken")
"""

READING = """\
# %% tags=["parameters"]
result_files = ["one.csv", "two.csv"]
out_dir = ""

# %%
from pathlib import Path

for file in result_files:
    Path(out_dir, Path(file).name).write_text(Path("..", file).read_text())

# %% tags=["summary"]
print("read | yes | holds")
"""


@pytest.mark.slow
def test_failures_are_named_and_the_failed_notebook_is_kept(
    project: Project, run: Callable[..., tuple[int, str]]
) -> None:
    project.notebook("00_zero", good("second.txt").replace("| holds", "| FAILS"))
    project.notebook("01_first", FAILING + PADDING)
    project.notebook("03_third", good("third.txt"))
    project.profile("quick", "")
    code, said = run("--profile", "quick", "--cores", "1")
    assert code == 1
    assert [line for line in said.splitlines() if line.startswith("FAILED")] == [
        "FAILED second.txt is written by two notebooks",
        "FAILED 01_first: read out/quick/failed/01_first.ipynb",
        "FAILED 1 of 3 claims",
    ]
    assert re.search(r"  FAILED  01_first  \d+:.*this one is broken", said)
    before = project.results()
    finished = ("00_zero", "02_second", "03_third")
    assert set(before) == {
        "failed/01_first.ipynb",
        *("figures/second.txt", "figures/third.txt"),
        *(f"notebooks/{name}.ipynb" for name in finished),
        *(f"provenance/{name}.json" for name in finished),
    }
    kept = nbformat.read(project.out("failed", "01_first.ipynb"), as_version=4)
    errors = [o for c in kept.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert errors[0].evalue == "this one is broken"

    # The same command runs the failed notebook again, and changed ones, but not what is done.
    project.notebook("00_zero", good("zero.txt"))
    project.notebook("03_third", FAILING)
    project.out("figures", "mine.txt").write_text("a user's own file stays")
    code, said = run("--profile", "quick")
    assert code == 1
    assert [line for line in said.splitlines() if line.startswith("FAILED")] == [
        "FAILED 01_first: read out/quick/failed/01_first.ipynb",
        "FAILED 03_third: read out/quick/failed/03_third.ipynb",
    ]
    assert "02_second  |S| is large  1.0    holds" in said  # the table has it all the same
    assert "\n2 claims hold\n" in said  # and not: all of them
    after = project.results()
    assert after["notebooks/02_second.ipynb"] == before["notebooks/02_second.ipynb"]
    # The figure of two notebooks went with one of them, and came back with the other.
    assert after["figures/second.txt"] == before["figures/second.txt"]
    # Of the third notebook, which fails now, no earlier success is left.
    assert set(after) == {
        *("failed/01_first.ipynb", "failed/03_third.ipynb"),
        *(f"figures/{name}.txt" for name in ("zero", "second", "mine")),
        *("notebooks/00_zero.ipynb", "notebooks/02_second.ipynb"),
        *("provenance/00_zero.json", "provenance/02_second.json"),
    }


@pytest.mark.slow
def test_a_good_run_and_then_only_what_changed(
    project: Project, run: Callable[..., tuple[int, str]]
) -> None:
    committed = project.root / "figures" / "first.txt"
    committed.parent.mkdir()
    committed.write_text("of the paper profile")
    project.notebook("03_third", READING)
    (project.root / "one.csv").write_text("1")
    (project.root / "two.csv").write_text("2")
    code, said = run("--profile", "quick")
    assert code == 0, said
    assert committed.read_text() == "of the paper profile"
    assert not (project.root / "out" / "paper").exists()
    assert "All 3 claims hold" in said
    names = ("01_first", "02_second", "03_third")
    assert set(project.results()) == {
        *(f"figures/{file}" for file in ("first.txt", "second.txt", "one.csv", "two.csv")),
        *(f"notebooks/{name}.ipynb" for name in names),
        *(f"provenance/{name}.json" for name in names),
    }
    # the profile's value in one, the defaults in the other
    assert project.out("figures", "first.txt").read_text() == "2.5 3"
    assert project.out("figures", "second.txt").read_text() == "1.0 3"
    assert "01_first   |S| is large  2.5    holds" in said
    assert "02_second  |S| is large  1.0    holds" in said
    for name in names:
        for word in ("start", "done"):
            assert re.search(rf"  {word:<6}  {name}  \d+:", said)
    check_provenance(project)

    before = project.results()
    project.profile("quick", "01_first:\n  level: 3.5\n")
    (project.root / "two.csv").write_text("3")
    project.notebook("02_second", good("other.txt"))
    project.out("figures", "second.txt").unlink()  # a deleted figure comes back, and damaged files
    os.truncate(project.out("notebooks", "02_second.ipynb"), 1000)
    os.truncate(project.out("provenance", "02_second.json"), 100)
    code, said = run("--profile", "quick", "--only", "01_first", "03_third")
    assert code == 0, said
    after = project.results()
    assert after["figures/first.txt"][1] == b"3.5 3"
    assert after["figures/two.csv"][1] == b"3"
    assert after["figures/second.txt"] == before["figures/second.txt"]
    assert after["notebooks/02_second.ipynb"] == before["notebooks/02_second.ipynb"]
    assert after["provenance/02_second.json"] == before["provenance/02_second.json"]

    only = ("--only", "01_first", "03_third")
    assert "Nothing had to be run: all results are up to date." in run(*only)[1]
    library = project.root / "jmdp_lib" / "new.py"
    library.parent.mkdir()
    library.write_text("pass")  # every notebook may import it, and would be run again
    assert re.search(r"^notebook +2$", run(*only, "--", "--dry-run")[1], re.MULTILINE)


def check_provenance(project: Project) -> None:
    text = project.out("provenance", "01_first.json").read_text()
    record = json.loads(text)
    assert record["parameters"] == {"level": 2.5, "num_points": 3, "seed": 7}
    assert record["seeds"] == {"seed": 7}
    assert record["figures"] == ["first.txt"]
    assert record["claims"] == [["|S| is large", "2.5", "holds"]]
    assert record["commit"] is None  # this folder is no repository
    assert record["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert record["wall_seconds"] > 0
    assert record["hardware"]["cores"] == os.cpu_count()
    assert str(project.root) not in text


@pytest.mark.slow
def test_paired_notebooks_are_reproduced_byte_for_byte(project: Project) -> None:
    noisy = good("first.txt") + (
        "\n# %%\nimport sys\n\n"
        "print('one', flush=True)\nprint('progress', file=sys.stderr, flush=True)\nprint('two')\n"
    )
    project.notebook("01_first", noisy)
    project.copy_workflow()
    command = [sys.executable, str(project.root / "workflow" / "pair.py"), "01_first"]
    path = project.root / "notebooks" / "01_first.ipynb"
    subprocess.run(command, check=True, capture_output=True)
    content = path.read_bytes()
    path.unlink()
    shown = good("x") + f"\n# %%\nprint({str(project.root)!r})\n"
    project.notebook("02_second", shown)
    refused = subprocess.run([*command, "02_second"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "02_second.py: an output shows this machine's folder" in refused.stderr
    assert not path.with_name("02_second.ipynb").exists()
    assert path.read_bytes() == content
    cells = json.loads(content)["cells"]
    assert "".join(cells[3]["source"]).startswith("# NBVAL_CHECK_OUTPUT\n")
    assert cells[3]["metadata"] == {"tags": ["summary"]}
    streams = [(o["name"], "".join(o["text"])) for o in cells[4]["outputs"]]
    assert streams == [("stdout", "one\ntwo\n")]


def test_all_cores_that_may_be_used_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jmdp_lib.machine.cores", lambda: 3)
    assert batch.cores_of(argparse.Namespace(cores=None)) == 3
    assert batch.cores_of(argparse.Namespace(cores=5)) == 5
