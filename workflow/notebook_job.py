"""Run one notebook: `notebooks/NN_name.py` in; executed notebook, figures and provenance out.

The Snakefile starts one such process per notebook. Everything is made in
`out/PROFILE/.runs/NN_name`, the provenance last: a run without it is not finished, and never shown.
What is finished is copied to where it is read (results.py); of a notebook that failed, `failed/`
has all that was run.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from job import end_with_parent, provenance, write_atomically
from nbformat import NotebookNode
from results import (
    RUNS,
    failed_of,
    fingerprints,
    publish,
    record_of,
    record_text,
    retract,
    working_of,
)

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
OUT_DIR = "out_dir"  # the parameter that the batch sets in every notebook
HEARTBEAT_SECONDS = 30.0


class ProjectError(Exception):
    """Something in the notebooks or profiles is wrong; the message names the file."""


def read_source(path: Path) -> NotebookNode:
    """The percent script as a notebook, with the kernelspec that papermill insists on."""
    nb: NotebookNode = jupytext.read(path, fmt="py:percent")
    nb.metadata = nbformat.from_dict({"kernelspec": dict(KERNELSPEC)})
    return nb


def tagged(nb: NotebookNode, tag: str) -> list[NotebookNode]:
    """The code cells that carry a tag."""
    return [c for c in nb.cells if c.cell_type == "code" and tag in c.metadata.get("tags", [])]


def parameter_defaults(path: Path) -> dict[str, Any]:
    """Names and default values in the parameters cell, which may hold literals only."""
    defaults: dict[str, Any] = {}
    try:
        cells = tagged(read_source(path), "parameters")
        for node in ast.parse("\n".join(cell.source for cell in cells)).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                raise ValueError(f"only `name = literal` may stand here: {ast.unparse(node)}")
            defaults[node.targets[0].id] = ast.literal_eval(node.value)
    except (SyntaxError, ValueError) as error:
        raise ProjectError(f"{path.name}: parameters cell: {error}") from error
    if len(cells) != 1 or defaults.get(OUT_DIR) != "":
        raise ProjectError(
            f'{path.name}: needs one code cell marked # %% tags=["parameters"], with '
            f'`{OUT_DIR} = ""`; found {len(cells)} cells'
        )
    return defaults


def claims_of(nb: NotebookNode) -> list[list[str]]:
    """The lines `claim | value | verdict` that the summary cell of an executed notebook printed."""
    outputs = [output for cell in tagged(nb, "summary") for output in cell.outputs]
    text = "".join(output.text for output in outputs if output.get("name") == "stdout")
    lines = [[part.strip() for part in line.rsplit("|", 2)] for line in text.splitlines()]
    return [line for line in lines if len(line) == 3]


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextlib.contextmanager
def progress(name: str, num_cells: int, reached: list[int]) -> Iterator[None]:
    """Print that a notebook starts, now and then that it is alive, and how it ends.

    reached: the indices of the cells that have begun, which others write.
    """
    begin, ended = time.monotonic(), threading.Event()

    def say(word: str, detail: str = "") -> None:
        took = clock(time.monotonic() - begin)
        print(f"  {word:<6}  {name}  {took}  {detail}".rstrip(), flush=True)

    def beat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            say("...", f"cell {reached[-1] + 1} of {num_cells}")

    say("start")
    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
        say("done")
    except Exception as error:
        say("FAILED", (str(error).strip().splitlines() or [type(error).__name__])[-1])
        raise
    finally:
        ended.set()


def isolate(scratch: str) -> None:
    """Make the kernel independent of the user's shell, dot-files and number of cores."""
    for variable in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "MPLBACKEND"):
        os.environ.pop(variable, None)
    os.environ["JUPYTER_PATH"] = str(Path(sys.prefix) / "share" / "jupyter")
    os.environ["JUPYTER_RUNTIME_DIR"] = f"{scratch}/runtime"
    os.environ["IPYTHONDIR"] = f"{scratch}/ipython"
    os.environ["PYTHONHASHSEED"] = "0"
    # One thread per notebook: the batch is parallel over notebooks, and the order of summation
    # inside BLAS must not depend on the machine's number of cores.
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{library}_NUM_THREADS"] = "1"


def holding_engine(held: list[NotebookNode]) -> str:
    """The name of papermill's engine, made to put the notebook that it works on into a list."""
    from papermill.engines import NBClientEngine, papermill_engines

    class Holding(NBClientEngine):  # type: ignore[misc]
        @classmethod
        def execute_managed_notebook(cls, manager: Any, kernel: str, **options: Any) -> None:
            held.append(manager.nb)
            super().execute_managed_notebook(manager, kernel, **options)

    papermill_engines.register("holding", Holding)
    return "holding"


def death_of_kernel(cells: int) -> str:
    """What to say of a kernel that died after so many cells; it counts as a child of this job."""
    unit = 1 if sys.platform == "darwin" else 2**10
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 2**30
    why = f"perhaps for want of memory: the job's peak was {peak:.2f} GiB"
    return f"kernel died after cell {cells}, {why}"


def run_cells(
    nb: NotebookNode,
    parameters: dict[str, Any],
    folder: Path,
    scratch: str,
    held: list[NotebookNode],
    reached: list[int],
) -> NotebookNode:
    """Run a notebook with papermill, in a folder.

    held, reached: filled with the notebook that is worked on, and the numbers of cells that began.
    """
    import papermill
    from traitlets.config import Config

    connection = Path(scratch, "connection.json")
    # Kernels on TCP race for ports when several start at once.
    manager = {"transport": "ipc", "ip": f"{scratch}/k", "connection_file": str(connection)}

    def on_cell_start(cell: NotebookNode, cell_index: int) -> None:
        connection.unlink(missing_ok=True)  # it has the key, and the kernel has read it
        reached.append(cell_index)

    return papermill.execute_notebook(
        nb,
        None,
        parameters=parameters,
        engine_name=holding_engine(held),
        cwd=folder,
        progress_bar=False,
        coalesce_streams=True,  # how a kernel cuts its output into messages is timing
        config=Config({"KernelManager": manager}),
        on_cell_start=on_cell_start,
    )


def execute(
    nb: NotebookNode,
    parameters: dict[str, Any],
    source: Path,
    keep: Callable[[NotebookNode], None] = lambda nb: None,
) -> NotebookNode:
    """Run the notebook of a source, in its folder; raises when a cell fails or the kernel dies.

    Then `keep` is called with what there is of the notebook.
    """
    from nbclient.exceptions import DeadKernelError

    held: list[NotebookNode] = []
    reached = [0]
    # Paths of sockets may have about 100 characters, so they do not go into a deep TMPDIR.
    base = None if len(tempfile.gettempdir()) < 60 else "/tmp"
    with (
        tempfile.TemporaryDirectory(prefix="nb", dir=base, ignore_cleanup_errors=True) as scratch,
        progress(source.stem, len(nb.cells) + bool(parameters), reached),
    ):
        isolate(scratch)
        try:
            return run_cells(nb, parameters, source.parent, scratch, held, reached)
        except Exception as error:
            for part in held:
                keep(part)
            if isinstance(error, DeadKernelError):
                raise RuntimeError(death_of_kernel(reached[-1])) from error
            raise


def write_run(out: Path, name: str, nb: NotebookNode, facts: dict[str, Any]) -> None:
    """Write the executed notebook, and then, last of all files, the record of the run."""
    run = out / RUNS / name
    write_atomically(run / "notebooks" / f"{name}.ipynb", nbformat.writes(nb))
    files = fingerprints(run)
    figures = [file.removeprefix("figures/") for file in files if file.startswith("figures/")]
    record = {**facts, "claims": claims_of(nb), "figures": figures, "files": files}
    write_atomically(record_of(out, name), record_text(record))


def make_run(out: Path, name: str, given: dict[str, Any]) -> None:
    """Run a notebook and keep all that it made; raises when it fails."""
    root = out.parents[1]
    source = root / "notebooks" / f"{name}.py"
    figures = out / RUNS / name / "figures"
    figures.mkdir(parents=True)
    values = {**parameter_defaults(source), **given}
    del values[OUT_DIR]
    started = datetime.now(UTC)

    def keep(nb: NotebookNode) -> None:
        try:
            write_atomically(failed_of(out, name), nbformat.writes(nb), working_of(out, name))
        except OSError as error:
            print(f"  {name} cannot be kept in failed/: {error}", flush=True)

    nb = execute(read_source(source), {**given, OUT_DIR: str(figures)}, source, keep)
    facts = {
        "notebook": name,
        "profile": out.name,
        **provenance(root),
        "parameters": values,
        "seeds": {k: v for k, v in values.items() if "seed" in k and not k.startswith("num_")},
        "started": started.isoformat(timespec="seconds"),
        "wall_seconds": round((datetime.now(UTC) - started).total_seconds(), 1),
    }
    try:
        write_run(out, name, nb, facts)
    except OSError as error:
        print(f"  FAILED  {name}  {error}", flush=True)
        raise


def run_job(out: Path, name: str, given: dict[str, Any]) -> bool:
    """Run one notebook of the profile whose results are in `out`; False when it failed."""
    retract(out, name)
    working = working_of(out, name)
    working.mkdir(parents=True)
    try:
        make_run(out, name, given)
        made = True
    except Exception as error:
        print(error, file=sys.stderr)
        made = False
    shutil.rmtree(working, ignore_errors=True)  # but not when this job is interrupted
    try:
        publish(out, name)
    except OSError as error:
        print(f"  {name} is done, but cannot be shown: {error}", flush=True)
    return made


def exit_once(signum: int, frame: object) -> None:
    """Leave, so that papermill stops its kernel and folders are removed, undisturbed by more."""
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + signum)


def main(plan: str, name: str, parent: str) -> int:
    """Run the notebook `name` as a job that ends with the process number `parent`."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, exit_once)
    end_with_parent(int(parent))
    out = Path(plan).resolve().parent
    return 0 if run_job(out, name, json.loads(Path(plan).read_text())["notebooks"][name]) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
