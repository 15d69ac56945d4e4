"""Shared set-up: property tests take as long as they take (machines are noisy, kernels compile)."""

import contextlib
import os
import sys
import time
from collections.abc import Callable

import psutil
import pytest
from hypothesis import HealthCheck, settings

# In continuous integration the same examples every time; elsewhere new ones with every run.
settings.register_profile(
    "project",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("project")


@pytest.fixture
def ends_when_killed() -> Callable[[str, int], None]:
    """A check of code that starts so many processes: kill it outright, and they end too."""

    def check(code: str, count: int) -> None:
        parent = psutil.Popen([sys.executable, "-c", code])
        deadline, family = time.monotonic() + 120, []
        try:
            while len(family) < count and time.monotonic() < deadline:
                time.sleep(0.2)
                family = parent.children(recursive=True)
            time.sleep(2.0)  # they have begun to work
            assert len(family) >= count
            parent.kill()
            parent.wait()
            _, alive = psutil.wait_procs(family, timeout=30)
            assert not alive
        finally:
            for process in (parent, *family):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    return check
