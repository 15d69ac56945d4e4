"""Promises of the batch: it goes on where it was, ends at once, and keeps results whole."""

import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import batch
import nbformat
import psutil
import pytest
from programs import finished, run
from projects import alive, good, wait_until

FAILING = """\
# %% tags=["parameters"]
out_dir = ""

# %%
print("before")

# %%
{fault}
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
# Waits for a file that the test makes, so that the test and not the clock decides when it ends.
WAITING = """\
# %% tags=["parameters"]
gate = ""
out_dir = ""

# %%
import time
from pathlib import Path

Path(gate + ".reached").touch()
while not Path(gate).exists():
    time.sleep(0.05)
Path(out_dir, "wait.txt").write_text("whole")

# %% tags=["summary"]
print("waited | yes | holds")
"""


@pytest.mark.slow
def test_a_failed_cell_keeps_what_ran_before_it(project, run):
    """The other notebooks go on."""
    first = good("first.txt").replace("| holds", "| FAILS")
    project.notebook("01_first", first + 'print("a goal | 3 | goal missed")\n')
    project.notebook("02_second", FAILING.format(fault='raise RuntimeError("this one is broken")'))
    project.notebook("03_third", FAILING.format(fault="import os\nos.kill(os.getpid(), 9)"))
    project.profile("quick", "")
    code, printed = run()
    assert code == 1
    assert re.findall("^FAILED.*?(?= and |$)", printed, re.MULTILINE) == [
        "FAILED 02_second: read out/quick/failed/02_second.ipynb",
        "FAILED 03_third: read out/quick/failed/03_third.ipynb",
        "FAILED 1 of 2 claims",
    ]
    assert re.search(r"  FAILED  02_second  \d+:.*this one is broken", printed)
    assert re.search(r"  FAILED  03_third  \d+:.*kernel died after cell \d, perhaps for", printed)
    assert "\nClaims: FAILS 1, goal missed 1\ngoal missed: a goal of our own" in printed
    assert not {"notebooks/02_second.ipynb", "provenance/02_second.json"} & set(project.results())
    for name in ("02_second", "03_third"):
        kept = nbformat.read(project.out("failed", f"{name}.ipynb"), as_version=4)
        streams = [o.text for c in kept.cells for o in c.get("outputs", []) if "text" in o]
        assert streams[0] == "before\n"


@pytest.mark.slow
def test_only_what_changed_or_was_damaged_is_made_again(project, run, tmp_path):
    (tmp_path / "disk" / "results").mkdir(parents=True)
    (project.root / "out").symlink_to(tmp_path / "disk" / "results")
    project.notebook("02_second", READING)
    for name in ("one", "two"):
        (project.root / f"{name}.csv").write_text(name)
    code, printed = run()
    assert code == 0, printed
    before = project.results()
    assert set(before) > FINISHED
    figures = {file for file in before if file.startswith("figures/")}
    assert figures == {f"figures/{file}" for file in ("first.txt", "one.csv", "two.csv")}
    assert before["figures/first.txt"][1] == b"2.5 3"  # the profile's value, and a default
    assert re.search(r"^holds +01  \|S\| is large \| 2.5$", printed, re.MULTILINE)
    for path in project.out("notebooks").iterdir():  # which may be passed on
        assert str(tmp_path) not in path.read_text()
    record = project.out("provenance", "01_first.json")
    check_record(record.read_text(), project.root)
    record.write_text(record.read_text().replace("holds", "FAILS"))
    before = project.results()
    printed = run()[1]
    assert "Nothing had to be run: all results are up to date." in printed
    assert "\nClaims: holds 2\n" in printed  # the notebook says so, whatever the record says
    assert project.results() == before

    os.truncate(project.out(".figures", "02_second", "two.csv"), 2)
    project.profile("quick", "01_first:\n  level: 3.5\n")
    code, printed = run()
    assert code == 0, printed
    assert "Damaged or missing: out/quick/.figures/02_second/two.csv; 02_second has" in printed
    after = {file: content for file, (_, content) in project.results().items()}
    assert after["figures/first.txt"] == b"3.5 3"
    assert after["figures/two.csv"] == b"two"

    def would_run():
        return {*re.findall(r"^notebook +(\d)$", run("--", "--dry-run")[1], re.MULTILINE)}

    (project.root / "two.csv").write_text("3")
    assert would_run() == {"1"}
    library = project.root / "notebooks" / "tools" / "new.py"
    library.parent.mkdir()
    library.write_text("pass")  # every notebook may import it
    assert would_run() == {"2"}


@pytest.mark.parametrize("record", ["{", "[]", "{}", '{"files": null}'])
def test_a_record_of_another_shape_is_damaged(project, record):
    path = project.out("provenance", "01_first.json")
    path.parent.mkdir(parents=True)
    path.write_text(record)
    assert batch.damaged_files(project.out(), "01_first") == ["provenance/01_first.json"]


def check_record(text, folder):
    record = json.loads(text)
    assert record == record | {
        "parameters": {"level": 2.5, "num_points": 3, "seed": 7},
        "seeds": {"seed": 7},
        "figures": ["first.txt"],
        "claims": [["|S| is large", "2.5", "holds"]],
        "commit": None,  # this folder is no repository
    }
    assert record["versions"]["python"] == platform.python_version()
    assert record["wall_seconds"] > 0
    assert record["hardware"]["cores"] == os.cpu_count()
    assert str(folder) not in text


@pytest.fixture
def waiting(project, tmp_path):
    """A project whose second notebook waits until this file is there."""
    project.notebook("02_second", WAITING)
    project.profile("quick", f"02_second:\n  gate: '{tmp_path / 'gate'}'\n")
    return tmp_path / "gate"


FINISHED = {"notebooks/01_first.ipynb", "figures/first.txt", "provenance/01_first.json"}


def start(project, waiting, family, output, *shell):
    """A batch whose first notebook is done and whose second waits, and all that it has started.

    output: a file or an open one. shell: the command that starts the batch.
    """
    reached = Path(f"{waiting}.reached")
    reached.unlink(missing_ok=True)
    earlier = project.out("provenance", "01_first.json").exists()
    with open(output, "wb") as file:
        running = psutil.Popen(
            [*shell, *project.command()],
            stdout=file,
            stderr=file,
            start_new_session=bool(shell),
            # The tests may run under `nohup`, whose programs ignore a closing terminal.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
    try:
        wait_until(reached.exists)
        wait_until(lambda: earlier or "1 of 2 steps" in project.out("snakemake.log").read_text())
    finally:
        started = running.children(recursive=True)
        family += [running, *started]
    return running, started


@pytest.mark.slow
def test_an_interrupt_or_a_closed_terminal_ends_everything(project, waiting, tmp_path, family):
    """The same command goes on."""
    assert batch.PATIENCE <= 1.0
    running, started = start(project, waiting, family, tmp_path / "output")
    assert len(started) >= 3  # Snakemake, a job and its kernel
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=300) == batch.INTERRUPTED
    assert not any(map(alive, started))
    printed = (tmp_path / "output").read_text()
    assert "1 of 2 notebooks done" in printed
    assert "FAILED" not in printed
    assert "interrupted; the same command goes on from here" in printed
    before = project.results()
    assert set(before) == FINISHED

    screen, terminal = os.openpty()
    # Whoever opens a terminal in a session of its own gets a signal when it is closed.
    shell = ("sh", "-c", f'exec "$@" < {os.ttyname(terminal)}', "sh")
    running, started = start(project, waiting, family, terminal, *shell)
    os.close(screen)
    assert running.wait(timeout=300) == batch.INTERRUPTED
    assert not any(map(alive, started))
    assert project.results() == before

    waiting.touch()
    run(*project.command())
    after = project.results()
    assert before.items() <= after.items()  # what was done was not done again
    assert after["figures/wait.txt"][1] == b"whole"


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ("trap '' HUP; exec {}", "os.kill(os.getpid(), signal.SIGHUP)"),
        ("{} | true", "[print('x' * 100_000) for _ in range(3)]"),
    ],
)
def test_nohup_and_a_closed_pipe_keep_a_program_going(shell, code):
    code = f"import os, signal, job; job.outlive_terminal(); {code}; os.write(2, b'goes on')"
    command = shell.format(f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}")
    done = finished("sh", "-c", command, cwd=Path(batch.__file__).parent)
    assert (done.stdout, done.stderr) == ("", "goes on")


@pytest.mark.slow
def test_a_batch_waits_for_what_a_killed_one_has_left(project, waiting, tmp_path, family):
    first, _ = start(project, waiting, family, tmp_path / "output")
    first.kill()
    first.wait()
    second = psutil.Popen(project.command(), stdout=subprocess.PIPE, text=True)
    family.append(second)
    lines = [second.stdout.readline() for _ in range(2)]
    assert lines[1] == "Another run of profile quick is going on; waiting for it.\n"
    waiting.touch()
    printed = second.communicate()[0]
    assert second.returncode == 0, printed
    assert "Nothing had to be run" in printed
    assert "\nClaims: holds 2\n" in printed


@pytest.mark.slow
def test_paired_notebooks_are_reproduced_byte_for_byte(project):
    library = project.root / "jmdp_lib" / "__init__.py"
    library.parent.mkdir()
    library.write_text('mine = "of this checkout"')  # and not the one that is installed
    noisy = good("first.txt") + (
        "\n# %%\nimport sys\n\nimport jmdp_lib\n\nprint(jmdp_lib.mine)\n"
        "print('one', flush=True)\nprint('progress', file=sys.stderr, flush=True)\nprint('two')\n"
    )
    project.notebook("01_first", noisy)
    project.notebook("02_second", good("x") + f"\n# %%\nprint({str(project.root)!r})\n")
    workflow = project.root / "workflow"
    shutil.copytree(Path(batch.__file__).parent, workflow, dirs_exist_ok=True)
    command = [sys.executable, str(workflow / "pair.py"), "01_first"]
    path = project.root / "notebooks" / "01_first.ipynb"
    run(*command)
    content = path.read_bytes()
    path.unlink()
    refused = finished(*command, "02_second")
    assert refused.returncode == 1
    assert "02_second.py: an output shows this machine's folder" in refused.stderr
    assert not path.with_name("02_second.ipynb").exists()
    assert path.read_bytes() == content
    streams = [(o["name"], "".join(o["text"])) for o in json.loads(content)["cells"][4]["outputs"]]
    assert streams == [("stdout", "of this checkout\none\ntwo\n")]
