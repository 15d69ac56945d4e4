"""The release's rollouts: rows to learn from, and recursive pairs, with its shock by position.

The emulator simulates one frame a step, under a policy of uniform random actions. Each step queries
two distinct actions: the first is executed, the second is simulated and taken back. With each query
a sign U is drawn, and a lottery: with probability `sticky` *all* queried actions are replaced by
the last chosen one. The rewards are

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
    """N steps: screens, queries and their outcomes.

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


State = tuple[ALEState, int]  # the emulator's, and the last chosen action


class Start(NamedTuple):
    """An evaluation state: the emulator's, its screen, and the pair of actions to query."""

    state: State
    screen: Screens
    queried: Ints


class Emulator:
    """A game of Gymnasium's v5 environments with frame skip 1, and sticky actions for a query.

    last: the last chosen action, 0 after a reset.
    """

    last: int

    def __init__(self, game: str) -> None:
        self.ale: ALEInterface = emulator.load(emulator.rom_id(game))
        self.legal = list(self.ale.getMinimalActionSet())
        self.reset()

    def screen(self) -> Screens:
        """The screen (84, 84): RGB to grey, then resized, both by PIL."""
        grey = Image.fromarray(self.ale.getScreenRGB()).convert("L")
        return np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BILINEAR))

    def act(self, action: int, repeated: bool) -> tuple[float, bool]:
        """The raw reward of one frame, and True if the game is over or has been cut off.

        repeated: execute the last chosen action instead. In either case `action` is then the last.
        """
        reward = self.ale.act(self.legal[self.last if repeated else action])
        self.last = action
        return reward, self.ale.game_over() or self.ale.getEpisodeFrameNumber() >= MAX_FRAMES

    def reset(self) -> None:
        self.ale.reset_game()
        self.last = 0

    def state(self) -> State:
        return emulator.compact(self.ale.cloneState()), self.last

    def restore(self, state: State) -> None:
        saved, self.last = state
        self.ale.restoreState(saved)


def shocked(rewards: NDArray[Any], signs: NDArray[Any], b: float) -> Floats:
    """(..., 2) rewards after the shock of each position. Both arguments have the axes (..., 2)."""
    return np.clip(rewards + b * POSITIONS * signs, 0.0, 1.0)


def distinct_pairs(uniforms: Floats, num_actions: int) -> Ints:
    """(N, 2) uniform pairs of distinct actions, from (N, 2) numbers in [0, 1)."""
    pairs = (uniforms * [num_actions, num_actions - 1]).astype(np.int64)
    pairs[:, 1] += pairs[:, 1] >= pairs[:, 0]
    return pairs


def collect(settings: Settings, game: str, seed: int) -> Collected:
    """Query along `settings.steps` random steps; more steps begin like fewer ones."""
    num_steps = settings.steps
    env = Emulator(game)
    num_actions = len(env.legal)
    rng = randomness.generator(seed, f"release, play, {settings.coupling}, {game}")
    luck = rng.random((num_steps, 4))
    actions = distinct_pairs(luck[:, :2], num_actions)
    signs = np.where(luck[:, 2] < 0.5, 1, -1).astype(np.int8)
    repeats = luck[:, 3] < settings.sticky
    screens = np.zeros((num_steps + 1, SIDE, SIDE), np.uint8)
    others = np.zeros((num_steps, SIDE, SIDE), np.uint8)
    rewards = np.zeros((num_steps, 2), np.float32)
    ended = np.zeros((num_steps, 2), bool)
    screens[0] = env.screen()
    for t, (first, second) in enumerate(actions.tolist()):
        here = env.state()
        rewards[t, 1], ended[t, 1] = env.act(second, repeats[t])
        others[t] = env.screen()
        env.restore(here)
        rewards[t, 0], ended[t, 0] = env.act(first, repeats[t])
        if ended[t, 0]:
            env.reset()
        screens[t + 1] = env.screen()
    return Collected(screens, others, actions, rewards, ended, signs, num_actions)


def evaluation_starts(settings: Settings, game: str, seed: int) -> list[Start]:
    """The first states of a rollout of single uniform actions, each with a random pair to query."""
    env = Emulator(game)
    num_actions = len(env.legal)
    rng = randomness.generator(seed, f"release, evaluation, {settings.coupling}, {game}")
    luck = rng.random((settings.states, 4))
    pairs = distinct_pairs(luck[:, :2], num_actions)
    actions = (luck[:, 2] * num_actions).astype(np.int64).tolist()
    starts = []
    for pair, action, repeated in zip(pairs, actions, luck[:, 3] < settings.sticky, strict=True):
        starts.append(Start(env.state(), env.screen(), pair))
        if env.act(action, repeated)[1]:
            env.reset()
    return starts


def simulate(settings: Settings, game: str, seed: int) -> Pairs:
    """Simulate the recursive pairs of the evaluation states."""
    envs = [Emulator(game), Emulator(game)]
    num_actions = len(envs[0].legal)
    rng = randomness.generator(seed, f"release, pairs, {settings.coupling}, {game}")
    shape = (settings.pairs, 2, 1 + settings.horizon)
    simulated = []
    for start in evaluation_starts(settings, game, seed):
        actions = rng.integers(num_actions, size=shape)
        actions[:, :, 0] = start.queried
        repeats = rng.random(shape) < settings.sticky
        pairs = [
            simulate_pair(envs, start.state, *drawn, sticky=settings.sticky > 0.0)
            for drawn in zip(actions, repeats, strict=True)
        ]
        simulated.append([np.array(part) for part in zip(*pairs, strict=True)])
    return Pairs(*(np.array(part) for part in zip(*simulated, strict=True)))


def simulate_pair(
    envs: list[Emulator], start: State, actions: Ints, repeats: Flags, sticky: bool
) -> tuple[NDArray[np.float32], Flags, Flags]:
    """Two branches from one state: rewards (2, H), alive (2, H), same (H,).

    actions, repeats: (2, H) chosen by each branch, and whether the last one is executed instead.

    While both live in one RAM state with one last action, one query serves both, with one lottery
    and from the first branch's state, whatever hidden state the second one has (Pong's paddle).
    Without sticky actions the last action is no part of the state.
    """
    rewards = np.zeros(actions.shape, np.float32)
    alive = np.zeros(actions.shape, bool)
    same = np.zeros(actions.shape[1], bool)
    going = [True, True]
    for env in envs:
        env.restore(start)
    for t, chosen in enumerate(actions.T.tolist()):
        same[t] = (
            all(going)
            and (not sticky or envs[0].last == envs[1].last)
            and len({env.ale.getRAM().tobytes() for env in envs}) == 1
        )
        if same[t]:
            envs[1].restore(envs[0].state())
        for branch, env in enumerate(envs):
            if going[branch]:
                alive[branch, t] = True
                repeated = repeats[0 if same[t] else branch, t]
                rewards[branch, t], over = env.act(chosen[branch], repeated)
                going[branch] = not over
    return rewards, alive, same


def pair_returns(pairs: Pairs, b: float, gamma: float, rng: np.random.Generator) -> Floats:
    """(S, P, 2) returns with shocks, times 1 - gamma.

    One query gives its positions one sign; a branch that is queried alone has the first position.
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
