"""Run one notebook: `notebooks/NN_name.py` in; executed notebook, figures and provenance out.

The Snakefile starts one such process per notebook. Everything is made in
`out/PROFILE/.runs/NN_name`, the provenance last: a run without it is not finished, and never shown.
What is finished is linked into `notebooks/`, `figures/` and `provenance/`; a notebook that failed
is kept in `failed/`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
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

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
VERDICTS = (
    "holds", "not reproduced", "differs from the paper", "too few runs to tell", "FAILS",
)  # fmt: skip
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
    return [line for line in lines if line[-1] in VERDICTS]


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextlib.contextmanager
def progress(name: str, num_cells: int) -> Iterator[Callable[..., None]]:
    """Print that a notebook starts, now and then that it is alive, and how it ends.

    Yields a function that is to be called with each cell and its index.
    """
    begin, ended, reached = time.monotonic(), threading.Event(), [0]

    def say(word: str, detail: str = "") -> None:
        took = clock(time.monotonic() - begin)
        print(f"  {word:<6}  {name}  {took}  {detail}".rstrip(), flush=True)

    def beat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            say("...", f"cell {reached[-1] + 1} of {num_cells}")

    say("start")
    threading.Thread(target=beat, daemon=True).start()
    try:
        yield lambda cell, cell_index: reached.append(cell_index)
        say("done")
    except Exception as error:
        say("FAILED", (str(error).strip().splitlines() or [type(error).__name__])[-1])
        raise
    finally:
        ended.set()


def execute(
    nb: NotebookNode, parameters: dict[str, Any], source: Path, output: Path | None = None
) -> NotebookNode:
    """Run the notebook of a source, in its folder, with papermill; raises when a cell fails.

    The kernel is independent of the user's shell and dot-files.
    """
    import papermill
    from traitlets.config import Config

    for variable in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "MPLBACKEND"):
        os.environ.pop(variable, None)
    # Paths of sockets may have about 100 characters, so they do not go into a deep TMPDIR.
    base = None if len(tempfile.gettempdir()) < 60 else "/tmp"
    with (
        tempfile.TemporaryDirectory(prefix="nb", dir=base, ignore_cleanup_errors=True) as scratch,
        progress(source.stem, len(nb.cells) + bool(parameters)) as on_cell_start,
    ):
        os.environ["JUPYTER_PATH"] = str(Path(sys.prefix) / "share" / "jupyter")
        os.environ["JUPYTER_RUNTIME_DIR"] = f"{scratch}/runtime"
        os.environ["IPYTHONDIR"] = f"{scratch}/ipython"
        os.environ["PYTHONHASHSEED"] = "0"
        # One thread per notebook: the batch is parallel over notebooks, and the order of summation
        # inside BLAS must not depend on the machine's number of cores.
        for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
            os.environ[f"{library}_NUM_THREADS"] = "1"
        return papermill.execute_notebook(
            nb,
            output,
            parameters=parameters,
            cwd=source.parent,
            progress_bar=False,
            request_save_on_cell_execute=False,  # after every cell it would be written whole
            coalesce_streams=True,  # how a kernel cuts its output into messages is timing
            # Kernels on TCP race for ports when several start at once.
            config=Config({"KernelManager": {"transport": "ipc", "ip": f"{scratch}/k"}}),
            on_cell_start=on_cell_start,
        )


def record_of(out: Path, name: str) -> Path:
    """The provenance file of a run. It exists only once the run is finished."""
    return out / ".runs" / name / "provenance" / f"{name}.json"


def link(source: str, target: str) -> None:
    if not os.path.exists(target) or not os.path.samefile(source, target):
        Path(target).unlink(missing_ok=True)
        os.link(source, target)


def publish(out: Path, name: str) -> None:
    """Link a finished run into notebooks/, figures/ and provenance/; an unfinished one is not."""
    if record_of(out, name).exists():
        shutil.copytree(out / ".runs" / name, out, copy_function=link, dirs_exist_ok=True)


def retract(out: Path, name: str) -> None:
    """Remove a run. Its links go first; the run's own folder lists them."""
    run = out / ".runs" / name
    for path in run.rglob("*"):
        if path.is_file():
            (out / path.relative_to(run)).unlink(missing_ok=True)
    shutil.rmtree(run, ignore_errors=True)
    (out / "failed" / f"{name}.ipynb").unlink(missing_ok=True)


def run_job(out: Path, name: str, given: dict[str, Any]) -> bool:
    """Run one notebook of the profile whose results are in `out`; False when it failed."""
    retract(out, name)
    root, figures = out.parents[1], out / ".runs" / name / "figures"
    source, failed = root / "notebooks" / f"{name}.py", out / "failed" / f"{name}.ipynb"
    notebook = out / ".runs" / name / "notebooks" / f"{name}.ipynb"
    for folder in (notebook.parent, figures, failed.parent):
        folder.mkdir(parents=True, exist_ok=True)
    started, values = datetime.now(UTC), {**parameter_defaults(source), **given}
    try:
        nb = execute(read_source(source), {**given, OUT_DIR: str(figures)}, source, notebook)
    except Exception as error:
        os.replace(notebook, failed)
        print(error, file=sys.stderr)
        return False
    del values[OUT_DIR]
    record = {
        "notebook": name,
        "profile": out.name,
        **provenance(root),
        "parameters": values,
        "seeds": {k: v for k, v in values.items() if "seed" in k and not k.startswith("num_")},
        "started": started.isoformat(timespec="seconds"),
        "wall_seconds": round((datetime.now(UTC) - started).total_seconds(), 1),
        "claims": claims_of(nb),
        "figures": sorted(str(p.relative_to(figures)) for p in figures.rglob("*") if p.is_file()),
    }
    write_atomically(record_of(out, name), json.dumps(record, indent=2) + "\n")
    publish(out, name)
    return True


def main(plan: str, name: str, parent: str) -> int:
    """Run the notebook `name` as a job that ends with the process number `parent`."""
    # Unwinding on SIGTERM lets papermill stop its kernel; the default would orphan it.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    end_with_parent(int(parent))
    out = Path(plan).resolve().parent
    return 0 if run_job(out, name, json.loads(Path(plan).read_text())["notebooks"][name]) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
