"""Gymnasium's toy-text environments as JMDPs, through their transition lists `env.unwrapped.P`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jmdp_lib.machine import extra
from jmdp_lib.model import JMDP

if TYPE_CHECKING:
    import gymnasium


def from_gymnasium(env: str | gymnasium.Env[Any, Any], gamma: float = 0.95) -> JMDP:
    """A toy-text environment of Gymnasium: FrozenLake-v1, CliffWalking-v1 or Taxi-v4.

    `env` is an environment or the id of one; any other that lists its transitions in `P` will do,
    too. One uniform number goes through each action's list in the order of `P`: exactly what
    Gymnasium itself would draw for every action from the same `np_random`. A transition that ends
    the episode leads to an absorbing state without rewards: its own next state if `P` makes that
    one absorbing and free of rewards, and otherwise one extra state, the last.

    Example:
        >>> import jmdp_lib as jl
        >>> jm = jl.from_gymnasium("FrozenLake-v1", gamma=0.9)
        >>> jm.num_states, jm.num_actions, jm.is_coupled
        (16, 4, True)
    """
    made: Any = env
    if isinstance(env, str):
        with extra("atari"):
            import gymnasium
        made = gymnasium.make(env)
    table = getattr(getattr(made, "unwrapped", None), "P", None)
    if not isinstance(table, dict):
        raise ValueError(f"env must be a toy-text environment, {made} has no transition lists P")
    extra_state, actions = len(table), range(len(table[0]))
    absorbing = {
        s for s, laws in table.items()
        if all(t == s and r == 0 for law in laws.values() for _, t, r, _ in law)
    }  # fmt: skip
    outcomes = [
        [
            [
                (p, float(r), extra_state if done and t not in absorbing else int(t))
                for p, t, r, done in table[s][a]
            ]
            for a in actions
        ]
        for s in range(len(table))
    ]
    if any(t == extra_state for laws in outcomes for law in laws for _, _, t in law):
        outcomes.append([[(1.0, 0.0, extra_state)]] * len(actions))
    return JMDP.from_outcomes(outcomes, gamma)
