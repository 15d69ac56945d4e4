"""The parts of runs.toml as lists of runs: a game, a seed, and networks trained at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_args

from experiments.atari.tables import Game
from jmdp_lib import checks
from jmdp_lib.atari.emulator import rom_id, title
from jmdp_lib.atari.env import Observed

PARTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("runs.toml").read_text())
RULES: dict[str, Any] = PARTS.pop("rules")
MINIATURE: dict[str, Any] = PARTS.pop("miniature")


# Whether a kind of network has the local term, the near term, and is told the shock.
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
    """What is learned, by which networks, and how.

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
    block_weights: tuple[float, ...] = (1.0, 1.0, 1.0, 10.0, 10.0, 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        for gamma, kind, sigma in self.members:
            checks.discount(gamma)
            checks.one_of("kind", kind, tuple(NETWORK_KINDS))
            checks.real("sigma", sigma, "[0, inf)")


@dataclass(frozen=True)
class Experiment:
    """A game whose actions share a reward shock, and the sizes of all parts.

    game, obs, sticky: how it is played (see `Game`).
    config: of training.
    num_states, num_evaluation: queried states to learn from, and to compare networks at.
    actions: queried at each of the num_states; None: all (see `collect`).
    follow_share: share of them whose branches are followed (see `collect`).
    pairs_per_state, repeats, horizon: of the recursive pairs: action pairs of each state, how
        often each is played, and for how many steps.
    """

    game: str
    config: Config
    obs: Observed = "ram"
    sticky: float = 0.0
    num_states: int = 30_000
    num_evaluation: int = 64
    actions: int | None = None
    follow_share: float = 0.05
    pairs_per_state: int = 4
    repeats: int = 12
    horizon: int = 300

    def __post_init__(self) -> None:
        rom_id(self.game)  # refuses an unknown game
        checks.one_of("obs", self.obs, get_args(Observed))
        checks.at_least("repeats", self.repeats, 3)  # a variance with its error

    @property
    def played(self) -> Game:
        return Game(self.game, self.obs, self.sticky)


class Run(NamedTuple):
    """A training: the members of one trial that share a group of discounts.

    group: the number of the group in the list of the part. fresh: the numbers of the states that
    networks are evaluated at. reference: the part whose committed simulation serves; "": its own.
    """

    part: str
    trial: str
    group: int
    experiment: Experiment
    fresh: list[int]
    reference: str

    @property
    def game(self) -> str:
        return self.experiment.game

    @property
    def seed(self) -> int:
        return self.experiment.config.seed

    @property
    def label(self) -> str:
        return f"{self.seed}-{self.trial}-{self.group}"


def table_of(part: str, game: str) -> dict[str, Any]:
    """The table of a part, laid over that of the part that it is like."""
    table = PARTS[part]
    base = table_of(table["like"], game) if "like" in table else {"experiment": {}, "config": {}}
    sizes = base["experiment"] | table.get("experiment", {}) | table.get("games", {}).get(game, {})
    return base | table | {"experiment": sizes, "config": base["config"] | table.get("config", {})}


def runs_of(
    part: str, chosen: Mapping[Any, str] | None = None, miniature: bool = False
) -> list[Run]:
    """All runs of a part, the most important first.

    chosen: the trial of each member (gamma, kind, sigma); None: all members have all trials.
    """
    table = table_of(part, "")
    runs = []
    for group, seed, game, trial in product(
        range(len(table["config"]["gammas"])), table["seeds"], table["games"], table["trials"]
    ):
        if run := _run(part, game, seed, trial, group, chosen, miniature):
            runs.append(run)
    return runs


def _run(
    part: str,
    game: str,
    seed: int,
    trial: str,
    group: int,
    chosen: Mapping[Any, str] | None,
    miniature: bool,
) -> Run | None:
    """A run of a part, if any member has this trial."""
    table = table_of(part, game)
    config = table["config"] | table["trials"][trial]
    gammas, kinds, sigmas = (config.pop(name) for name in ("gammas", "kinds", "sigmas"))
    every = product(gammas[group], kinds, sigmas)
    members = tuple(m for m in every if chosen is None or chosen.get(m) == trial)
    if not members:
        return None
    config |= MINIATURE["config"] if miniature else {}
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
    sizes = table["experiment"] | (MINIATURE["experiment"] if miniature else {})
    experiment = Experiment(game, Config(members, seed=seed, **values), **sizes)
    return Run(part, trial, group, experiment, table["fresh"], table.get("reference", ""))


def selected(name: str) -> tuple[str, str | None, int | None]:
    """The part, game and seed that a command names: PART, PART:GAME or PART:GAME:SEED."""
    named = re.fullmatch(r"(\w+)(?::(\w+)(?::(\d+))?)?", name)
    part, game, seed = named.groups() if named else ("", None, None)
    if part not in PARTS:
        raise ValueError(f"runs.toml has no part {name!r}; it has {', '.join(PARTS)}")
    table = table_of(part, "")
    game = title(game) if game else None
    if game not in (None, *table.get("games", ())) or (seed and int(seed) not in table["seeds"]):
        raise ValueError(f"part {part} of runs.toml has no run {name!r}")
    return part, game, int(seed) if seed else None
