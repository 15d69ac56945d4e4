"""Environments of the paper, and some that practitioners know, as JMDPs."""

from jmdp_lib.environments.chain import coupled_reward_chain as coupled_reward_chain
from jmdp_lib.environments.chain import example_1 as example_1
from jmdp_lib.environments.chain import example_2_1 as example_2_1
from jmdp_lib.environments.chain import example_2_2 as example_2_2
from jmdp_lib.environments.gridworld import goal_policy as goal_policy
from jmdp_lib.environments.gridworld import windy_gridworld as windy_gridworld
from jmdp_lib.environments.inventory import inventory as inventory
from jmdp_lib.environments.toy_text import from_gymnasium as from_gymnasium
