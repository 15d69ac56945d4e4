"""One frozen configuration of a training run, checked before any work."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product

from jmdp_lib import checks

KINDS = ("gram", "local", "near")
BLOCKS = ("mu", "sigma_diag", "sigma_same", "sigma_cross", "sigma_pairs", "gap")


@dataclass(frozen=True)
class Config:
    """What is learned, by which network, and how.

    One run trains every (gamma, kind) at once, on the same batches: its *members*, E in all.

    name: of the game; a checkpoint of another one is refused.
    gammas, kinds: the members are their product. kinds: "gram" (the paper's), "local", "near".
    sigma, loadings: reward shock sigma * w_a * U, E U = 0, E U^2 = 1; loadings (A,), default ones.
    reward_clip: rewards are clipped to [-reward_clip, reward_clip], as Atari's usually are.
    complete: the tables of a state are its whole law: one where the simulator is deterministic, all
        of an enumerated lottery otherwise; a step averages over them. False: it draws one.
    hidden: width of the two hidden layers. shared_dim, near_dim, local_dim, place_dim: dimensions
        of v, q, u and f (see `networks`).
    image: (channels, height, width) of pixel observations; None for bytes of RAM.
    steps, batch: SGD steps, queried states in each.
    actions: how many actions of each state a step looks at, drawn afresh; all where there are less.
    pair_share: share of a batch that is made of followed pairs (`Tables.pairs`).
    learning_rate, final_rate: of Adam; a cosine leads from the first to their product.
    weight_decay: of AdamW, as a rate: weights shrink by learning_rate * weight_decay a step.
    polyak: rate of the target network's moving average; steps * polyak is about the number of times
        that T_2 is applied: several 1 / (1 - gamma) are needed. 1: no target network.
    block_weights: of the squared errors of BLOCKS in the loss. The covariances between states are
        small on average and peak where branches merge: at weight 1 the peaks are not learned.
    log_every, eval_every, save_every: in steps. The last step is always logged and saved.
    """

    name: str = ""
    gammas: tuple[float, ...] = (0.9,)
    kinds: tuple[str, ...] = ("local",)
    sigma: float = 0.0
    loadings: tuple[float, ...] | None = None
    reward_clip: float = 1.0
    complete: bool = True
    hidden: int = 512
    shared_dim: int = 64
    near_dim: int = 32
    local_dim: int = 32
    place_dim: int = 32
    image: tuple[int, int, int] | None = None
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
    log_every: int = 100
    eval_every: int = 500
    save_every: int = 1_000

    def __post_init__(self) -> None:
        if not self.gammas or not self.kinds:
            raise ValueError("gammas and kinds must hold at least one entry each")
        for gamma in self.gammas:
            checks.discount(gamma)
        for kind in self.kinds:
            checks.one_of("kinds", kind, KINDS)
        if len(set(self.members)) < len(self.members):
            raise ValueError(f"every member must be named once, got {self.members}")
        if checks.finite("sigma", self.sigma) < 0:
            raise ValueError(f"sigma must not be negative, got {self.sigma}")
        if self.loadings is not None:
            checks.floats("loadings", self.loadings, "action")
        if not isinstance(self.complete, bool):
            raise ValueError(f"complete must be True or False, got {self.complete!r}")
        if self.image is not None and len(self.image) != 3:
            raise ValueError(f"image must be (channels, height, width), got {self.image}")
        for name in (
            "hidden",
            "shared_dim",
            "near_dim",
            "local_dim",
            "place_dim",
            "steps",
            "actions",
            "log_every",
            "eval_every",
            "save_every",
        ):
            checks.at_least(name, getattr(self, name), 1)
        checks.at_least("batch", self.batch, 4)
        checks.at_least("seed", self.seed, 0)
        for name in ("learning_rate", "final_rate"):
            checks.positive(name, getattr(self, name))
        if not checks.real("reward_clip", self.reward_clip) > 0:
            raise ValueError(f"reward_clip must be positive, got {self.reward_clip}")
        if not checks.finite("weight_decay", self.weight_decay) >= 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        checks.probability("pair_share", self.pair_share)
        if not 0 < checks.real("polyak", self.polyak) <= 1:
            raise ValueError(f"polyak must lie in (0, 1], got {self.polyak}")
        weights = checks.floats("block_weights", self.block_weights, "block")
        if len(weights) != len(BLOCKS) or min(weights) < 0:
            raise ValueError(
                f"block_weights must be {len(BLOCKS)} numbers >= 0, for {', '.join(BLOCKS)}; "
                f"got {self.block_weights}"
            )

    @property
    def members(self) -> tuple[tuple[float, str], ...]:
        """(gamma, kind) of each member."""
        return tuple(product(self.gammas, self.kinds))

    def differences(self, stored: dict[str, object]) -> list[str]:
        """`field: stored there, asked for here` wherever a stored configuration differs."""
        here = {f.name: getattr(self, f.name) for f in fields(self)}
        return [
            f"{name}: {stored.get(name)!r} there, {here.get(name)!r} here"
            for name in sorted(here.keys() | stored.keys())
            if stored.get(name) != here.get(name)
        ]
