"""The same query for other simulators: common random numbers by copies of the environment.

Every queried action is played by a copy of the environment whose generator is in one and the same
state. That is right if copies are complete and all randomness comes from `np_random`; both are
tried out before any use, and again whenever a queried branch is executed.

There are two ways to a copy. Of most environments a deep copy is made, MuJoCo's physics included.
What cannot be copied (Box2D) is made anew, and plays again all that was played since its last
reset.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jmdp_lib import checks
from jmdp_lib.checks import Seed
from jmdp_lib.machine import extra
from jmdp_lib.model.simulator import Outcome

with extra("atari"):
    import gymnasium

    from jmdp_lib.simulators import env_copies
    from jmdp_lib.simulators.coupled import HERE, Coupled
    from jmdp_lib.simulators.env_copies import Env, Moves, OtherGenerator, name_of

_TRIAL_STEPS = 20


class EnvSnapshot(NamedTuple):
    """A state of a `CoupledEnv`: a state that was saved, and the way from there.

    Attributes:
        kind: the type of the innermost environment.
        saved: what was saved, or None while nobody needs it.
        moves: (draw, action) of the steps from there: a queried successor is kept as the way to
            it, which costs nothing until someone wants to go there.
        observation: what is seen here.
        over: whether the episode has ended here.
        draw: seed of the table drawn for this visit; None: `restore` draws one.
    """

    kind: type[Env]
    saved: Any
    moves: Moves
    observation: Any
    over: bool
    draw: int | None = None

    def __repr__(self) -> str:
        return f"EnvSnapshot({self.kind.__name__}, over={self.over}, draw={self.draw})"


class CoupledEnv(
    Coupled, gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs
):
    """A Gymnasium environment that can be asked for several actions under the same randomness.

    A table is drawn when a state is entered: a seed for the environment's `np_random`, taken from
    a generator that belongs to this wrapper. So the tables of distinct states are independent,
    however they were reached. A copy is taken of `env`, which itself is left alone.

    Most environments are copied by `copy.deepcopy`, which takes about a tenth of a millisecond for
    each queried action. What cannot be copied, or changes a large dictionary, which copies share,
    is made anew and replayed, which takes longer the longer an episode is; a warning says so. If
    your own environment holds something that cannot be copied, give that a `__deepcopy__`.

    seed: of the draws: an integer, SeedSequence or Generator; `reset(seed=...)` starts them anew.

    Attributes:
        copying: how states are copied: "copied" or "replayed".
        draw: seed of this state's table.
        np_random: the generator that seeds of tables are drawn from.

    Example:
        >>> import gymnasium
        >>> import jmdp_lib as jl
        >>> env = jl.simulators.CoupledEnv(gymnasium.make("FrozenLake-v1"), seed=0)
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

    def __init__(self, env: Env, seed: Seed | np.random.Generator = None) -> None:
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"env must be a gymnasium.Env, got {env!r}")
        if type(env.unwrapped).__module__.startswith("ale_py"):
            raise ValueError(f"{env} is an Atari game: use jmdp_lib.atari.CoupledAtari for it")
        gymnasium.utils.RecordConstructorArgs.__init__(self, seed=seed)
        why_not = self._choose_way(env)
        self.copying = self._way.name
        if self.copying == "replayed":
            warnings.warn(
                f"{name_of(env)} cannot be copied ({why_not}), so that it is replayed: a query "
                "at step t of an episode plays t + 1 steps for every action",
                stacklevel=2,
            )
        self.env = self._way.new()
        self.np_random = checks.generator(seed)
        # There is no episode before the first reset.
        self._enter(EnvSnapshot(type(env.unwrapped), None, (), None, over=True, draw=0))

    def _choose_way(self, env: Env) -> Exception | None:
        """Take the first way to copy that goes well when tried out; return why the last did not."""
        reasons: list[Exception] = []
        for way in env_copies.WAYS:
            try:
                self._way = way(env)
                gymnasium.Wrapper.__init__(self, self._way.new())
                self._try_out()
                return reasons[-1] if reasons else None
            except OtherGenerator as error:
                raise ValueError(f"{name_of(env)} cannot be coupled: {error}") from error
            except Exception as error:  # whatever a foreign __reduce__, reset or step raises
                reasons.append(error)
        told = "; ".join(dict.fromkeys(map(repr, reasons)))
        raise ValueError(f"{name_of(env)} cannot be coupled: {told}") from reasons[-1]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode; its start is drawn like everything else."""
        if seed is not None:
            self.np_random = checks.generator(seed)
        start = (self._sample(), options)
        seen, info = self.env.reset(seed=start[0], options=options)
        self._arrive(EnvSnapshot(type(self.unwrapped), start, (), seen, over=False))
        return seen, info

    def query(self, actions: Sequence[Any]) -> tuple[Outcome, ...]:
        """The outcomes of distinct actions, in their order, all under this state's one draw."""
        self._ready_to("query")
        asked = self._keys(actions)
        self._save()
        own = self.env
        self.env = self._way.spare  # steps of the other one show whether copies are complete
        self._at = None
        try:
            return tuple(self._outcome(key, action) for key, action in asked.items())
        finally:
            self.env = own
            self._at = HERE

    def twin(self) -> CoupledEnv:
        """Another one of the same environment, here and with the same table."""
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
        """What the last one of some steps returned.

        The generator is set in place, since an environment may hold it under other names too.
        """
        result: Any = None
        for draw, action in moves:
            self.unwrapped.np_random.bit_generator.state = np.random.PCG64(draw).state
            seen, reward, *rest = self.env.step(action)
            if not np.isfinite(float(reward)):
                raise ValueError(f"{name_of(self)} paid {reward} for action {action!r}")
            result = (seen, float(reward), *rest)
        return result

    def _clone(self) -> Any:
        return self._way.save(self.env)

    def _load(self, snapshot: EnvSnapshot) -> None:
        self.env = self._way.load(snapshot.saved, self.env)
        self._run(snapshot.moves)

    def _arrive(self, here: EnvSnapshot) -> None:
        saved, moves = self._way.after(here.saved, here.moves)
        self._enter(here._replace(saved=saved, moves=moves))

    def _check(self, snapshot: Any) -> None:
        own = type(self.unwrapped)
        if not isinstance(snapshot, EnvSnapshot) or snapshot.kind is not own:
            raise TypeError(f"snapshot must be an EnvSnapshot of {own.__name__}, got {snapshot!r}")

    def _identity(self) -> Any:
        here = self.snapshot()
        return self._way.identity(here.saved, here.moves)

    def _try_out(self) -> None:
        """Play a few steps: a queried branch must be repeated when it is executed."""
        self.reset(seed=0)
        self.action_space.seed(0)
        number = 0  # of the step of this episode
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
