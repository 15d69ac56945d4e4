"""`killed_job.py ROOT WORKFLOW`: one job of a project, killed at each of its operations on files.

Whenever it is killed, each file that is shown is the old or the new one, whole; the next run makes
all of them. `execute` is a stand-in that writes what a kernel would have written. Prints how often
the job was killed. A program of its own, because it forks and leaves a hook behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

NAME = "01_first"
# What an earlier version of the notebook had made.
OLD = {
    "figures/a.txt": b"old",
    "figures/gone.txt": b"old",
    f"notebooks/{NAME}.ipynb": b"old",
    f"provenance/{NAME}.json": b"{}",
}
CHANGES = ("os.rename", "os.mkdir", "os.link", "os.remove", "os.rmdir")
WITHOUT_FOLDER = ("os.remove", "os.rmdir")  # may be told a name alone, by shutil.rmtree


def execute(nb: Any, parameters: dict[str, Any], source: Path, keep: Any) -> Any:
    for name in ("a.txt", "sub/b.txt"):
        path = Path(parameters["out_dir"], name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("whole " * 2000)
    return nb


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def without_records(found: dict[str, bytes]) -> dict[str, bytes]:
    """Records say when they were made, and differ between runs."""
    return {name: text for name, text in found.items() if not name.startswith("provenance")}


class Job:
    """A job of a project, the results that it shows and the run that it keeps."""

    def __init__(self, root: Path, module: Any) -> None:
        self.root = root
        self.module = module
        self.out = root / "out" / "quick"
        self.kept = self.out / ".runs" / NAME
        notebook = module.read_source(root / "notebooks" / f"{NAME}.py")
        for number, cell in enumerate(notebook.cells):
            cell.id = str(number)  # they are random otherwise
        module.execute = execute
        module.provenance = lambda root: {}
        module.read_source = lambda path: notebook  # once: it opens nothing for writing

    def shown(self) -> dict[str, bytes]:
        found = files(self.out)
        return {name: text for name, text in found.items() if not name.startswith(".runs")}

    def start(self, stop: int | None = None) -> int:
        """Run the job in a child, killed at this operation on files; how the child ended."""
        child = os.fork()
        if child == 0:
            if stop is not None:
                sys.addaudithook(self.killer(stop))
            done = self.module.run_job(self.out, NAME, {})
            os._exit(0 if done else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def killer(self, stop: int) -> Any:
        left = [stop]

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if not writes and event not in CHANGES:
                return
            if str(self.root) in str(arguments[0]) or event in WITHOUT_FOLDER:
                left[0] -= 1
                if left[0] == 0:
                    if writes:  # killed in the middle of writing
                        Path(arguments[0]).write_bytes(b"half")
                    os.kill(os.getpid(), signal.SIGKILL)

        return hook

    def show_old(self) -> None:
        """Put back what the earlier version had made."""
        shutil.rmtree(self.out)
        for name, text in OLD.items():
            (self.kept / name).parent.mkdir(parents=True, exist_ok=True)
            (self.kept / name).write_bytes(text)
        self.module.publish(self.out, NAME)
        assert self.shown() == OLD


def main(root: Path) -> int:
    import notebook_job

    job = Job(root, notebook_job)
    assert job.start() == 0
    names = sorted(job.shown())
    new = without_records(job.shown())
    assert new == without_records(files(job.kept))
    kills = 0
    while True:
        job.show_old()
        code = job.start(kills + 1)
        for name, text in without_records(job.shown()).items():
            assert text in (new.get(name), OLD.get(name)), (kills, name, text[:50])
        for path in (job.out / "provenance").glob("*"):
            json.loads(path.read_text())
        assert job.start() == 0
        assert sorted(job.shown()) == names, (kills, sorted(job.shown()))
        assert without_records(job.shown()) == new == without_records(files(job.kept)), kills
        if code != -signal.SIGKILL:
            assert code == 0
            return kills
        kills += 1


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[2])
    print(main(Path(sys.argv[1])))
