"""The settings of the release's experiment, read from settings.toml and checked."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jmdp_lib import checks

PROTOCOL: dict[str, Any] = tomllib.loads(Path(__file__).with_name("settings.toml").read_text())
#: The losses of an update, in the order in which they are recorded.
LOSSES = ("mu", "sigma_diag", "sigma_same", "sigma_cross", "gap")


@dataclass(frozen=True)
class Settings:
    """Settings of one run, as settings.toml explains them. coupling, network: its tables there."""

    coupling: str
    network: str
    sticky: float
    b: float
    gap_weight: float
    gamma: float
    replay: int
    learn_from: int
    steps: int
    copy_every: int
    batch: int
    learning_rate: float
    gradient_norm: float
    hidden: int
    embedding: int
    window: int
    eval_b: float
    states: int
    pairs: int
    horizon: int
    gram_dim: int = 1
    gram_start: float = 1.0

    def __post_init__(self) -> None:
        least = self.learn_from + self.window
        if self.steps % self.window or self.steps < least:
            raise ValueError(
                f"steps must be a multiple of window = {self.window}, and at least {least}, "
                f"got {self.steps}"
            )

    def copies(self, step: int) -> int:
        """Number of the copy of the target that the update of a step uses."""
        return max(0, (step - 1) // self.copy_every - (self.learn_from - 1) // self.copy_every)


class Run(NamedTuple):
    """One training: the name of its settings, these, a game, a seed, and the folder of work."""

    name: str
    settings: Settings
    game: str
    seed: int
    work: Path

    @property
    def rollout(self) -> Path:
        """File that it learns from, shared by runs of the same coupling and length."""
        return self._file("rollouts", self.settings.coupling, f"-{self.settings.steps}.npz")

    @property
    def pairs(self) -> Path:
        """File of the recursive pairs, shared by runs of the same coupling."""
        return self._file("pairs", self.settings.coupling, ".npz")

    @property
    def state(self) -> Path:
        """File that its training goes on from."""
        return self._file("states", self.name, ".pt")

    @property
    def results(self) -> Path:
        """File of its records."""
        return self._file("runs", self.name, ".csv")

    def _file(self, folder: str, first: str, ending: str) -> Path:
        return self.work / folder / f"{first}-{self.game}-{self.seed}{ending}"


def settings_of(name: str, miniature: bool = False, steps: int | None = None) -> Settings:
    """The named settings, in miniature if requested; steps: in place of those of the table."""
    checks.one_of("settings", name, list(PROTOCOL["settings"]))
    chosen = PROTOCOL["settings"][name]
    table = PROTOCOL["common"] | {"steps": PROTOCOL["steps"][name]}
    table |= PROTOCOL["miniature"] if miniature else {}
    table |= PROTOCOL["couplings"][chosen["coupling"]] | PROTOCOL["networks"][chosen["network"]]
    return Settings(**table | chosen | ({} if steps is None else {"steps": steps}))
