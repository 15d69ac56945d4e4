"""The release's games: rows to learn from, and recursive pairs, with its shock by position.

The emulator plays one frame a step, and a policy of uniform random actions. Each step queries two
distinct actions: the first is executed, the second looked at and taken back. With each query a sign
U is drawn, and a lottery: with probability `sticky` *all* queried actions are played as the last
chosen one. The rewards are

    clip(r + b U, 0, 1) for the first,      clip(r - b U, 0, 1) for the second queried action.

A shock belongs to a position in the query and not to an action, so this is no joint MDP in the
sense of the library: here it is repeated because the paper's results were made with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from ale_py import ALEInterface, ALEState
from numpy.typing import NDArray
from PIL import Image

from experiments.files import Arrays, Flags
from experiments.release.settings import Settings
from jmdp_lib import randomness
from jmdp_lib.atari import emulator
from jmdp_lib.atari.env import MAX_FRAMES
from jmdp_lib.checks import Floats, Ints

Screens = NDArray[np.uint8]

POSITIONS = np.array([1.0, -1.0])  # the sign of a shock at the first and second place of a query
SIDE = 84  # pixels of a screen, each way


@dataclass(frozen=True, eq=False)
class Collected(Arrays):
    """N steps of play: screens, queries and their outcomes.

    Attributes:
        screens: (N + 1, 84, 84) grey screens of the states. screens[t + 1] is the successor of the
            first action of step t, or the start of a new game where that action ended it.
        others: (N, 84, 84) the successor of the second action.
        actions: (N, 2) the queried actions, as chosen.
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
        same: (S, P, H) one query served both branches.
    """

    rewards: NDArray[np.float32]
    alive: Flags
    same: Flags


class Start(NamedTuple):
    """An evaluation state: the emulator's, the last chosen action, its screen, the queried pair."""

    state: ALEState
    last: int
    screen: Screens
    asked: Ints


class Emulator:
    """A game of Gymnasium's v5 environments with frame skip 1 and no sticky actions."""

    def __init__(self, game: str) -> None:
        self.ale: ALEInterface = emulator.load(emulator.rom_id(game))
        self.legal = list(self.ale.getMinimalActionSet())

    def screen(self) -> Screens:
        """The screen (84, 84): RGB to grey, then resized, both by PIL."""
        grey = Image.fromarray(self.ale.getScreenRGB()).convert("L")
        return np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BILINEAR))

    def act(self, action: int) -> tuple[float, bool]:
        """The raw reward of one frame, and True if the game is over or has been cut off."""
        reward = self.ale.act(self.legal[action])
        return reward, self.ale.game_over() or self.ale.getEpisodeFrameNumber() >= MAX_FRAMES

    def state(self) -> ALEState:
        return emulator.compact(self.ale.cloneState())


def shocked(rewards: NDArray[Any], signs: NDArray[Any], b: float) -> Floats:
    """(..., 2) rewards after the shock of each position. Both arguments have the axes (..., 2)."""
    return np.clip(rewards + b * POSITIONS * signs, 0.0, 1.0)


def distinct_pairs(uniforms: Floats, num_actions: int) -> Ints:
    """(N, 2) uniform pairs of distinct actions, from (N, 2) numbers in [0, 1)."""
    pairs = (uniforms * [num_actions, num_actions - 1]).astype(np.int64)
    pairs[:, 1] += pairs[:, 1] >= pairs[:, 0]
    return pairs


def collect(settings: Settings, game: str, seed: int) -> Collected:
    """Play and query for `settings.steps` steps; a longer play begins like a shorter one."""
    num_steps = settings.steps
    player = Emulator(game)
    num_actions = len(player.legal)
    rng = randomness.generator(seed, f"release, play, {settings.coupling}, {game}")
    luck = rng.random((num_steps, 4))
    actions = distinct_pairs(luck[:, :2], num_actions)
    signs = np.where(luck[:, 2] < 0.5, 1, -1).astype(np.int8)
    repeats = luck[:, 3] < settings.sticky
    screens = np.zeros((num_steps + 1, SIDE, SIDE), np.uint8)
    others = np.zeros((num_steps, SIDE, SIDE), np.uint8)
    rewards = np.zeros((num_steps, 2), np.float32)
    ended = np.zeros((num_steps, 2), bool)
    player.ale.reset_game()
    screens[0] = player.screen()
    last = 0
    for t, chosen in enumerate(actions.tolist()):
        first, second = (last, last) if repeats[t] else chosen
        here = player.state()
        rewards[t, 1], ended[t, 1] = player.act(second)
        others[t] = player.screen()
        player.ale.restoreState(here)
        rewards[t, 0], ended[t, 0] = player.act(first)
        last = chosen[0]  # "executed" is what was chosen, whatever the lottery played
        if ended[t, 0]:
            player.ale.reset_game()
            last = 0
        screens[t + 1] = player.screen()
    return Collected(screens, others, actions, rewards, ended, signs, num_actions)


def evaluation_starts(settings: Settings, game: str, seed: int) -> list[Start]:
    """The first states of a play of single uniform actions, each with a random pair to ask."""
    player = Emulator(game)
    num_actions = len(player.legal)
    rng = randomness.generator(seed, f"release, evaluation, {settings.coupling}, {game}")
    luck = rng.random((settings.states, 4))
    actions = (luck[:, 2] * num_actions).astype(np.int64).tolist()
    repeats = luck[:, 3] < settings.sticky
    player.ale.reset_game()
    last = 0
    starts = []
    for t, asked in enumerate(distinct_pairs(luck[:, :2], num_actions)):
        starts.append(Start(player.state(), last, player.screen(), asked))
        _, over = player.act(last if repeats[t] else actions[t])
        last = actions[t]
        if over:
            player.ale.reset_game()
            last = 0
    return starts


def simulate(settings: Settings, game: str, seed: int) -> Pairs:
    """Play the recursive pairs of the evaluation states."""
    players = [Emulator(game), Emulator(game)]
    num_actions = len(players[0].legal)
    rng = randomness.generator(seed, f"release, pairs, {settings.coupling}, {game}")
    shape = (settings.pairs, 2, 1 + settings.horizon)
    played = []
    for start in evaluation_starts(settings, game, seed):
        plays = rng.integers(num_actions, size=shape)
        plays[:, :, 0] = start.asked
        repeats = rng.random(shape) < settings.sticky
        played += [
            play_pair(players, start, *luck, sticky=settings.sticky > 0.0)
            for luck in zip(plays, repeats, strict=True)
        ]
    whole = (np.array(part) for part in zip(*played, strict=True))
    return Pairs(
        *(part.reshape(settings.states, settings.pairs, *part.shape[1:]) for part in whole)
    )


def play_pair(
    players: list[Emulator], start: Start, plays: Ints, repeats: Flags, sticky: bool
) -> tuple[NDArray[np.float32], Flags, Flags]:
    """Two branches from one state. plays, repeats (2, H); rewards (2, H), alive (2, H), same (H,).

    While both live in one RAM state with one last action, one query serves both, with one lottery
    and from the first branch's state, whatever hidden state the second one has (Pong's paddle).
    Without sticky actions the last action is no part of the state.
    """
    rewards = np.zeros(plays.shape, np.float32)
    alive = np.zeros(plays.shape, bool)
    same = np.zeros(plays.shape[1], bool)
    last = [start.last, start.last]
    going = [True, True]
    for player in players:
        player.ale.restoreState(start.state)
    for t, chosen in enumerate(plays.T.tolist()):
        if all(going) and (not sticky or last[0] == last[1]):
            first, second = (player.ale.getRAM().tobytes() for player in players)
            same[t] = first == second
        if same[t]:
            players[1].ale.restoreState(players[0].state())
        for branch, player in enumerate(players):
            if going[branch]:
                repeated = repeats[0 if same[t] else branch, t]
                alive[branch, t] = True
                rewards[branch, t], over = player.act((last if repeated else chosen)[branch])
                going[branch] = not over
                last[branch] = chosen[branch]
    return rewards, alive, same


def pair_returns(pairs: Pairs, b: float, gamma: float, rng: np.random.Generator) -> Floats:
    """(S, P, 2) returns with shocks, times 1 - gamma.

    One query gives its two positions one sign; a branch that asks alone is at the first position.
    """
    signs = rng.choice([-1.0, 1.0], pairs.alive.shape)
    signs[:, :, 1] = np.where(pairs.same, signs[:, :, 0], -signs[:, :, 1])
    paid = shocked(np.moveaxis(pairs.rewards, 2, 3), np.moveaxis(signs, 2, 3), b)  # (S, P, H, 2)
    paid = np.moveaxis(paid, 3, 2) * pairs.alive
    return (1.0 - gamma) * paid @ gamma ** np.arange(paid.shape[-1])


def simulated_variances(returns: Floats) -> dict[str, float]:
    """Averages over states of a gap's variance and of the sum of its two variances; (S, P, 2).

    Variances divide by P, as the release's do. error: the standard error of the first average for
    these states, from the squared deviations of single pairs.
    """
    gap = returns[:, :, 0] - returns[:, :, 1]
    deviations = (gap - gap.mean(1, keepdims=True)) ** 2  # (S, P)
    error = np.sqrt(deviations.var(1, ddof=1).sum() / gap.shape[1]) / len(gap)
    return {
        "gap_variance": float(gap.var(1).mean()),
        "gap_variance_error": float(error),
        "independent_variance": float(returns.var(1).sum(1).mean()),
    }
