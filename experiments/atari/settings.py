"""The parts of runs.toml as lists of runs: a game, a seed, and networks trained at once."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from experiments.atari.tables import Experiment
from jmdp_lib import checks

PARTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("runs.toml").read_text())
RULES: dict[str, Any] = PARTS.pop("rules")
MINIATURE: dict[str, Any] = PARTS.pop("miniature")


# 1 if a kind of network has the local term, the near term, and is given the shock.
NETWORK_KINDS = {
    "gram": (0.0, 0.0, 0.0),
    "gram told": (0.0, 0.0, 1.0),
    "local": (1.0, 0.0, 1.0),
    "near": (1.0, 1.0, 1.0),
    "local learned": (1.0, 0.0, 0.0),
    "near learned": (1.0, 1.0, 0.0),
}
TD_BLOCKS = ("mu", "sigma_diag", "sigma_same", "sigma_cross", "sigma_pairs", "gap")


@dataclass(frozen=True)
class Config:
    """Networks, and the settings of their training.

    One run trains all members at once, E of them, on the same batches.

    members: of each its discount gamma, its kind, one of NETWORK_KINDS, and sigma of the reward
        shock sigma * U, one for all actions of a table, E U = 0, E U^2 = 1.
    hidden: width of the two hidden layers. shared_dim, near_dim, local_dim, place_dim: dimensions
        of v, q, u and f (see above).
    steps, batch: SGD steps, queried states in each.
    actions: how many actions of each state a step looks at, drawn afresh; all if there are fewer.
    pair_share: share of a batch that is made of followed pairs (`QueryTables.pairs`).
    learning_rate, final_rate: of Adam; a cosine leads from the first to their product.
    weight_decay: of AdamW, as a rate: weights shrink by learning_rate * weight_decay a step.
    polyak: rate of the target network's moving average; steps * polyak is about the number of times
        that T_2 is applied: several 1 / (1 - gamma) are needed. 1: there is no target network.
    block_weights: of the squared errors of TD_BLOCKS in the loss. The covariances between states
        are small on average and peak where branches merge: at weight 1 the peaks are not learned.
    """

    members: tuple[tuple[float, str, float], ...]
    hidden: int = 512
    shared_dim: int = 64
    near_dim: int = 32
    local_dim: int = 32
    place_dim: int = 32
    steps: int = 8_000
    batch: int = 1_024
    actions: int = 6
    pair_share: float = 0.5
    learning_rate: float = 1e-3
    final_rate: float = 1e-2
    weight_decay: float = 0.0
    polyak: float = 0.2
    block_weights: Sequence[float] = (1.0, 1.0, 1.0, 10.0, 10.0, 1.0)

    def __post_init__(self) -> None:
        for gamma, kind, _ in self.members:
            checks.discount(gamma)
            checks.one_of("kind", kind, tuple(NETWORK_KINDS))


class Run(NamedTuple):
    """A training: the members of one trial that share a group of discounts.

    home: the folder of its files. group: the number of the group in the list of the part. pieces:
    (seed, number) of the collections that it learns from, each of `num_states`. fresh: the numbers
    of the states that networks are evaluated at. rounds: how often their pairs are simulated.
    """

    home: Path
    trial: str
    group: int
    seed: int
    pieces: tuple[tuple[int, int], ...]
    experiment: Experiment
    config: Config
    fresh: list[int]
    rounds: int

    @property
    def budget(self) -> dict[str, int]:
        """Numbers of states and of training steps."""
        states = len(self.pieces) * self.experiment.num_states
        return {"num_states": states, "steps": self.config.steps}

    @property
    def name(self) -> str:
        return "-".join(map(str, (self.seed, self.trial, self.group, *self.budget.values())))

    @property
    def tables(self) -> tuple[Path, ...]:
        return tuple(self.home / f"tables-{seed}-{piece}.npz" for seed, piece in self.pieces)

    @property
    def gaps(self) -> Path:
        return self.home / f"gaps-{self.name}.csv"

    def states(self, fresh: int) -> Path:
        return self.home / f"evaluation-{fresh}.npz"

    def pairs(self, fresh: int) -> list[Path]:
        return [self.home / f"records-{fresh}-{number}.npz" for number in range(self.rounds)]


def table_of(part: str, game: str = "") -> dict[str, Any]:
    """The table of a part, laid over that of the part that it is like."""
    table = PARTS[part]
    base = table_of(table["like"], game) if "like" in table else {"experiment": {}, "config": {}}
    sizes = base["experiment"] | table.get("experiment", {}) | table.get("games", {}).get(game, {})
    return base | table | {"experiment": sizes, "config": base["config"] | table.get("config", {})}


def runs_of(
    part: str,
    work: Path,
    chosen: Mapping[Any, str] | None = None,
    miniature: bool = False,
    games: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> list[Run]:
    """All runs of a part in a folder, the most important first.

    chosen: the trial of each member (gamma, kind, sigma); None: all members have all trials.
    games, seeds: in place of those of its list, any that there are; a game that has no sizes of its
        own gets those of the part.
    """
    every = table_of(part)
    small = MINIATURE if miniature else {"config": {}, "experiment": {}, "budgets": None}
    budgets = (small["budgets"] or every["budgets"]) if "budgets" in every else [{}]
    whole = every.get("every_trial")
    runs = []
    for group, seed, budget, game, trial in product(
        range(len(every["config"]["gammas"])),
        seeds or every["seeds"],
        budgets,
        games or every["games"],
        every["trials"],
    ):
        table = table_of(part, game)
        config = table["config"] | table["trials"][trial] | small["config"] | budget
        gammas, kinds, sigmas = (config.pop(name) for name in ("gammas", "kinds", "sigmas"))
        pieces = _pieces(every, seed, config.pop("pieces", 1), budgets)
        possible: Iterable[Any] = product(gammas[group], kinds, sigmas)
        if chosen is not None and not (whole == [game, seed] and budget == budgets[-1]):
            possible = (member for member in possible if chosen.get(member) == trial)
        members = tuple(possible)
        if members:
            sizes = Experiment(game, **table["experiment"] | small["experiment"])
            states = table["fresh"], table.get("rounds", 1)
            learned = Config(members, **config)
            home = work / part / game
            runs.append(Run(home, trial, group, seed, pieces, sizes, learned, *states))
    return runs


def _pieces(
    table: dict[str, Any], seed: int, count: int, budgets: Sequence[dict[str, int]]
) -> tuple[tuple[int, int], ...]:
    """`count` collections for a seed: its own, or with budgets of one pool for all seeds.

    Each seed begins at another place of the pool, which is what the largest budget has.
    """
    if "budgets" not in table:
        return ((seed, 0),)
    seeds, pool = table["seeds"], max(budget["pieces"] for budget in budgets)
    first = (seed - seeds[0]) * pool // len(seeds)
    return tuple((seeds[0], (first + k) % pool) for k in range(count))
