"""The settings of the release's experiment, read from release.toml and checked."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from jmdp_lib import checks

PROTOCOL: dict[str, Any] = tomllib.loads(Path(__file__).with_name("release.toml").read_text())


@dataclass(frozen=True)
class Settings:
    """Of the release's experiment; release.toml says what each one is."""

    gamma: float
    train_b: float
    eval_b: tuple[float, ...]
    steps: int
    learn_from: int
    copy_every: int
    record_every: int
    save_every: int
    batch: int
    learning_rate: float
    gradient_norm: float
    gap_weight: float
    hidden: int
    gram_dim: int
    gram_start: float
    states: int
    pairs: int
    horizon: int

    def __post_init__(self) -> None:
        checks.discount(self.gamma)
        for name in ("train_b", "learning_rate", "gradient_norm", "gram_start"):
            checks.positive(name, getattr(self, name))
        checks.real("gap_weight", self.gap_weight, "[0, inf)")
        for b in self.eval_b:
            checks.positive("eval_b", b)
        for name in ("copy_every", "record_every", "hidden", "gram_dim", "states", "horizon"):
            checks.at_least(name, getattr(self, name), 1)
        checks.at_least("batch", self.batch, 2)  # `cross` needs two queries
        checks.at_least("pairs", self.pairs, 2)  # a variance
        checks.at_least("learn_from", self.learn_from, self.batch)
        checks.at_least("steps", self.steps, self.learn_from + self.record_every)
        for name in ("learn_from", "steps", "save_every"):
            if getattr(self, name) % self.record_every:
                raise ValueError(
                    f"{name} must be a multiple of record_every = {self.record_every}, "
                    f"got {getattr(self, name)}"
                )
        if self.states > self.steps:
            raise ValueError(f"steps must be at least states = {self.states}, got {self.steps}")

    def copies(self, step: int) -> int:
        """How often the target was copied in training up to a step. It is copied after that."""
        return max(0, (step - 1) // self.copy_every - self.learn_from // self.copy_every)

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """From a table of TOML or JSON, which has lists."""
        if unknown := given.keys() - cls.__dataclass_fields__.keys():
            raise ValueError(f"settings has no {sorted(unknown)[0]!r}")
        return cls(**given | {"eval_b": tuple(given["eval_b"])})


def settings_of(smoke: bool) -> Settings:
    """The settings of release.toml, in miniature if asked."""
    return Settings.of(PROTOCOL["settings"] | (PROTOCOL["smoke"] if smoke else {}))
