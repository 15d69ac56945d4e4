"""The Arcade Learning Environment as a joint MDP: every action's outcome under one shared draw.

The state is the emulator's state with the previous action. One draw decides, for all actions, the
number of leading frames that repeat the previous action (sticky actions), and the sign of the
reward shock, if there is one. The draw is made when a state is entered, before any action is looked
at. `query` reads coordinates of that table, `step` executes one of them, and the next state has a
table of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, get_args

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from numpy.typing import NDArray

from jmdp_lib import checks, randomness
from jmdp_lib.atari.emulator import compact, load, ram_and_paddles, rom_id
from jmdp_lib.randomness import RNG
from jmdp_lib.simulators.coupled_env import Coupled, Outcome

Bytes = NDArray[np.uint8]
MAX_FRAMES = 108_000  # after which an episode is truncated, as is usual for Atari
_NOOP = 0


Observed = Literal["ram", "ram+paddles", "pixels"]


class Draw(NamedTuple):
    """All the randomness of one outcome table.

    Attributes:
        repeats: number of leading frames on which the sticky lottery repeats the previous action,
            for every queried action. A later repeat would repeat the queried action itself, so that
            only frame_skip + 1 of the 2**frame_skip patterns differ.
        shock: $U$ of the reward shock, +1 or -1; None if there is none.

    Example:
        >>> from jmdp_lib.atari import CoupledAtari, Draw
        >>> env = CoupledAtari("Breakout", rng=0)
        >>> _ = env.reset()
        >>> env.redraw(Draw(repeats=4))  # all four frames repeat the previous action
        >>> first, second = env.query([2, 3])
        >>> bool((first.observation == second.observation).all())
        True
    """

    repeats: int
    shock: float | None = None


class Snapshot(NamedTuple):
    """The whole state of one game, which can be pickled.

    Any `CoupledAtari` of that game can restore it; with its draw, one of the same settings.

    Attributes:
        game: ROM id.
        saved: ALEState of the emulator, without the numbers of a generator that play never uses;
            None until it is needed.
        moves: emulator actions that lead from `saved` to this state, one per frame. A queried
            successor is kept as the way to it, which costs nothing until it is restored.
        previous: index of the previous action, which the lottery may repeat; A (one past the last
            action) if sticky_prob = 0, since it is then no part of the state.
        observation: the observation here (the emulator restores its memory, but not its screen).
        over: True if the episode has ended here.
        draw: the table drawn for this visit; None: `restore` draws one.

    Example:
        >>> from jmdp_lib.atari import CoupledAtari
        >>> env = CoupledAtari("Breakout", rng=0)
        >>> _ = env.reset()
        >>> first, second = env.query([2, 3], clones=True)
        >>> first.snapshot.identity == second.snapshot.identity
        False
    """

    game: str
    saved: Any
    moves: tuple[int, ...]
    previous: int
    observation: NDArray[np.uint8]
    over: bool
    draw: Draw | None = None

    def __repr__(self) -> str:
        return f"Snapshot({self.game!r}, over={self.over}, draw={self.draw})"

    @property
    def identity(self) -> int:
        """64-bit digest of emulator state and previous action: equal iff the states are.

        RAM alone is not the state (Pong), and `hash(ALEState)` differs between equal states.
        """
        if self.moves:
            raise ValueError("this successor was not cloned: query(actions, clones=True)")
        digest = blake2b(self.saved.serialize(), digest_size=8, salt=bytes([self.previous]))
        return int.from_bytes(digest.digest(), "little", signed=True)


class CoupledAtari(Coupled, gymnasium.Env[Bytes, np.int64], EzPickle):
    """An Atari game that answers queries: all actions of a state under one shared draw.

    Actions are indices into the game's minimal action set.

    The game starts in the same state at every reset; take random actions for another one.

    Args:
        game: name of the game, such as BattleZone.
        sticky_prob: probability that a frame repeats the previous action, as in the ALE.
        frame_skip: frames per step.
        shock: $sigma$ of a reward shock that all actions share (Section 6), $R(a) = clip(r, -1, 1)
            + sigma U$. $U$ is +1 or -1, each with probability 1/2, drawn once per table. None: raw
            rewards.
        obs: "ram", (128,) uint8; "ram+paddles", (130,) uint8, with the positions of the emulator's
            two paddle knobs, which the memory of a game (Pong) does not contain; or "pixels",
            (210, 160, 3) or the game's own size, uint8.
        rng: an integer, a SeedSequence or a Generator for the draws; None draws fresh entropy.
            `reset(seed=...)` starts them anew.

    Example:
        >>> from jmdp_lib.atari import CoupledAtari
        >>> env = CoupledAtari("Breakout", rng=0)
        >>> observation, _ = env.reset()
        >>> observation.shape, env.num_actions
        ((128,), 4)
        >>> here = env.snapshot()
        >>> outcomes = env.query([0, 1, 2, 3])
        >>> [outcome.reward for outcome in outcomes], env.draw.repeats
        ([0.0, 0.0, 0.0, 0.0], 0)
        >>> seen = env.step(2)[0]
        >>> bool((seen == outcomes[2].observation).all())
        True
        >>> bool((env.restore(here) == observation).all())
        True
        >>> env.redraw()
        >>> env.same_state(env.twin())
        True
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, as Gymnasium declares it

    def __init__(
        self,
        game: str,
        *,
        sticky_prob: float = 0.25,
        frame_skip: int = 4,
        shock: float | None = None,
        obs: Observed = "ram",
        rng: RNG = None,
    ) -> None:
        self.game = rom_id(game)
        self.sticky_prob = checks.probability("sticky_prob", sticky_prob)
        self.frame_skip = checks.at_least("frame_skip", frame_skip, 1)
        self.shock = None if shock is None else checks.positive("shock", shock)
        EzPickle.__init__(
            self, game, sticky_prob=sticky_prob, frame_skip=frame_skip, shock=shock, obs=obs
        )
        self.np_random = randomness.generator(rng)
        self.ale = load(self.game)
        observers: dict[str, Callable[[], Bytes]] = {
            "ram": self.ale.getRAM,
            "ram+paddles": partial(ram_and_paddles, self.ale),
            "pixels": self.ale.getScreenRGB,
        }
        self._observe = observers[checks.one_of("obs", obs, get_args(Observed))]
        actions = self.ale.getMinimalActionSet()
        self.action_names = [action.name for action in actions]
        self.num_actions = len(actions)
        # Without a previous action the last code is repeated: the ALE starts with a NOOP, too.
        self._codes = [action.value for action in actions] + [_NOOP]
        first = self._codes.index(_NOOP) if sticky_prob > 0 else self.num_actions
        seen = checks.frozen(self._observe())
        self._start = Snapshot(self.game, self._clone(), (), first, seen, over=False)
        # There is no episode before the first reset.
        self._enter(self._start._replace(over=True, draw=Draw(0)))
        self.observation_space = gymnasium.spaces.Box(0, 255, seen.shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(self.num_actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Bytes, dict[str, Any]]:
        """The start of the game.

        Args:
            seed: starts the generator of all draws anew; by default it goes on.
            options: not used.

        Returns:
            Observation and info, the number of lives.
        """
        super().reset(seed=seed)
        return self.restore(self._start), {"lives": self.ale.lives()}

    def query(self, actions: Sequence[int], *, clones: bool = False) -> tuple[Outcome, ...]:
        """The outcomes of distinct actions, in their order, all under this state's one draw.

        Every query of a state reads the same table. A `step` of the action that was queried last
        costs nothing more.

        Args:
            actions: one or more indices of actions.
            clones: True lets every successor snapshot hold the state itself, so that it has an
                `identity`; otherwise it holds the way there.

        Returns:
            An outcome for each action.
        """
        self._ready_to("query")
        return tuple([self._outcome(*item, clones) for item in self._keys(actions).items()])

    def twin(self) -> CoupledAtari:
        """A second environment of the same game, at the same state and with the same table.

        Both draw later tables from one generator. A pickle, in contrast, has not been started.
        """
        other = copy.copy(self)
        other.np_random = self.np_random
        other.restore(self.snapshot())
        return other

    @property
    def previous(self) -> int:
        """Index of the previous action, as in `Snapshot`."""
        return int(self._here.previous)

    def _sample(self) -> Draw:
        repeats = 0
        while repeats < self.frame_skip and self.np_random.random() < self.sticky_prob:
            repeats += 1
        shock = None if self.shock is None else 2.0 * self.np_random.integers(2) - 1.0
        return Draw(repeats, shock)

    def _keys(self, actions: Sequence[Any]) -> dict[Any, Any]:
        return {action: action for action in checks.distinct_actions(actions, self.num_actions)}

    def _branch(self, action: int) -> Outcome:
        here = self._here
        repeats, shock = self.draw
        obeyed = self.frame_skip - repeats
        moves = (self._codes[here.previous],) * repeats + (self._codes[action],) * obeyed
        reward = float(sum(map(self.ale.act, moves)))
        if self.shock is not None:
            reward = min(max(reward, -1.0), 1.0) + self.shock * shock
        terminated = self.ale.game_over(with_truncation=False)
        truncated = not terminated and self.ale.getEpisodeFrameNumber() >= MAX_FRAMES
        seen = checks.frozen(self._observe())
        previous = action if obeyed else here.previous
        if self.sticky_prob == 0.0:
            previous = self.num_actions  # none is part of the state
        over = terminated or truncated
        after = Snapshot(self.game, here.saved, here.moves + moves, previous, seen, over)
        info = {"lives": self.ale.lives()}
        return Outcome(action, reward, seen, terminated, truncated, info, after)

    def _clone(self) -> Any:
        return compact(self.ale.cloneState())

    def _load(self, snapshot: Snapshot) -> None:
        self.ale.restoreState(snapshot.saved)
        for move in snapshot.moves:
            self.ale.act(move)

    def _check(self, snapshot: Any) -> None:
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"snapshot must be a Snapshot, got {snapshot!r}")
        if snapshot.game != self.game:
            raise ValueError(f"a snapshot of {snapshot.game} cannot be restored in {self.game}")
        shape = self._start.observation.shape
        checks.same_shape("the snapshot's observation", snapshot.observation.shape, shape, "obs")
        draw = snapshot.draw
        fewest = self.frame_skip if self.sticky_prob == 1.0 else 0
        possible = range(fewest, 1 + self.frame_skip * (self.sticky_prob > 0.0))
        unused = draw is None or snapshot.over
        fits = unused or (
            isinstance(draw, Draw)
            and type(draw.repeats) is int
            and draw.repeats in possible
            and (draw.shock is None) == (self.shock is None)
        )
        if not fits:
            raise ValueError(
                f"{draw!r} is not a draw of this game: repeats {list(possible)} have probability "
                f"above 0, the shock is {self.shock}"
            )

    def _identity(self) -> int:
        return int(self.snapshot().identity)
