"""What environments that answer queries have in common: one visit of a state, one draw.

A table is drawn when a state is entered, before any action is looked at. A query plays branches of
that table, `step` executes one of them, and the next state has a table of its own. `CoupledEnv` and
`jmdp_lib.atari.CoupledAtari` say how a draw is made, how an action is played under it, and how a
state is saved and set.

The environment behind it stands at the visited state, or at the end of the branch that was played
last. A successor is kept as the way to it, which costs nothing until someone wants
to go there.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence

from jmdp_lib.model.simulator import Outcome
from jmdp_lib.simulators.rows import distinct_in

HERE = object()


class Coupled(ABC):
    """An environment that answers queries.

    A snapshot is a tuple with these fields at least: *saved*, what `_clone` returned, or None while
    nobody needs it; *moves*, the way from there; *observation*; *over*, whether the episode has
    ended; and *draw*, None if `restore` draws one.

    Attributes:
        draw: what this state's table was made of.
        observed: what is seen at this state.
        _here: the snapshot of this state.
        _table: the outcomes that were queried, by the keys of their actions.
        _at: where the environment stands: here, or at the end of the branch with this key.
    """

    action_space: Any
    draw: Any
    observed: Any
    _here: Any
    _table: dict[Any, Outcome]
    _at: Any

    @abstractmethod
    def _sample(self) -> Any:
        """A new draw."""

    @abstractmethod
    def _branch(self, action: Any) -> Outcome:
        """Play an action under the draw, from here."""

    @abstractmethod
    def _clone(self) -> Any:
        """The state where the environment stands."""

    @abstractmethod
    def _load(self, snapshot: Any) -> None:
        """Set the environment to what was saved, and make the moves from there."""

    @abstractmethod
    def _check(self, snapshot: Any) -> None:
        """Refuse a snapshot that is none of this environment's."""

    @abstractmethod
    def _identity(self) -> Any:
        """Equal for equal states, and only for these; None: there is no telling."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Execute one branch of this state's table and draw the table of the next state."""
        self._ready_to("step")
        ((key, chosen),) = self._keys([action]).items()
        done = queried = self._table.get(key)
        if done is None or self._at != key:
            self._go_here()
            done = self._branch(chosen)
            if queried and not data_equivalence(queried[1:5], done[1:5], exact=True):
                raise RuntimeError(
                    f"the environment did not repeat the queried outcome of action {action}: not "
                    "all of its randomness or state is in what was copied"
                )
        self._arrive(done.snapshot)
        _, reward, seen, terminated, truncated, info, _ = done
        return copy.copy(seen), reward, terminated, truncated, dict(info)

    def snapshot(self) -> Any:
        """This state with its drawn table: restoring it gives the same outcomes again."""
        self._save()
        return self._here._replace(draw=self.draw)

    def restore(self, snapshot: Any) -> Any:
        """Go to a state and return its observation; a table is drawn if the snapshot has none."""
        self._check(snapshot)
        self._load(snapshot)
        enter = self._arrive if snapshot.moves else self._enter
        enter(snapshot)
        return copy.copy(snapshot.observation)

    def redraw(self, draw: Any = None) -> None:
        """Replace this state's table by a fresh one, or by the one of a given draw."""
        here = self._here._replace(draw=draw)
        self._ready_to("redraw")
        self._check(here)
        self._go_here()
        self._enter(here)

    def same_state(self, other: Any) -> bool:
        """Whether both stand at one state, as far as can be told: in doubt they do not."""
        if not data_equivalence(self.observed, other.observed, exact=True):
            return False
        mine = self._identity()
        return mine is not None and bool(mine == other._identity())

    def _keys(self, actions: Sequence[Any]) -> dict[Any, Any]:
        """The actions of a call by keys that tell them apart; they must be known and distinct."""
        return distinct_in(self.action_space, actions)

    def _ready_to(self, do: str) -> None:
        if self._here.over:
            raise ResetNeeded(
                f"{do} before reset() or after the end of the episode: call reset() or restore()"
            )

    def _outcome(self, key: Any, action: Any, clone: bool = False) -> Outcome:
        """Of one action. clone: its snapshot holds the successor itself, and not the way there."""
        known = self._table.get(key)
        if known is None or (clone and known.snapshot.moves):
            self._save()
            self._go_here()
            self._at = key
            known = self._branch(action)
            if clone:
                after = known.snapshot._replace(saved=self._clone(), moves=())
                known = known._replace(snapshot=after)
            self._table[key] = known
        return known

    def _save(self) -> None:
        """Save this state, unless it is: the environment has not left it then."""
        if self._here.saved is None:
            self._here = self._here._replace(saved=self._clone())

    def _go_here(self) -> None:
        """Bring the environment back to this state."""
        if self._at is not HERE:
            self._load(self._here)
            self._at = HERE

    def _arrive(self, here: Any) -> None:
        """Enter the state that the environment has come to: it is saved once that is needed."""
        self._enter(here._replace(saved=None, moves=()) if here.moves else here)

    def _enter(self, here: Any) -> None:
        """Start the visit of the state that the environment stands at."""
        self._here = here
        self.observed = here.observation
        self.draw = self._sample() if here.draw is None else here.draw
        self._table = {}
        self._at = HERE
