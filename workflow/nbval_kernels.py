"""A pytest plugin: kernels of notebooks that nbval runs are like those of the batch.

`make nbval` runs `pytest -p workflow.nbval_kernels --nbval-lax notebooks/*.ipynb`. A kernel talks
over sockets that are files, since kernels on TCP race for ports when several start at once. It
computes with one thread, and reads no dot-files of the user (`notebook_job.execute` says why).
"""

from __future__ import annotations

import functools
import os
import tempfile

import nbval.kernel
import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Set up a folder for the kernels of this process, which is removed at its end."""
    base = None if len(tempfile.gettempdir()) < 60 else "/tmp"  # paths of sockets must be short
    scratch = tempfile.TemporaryDirectory(prefix="nb", dir=base, ignore_cleanup_errors=True)
    config.add_cleanup(scratch.cleanup)
    folder = scratch.name
    os.environ |= {"IPYTHONDIR": f"{folder}/ipython", "JUPYTER_RUNTIME_DIR": f"{folder}/runtime"}
    os.environ["PYTHONHASHSEED"] = "0"
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    manager = functools.partial(nbval.kernel.KernelManager, transport="ipc", ip=f"{folder}/k")
    nbval.kernel.KernelManager = manager
