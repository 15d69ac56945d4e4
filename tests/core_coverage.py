"""A pytest plugin: measures how much of the core its own tests execute.

`make test` runs the units with `-p core_coverage`, and prints the share at its end. To trace all
tests, with all that they import, would take a third more time. So traced are the imports of the
core, and the tests of the files below.
"""

from importlib import import_module

import coverage
import pytest

FILES = ("bad_input", "environments", "incremental", "model", "moments", "montecarlo")
FILES += ("operators", "policies", "projected", "results")
LAST = ("environments", "montecarlo", "operators.literal")  # they import all others
LAST += ("solvers.incremental", "solvers.order_n", "solvers.projected", "solvers.trace")
measured = coverage.Coverage(data_suffix=True)


def pytest_configure():
    """Import the core, traced."""
    import_module("numba")
    with measured.collect():
        for name in LAST:
            import_module(f"jmdp_lib.{name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Trace a test of the core."""
    if item.path.stem.removeprefix("test_") not in FILES:
        return (yield)
    with measured.collect():
        return (yield)


def pytest_unconfigure():
    """Write down what was executed; `coverage report` reads it."""
    measured.save()
