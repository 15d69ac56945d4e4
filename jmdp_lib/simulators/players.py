"""Which player plays which simulator."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from jmdp_lib.large.implicit import ImplicitJMDP, with_law
from jmdp_lib.model import JMDP, Coupling, require_noise
from jmdp_lib.simulators.compiled import CompiledPlayer
from jmdp_lib.simulators.plans import Player
from jmdp_lib.simulators.rows import EnvironmentPlayer, QueriedPlayer, inside_episode
from jmdp_lib.simulators.vector_player import VectorPlayer
from jmdp_lib.simulators.vector_simulator import VectorSimulator


def player_of(env: Any, state: Any, coupling: Coupling) -> Player:
    """The player of a simulator; arguments as of `estimate_gaps`. Another kind has a line here."""
    if hasattr(env, "twin"):
        return EnvironmentPlayer(inside_episode(env, state), [env.twin()], coupling)
    queried = hasattr(env, "query") and hasattr(env, "num_actions")
    if not isinstance(env, VectorSimulator) and not queried:
        raise ValueError(
            f"{env!r} is no simulator: it must be a CoupledEnv, a CoupledAtari, a JMDP, an "
            "ImplicitJMDP, a VectorSimulator, or have num_actions, gamma and query"
        )
    if state is None:
        raise ValueError(
            "state= must be given: the state at which the branches start (rows (state, action, "
            "other action) are for estimate_gaps of a JMDP alone)"
        )
    if isinstance(env, JMDP):
        return CompiledPlayer(env, state, coupling)
    if isinstance(env, ImplicitJMDP) and coupling.across_states:
        require_noise(env)
        law = env.at(state)[0]
        env = replace(env, tables=partial(with_law, law, env.tables))
    if isinstance(env, VectorSimulator):
        return VectorPlayer(env, state, coupling)
    return QueriedPlayer(env, state, coupling)
