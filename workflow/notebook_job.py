"""Run one notebook: `notebooks/NN_name.py` in; executed notebook, figures and provenance out.

The Snakefile starts one such process per notebook. Everything is made in a staging folder and moved
into place when the notebook has succeeded, so that an interrupted run leaves no half-written file.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from job import end_with_parent, git_state, hardware, versions, write_atomically
from nbformat import NotebookNode

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
OUT_DIR = "out_dir"  # the parameter that the batch sets in every notebook
HEARTBEAT_SECONDS = 30.0


class ProjectError(Exception):
    """Something in the notebooks or profiles is wrong; the message names the file."""


@dataclass(frozen=True)
class Layout:
    """Where the files of one profile live."""

    root: Path
    profile: str

    @property
    def out(self) -> Path:
        return self.root / "out" / self.profile

    @property
    def figures(self) -> Path:
        return self.out / "figures"

    @property
    def work(self) -> Path:
        return self.out / ".work"

    def source(self, name: str) -> Path:
        return self.root / "notebooks" / f"{name}.py"

    def notebook(self, name: str) -> Path:
        return self.out / "notebooks" / f"{name}.ipynb"

    def failed(self, name: str) -> Path:
        return self.out / "failed" / f"{name}.ipynb"

    def provenance(self, name: str) -> Path:
        return self.out / "provenance" / f"{name}.json"

    def manifest(self, name: str) -> Path:
        """The figure files that a notebook put into the shared figures folder."""
        return self.work / f"{name}.files.json"

    def manifest_files(self, name: str) -> list[str]:
        path = self.manifest(name)
        return list(json.loads(path.read_text())) if path.exists() else []


def has_tag(cell: NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def read_source(path: Path) -> NotebookNode:
    """The percent script as a notebook, with the kernelspec that papermill insists on."""
    nb: NotebookNode = jupytext.read(path, fmt="py:percent")
    nb.metadata = nbformat.from_dict({"kernelspec": dict(KERNELSPEC)})
    return nb


def parameter_defaults(path: Path) -> dict[str, Any]:
    """Names and default values in the parameters cell, which may hold literals only."""
    cells = [c for c in read_source(path).cells if has_tag(c, "parameters")]
    if len(cells) != 1 or cells[0].cell_type != "code":
        raise ProjectError(
            f'{path.name}: needs exactly one code cell marked # %% tags=["parameters"], '
            f"found {len(cells)}"
        )
    try:
        body = ast.parse(cells[0].source).body
    except SyntaxError as error:
        raise ProjectError(f"{path.name}: parameters cell: {error}") from error
    defaults: dict[str, Any] = {}
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if len(targets) != 1 or not isinstance(targets[0], ast.Name) or value is None:
            raise ProjectError(
                f"{path.name}: parameters cell, line {node.lineno}: only `name = literal` may "
                f"stand here, found `{ast.unparse(node)}`"
            )
        name = targets[0].id
        try:
            defaults[name] = ast.literal_eval(value)
        except ValueError:
            raise ProjectError(
                f"{path.name}: parameter {name!r} is `{ast.unparse(value)}`, not a literal; "
                "derive it in the next cell, or a profile cannot change what it depends on"
            ) from None
    return defaults


def prepare_environment(scratch: Path) -> None:
    """Make kernels started by this process independent of the user's shell and dot-files."""
    for variable in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "MPLBACKEND"):
        os.environ.pop(variable, None)
    os.environ["JUPYTER_PATH"] = str(Path(sys.prefix) / "share" / "jupyter")
    os.environ["JUPYTER_RUNTIME_DIR"] = str(scratch / "runtime")
    os.environ["IPYTHONDIR"] = str(scratch / "ipython")
    os.environ["PYTHONHASHSEED"] = "0"
    # One thread per notebook: the batch is parallel over notebooks, and the order of summation
    # inside BLAS must not depend on the machine's number of cores.
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{library}_NUM_THREADS"] = "1"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for sockets; their paths may have about 100 characters, so not a deep TMPDIR."""
    base = None if len(tempfile.gettempdir()) < 60 else "/tmp"
    with tempfile.TemporaryDirectory(prefix="nb", dir=base, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def execute(
    nb: NotebookNode,
    parameters: dict[str, Any],
    cwd: Path,
    scratch: Path,
    output: Path | None,
    on_cell: Callable[[int], None],
) -> NotebookNode:
    """Run a notebook with papermill; raises on the first failing cell."""
    import papermill
    from traitlets.config import Config

    # Kernels on TCP race for ports when several start at once.
    config = Config({"KernelManager": {"transport": "ipc", "ip": str(scratch / "k")}})
    executed: NotebookNode = papermill.execute_notebook(
        nb,
        output,
        parameters=parameters,
        cwd=cwd,
        progress_bar=False,
        config=config,
        on_cell_start=lambda cell, cell_index: on_cell(cell_index),
    )
    return executed


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Watch:
    """Progress lines of one notebook, and an end to it when whoever started it has died."""

    def __init__(self, name: str, num_cells: int) -> None:
        self.name, self.num_cells, self.cell = name, num_cells, 0
        self.begin, self.done = time.monotonic(), threading.Event()
        print(f"  start   {name}", flush=True)
        end_with_parent()
        threading.Thread(target=self._beat, daemon=True).start()

    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def at_cell(self, index: int) -> None:
        self.cell = index

    def say(self, word: str, detail: str = "") -> None:
        line = f"  {word:<6}  {self.name}  {clock(self.seconds())}  {detail}"
        print(line.rstrip(), flush=True)

    def _beat(self) -> None:
        due = HEARTBEAT_SECONDS
        while not self.done.wait(1.0):
            if self.seconds() > due:
                due += HEARTBEAT_SECONDS
                self.say("...", f"cell {self.cell + 1} of {self.num_cells}")


def publish_figures(layout: Layout, name: str, staged: Path) -> list[str]:
    """Move a notebook's figures into the shared folder; two notebooks may not claim one name."""
    files = sorted(p.relative_to(staged).as_posix() for p in staged.rglob("*") if p.is_file())
    for other in layout.work.glob("*.files.json"):
        both = set(files).intersection(json.loads(other.read_text()))
        if both:
            owner = other.name.removesuffix(".files.json")
            raise ProjectError(f"{name} writes {sorted(both)}, which {owner} has written too")
    # The list comes first: if we are killed among the moves, the next run knows what to remove.
    write_atomically(layout.manifest(name), json.dumps(files))
    for file in files:
        target = layout.figures / file
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(staged / file, target)
    return files


def run_job(layout: Layout, name: str, parameters: dict[str, Any], scratch: Path) -> bool:
    """Run one notebook of a profile; False when it failed and was put into `failed/`."""
    source = layout.source(name)
    stage = layout.work / name
    shutil.rmtree(stage, ignore_errors=True)
    (stage / "figures").mkdir(parents=True)
    for file in layout.manifest_files(name):
        (layout.figures / file).unlink(missing_ok=True)
    layout.manifest(name).unlink(missing_ok=True)
    layout.failed(name).unlink(missing_ok=True)
    for path in (layout.manifest(name), layout.provenance(name)):
        for part in path.parent.glob(f".{path.name}.*.part"):
            part.unlink()  # of a run that was killed while it wrote

    started = datetime.now(UTC)
    nb = read_source(source)
    watch = Watch(name, len(nb.cells) + 1)  # papermill adds a cell with the parameters
    staged_notebook = stage / "notebook.ipynb"
    try:
        known = parameter_defaults(source)
        unknown = sorted({*parameters, OUT_DIR} - set(known))
        if unknown:
            raise ProjectError(f"{source.name}: its parameters cell does not define {unknown}")
        given = {**parameters, OUT_DIR: str((stage / "figures").resolve())}
        execute(nb, given, source.parent, scratch, staged_notebook, watch.at_cell)
        figures = publish_figures(layout, name, stage / "figures")
    except Exception as error:
        if not staged_notebook.exists():
            nbformat.write(nb, staged_notebook)
        layout.failed(name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staged_notebook, layout.failed(name))
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        watch.say("FAILED", reason[0])
        print(error, file=sys.stderr)
        return False
    finally:
        watch.done.set()

    seconds = watch.seconds()
    values = {k: v for k, v in {**known, **parameters}.items() if k != OUT_DIR}
    record = {
        "notebook": name,
        "profile": layout.profile,
        **git_state(layout.root),
        "parameters": values,
        "seeds": {k: v for k, v in values.items() if "seed" in k and not k.startswith("num_")},
        "versions": versions(),
        "hardware": hardware(),
        "started": started.isoformat(timespec="seconds"),
        "wall_seconds": round(seconds, 1),
        "figures": figures,
    }
    write_atomically(layout.provenance(name), json.dumps(record, indent=2) + "\n")
    layout.notebook(name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(staged_notebook, layout.notebook(name))
    shutil.rmtree(stage, ignore_errors=True)
    watch.say("done")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="written by batch.py")
    parser.add_argument("--name", required=True, help="notebook, as in 01_theory_checks")
    arguments = parser.parse_args()
    plan = json.loads(arguments.plan.read_text())
    layout = Layout(arguments.plan.resolve().parents[2], plan["profile"])
    # Unwinding on SIGTERM lets papermill stop its kernel; the default would orphan it.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    layout.work.mkdir(parents=True, exist_ok=True)
    with scratch_folder() as scratch, open(layout.work / f"{arguments.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prepare_environment(scratch)
        ok = run_job(layout, arguments.name, plan["notebooks"][arguments.name], scratch)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
