"""Environments of the paper, and some that practitioners know, as JMDPs."""

from jmdp_lib.environments.chain import (
    coupled_reward_chain,
    example_1,
    example_2_1,
    example_2_2,
)
from jmdp_lib.environments.gridworld import goal_policy, windy_gridworld
from jmdp_lib.environments.inventory import base_stock_policy, inventory
from jmdp_lib.environments.toy_text import from_gymnasium

__all__ = [
    "base_stock_policy",
    "coupled_reward_chain",
    "example_1",
    "example_2_1",
    "example_2_2",
    "from_gymnasium",
    "goal_policy",
    "inventory",
    "windy_gridworld",
]
