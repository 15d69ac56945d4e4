"""The release's games: frames and queries to learn from, its shock by position, recursive pairs.

The emulator plays one frame a step, and a policy of uniform random actions. Each step queries two
distinct actions: the first is played on, the second looked at and taken back. A sign U is drawn
with each query, and the rewards are

    clip(r + b U, 0, 1) for the first,      clip(r - b U, 0, 1) for the second queried action.

A shock belongs to a position in the query and not to an action, so this is no joint MDP in the
sense of the library: here it is repeated because the paper's Table 1 was made with it. Returns are
divided by 1 / (1 - gamma).
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ale_py import ALEInterface, ALEState
from numpy.typing import NDArray

from experiments.atari.files import replacing
from experiments.atari.tables import Arrays, Flags
from jmdp_lib import checks
from jmdp_lib.atari import emulator
from jmdp_lib.checks import Floats, Ints

Screens = NDArray[np.uint8]

POSITIONS = np.array([1.0, -1.0])  # the sign of a shock at the first and second place of a query
SIDE = 84  # pixels of a screen, each way
WHERE = ("first", "spaced")  # evaluation states: a game's first frames, frames all over the play


@dataclass(frozen=True, eq=False)
class Collected(Arrays):
    """N steps of play: what was seen, asked and answered.

    Attributes:
        screens: (N + 1, 84, 84) grey screens of the states. screens[t + 1] is the successor of the
            first action of step t, or the start of a new game where that action ended it.
        others: (N, 84, 84) the successor of the second action.
        actions: (N, 2) the queried actions.
        rewards: (N, 2) without shock, as the game pays them.
        ended: (N, 2) whether the game was over.
        signs: (N,) U, +1 or -1.
        num_actions: of the game.
    """

    screens: Screens
    others: Screens
    actions: Ints
    rewards: NDArray[np.float32]
    ended: Flags
    signs: NDArray[np.int8]
    num_actions: int


@dataclass(frozen=True, eq=False)
class Pairs(Arrays):
    """P recursive pairs over H steps from each of S states.

    Attributes:
        rewards: (S, P, 2, H) without shock, 0 after the end.
        alive: (S, P, 2, H) the branch made a step at time t.
        same: (S, P, H) both branches stood in one RAM state, and share U.
    """

    rewards: NDArray[np.float32]
    alive: Flags
    same: Flags


@dataclass(frozen=True)
class Simulated:
    """Averages over states of what pairs show."""

    gap_variance: float
    independent_variance: float


def shocked(rewards: NDArray[Any], signs: NDArray[Any], b: float) -> Floats:
    """(..., 2) rewards after the shock of each position. Both arguments have the axes (..., 2)."""
    return np.clip(rewards + b * POSITIONS * signs, 0.0, 1.0)


def evaluation_steps(num_steps: int, num_states: int) -> dict[str, Ints]:
    """The steps of the collected play whose states are evaluated: the first ones, spaced ones."""
    spaced = (np.arange(num_states) + 0.5) * num_steps / num_states
    return dict(zip(WHERE, (np.arange(num_states), spaced.astype(np.int64)), strict=True))


def action_pairs(rng: np.random.Generator, count: int, num_actions: int) -> Ints:
    """(count, 2) uniform pairs of distinct actions."""
    first = rng.integers(num_actions, size=count)
    second = rng.integers(num_actions - 1, size=count)
    return np.column_stack([first, second + (second >= first)])


def evaluated_actions(game: str, seed: int, where: str, num_states: int, num_actions: int) -> Ints:
    """(S, 2) one random pair of actions for each evaluation state."""
    rng = checks.generator(seed, f"release, actions, {game}, {where}")
    return action_pairs(rng, num_states, num_actions)


def area_weights(pixels: int, side: int = SIDE) -> NDArray[np.float32]:
    """(side, pixels) how much of each pixel a larger one covers, rows summing to one."""
    edges = np.arange(side + 1) * pixels / side
    left = np.maximum(edges[:-1, None], np.arange(pixels))
    right = np.minimum(edges[1:, None], np.arange(1, pixels + 1))
    return (np.clip(right - left, 0.0, None) * side / pixels).astype(np.float32)


class Emulator:
    """One emulator of a game, with grey screens of 84 x 84."""

    def __init__(self, game: str) -> None:
        self.ale: ALEInterface = emulator.load(emulator.rom_id(game))
        self.legal = list(self.ale.getMinimalActionSet())
        height, width = self.ale.getScreenDims()
        self._rows = area_weights(height)
        self._columns = area_weights(width).T.copy()

    def screen(self) -> Screens:
        """(84, 84) what is on the screen, by averages over areas."""
        grey = self.ale.getScreenGrayscale().astype(np.float32)
        return np.rint(self._rows @ grey @ self._columns).astype(np.uint8)

    def act(self, action: int) -> tuple[float, bool]:
        """The reward of one frame, and whether the game is over."""
        reward = self.ale.act(self.legal[action])
        return reward, self.ale.game_over()

    def state(self) -> ALEState:
        return emulator.compact(self.ale.cloneState())


def collect(game: str, seed: int, num_steps: int, num_states: int, folder: Path) -> None:
    """Play, and write the evaluation states, then the steps, if they are not there yet."""
    if (folder / "steps.npz").exists():
        return
    player = Emulator(game)
    rng = checks.generator(seed, f"release, play, {game}")
    actions = action_pairs(rng, num_steps, len(player.legal))
    signs = rng.choice(np.array([-1, 1], np.int8), num_steps)
    screens = np.zeros((num_steps + 1, SIDE, SIDE), np.uint8)
    others = np.zeros((num_steps, SIDE, SIDE), np.uint8)
    rewards = np.zeros((num_steps, 2), np.float32)
    ended = np.zeros((num_steps, 2), bool)
    kept = dict.fromkeys(np.concatenate([*evaluation_steps(num_steps, num_states).values()]))
    screens[0] = player.screen()
    for t, (first, second) in enumerate(actions.tolist()):
        here = player.state()
        if t in kept:
            kept[t] = here
        rewards[t, 1], ended[t, 1] = player.act(second)
        others[t] = player.screen()
        player.ale.restoreState(here)
        rewards[t, 0], ended[t, 0] = player.act(first)
        if ended[t, 0]:
            player.ale.reset_game()
        screens[t + 1] = player.screen()
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "states.pkl") as part:
        part.write_bytes(pickle.dumps({int(step): state for step, state in kept.items()}))
    played = Collected(screens, others, actions, rewards, ended, signs, len(player.legal))
    played.save(folder / "steps.npz")


def simulate(
    game: str,
    seed: int,
    where: str,
    num_steps: int,
    num_states: int,
    num_pairs: int,
    horizon: int,
    folder: Path,
) -> None:
    """Play the recursive pairs of the evaluation states, and write them if they are not there."""
    path = folder / f"pairs_{where}.npz"
    if path.exists():
        return
    states = pickle.loads((folder / "states.pkl").read_bytes())
    starts = [states[step] for step in evaluation_steps(num_steps, num_states)[where].tolist()]
    players = [Emulator(game), Emulator(game)]
    num_actions = len(players[0].legal)
    asked = evaluated_actions(game, seed, where, num_states, num_actions)
    rng = checks.generator(seed, f"release, pairs, {game}, {where}")
    played = []
    for start, actions in zip(starts, asked, strict=True):
        plays = rng.integers(num_actions, size=(num_pairs, 2, horizon))
        plays[:, :, 0] = actions
        played.append([play_pair(players, start, pair) for pair in plays])
    rewards, alive, same = (
        np.array([[pair[i] for pair in pairs] for pairs in played]) for i in range(3)
    )
    Pairs(rewards, alive, same).save(path)


def play_pair(
    players: list[Emulator], start: ALEState, plays: Ints
) -> tuple[NDArray[np.float32], Flags, Flags]:
    """Two branches from one state. plays (2, H); rewards (2, H), alive (2, H), same (H,)."""
    rewards = np.zeros(plays.shape, np.float32)
    alive = np.zeros(plays.shape, bool)
    same = np.zeros(plays.shape[1], bool)
    for player in players:
        player.ale.restoreState(start)
    going = [True, True]
    for t, chosen in enumerate(plays.T.tolist()):
        if all(going):
            first, second = (player.ale.getRAM().tobytes() for player in players)
            same[t] = first == second
        for branch, player in enumerate(players):
            if going[branch]:
                alive[branch, t] = True
                rewards[branch, t], over = player.act(chosen[branch])
                going[branch] = not over
    return rewards, alive, same


def pair_returns(pairs: Pairs, b: float, gamma: float, rng: np.random.Generator) -> Floats:
    """(S, P, 2) returns with shocks, divided by 1 / (1 - gamma).

    Branches in one RAM state share U by position, even where they play the same action; elsewhere
    each draws its own.
    """
    signs = rng.choice([-1.0, 1.0], pairs.alive.shape)
    signs[:, :, 1] = np.where(pairs.same, signs[:, :, 0], signs[:, :, 1])
    paid = shocked(np.moveaxis(pairs.rewards, 2, 3), np.moveaxis(signs, 2, 3), b)  # (S, P, H, 2)
    paid = np.moveaxis(paid, 3, 2) * pairs.alive
    return (1.0 - gamma) * paid @ gamma ** np.arange(paid.shape[-1])


def simulated(returns: Floats) -> Simulated:
    """Averages over states. returns (S, P, 2); variances divide by P, as the release's do."""
    gap = returns[:, :, 0] - returns[:, :, 1]
    return Simulated(float(gap.var(1).mean()), float(returns.var(1).sum(1).mean()))
