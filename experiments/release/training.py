"""The release's training: draws on the host, updates on the device, records on the way.

Everything random is drawn on the host, a block of steps at a time, so that a device only computes.
On CUDA one update of all learners is one recorded graph, in which they run side by side. Between
two blocks a learner is its networks, its optimiser and its records: what `state` returns, and all
that a training needs to go on.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.files import replacing
from experiments.graphs import recorded
from experiments.release.network import (
    NUM_BATCHES,
    NUM_FUTURE,
    Coordinates,
    Network,
    losses,
    new_network,
    paired,
    predictions,
    targets,
)
from experiments.release.rollouts import Collected, evaluation_starts, shocked
from experiments.release.settings import LOSSES, Run, Settings
from jmdp_lib import randomness
from jmdp_lib.checks import Ints
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor, nn


STATEFUL = ("network", "target", "optimiser")  # parts of a learner that change in training


class Data(NamedTuple):
    """A rollout on the device; see `Collected`.

    chosen: (N, 2, A) rows of the identity matrix. rewards: (N, 2) with shocks, times 1 - gamma.
    alive: (N, 2) 0 where the game was over.
    """

    screens: Tensor
    others: Tensor
    chosen: Tensor
    rewards: Tensor
    alive: Tensor


def data_on(device: str, rollout: Collected, settings: Settings) -> Data:
    """The rollout on the device, with its rewards as they are learned."""
    shocks = rollout.signs[:, None]
    rewards = (1.0 - settings.gamma) * shocked(rollout.rewards, shocks, settings.b)
    chosen = np.eye(rollout.num_actions)[rollout.actions]
    floats = (array.astype(np.float32) for array in (chosen, rewards, ~rollout.ended))
    arrays = (rollout.screens, rollout.others, *floats)
    return Data(*(torch.from_numpy(array).to(device) for array in arrays))


class Learner:
    """A run, and the networks, the memory and the records of its training."""

    def __init__(self, run: Run, data: Data) -> None:
        self.run = run
        self.settings = settings = run.settings
        self.data = data
        self.step = settings.learn_from - 1
        self.records: list[dict[str, Any]] = []
        device = data.screens.device
        self.num_actions = data.chosen.shape[2]
        start = randomness.seed_of(run.seed, f"release, network, {run.game}")
        self.network = new_network(settings, self.num_actions, start).to(device)
        self.target = deepcopy(self.network).requires_grad_(False)
        on_cuda = device.type == "cuda"
        self.stream: Any = torch.cuda.Stream(device) if on_cuda else None
        self.optimiser = torch.optim.Adam(
            self.network.parameters(), settings.learning_rate, fused=on_cuda, capturable=on_cuda
        )
        self.weights = torch.tensor([1.0, 1.0, 1.0, 1.0, settings.gap_weight], device=device)
        self.identity = torch.eye(self.num_actions, device=device)
        self.of_future = torch.tensor([0, 0, 0, 1, 2, 3], device=device)  # X, X, X, Y, Q, Q
        self._reserve(device)

    def _reserve(self, device: torch.device) -> None:
        """The memory that an update reads and writes, always at the same place."""
        longest = self.settings.window + 1
        size = (longest, NUM_BATCHES + NUM_FUTURE, self.settings.batch)
        self.draws = torch.zeros(size, dtype=torch.int64, device=device)
        self.written = torch.zeros((longest, len(LOSSES)), device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)  # in the block
        starts = evaluation_starts(self.settings, self.run.game, self.run.seed)
        _, *seen = zip(*starts, strict=True)
        screens, actions = (torch.from_numpy(np.array(part)).to(device) for part in seen)
        self.evaluated = (screens, self.identity[actions])

    def begin_block(self, stop: int) -> None:
        """Bring the draws of all updates after `self.step` up to the step `stop`."""
        draws = np.concatenate(block_draws(self, stop), 1)
        self.draws[: len(draws)].copy_(torch.from_numpy(draws))
        self.position.zero_()

    def update(self) -> None:
        """Make one step of Adam. Its input stays in place in memory; the host does nothing."""
        drawn = self.draws.index_select(0, self.position).squeeze(0)
        rows, next_actions = drawn.split([NUM_BATCHES, NUM_FUTURE])
        errors = self._losses(rows, self.identity[next_actions])
        self.optimiser.zero_grad(set_to_none=True)
        (errors * self.weights).sum().backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.gradient_norm)
        self.optimiser.step()
        self.written.index_copy_(0, self.position, errors.detach()[None])
        self.position.add_(1)

    def state(self) -> dict[str, Any]:
        """State of the training: weights, the optimiser's memory, and the records so far."""
        parts = {name: getattr(self, name).state_dict() for name in STATEFUL}
        made = {"torch": str(torch.__version__), "device": self.data.screens.device.type}
        return parts | made | {"step": self.step, "records": self.records}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a state that `state` returned."""
        for name in STATEFUL:
            getattr(self, name).load_state_dict(state[name])
        self.step = state["step"]
        self.records = state["records"]

    def _losses(self, rows: Tensor, next_chosen: Tensor) -> Tensor:
        """(5,) of batches X, Y and Q: rows (3, B); next_chosen (6, B, A) as in FUTURE_PAIRS."""
        data = self.data
        flat = rows.flatten()
        screens = data.screens.index_select(0, flat)
        answered = [part.index_select(0, flat).unflatten(0, rows.shape) for part in data[2:]]
        chosen, rewards, alive = (  # X, Y, Q first, Q second
            torch.cat([part[:, :, 0], part[2:, :, 1]]) for part in answered
        )
        now = self._present(self.network, screens, rows, chosen)
        with torch.no_grad():
            old: Tensor | float = 0.0
            if self.target.head.centred:
                before = self._present(self.target, screens, rows, chosen)
                old = self.target.beyond(*paired(before, self.target.present))
            executed = data.screens.index_select(0, flat + 1)
            looked_at = data.others.index_select(0, rows[2])
            encoded = self.target.encode(torch.cat([executed, looked_at])).unflatten(0, (4, -1))
            x, y, first, second = encoded.unbind()
            after = self.target.at(torch.stack([x, x, x, y, first, second]), next_chosen)
            rewards, alive = rewards[self.of_future], alive[self.of_future]
            mean, moments = targets(self.target, rewards, alive, after, self.settings.gamma)
        return losses(self.network, now, mean, moments, old)

    def _present(
        self, network: Network, screens: Tensor, rows: Tensor, chosen: Tensor
    ) -> Coordinates:
        """A network at the four present coordinates (4, B): both actions of Q share its states."""
        x, y, q = network.encode(screens).unflatten(0, rows.shape).unbind()
        return network.at(torch.stack([x, y, q, q]), chosen)

    def copy_target(self) -> None:
        self.target.load_state_dict(self.network.state_dict())

    def end_block(self, stop: int) -> None:
        """Record the predictions at the evaluation states, and the block's mean losses.

        These are means of `window` updates, up to the step td_step. The first block has one more.
        """
        window = self.settings.window
        means = self.written[:window].cpu().numpy().astype(np.float64).mean(0).tolist()
        record = {"step": stop, "copies": self.settings.copies(stop)}
        record |= predictions(self.network, *self.evaluated)
        record |= {"td_step": self.step + window} | dict(zip(LOSSES, means, strict=True))
        self.records.append(record)
        self.step = stop


def block_draws(learner: Learner, stop: int) -> tuple[Ints, Ints]:
    """Rows (T, 3, B) and next actions (T, 6, B) of the updates after a learner's step.

    The update of step t draws, with replacement, from the last `replay` of the rows 0, ..., t - 1.
    """
    settings = learner.settings
    rng = randomness.generator(
        learner.run.seed, f"release, draws, {learner.run.game}", learner.step
    )
    newest = np.arange(learner.step + 1, stop + 1)[:, None, None]
    oldest = np.maximum(0, newest - settings.replay)
    rows = rng.integers(oldest, newest, size=(len(newest), NUM_BATCHES, settings.batch))
    size = (len(newest), NUM_FUTURE, settings.batch)
    return rows, rng.integers(learner.num_actions, size=size)


def side_by_side(learners: list[Learner]) -> None:
    """One update of each learner; on a GPU they run at once."""
    if learners[0].stream is None:
        for learner in learners:
            learner.update()
        return
    here = torch.cuda.current_stream()
    for learner in learners:
        learner.stream.wait_stream(here)
        with torch.cuda.stream(learner.stream):
            learner.update()
    for learner in learners:
        here.wait_stream(learner.stream)


def train(
    learners: list[Learner],
    note: Callable[[], object] = lambda: None,
    deadline: float = math.inf,
) -> None:
    """Train learners of equal sizes, all at one step, to their last step or until the deadline.

    note: called after each block. deadline: on the clock of `time.monotonic`; no block begins that
    would end after it, if it took as long as the longest so far, but one is made in any case.
    """
    settings = learners[0].settings
    update = recorded(lambda: side_by_side(learners), learners[0].data.screens.device)
    started = time.monotonic()
    longest = -math.inf
    while learners[0].step < settings.steps and time.monotonic() + longest < deadline:
        begun = time.monotonic()
        train_block(learners, update)
        note()
        longest = max(longest, time.monotonic() - begun)
        seconds = time.monotonic() - started
        print(f"step {learners[0].step}: {len(learners)} networks, {seconds:.0f} s", flush=True)


def train_block(learners: list[Learner], update: Callable[[], None]) -> None:
    """Make the updates up to the end of the next window, and records of them."""
    settings = learners[0].settings
    step = learners[0].step
    stop = (step // settings.window + 1) * settings.window
    stop += settings.window * (stop == settings.learn_from)
    for learner in learners:
        learner.begin_block(stop)
    for t in range(step + 1, stop + 1):
        update()
        if t % settings.copy_every == 0:
            for learner in learners:
                learner.copy_target()
    for learner in learners:
        learner.end_block(stop)


def save_state(learner: Learner) -> None:
    """Write the state of a learner into the file of its run."""
    with replacing(learner.run.state) as part:
        torch.save(learner.state(), part)


def load_state(path: Path, device: str) -> dict[str, Any]:
    """Read a file of `save_state`; a damaged one, or one of another torch, is refused."""
    here = {"torch": str(torch.__version__), "device": torch.device(device).type}
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        made = {name: state[name] for name in here}
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    for name, there in made.items():
        if there != here[name]:
            raise ValueError(
                f"{path} is of {name} {there}, and this is {name} {here[name]}: its training "
                f"would not end as one in one piece; go on there, or take another --work folder"
            )
    return dict(state)
