"""Run one notebook: `notebooks/NN_name.py` in; executed notebook, figures and record out.

The Snakefile starts one such process per notebook. Papermill writes the notebook to `failed/` after
every cell; it is moved to `notebooks/` when all of them have run. The record comes last: how
everything was made, with size and hash of every file. Figures are made in a folder that belongs to
the notebook alone, `.figures/NN_name`, and are shown together in `figures/`.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from children import on_signals
from job import outlive_terminal, provenance
from nbformat import NotebookNode

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
OUT_DIR = "out_dir"  # the parameter that the batch sets in every notebook
HEARTBEAT_SECONDS = 30.0


class ProjectError(Exception):
    """Something in the notebooks or profiles is wrong; the message names the file."""


# ---- what a notebook says -----------------------------------------------------------------------


def read_source(path: Path) -> NotebookNode:
    """The percent script as a notebook, with the kernelspec that papermill insists on."""
    nb: NotebookNode = jupytext.read(path, fmt="py:percent")
    nb.metadata = nbformat.from_dict({"kernelspec": dict(KERNELSPEC)})
    return nb


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def tagged(nb: NotebookNode, tag: str) -> list[NotebookNode]:
    """The code cells that carry a tag."""
    return [cell for cell in nb.cells if cell.cell_type == "code" and tag in tags(cell)]


def caption_of(cell: NotebookNode) -> tuple[str, str]:
    """The caption of a figure, and its alt text, from the cell below it."""
    text, _, alt = cell.source.partition("<!-- alt: ")
    return text.strip(), " ".join(alt.removesuffix("-->").split())


def describe_figures(nb: NotebookNode) -> None:
    """Give every figure the alt text that the caption below it has, and nothing else."""
    for cell, below in pairwise(nb.cells):
        for output in cell.get("outputs", []) if "caption" in tags(below) else ():
            if "image/png" in output.get("data", {}):
                output["metadata"] = {"image/png": {"alt": caption_of(below)[1]}}


def folded(cell: NotebookNode) -> bool:
    """True if a cell is a solution or only draws: the book and JupyterLab fold its code."""
    return bool({"hide-cell", "hide-input"} & set(tags(cell))) or "chapter.save(" in cell.source


def parameter_defaults(path: Path) -> dict[str, Any]:
    """Names and default values in the parameters cell, which may hold literals only.

    The folder of results, which the batch sets, is none of them.
    """
    defaults: dict[str, Any] = {}
    try:
        cells = tagged(read_source(path), "parameters")
        for node in ast.parse("\n".join(cell.source for cell in cells)).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                raise ValueError(f"only `name = literal` may stand here: {ast.unparse(node)}")
            defaults[node.targets[0].id] = ast.literal_eval(node.value)
    except (SyntaxError, ValueError) as error:
        raise ProjectError(f"{path.name}: parameters cell: {error}") from error
    if len(cells) != 1 or defaults.pop(OUT_DIR, None) != "":
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


# ---- the record ---------------------------------------------------------------------------------


def record_of(out: Path, name: str) -> Path:
    """Path of the record of a notebook, which is there only once the notebook is finished."""
    return out / "provenance" / f"{name}.json"


def figures_of(out: Path, name: str) -> Path:
    return out / ".figures" / name


def fingerprint(path: Path) -> dict[str, Any] | None:
    """Size and hash of a file, or None if there is none."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def damaged_files(out: Path, name: str) -> list[str]:
    """Files of a finished notebook that are not as its record says, or the record itself."""
    try:
        files = dict(json.loads(record_of(out, name).read_bytes())["files"])
        files[f"notebooks/{name}.ipynb"]  # the claims are read from it
    except (OSError, ValueError, TypeError, KeyError):  # not whole, or of another shape
        return [str(record_of(out, name).relative_to(out))]
    return [file for file, made in files.items() if fingerprint(out / file) != made]


# ---- the run ------------------------------------------------------------------------------------


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextlib.contextmanager
def progress(name: str, num_cells: int, reached: list[int]) -> Iterator[None]:
    """Print lines when a notebook starts and ends, and now and then between.

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


@contextlib.contextmanager
def isolated() -> Iterator[str]:
    """A folder for a kernel, which is independent of the user's shell, dot-files and cores."""
    # Paths of sockets may have about 100 characters, so they do not go into a deep TMPDIR.
    base = None if len(tempfile.gettempdir()) < 60 else "/tmp"
    with tempfile.TemporaryDirectory(prefix="nb", dir=base, ignore_cleanup_errors=True) as scratch:
        for variable in ("PYTHONHOME", "PYTHONSTARTUP", "MPLBACKEND"):
            os.environ.pop(variable, None)
        # The library of this checkout, whichever the environment was installed for.
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
        os.environ["JUPYTER_PATH"] = str(Path(sys.prefix) / "share" / "jupyter")
        os.environ["JUPYTER_RUNTIME_DIR"] = f"{scratch}/runtime"
        os.environ["IPYTHONDIR"] = f"{scratch}/ipython"
        os.environ["PYTHONHASHSEED"] = "0"
        # One thread per notebook: the batch is parallel over notebooks, and the order of summation
        # inside BLAS must not depend on the machine's number of cores.
        for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
            os.environ[f"{library}_NUM_THREADS"] = "1"
        yield scratch


def execute(
    nb: NotebookNode, parameters: dict[str, Any], source: Path, target: Path | None = None
) -> NotebookNode:
    """Run the notebook of a source, in its folder; raises when a cell fails or the kernel dies.

    target: where what has run is written after every cell.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    reached = [0]
    with isolated() as scratch, progress(source.stem, len(nb.cells) + bool(parameters), reached):
        connection = Path(scratch, "connection.json")
        # Kernels on TCP race for ports when several start at once.
        manager = {"transport": "ipc", "ip": f"{scratch}/k", "connection_file": str(connection)}

        def on_cell_start(cell: NotebookNode, cell_index: int) -> None:
            connection.unlink(missing_ok=True)  # it has the key, and the kernel has read it
            reached.append(cell_index)

        try:
            return papermill.execute_notebook(
                nb,
                target,
                parameters=parameters,
                cwd=source.parent,
                progress_bar=False,
                coalesce_streams=True,  # how a kernel cuts its output into messages is timing
                config=Config({"KernelManager": manager}),
                on_cell_start=on_cell_start,
            )
        except DeadKernelError as error:
            why = f"kernel died after cell {reached[-1]}, perhaps for want of memory"
            raise RuntimeError(why) from error


def write_record(out: Path, name: str, nb: NotebookNode, facts: dict[str, Any]) -> None:
    """Write how a notebook was made, the last of its files."""
    folder = figures_of(out, name)
    figures = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [out / "notebooks" / f"{name}.ipynb", *figures]
    record = {
        "notebook": name,
        **facts,
        "claims": claims_of(nb),
        "figures": [str(path.relative_to(folder)) for path in figures],
        "files": {str(path.relative_to(out)): fingerprint(path) for path in files},
    }
    record_of(out, name).parent.mkdir(parents=True, exist_ok=True)
    record_of(out, name).write_text(json.dumps(record, indent=2) + "\n")


def run_job(out: Path, name: str, plan: dict[str, Any]) -> None:
    """Run one notebook of a plan whose results are in `out`; raises when it fails."""
    root, given = (out / plan["root"]).resolve(), plan["notebooks"][name]
    source = root / "notebooks" / f"{name}.py"
    # Relative: the executed notebook has these paths in it, and is passed on.
    unfinished = Path(os.path.relpath(out / "failed" / f"{name}.ipynb"))
    shown = f"../out/{plan['profile']}/{figures_of(Path(), name)}"
    notebook = out / "notebooks" / f"{name}.ipynb"
    figures = figures_of(out, name)
    shutil.rmtree(figures, ignore_errors=True)
    for folder in (figures, unfinished.parent, notebook.parent):
        folder.mkdir(parents=True, exist_ok=True)
    values = {**parameter_defaults(source), **given}
    started = datetime.now(UTC)
    try:
        nb = execute(read_source(source), {**given, OUT_DIR: shown}, source, unfinished)
    except SystemExit:  # interrupted, not failed
        unfinished.unlink(missing_ok=True)
        raise
    os.replace(unfinished, notebook)
    facts = {
        "profile": plan["profile"],
        **provenance(root),
        "parameters": values,
        "seeds": {k: v for k, v in values.items() if "seed" in k and not k.startswith("num_")},
        "started": started.isoformat(timespec="seconds"),
        "wall_seconds": round((datetime.now(UTC) - started).total_seconds(), 1),
    }
    write_record(out, name, nb, facts)


def exit_once(signum: int, frame: object) -> None:
    """Leave, so that papermill stops its kernel and folders are removed, undisturbed by more."""
    on_signals(signal.SIG_IGN)
    sys.exit(128 + signum)


@contextlib.contextmanager
def locked(path: Path, message: str) -> Iterator[int]:
    """Hold a lock, which any death of its holder frees; print the message before waiting for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(message, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def main(plan: str, name: str) -> int:
    """Run the notebook `name` of a plan. One that Snakemake has lost is waited for."""
    on_signals(exit_once)
    out = Path(plan).resolve().parent
    with locked(out / ".locks" / name, f"  {name} is still running; waiting for it"):
        try:
            run_job(out, name, json.loads(Path(plan).read_text()))
        except Exception as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    outlive_terminal()
    sys.exit(main(*sys.argv[1:]))
