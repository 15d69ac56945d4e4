"""A pytest plugin: kernels of notebooks that nbval runs are like those of the batch.

`make nbval` runs `pytest -p nbval_kernels --nbval-lax notebooks/*.ipynb`. A kernel talks
over sockets that are files, since kernels on TCP race for ports when several start at once.
"""

from __future__ import annotations

import contextlib
import functools

import nbval.kernel
import pytest
from notebook_job import isolated


def pytest_configure(config: pytest.Config) -> None:
    """Set up a folder for the kernels of this process, which is removed at its end."""
    stack = contextlib.ExitStack()
    folder = stack.enter_context(isolated())
    config.add_cleanup(stack.close)
    manager = functools.partial(nbval.kernel.KernelManager, transport="ipc", ip=f"{folder}/k")
    nbval.kernel.KernelManager = manager
