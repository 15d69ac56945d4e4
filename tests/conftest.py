"""Shared set-up: property tests take as long as they take (machines are noisy, kernels compile)."""

import os

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
