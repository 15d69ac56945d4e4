"""The release's training: draws on the host, updates on the device, records on the way.

Everything random is drawn on the host, a block of steps at a time, so that a device only computes:
a run that was stopped goes on with the same numbers. On CUDA one update is a captured graph, and
several learners run side by side, each on its own stream.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from experiments.atari.files import replacing
from experiments.atari.release_network import (
    Answers,
    Covariances,
    answers,
    losses,
    new_network,
    predictions,
    targets,
)
from experiments.atari.release_play import (
    WHERE,
    Collected,
    evaluated_actions,
    evaluation_steps,
    shocked,
)
from experiments.atari.release_settings import Settings
from jmdp_lib import checks
from jmdp_lib.checks import Ints

SAVED = "learner.pt"
EAGER_UPDATES = 3  # before an update is captured as a graph: libraries set themselves up in these


class Data(NamedTuple):
    """A collected play on the device; see `Collected`. rewards, alive: (N, 2) floats."""

    screens: Tensor
    others: Tensor
    chosen: Tensor
    rewards: Tensor
    alive: Tensor


def data_on(device: torch.device, play: Collected, b: float) -> Data:
    """The play with its rewards shocked, `chosen` as rows (N, 2, A) of the identity matrix."""
    rewards = shocked(play.rewards, play.signs[:, None], b)
    chosen = np.eye(play.num_actions, dtype=np.float32)[play.actions]
    arrays = (play.screens, play.others, chosen, rewards.astype(np.float32))
    alive = (~play.ended).astype(np.float32)
    return Data(*(torch.from_numpy(array).to(device) for array in (*arrays, alive)))


class Learner:
    """The training of one game and seed, from one record to the next."""

    def __init__(
        self, settings: Settings, game: str, seed: int, play: Collected, device: str
    ) -> None:
        self.settings = settings
        self.game = game
        self.seed = seed
        self.step = settings.learn_from
        self.records: list[dict[str, Any]] = []
        self.num_actions = play.num_actions
        self.device = torch.device(device)
        on_cuda = self.device.type == "cuda"
        self.stream = torch.cuda.Stream(self.device) if on_cuda else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager_updates = 0
        with self.on_stream():
            self._build(play)

    def _build(self, play: Collected) -> None:
        """The networks, the optimiser and all memory that an update reads or writes."""
        settings = self.settings
        self.data = data_on(self.device, play, settings.train_b)
        start = checks.seed_sequence(self.seed, f"release, network, {self.game}")
        self.network = new_network(settings, self.num_actions, start).to(self.device)
        self.target = new_network(settings, self.num_actions, start).to(self.device)
        self.target.requires_grad_(False)
        on_cuda = self.device.type == "cuda"
        self.optimiser = torch.optim.Adam(
            self.network.parameters(), settings.learning_rate, fused=on_cuda, capturable=on_cuda
        )
        weights = [1.0, 1.0, 1.0, 1.0, settings.gap_weight]
        self.weights = torch.tensor(weights, device=self.device)
        self.identity = torch.eye(self.num_actions, device=self.device)
        block = (settings.record_every, settings.batch)
        self.rows = torch.zeros(block, dtype=torch.int64, device=self.device)
        self.next_actions = torch.zeros((*block, 2), dtype=torch.int64, device=self.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=self.device)  # in the block
        self.evaluated = {where: self._evaluation(where) for where in WHERE}

    def _evaluation(self, where: str) -> tuple[Tensor, Tensor]:
        """(S, 84, 84) screens and (S, 2, A) chosen actions of the evaluation states."""
        settings = self.settings
        steps = evaluation_steps(settings.steps, settings.states)[where]
        asked = evaluated_actions(self.game, self.seed, where, settings.states, self.num_actions)
        rows = torch.from_numpy(steps).to(self.device)
        chosen = self.identity[torch.from_numpy(asked).to(self.device)]
        return self.data.screens[rows], chosen

    def on_stream(self) -> AbstractContextManager[Any]:
        """Work inside belongs to this learner's stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def begin_block(self) -> None:
        """Bring the draws of all updates up to the next record."""
        rows, next_actions = block_draws(
            self.settings, self.game, self.seed, self.step, self.num_actions
        )
        with self.on_stream():
            self.rows.copy_(torch.from_numpy(rows))
            self.next_actions.copy_(torch.from_numpy(next_actions))
            self.position.zero_()

    def advance(self) -> None:
        """One step, that is one update, after a copy of the target where it is due."""
        with self.on_stream():
            if self.settings.copies(self.step + 1) > self.settings.copies(self.step):
                self._copy_target()
            if self.graph is not None:
                self.graph.replay()
            else:
                self._update()
                self.eager_updates += 1
                if self.stream is not None and self.eager_updates == EAGER_UPDATES:
                    self._capture()
        self.step += 1

    @torch.no_grad()
    def _copy_target(self) -> None:
        pairs = zip(self.target.parameters(), self.network.parameters(), strict=True)
        for kept, learned in pairs:
            kept.copy_(learned)

    def _capture(self) -> None:
        """Record an update as a graph; recording does not run it."""
        self.optimiser.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._update()
        self.graph = graph

    def _update(self) -> None:
        """One step of Adam. All that it reads stays at its place in memory; no host is asked."""
        settings = self.settings
        rows = self.rows.index_select(0, self.position).squeeze(0)
        next_actions = self.next_actions.index_select(0, self.position).squeeze(0)
        screens = self.data.screens.index_select(0, rows)
        chosen = self.data.chosen.index_select(0, rows)
        with torch.no_grad():
            mean, covariance = self._targets(rows, screens, chosen, self.identity[next_actions])
        found = losses(answers(self.network(screens), chosen), mean, covariance)
        self.optimiser.zero_grad(set_to_none=True)
        (found * self.weights).sum().backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), settings.gradient_norm)
        self.optimiser.step()
        self.position.add_(1)

    def _targets(
        self, rows: Tensor, screens: Tensor, chosen: Tensor, next_chosen: Tensor
    ) -> tuple[Tensor, Covariances]:
        """The targets of B queries, by the target network at one batch of 3 B screens."""
        data = self.data
        first = data.screens.index_select(0, rows + 1)
        second = data.others.index_select(0, rows)
        mean, vectors = self.target(torch.cat([screens, first, second]))
        means = mean.unflatten(0, (3, -1))
        gram = vectors.unflatten(0, (3, -1))
        now = answers((means[0], gram[0]), chosen)
        branches = [answers((means[k], gram[k]), next_chosen[:, k - 1 : k]) for k in (1, 2)]
        later = Answers(*(torch.cat(both, 1) for both in zip(*branches, strict=True)))
        rewards = data.rewards.index_select(0, rows)
        alive = data.alive.index_select(0, rows)
        return targets(rewards, alive, now, later, self.settings.gamma)

    @torch.no_grad()
    def record(self) -> None:
        """Note what the network says at the evaluation states."""
        row: dict[str, Any] = {"step": self.step, "copies": self.settings.copies(self.step)}
        with self.on_stream():
            for where, (screens, chosen) in self.evaluated.items():
                row[where] = predictions(self.network(screens), chosen)
        self.records.append(row)

    def save(self, folder: Path) -> None:
        """Write all that `restore` needs to go on as if nothing had happened."""
        with self.on_stream(), replacing(folder / SAVED) as part:
            state = {
                "network": self.network.state_dict(),
                "target": self.target.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "step": self.step,
                "records": self.records,
            }
            torch.save(state, part)

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote, if it is there. Only before the first step."""
        if not (folder / SAVED).exists():
            return
        with self.on_stream():
            state = torch.load(folder / SAVED, map_location=self.device, weights_only=True)
            self.network.load_state_dict(state["network"])
            self.target.load_state_dict(state["target"])
            self.optimiser.load_state_dict(state["optimiser"])
        self.step = state["step"]
        self.records = state["records"]


def block_draws(
    settings: Settings, game: str, seed: int, step: int, num_actions: int
) -> tuple[Ints, Ints]:
    """Steps to learn from (T, B) and next actions (T, B, 2) of the updates that follow a step.

    The update of step t draws from the steps up to t.
    """
    rng = checks.generator(seed, f"release, draws, {game}", step)
    shape = (settings.record_every, settings.batch)
    so_far = step + 1 + np.arange(settings.record_every)
    rows = rng.integers(so_far[:, None], size=shape)
    return rows, rng.integers(num_actions, size=(*shape, 2))


def train(learners: list[Learner], folders: list[Path]) -> None:
    """Train side by side to the last step, and save into the folders on the way."""
    for learner in learners:
        if not learner.records:
            learner.record()  # the fresh network
    while going := [one for one in learners if one.step < one.settings.steps]:
        least = min(learner.step for learner in going)
        block = [learner for learner in going if learner.step == least]
        train_block(block)
        for learner, folder in zip(learners, folders, strict=True):
            settings = learner.settings
            due = learner.step % settings.save_every == 0 or learner.step == settings.steps
            if due and learner in block:
                learner.save(folder)
        print(f"step {block[0].step}: {len(block)} networks", flush=True)


def train_block(learners: list[Learner]) -> None:
    """Train learners of one step up to their next record."""
    for learner in learners:
        learner.begin_block()
    for _ in range(learners[0].settings.record_every):
        for learner in learners:
            learner.advance()
    for learner in learners:
        learner.record()
