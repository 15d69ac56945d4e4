"""Incremental JIPE-2 by stochastic gradient descent on TD errors, an ensemble at a time.

    target network  <-  (1 - tau) target + tau online          after every step, or every so many
    loss            =   sum over members and blocks of  weight * mean squared TD error / unit^2

Each member has its own units (of mu and of C), so no discount outweighs another. The members share
nothing but their batches. A run takes minutes: its checkpoint is written at its end, and one that
was killed starts anew.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.atari.checkpoints import load_checkpoint, refuse_other
from experiments.atari.networks import TD_BLOCKS, Config, Network, Params
from experiments.atari.replay import Replay
from experiments.atari.tables import QueryTables
from experiments.atari.td_errors import block_errors, expected_errors, sampled_errors
from experiments.files import replacing
from experiments.processes import require_device
from jmdp_lib import checks
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor

COLUMNS = ("step", "seed", "gamma", "kind", "curve", *TD_BLOCKS)


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished run: the ensemble, its weights, and where its curves and checkpoint are."""

    network: Network
    params: Params
    folder: Path

    @property
    def metrics(self) -> Path:
        """The curves: a CSV with a row per member, curve and logged step, mean squared errors.

        Curves: "td", the errors that training descends, the mean over the last log_every steps (of
        covariances C if expected errors are descended); "sampled", the paper's TD errors on a batch
        of held-out states at this step; "floor", their least possible value on the same batch, from
        the same draws (`td_errors.sampled_errors`); "expected", errors of the expected backup, of
        C, on held-out tables at this step.
        """
        return self.folder / "metrics.csv"

    @staticmethod
    def load(folder: str | Path, settings: Mapping[str, object] | None = None) -> Trained:
        """Load a run from its checkpoint. No tables are needed to predict.

        settings: if given, those that it must have been made with.
        """
        path = Path(folder) / "checkpoint.pt"
        state = load_checkpoint(path)
        if settings is not None:
            refuse_other(path, state["of"], settings)
        config = Config(**{name: state["of"][name] for name in asdict(Config())})
        return Trained(Network(config, *state["network"]), state["params"], Path(folder))


def _generator(device: torch.device, seed: int, *key: int) -> torch.Generator:
    """A stream of a run: 0 its first weights, 1 its batches, (2, step) the held-out batch then."""
    [number] = checks.seed_sequence(seed, *key).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(number))


def learning_rate(config: Config, step: int) -> float:
    """A cosine from learning_rate down to learning_rate * final_rate."""
    falling = 0.5 * (1.0 + math.cos(math.pi * step / config.steps))
    return config.learning_rate * (config.final_rate + (1.0 - config.final_rate) * falling)


def train(
    tables: QueryTables,
    config: Config,
    folder: str | Path,
    held_out: QueryTables,
    device: str = "cpu",
) -> Trained:
    """Learn the moments of all members; metrics.csv and checkpoint.pt grow in `folder`.

    held_out: complete tables with all actions, for the errors on states never trained on. The
    policy is uniform. A checkpoint in the folder is the answer if it is of this very run, and
    refused otherwise.
    """
    place = require_device(device)
    network = Network.of(tables, config, place)
    sizes = (held_out.num_actions, held_out.observations.shape[1])
    checks.same_shape("held_out", sizes, network.sizes, "(num_actions, observation size)")
    settings = asdict(config) | {
        "checksum of the tables": tables.checksum,
        "checksum of the held-out tables": held_out.checksum,
    }
    if (Path(folder) / "checkpoint.pt").exists():
        return Trained.load(folder, settings)
    run = Run(network, Replay.of(tables, place), Path(folder), settings)
    for _ in steps_to_the_end(run, Replay.of(held_out, place)):
        pass
    return Trained(network, run.online, Path(folder))


def steps_to_the_end(run: Run, held_out: Replay) -> Iterator[int]:
    """Make all steps, and yield each one's number; log and evaluate on the way, save at the end.

    It yields so that runs on one GPU can take turns (`experiments.atari.device`).
    """
    config = run.network.config

    def is_due(every: int) -> bool:
        return run.step == config.steps or run.step % every == 0

    _log_sampled_errors(run, held_out)
    run.log("expected", expected_errors(run.network, run.online, held_out))
    while run.step < config.steps:
        run.advance()
        if is_due(config.log_every):
            run.log_window()
            _log_sampled_errors(run, held_out)
        if is_due(config.eval_every):
            run.log("expected", expected_errors(run.network, run.online, held_out))
        yield run.step
    run.save()


def _log_sampled_errors(run: Run, held_out: Replay) -> None:
    """The paper's TD errors on a batch of held-out states, and their floor.

    The batch depends on the seed and the step alone.
    """
    network = run.network
    config = replace(network.config, descend="sampled", batch=min(network.config.batch, 256))
    stream = _generator(network.scale.device, config.seed, 2, run.step)
    batch = held_out.sample(config, stream)
    errors, floor = sampled_errors(network, run.online, run.target, batch, stream)
    run.log("sampled", errors)
    run.log("floor", floor)


class Run:
    """Everything that changes during a run.

    A step is a few hundred small kernels. On a GPU they are recorded as one graph after a few
    steps, and replayed: launching them one by one takes longer than running them. They are recorded
    on the current stream of the GPU, if that is not its default one: graphs of runs that take
    turns must not share the scratch memory of a stream.

    settings: of the run, by name, for its checkpoint.
    step: steps done. window: errors (len(TD_BLOCKS), E) of the steps since the last logged one.
    rows: of metrics.csv. loss_weights: (len(TD_BLOCKS), E) of the mean squared errors in the loss.
    rate: the learning rate of AdamW; a graph reads it on the device.
    warm_up: steps before the graph is recorded.
    """

    def __init__(
        self, network: Network, data: Replay, folder: Path, settings: Mapping[str, object]
    ) -> None:
        device = network.scale.device
        self.network = network
        self.data = data
        self.folder = folder
        self.settings = settings
        self.step = 0
        self.rows: list[Any] = []
        self.window: list[Tensor] = []
        seed = network.config.seed
        self.online = network.initial(_generator(torch.device("cpu"), seed, 0))
        self.target = {name: weight.clone() for name, weight in self.online.items()}
        for weight in self.online.values():
            weight.requires_grad_(True)
        self.generator = _generator(device, seed, 1)
        self.loss_weights = self._loss_weights()
        self.on_gpu = device.type == "cuda"
        self.rate = torch.zeros((), device=device)
        self.optimiser = torch.optim.AdamW(
            list(self.online.values()),
            lr=self.rate,
            weight_decay=network.config.weight_decay,
            fused=True,
            capturable=self.on_gpu,
        )
        self.warm_up = 3
        self.graph: torch.cuda.CUDAGraph | None = None

    def _loss_weights(self) -> Tensor:
        """The weights of the blocks, in the units of each member."""
        network = self.network
        unit = network.mean_scale
        units = torch.stack([unit, *[network.scale] * (len(TD_BLOCKS) - 2), unit**2])
        weights = torch.tensor(network.config.block_weights, device=unit.device)
        by_member = weights[:, None].expand(-1, len(unit))
        return torch.cat([by_member, network.learned[None]]) / units**2

    def log(self, curve: str, blocks: Tensor) -> None:
        """A row of metrics.csv for each member; blocks: (len(TD_BLOCKS), E)."""
        config = self.network.config
        for member, values in zip(config.members, blocks.T.tolist(), strict=True):
            self.rows.append((self.step, config.seed, *member, curve, *values))

    def log_window(self) -> None:
        """Log the mean errors (len(TD_BLOCKS), E) of the steps since the last time."""
        mean = torch.stack(self.window).mean(0)
        self.window.clear()
        if not bool(mean.isfinite().all()):
            raise FloatingPointError(f"TD errors are no longer finite at step {self.step}")
        self.log("td", mean)

    def save(self) -> None:
        """Write the metrics, then the checkpoint: tensors, numbers and strings only."""
        self.folder.mkdir(parents=True, exist_ok=True)
        metrics = self.folder / "metrics.csv"
        with replacing(metrics) as part, part.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *self.rows])
        with replacing(self.folder / "checkpoint.pt") as part:
            torch.save(
                {
                    "of": dict(self.settings),
                    "network": (self.network.sizes, self.network.rewards, self.network.varied),
                    "params": {name: w.detach() for name, w in self.online.items()},
                },
                part,
            )

    def advance(self) -> None:
        """One SGD step; its errors go into the window."""
        config = self.network.config
        self.rate.fill_(learning_rate(config, self.step))
        self.step += 1
        self.window.append(self._replayed() if self.on_gpu else self._descend())
        if self.step % config.copy_every == 0:
            with torch.no_grad():
                online = [weight.detach() for weight in self.online.values()]
                torch._foreach_lerp_(list(self.target.values()), online, config.polyak)

    def _descend(self) -> Tensor:
        """The (len(TD_BLOCKS), E) mean squared TD errors before the step."""
        config = self.network.config
        batch = self.data.sample(config, self.generator)
        stream = self.generator if config.descend == "sampled" else None
        blocks = block_errors(self.network, self.online, self.target, batch, stream)
        self.optimiser.zero_grad()
        (self.loss_weights * blocks).sum().backward()
        self.optimiser.step()
        return blocks.detach()

    def _replayed(self) -> Tensor:
        """`_descend` on a GPU."""
        if self.warm_up > 0:
            self.warm_up -= 1
            here = torch.cuda.current_stream()
            side = _side_stream()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                blocks = self._descend()
            here.wait_stream(side)
            return blocks
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            self.graph.register_generator_state(self.generator)
            with torch.cuda.graph(self.graph, stream=_side_stream()):
                self.blocks = self._descend()
        self.graph.replay()
        return self.blocks.clone()


def _side_stream() -> torch.cuda.Stream:
    """The current stream of the GPU, or another one if that is the default, which no graph has."""
    here = torch.cuda.current_stream()
    return torch.cuda.Stream() if here == torch.cuda.default_stream() else here
