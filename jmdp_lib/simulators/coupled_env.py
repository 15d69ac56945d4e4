"""Environments that answer queries: each visit of a state has one draw.

A table is drawn when a state is entered, before any action is known. A query simulates branches of
that table, `step` executes one of them, and the next state has a table of its own. `Coupled` holds
the code that all such environments share; `CoupledEnv` and `CoupledAtari` define how a draw is
made, how an action is executed under it, and how a state is saved and restored.

In `CoupledEnv`, copies of the environment (`env_copies`) simulate the queried actions, each with
its generator in the same state. That is right if copies are complete and all randomness comes from
`np_random`. Both are tested before the first use, and whenever a queried branch is executed.
"""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks, randomness
from jmdp_lib.machine import extra
from jmdp_lib.randomness import RNG

with extra("atari"):
    import gymnasium
    from gymnasium.error import ResetNeeded
    from gymnasium.utils import RecordConstructorArgs
    from gymnasium.utils.env_checker import data_equivalence

    from jmdp_lib.simulators import env_copies
    from jmdp_lib.simulators.env_copies import Env, EnvSnapshot, Moves, OtherGenerator, name_of
from jmdp_lib.simulators.env_world import Environment, distinct_in

_TRIAL_STEPS = 20


class Outcome(NamedTuple):  # a frozen dataclass for each would slow fast emulators down
    """One coordinate of a drawn outcome table: the outcome of one action under the shared draw.

    Attributes:
        action: the queried action.
        reward: its reward.
        observation: of the successor state.
        terminated: whether this branch ended; the branches of one query can end differently.
        truncated: whether a time limit cut this branch.
        info: anything else that the simulator reports.
        snapshot: the successor, to be passed to `restore`; its own table is not drawn yet.
    """

    action: Any
    reward: float
    observation: Any
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    snapshot: Any


class Coupled(Environment):
    """An environment that answers queries.

    A snapshot is a tuple with at least these fields: *saved*, the state that `_clone` returned, or
    None until it is needed; *moves*, the steps from there to this state; *observation*; *over*,
    whether the episode has ended; and *draw*, or None if `restore` is to make a draw.

    Attributes:
        copying: how states are kept: "copied", or "replayed" from the reset on.
        draw: the draw that fixes this state's table.
        observed: the observation at this state.
        _here: the snapshot of this state.
        _table: the outcomes of the queried actions, by the keys of these.
        _at: None while the environment is in this state; else the key of the action after which it
            is, or another word.
    """

    copying = "copied"
    action_space: Any
    _here: Any
    _at: Any

    @abstractmethod
    def _sample(self) -> Any:
        """A new draw."""

    @abstractmethod
    def _branch(self, action: Any) -> Outcome:
        """Execute an action under the draw, from here."""

    @abstractmethod
    def _clone(self) -> Any:
        """The present state of the environment, saved."""

    @abstractmethod
    def _load(self, snapshot: Any) -> None:
        """Set the environment to the saved state, and make the moves from there."""

    @abstractmethod
    def _check(self, snapshot: Any) -> None:
        """Refuse a snapshot of any other kind of environment."""

    @abstractmethod
    def _identity(self) -> Any:
        """A key that is equal for equal states, and only for these; None if that is unknown."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute one branch of this state's table and draw the table of the next state.

        Args:
            action: an action of `action_space`, queried before or not.

        Returns:
            Observation, reward, terminated, truncated and info, as in Gymnasium.

        Raises:
            RuntimeError: the environment does not repeat its answer to a query.
            ResetNeeded: there is no episode, or it has ended.
        """
        self._ready_to("step")
        ((key, chosen),) = self._keys([action]).items()
        done = queried = self._table.get(key)
        if done is None or self._at != key:
            self._go_here()
            done = self._branch(chosen)
            if queried and not data_equivalence(queried[1:5], done[1:5], exact=True):
                raise RuntimeError(
                    f"the environment did not repeat the queried outcome of action {action}: not "
                    "all of its randomness or state was copied"
                )
        self._enter(done.snapshot)
        _, reward, seen, terminated, truncated, info, _ = done
        return copy.copy(seen), reward, terminated, truncated, dict(info)

    def snapshot(self) -> Any:
        """Save this state with its drawn table: restoring it gives the same outcomes again."""
        self._save()
        return self._here._replace(draw=self.draw)

    def restore(self, snapshot: Any) -> Any:
        """Go to a state; a table is drawn if the snapshot has none.

        Args:
            snapshot: a result of `snapshot`, or the `snapshot` of an `Outcome`.

        Returns:
            The observation there.

        Raises:
            TypeError: it is not a snapshot of such an environment.
        """
        self._check(snapshot)
        self._load(snapshot)
        self._enter(snapshot)
        return copy.copy(snapshot.observation)

    def redraw(self, draw: Any = None) -> None:
        """Replace this state's table by another one.

        Args:
            draw: the draw that fixes the table, in the form of the attribute `draw`. Defaults to
                a fresh one.
        """
        here = self._here._replace(draw=draw)
        self._ready_to("redraw")
        self._check(here)
        self._go_here()
        self._enter(here)

    def same_state(self, other: Any) -> bool:
        """Compare the states of two environments; in doubt they count as different.

        Args:
            other: another environment of this kind.

        Returns:
            True if the two states have the same possible futures.
        """
        if not data_equivalence(self.observed, other.observed, exact=True):
            return False
        mine = self._identity()
        return mine is not None and bool(mine == other._identity())

    def _keys(self, actions: Sequence[Any]) -> dict[Any, Any]:
        """Actions of a call, by keys that distinguish them; raises if two of them are equal."""
        return distinct_in(self.action_space, actions)

    def _ready_to(self, do: str) -> None:
        if self._here.over:
            raise ResetNeeded(
                f"{do} before reset() or after the end of the episode: call reset() or restore()"
            )

    def _outcome(self, key: Any, action: Any, clone: bool = False) -> Outcome:
        """Outcome of an action. clone: save the successor itself, not the moves that lead there."""
        outcome = self._table.get(key)
        if outcome is None or (clone and outcome.snapshot.moves):
            self._save()
            self._go_here()
            self._at = key
            outcome = self._branch(action)
            if clone:
                after = outcome.snapshot._replace(saved=self._clone(), moves=())
                outcome = outcome._replace(snapshot=after)
            self._table[key] = outcome
        return outcome

    def _save(self) -> None:
        """Save this state, unless it is saved already; an unsaved state was never left."""
        if self._here.saved is None:
            self._here = self._here._replace(saved=self._clone())

    def _go_here(self) -> None:
        """Bring the environment back to this state."""
        if self._at is not None:
            self._load(self._here)
            self._at = None

    def _enter(self, here: Any) -> None:
        """Start the visit of the state that the environment is in.

        A state that was reached by moves is saved only when that is needed.
        """
        if here.moves and self.copying != "replayed":
            here = here._replace(saved=None, moves=())
        self._here = here
        self.observed = here.observation
        self.draw = self._sample() if here.draw is None else here.draw
        self._table: dict[Any, Outcome] = {}
        self._at = None


class CoupledEnv(Coupled, gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A Gymnasium environment that answers queries of several actions under the same randomness.

    A table is drawn when a state is entered. The draw is a seed for the environment's `np_random`,
    taken from a generator that belongs to this wrapper. So the tables of distinct states are
    independent, however the states were reached. The wrapper copies `env` and never changes it.

    Most environments are copied by `copy.deepcopy`, which takes about a tenth of a millisecond for
    each queried action. An environment that cannot be copied, or that changes a large dictionary,
    is created again and replayed, since copies share large dictionaries. Replay takes longer the
    longer an episode is; a warning says so. If your own environment holds an object that cannot be
    copied, give that object a `__deepcopy__`.

    Args:
        env: the environment; it has to draw all its randomness from `np_random`.
        rng: source of the draws: an integer, a SeedSequence or a Generator; None draws fresh
            entropy. `reset(seed=...)` starts the draws again from that seed.

    Raises:
        ValueError: the environment failed the test of every way to copy it; the message says why.

    Attributes:
        copying: how states are copied: "copied" or "replayed".
        draw: seed of this state's table.
        np_random: the generator of the seeds of tables.

    Example:
        >>> import gymnasium
        >>> import jmdp_lib as jl
        >>> env = jl.simulators.CoupledEnv(gymnasium.make("FrozenLake-v1"), rng=0)
        >>> start, _ = env.reset()
        >>> here = env.snapshot()
        >>> [outcome.observation for outcome in env.query([0, 1, 2, 3])]
        [0, 4, 1, 0]
        >>> env.step(1)[0], env.restore(here), env.step(1)[0]
        (4, 0, 4)
        >>> env.redraw()
        >>> env.same_state(env.twin()), env.copying
        (True, 'copied')
    """

    np_random: np.random.Generator = np.random.default_rng(0)  # not the property of a wrapper

    def __init__(self, env: Env, *, rng: RNG = None) -> None:
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"env must be a gymnasium.Env, got {env!r}")
        if type(env.unwrapped).__module__.startswith("ale_py"):
            raise ValueError(f"{env} is an Atari game: use jmdp_lib.atari.CoupledAtari for it")
        RecordConstructorArgs.__init__(self, rng=rng)
        why_not = self._choose_way(env)
        if self.copying == "replayed":
            warnings.warn(
                f"{name_of(env)} cannot be copied ({why_not}), so it is replayed: a query "
                "at step t of an episode simulates t + 1 steps for every action",
                stacklevel=2,
            )
        self.env = self._way.new()
        self.np_random = randomness.generator(rng)
        # There is no episode before the first reset.
        start = self._way.start(0, None)
        self._enter(EnvSnapshot(type(env.unwrapped), start, (), None, over=True, draw=0))

    def _choose_way(self, env: Env) -> Exception | None:
        """Take the first way to copy that passes its test; return why the one before failed."""
        reasons: list[Exception] = []
        for way in env_copies.WAYS:
            try:
                self._way = way(env)
                self.copying = way.name
                gymnasium.Wrapper.__init__(self, self._way.new())
                self._try_out()
                return reasons[-1] if reasons else None
            except OtherGenerator as error:
                raise ValueError(f"{name_of(env)} cannot be coupled: {error}") from error
            except Exception as error:  # a foreign __reduce__, reset or step may raise anything
                reasons.append(error)
        listed = "; ".join(dict.fromkeys(map(repr, reasons)))
        raise ValueError(f"{name_of(env)} cannot be coupled: {listed}") from reasons[-1]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode; its first state is drawn like everything else.

        Args:
            seed: a new seed of the generator of all draws; by default the generator goes on.
            options: passed to the environment.

        Returns:
            Observation and info.
        """
        if seed is not None:
            self.np_random = randomness.generator(seed)
        draw = self._sample()
        seen, info = self.env.reset(seed=draw, options=options)
        start = self._way.start(draw, options)
        self._enter(EnvSnapshot(type(self.unwrapped), start, (), seen, over=False))
        return seen, info

    def query(self, actions: Sequence[Any]) -> tuple[Outcome, ...]:
        """Simulate distinct actions under this state's one draw; outcomes in their order.

        Args:
            actions: one or more actions of `action_space`.

        Returns:
            An outcome for each action. A second query reads the same table.

        Raises:
            ResetNeeded: there is no episode, or it has ended.
        """
        self._ready_to("query")
        chosen = self._keys(actions)
        self._save()
        own = self.env
        # `step` runs in the other environment, so it shows whether copies are complete.
        self.env = self._way.spare
        self._at = "elsewhere"
        try:
            return tuple(self._outcome(key, action) for key, action in chosen.items())
        finally:
            self.env = own
            self._at = None

    def twin(self) -> CoupledEnv:
        """A second environment in this state with this table.

        Both draw later tables from one generator.
        """
        other = copy.copy(self)
        other.env = self._way.new()
        other.restore(self.snapshot())
        return other

    def _sample(self) -> int:
        return int(self.np_random.integers(2**63))

    def _branch(self, action: Any) -> Outcome:
        move = (self.draw, action)
        seen, reward, terminated, truncated, info = self._run((move,))
        over = terminated or truncated
        moves = (*self._here.moves, move)
        after = self._here._replace(moves=moves, observation=seen, over=over, draw=None)
        return Outcome(action, reward, seen, terminated, truncated, info, after)

    def _run(self, moves: Moves) -> Any:
        """Make some steps and return the result of the last one."""
        result: Any = None
        for draw, action in moves:  # in place, since the generator may have other names too
            self.unwrapped.np_random.bit_generator.state = np.random.PCG64(draw).state
            seen, reward, *rest = self.env.step(action)
            if not np.isfinite(float(reward)):
                raise ValueError(f"{name_of(self)} paid {reward} for action {action!r}")
            for name, value in zip(("terminated", "truncated"), rest, strict=False):
                checks.flag(f"{name_of(self)}: {name} after action {action!r}", value)
            result = (seen, float(reward), *rest)
        return result

    def _clone(self) -> Any:
        return self._way.save(self.env)

    def _load(self, snapshot: EnvSnapshot) -> None:
        self.env = self._way.load(snapshot.saved, self.env)
        self._run(snapshot.moves)

    def _check(self, snapshot: Any) -> None:
        own = type(self.unwrapped)
        if not isinstance(snapshot, EnvSnapshot) or snapshot.kind is not own:
            raise TypeError(f"snapshot must be an EnvSnapshot of {own.__name__}, got {snapshot!r}")

    def _identity(self) -> Any:
        here = self.snapshot()
        return self._way.identity(here.saved, here.moves)

    def _try_out(self) -> None:
        """Make a few steps to test that an executed branch repeats its queried outcome."""
        self.reset(seed=0)
        self.action_space.seed(0)
        number = 0  # of steps in this episode
        for _ in range(_TRIAL_STEPS):
            number += 1
            actions = [self.action_space.sample() for _ in range(2)]
            try:
                for action in actions:
                    self.query([action])
                self.step(action)
            except OtherGenerator:
                raise
            except Exception as error:
                raise RuntimeError(f"step {number}, action {action}: {error!r}") from error
            if self._here.over:
                self.reset()
                number = 0
        self.reset()
