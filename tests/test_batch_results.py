"""What is on the disk: records, damaged files, disks that are full."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import notebook_job
import pytest
import results
from projects import PADDING, Project, mounted

FILLING = """\
# %% tags=["parameters"]
out_dir = ""

# %%
from pathlib import Path

with Path(out_dir, "big.txt").open("wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_leaves_no_half_file_and_is_gone_on_from(
    project: Project, run: Callable[..., tuple[int, str]]
) -> None:
    """`failed/` had files of no or some bytes, and notebooks that never started had "FAILED"."""
    project.notebook("00_filling", FILLING + PADDING)  # the others come when the disk is full
    project.out().mkdir(parents=True)
    with mounted(project.out(), ["-t", "tmpfs", "-o", "size=2m", "none"]):
        code, said = run("--cores", "1")
        assert code == 1
        assert "No space left on device" in said
        assert "00_filling cannot be kept in failed/: [Errno 28]" in said
        assert [line for line in said.splitlines() if line.startswith("FAILED")] == [
            "FAILED 00_filling: No space left on device; read the messages above and "
            "out/quick/snakemake.log; nothing of it could be kept"
        ]
        assert "  not started          01_first, 02_second" in said
        assert not project.results()

        project.notebook("00_filling", FILLING.replace("while True", "for _ in range(100)"))
        code, said = run("--cores", "1")
        assert code == 0, said
        assert project.out("figures", "big.txt").stat().st_size == 409_600


@pytest.fixture
def finished(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose first notebook is done; a stand-in wrote what a kernel would have written."""

    def execute(nb: Any, parameters: dict[str, Any], source: Path, keep: Any) -> Any:
        for name in ("a.txt", "b.txt", "sub/c.txt", "sub/d.txt"):
            path = Path(parameters["out_dir"], name)
            path.parent.mkdir(exist_ok=True)
            path.write_text("whole " * 200)
        return nb

    monkeypatch.setattr(notebook_job, "execute", execute)
    monkeypatch.setattr(notebook_job, "provenance", lambda root: {})
    assert notebook_job.run_job(project.out(), "01_first", {})
    return project


def test_shown_files_are_not_those_that_are_kept(finished: Project) -> None:
    """They were hard links: what damaged one damaged both, and nothing was left to mend it with."""
    shown = [p for p in finished.out().rglob("*") if p.is_file() and ".runs" not in p.parts]
    assert len(shown) == 6
    for path in shown:
        kept = finished.out(".runs", "01_first", str(path.relative_to(finished.out())))
        assert path.read_bytes() == kept.read_bytes()
        assert not path.samefile(kept)
        assert path.stat().st_mtime_ns == kept.stat().st_mtime_ns


def test_the_record_is_shown_last(finished: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees it sees the files that it lists."""
    out = finished.out()
    for folder in ("figures", "notebooks", "provenance"):
        shutil.rmtree(out / folder)
    copied: list[Path] = []
    monkeypatch.setattr(results, "copy_whole", lambda out, source, target: copied.append(source))
    results.publish(out, "01_first")
    assert len(copied) == 6
    assert copied[-1] == results.record_of(out, "01_first")


def test_the_record_has_size_and_hash_of_every_file(finished: Project) -> None:
    record = json.loads(finished.out("provenance", "01_first.json").read_text())
    assert record["figures"] == ["a.txt", "b.txt", "sub/c.txt", "sub/d.txt"]
    names = {"notebooks/01_first.ipynb", *(f"figures/{name}" for name in record["figures"])}
    assert set(record["files"]) == names
    for name, made in record["files"].items():
        content = finished.out(name).read_bytes()
        assert made == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def truncate(path: Path) -> None:
    os.truncate(path, 50)


def flip(path: Path) -> None:
    """Damage that the size does not show."""
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("file", ["provenance/01_first.json", "notebooks/01_first.ipynb"])
def test_a_damaged_file_that_is_shown_is_copied_again(
    finished: Project, file: str, damage: Callable[[Path], None]
) -> None:
    """A damaged record was a traceback for ever, and a damaged notebook was "up to date"."""
    before = finished.results()
    assert results.mend(finished.out(), "01_first") is None
    damage(finished.out(file))
    told = f"out/quick/{file} is damaged or missing: copied again from the run of 01_first"
    assert results.mend(finished.out(), "01_first") == told
    assert finished.results() == before
    assert results.mend(finished.out(), "01_first") is None


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("file", ["figures/sub/c.txt", "notebooks/01_first.ipynb"])
def test_a_damaged_file_that_is_kept_is_made_again(
    finished: Project, file: str, damage: Callable[[Path], None]
) -> None:
    damage(finished.out(".runs", "01_first", file))
    told = f"out/quick/.runs/01_first/{file} is damaged or missing: 01_first has to run again"
    assert results.mend(finished.out(), "01_first") == told
    assert not finished.results()
    assert results.state_of(finished.out(), "01_first") == "not started"


def test_nothing_is_shown_of_a_run_that_starts_again(finished: Project) -> None:
    """The provenance stayed, since Snakemake removes a job's output before it starts the job."""
    results.record_of(finished.out(), "01_first").unlink()
    results.retract(finished.out(), "01_first")
    assert not finished.results()


@pytest.mark.parametrize("text", [b"", b"{", b"{}", b"[]", b"null", b"\xff", b"edited"])
def test_a_damaged_record_means_that_its_notebook_runs_again(
    finished: Project, text: bytes
) -> None:
    """One that was edited, but was still JSON, was believed, and its good copy called damaged."""
    kept = results.record_of(finished.out(), "01_first")
    lie = kept.read_bytes().replace(b'"claims": []', b'"claims": [["LIE", "1", "holds"]]')
    kept.write_bytes(lie if text == b"edited" else text)
    file = "out/quick/.runs/01_first/provenance/01_first.json"
    told = f"{file} is damaged or missing: 01_first has to run again"
    assert results.mend(finished.out(), "01_first") == told
    assert not finished.results()


def test_many_files_are_said_in_one_line(finished: Project) -> None:
    before = finished.results()
    shutil.rmtree(finished.out("figures"))
    assert results.mend(finished.out(), "01_first") == (
        "out/quick/figures/a.txt, out/quick/figures/b.txt, out/quick/figures/sub/c.txt, 1 more "
        "are damaged or missing: copied again from the run of 01_first"
    )
    assert finished.results() == before


@pytest.mark.parametrize("place", ["notebooks", "failed"])
def test_a_file_that_cannot_be_written_whole_is_not_there(
    finished: Project,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A disk that is full, or gets full: half of the text, then an error."""
    write = Path.write_text

    def write_half(path: Path, text: str, **options: Any) -> int:
        write(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    def execute(nb: Any, parameters: dict[str, Any], source: Path, keep: Any) -> Any:
        monkeypatch.setattr(Path, "write_text", write_half)
        if place == "notebooks":
            return nb
        keep(nb)
        raise RuntimeError("this one is broken")

    monkeypatch.setattr(notebook_job, "execute", execute)
    assert not notebook_job.run_job(finished.out(), "01_first", {})
    assert not finished.results()
    assert "No space left on device" in capsys.readouterr().out
    assert results.state_of(finished.out(), "01_first") == "failed"
    assert not [path for path in finished.out().rglob("*") if path.is_file()]
