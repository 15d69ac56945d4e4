"""Joint MDPs: exact and sampled moments of the joint returns of all actions, and their gaps.

The core is the paper. Model: `JMDP`, the environments, the policies. Operators: `apply_t2`,
`sample_t2`, `pair_step`. Solvers: `jipe2`, `jipe`, `incremental_jipe2`, `projected_jipe2`.
Simulation of a JMDP: `simulate_pairs` and `simulate_returns`.

Beside it stand sub-packages that the core never imports, each loaded when it is first used:
`laws`, the whole distribution of a gap and other exact answers beyond the paper; `large`, one state
of a model that nobody enumerates; `simulators`, your own simulator, Gymnasium and vectorised ones;
and `atari`, the ALE query wrapper.

What is public stands in `__init__.pyi`, which type checkers read, too.
"""

from contextlib import suppress
from importlib import import_module, util
from typing import Any

import lazy_loader

__version__ = "1.0.0"
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """A public name; for one of a sub-package, the error says where it is."""
    try:
        return _public(name)
    except AttributeError:
        if name.startswith("_") or util.find_spec(f"{__name__}.{name}"):  # as `checks`
            raise
        for room in ("laws", "large", "simulators", "atari"):
            with suppress(ImportError):  # an extra that is not installed
                if name in import_module(f"{__name__}.{room}").__all__:
                    raise AttributeError(f"jl.{name} is now jl.{room}.{name}") from None
        raise
