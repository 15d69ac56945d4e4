"""Networks for the mean and the covariance of the joint returns, an ensemble at a time.

Every weight has a leading ensemble axis (E, in, out): E members, each with a discount factor and a
kind of its own, go through one batched product. For a state s and all its actions at once

    mu(s, a)      mean
    v(s, a)       shared Gram vector       C(x, y) = <v(x), v(y)>
    q(s, a)       near Gram vector                 + k(s, t) <q(x), q(y)>         x = (s, a)
    u(s, a)       local Gram vector                + 1{s = t} <u(x), u(y)>        y = (t, b)
    own(s, a) >= 0  own variance                   + 1{x = y} own(x)

and M_Sigma = mu mu' + C. Kind "gram" is the paper's, the first term alone; "local" has all but
q; "near" has all, with k(s, t) = exp(-|f(s) - f(t)|^2) of a learned linear map f of the features.
Each term is a Gram kernel: k is one, and so are its products with <q, q>, the vectors 1_s (x) u,
and sqrt(own) 1_x. So C is positive semidefinite whatever the weights. The terms are the ways in
which two branches can be related. At distinct states they may merge later, more likely if the
states are near; at one state they share a table; or they are one branch. "local" and "near" know
the reward shock sigma U of a table: it is a coordinate of u that is not learned. "gram" does not.
For a fair comparison, "gram known" has that coordinate and no other of u, and "near learned" has to
learn it. "local spread" and "near spread" have an output of their own for Var_A mu(s, A).

Mean and covariance have separate trunks, so that errors of the mean, at scale 1/(1 - gamma), do not
steer the features of the covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from experiments.atari.tables import QueryTables
from jmdp_lib import checks
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional

Params = dict[str, Tensor]
# Whether a kind of network has the local term and the near term, whether it knows the shock, and
# whether it learns the spread Var_A mu(s, A) as an output of its own.
NETWORK_KINDS = {
    "gram": (0.0, 0.0, 0.0, 0.0),
    "local": (1.0, 0.0, 1.0, 0.0),
    "near": (1.0, 1.0, 1.0, 0.0),
    "local spread": (1.0, 0.0, 1.0, 1.0),
    "near spread": (1.0, 1.0, 1.0, 1.0),
    "gram known": (0.0, 0.0, 1.0, 0.0),
    "near learned": (1.0, 1.0, 0.0, 0.0),
}
TD_BLOCKS = ("mu", "sigma_diag", "sigma_same", "sigma_cross", "sigma_pairs", "gap", "spread")
LEAST = {"batch": 4, "seed": 0, "repeats": 3}  # of all other integers among the settings: 1
WITHIN = {  # all other real numbers among the settings: not negative
    "pair_share": "[0, 1]",
    "follow_share": "[0, 1]",
    "learning_rate": "(0, inf)",
    "final_rate": "(0, inf)",
    "polyak": "(0, 1]",
}
_BITS = 20.0  # features in which siblings typically differ; the initial unit of nearness


def check_numbers(settings: Any) -> None:
    """Refuse numbers among the fields of a dataclass that make no sense."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.type == "int":
            checks.at_least(field.name, value, LEAST.get(field.name, 1))
        elif field.type == "float":
            checks.real(field.name, value, WITHIN.get(field.name, "[0, inf)"))


@dataclass(frozen=True)
class Config:
    """What is learned, by which network, and how.

    One run trains every (gamma, kind) at once, on the same batches: its *members*, E in all.

    name: of the game.
    gammas, kinds: the members are their product. kinds: of NETWORK_KINDS; "gram" is the paper's.
    sigma: of the reward shock sigma * U, one for all actions of a table, E U = 0, E U^2 = 1.
    hidden: width of the two hidden layers. shared_dim, near_dim, local_dim, place_dim: dimensions
        of v, q, u and f (see above).
    steps, batch: SGD steps, queried states in each.
    actions: how many actions of each state a step looks at, drawn afresh; all if there are fewer.
    pair_share: share of a batch that is made of followed pairs (`QueryTables.pairs`).
    learning_rate, final_rate: of Adam; a cosine leads from the first to their product.
    weight_decay: of AdamW, as a rate: weights shrink by learning_rate * weight_decay a step.
    polyak: rate of the target network's moving average; steps * polyak is about the number of times
        that T_2 is applied: several 1 / (1 - gamma) are needed. 1: there is no target network.
    block_weights: of the squared errors of TD_BLOCKS in the loss, but for a learned spread's, which
        is 1. The covariances between states are small on average and peak where branches merge: at
        weight 1 the peaks are not learned.
    """

    name: str = ""
    gammas: tuple[float, ...] = (0.9,)
    kinds: tuple[str, ...] = ("local",)
    sigma: float = 0.0
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
        if not self.members or len(set(self.members)) < len(self.members):
            raise ValueError(f"gammas and kinds must name members, each once, got {self.members}")
        for gamma, kind in self.members:
            checks.discount(gamma)
            checks.one_of("kinds", kind, tuple(NETWORK_KINDS))
        check_numbers(self)
        weights = checks.floats(
            "block_weights", self.block_weights, "block", shape=(len(TD_BLOCKS) - 1,)
        )
        checks.refuse("block_weights", weights, weights < 0, "is negative", ("block",))

    @property
    def members(self) -> tuple[tuple[float, str], ...]:
        """(gamma, kind) of each member."""
        return tuple(product(self.gammas, self.kinds))


class Estimate(NamedTuple):
    """Moments of all actions at a batch of states; E members, any batch axes.

    mean: (E, ..., A). shared, near, local: v, q, u (E, ..., A, dimension). own: (E, ..., A).
    place: f (E, ..., F), and spread: Var_A mu(s, A) (E, ...), of the state alone.
    """

    mean: Tensor
    shared: Tensor
    near: Tensor
    local: Tensor
    own: Tensor
    place: Tensor
    spread: Tensor

    def at(self, actions: Tensor) -> Estimate:
        """The actions (B, m) of B states."""
        chosen = actions[None]
        vectors = actions[None, ..., None]
        return self._replace(
            mean=self.mean.take_along_dim(chosen, 2),
            shared=self.shared.take_along_dim(vectors, 2),
            near=self.near.take_along_dim(vectors, 2),
            local=self.local.take_along_dim(vectors, 2),
            own=self.own.take_along_dim(chosen, 2),
        )

    @property
    def covariance(self) -> Tensor:
        """C(s, a; s, b) (E, ..., A, A)."""
        gram = inner(self.shared) + inner(self.near) + inner(self.local)
        return gram + torch.diag_embed(self.own)


def inner(left: Tensor, right: Tensor | None = None) -> Tensor:
    """Inner products (..., m, n) of vectors (..., m, V) and (..., n, V)."""
    return left @ (left if right is None else right).transpose(-1, -2)


class Network:
    """The parts of the ensemble that are not learned.

    sizes: A and D, of the actions and of an observation. rewards: mean r and variance s^2 of the
    rewards of all tables. varied: numbers of the `ram_features` that vary in the tables;
    the others say nothing, and are left out.
    gammas: (E,). local, near, known: (E, 1, 1, 1) 1 for kinds with that term, and that know the
    shock. learned: (E,) 1 for kinds that learn the spread. sigma: of the shock.
    mean_offset, mean_scale, scale: (E,) units of mu and C, so that the outputs of the last layers
    are near one in size at every discount. Rewards of mean r and variance s^2 in every step give
    returns of mean r / (1 - gamma) and variance (s^2 + sigma^2) / (1 - gamma^2); who knows the
    shock has to learn only what comes a step later. Only a unit: it need not be right.
    """

    def __init__(
        self,
        config: Config,
        sizes: tuple[int, int],
        rewards: tuple[float, float],
        varied: Sequence[int],
        device: str | torch.device = "cpu",
    ) -> None:
        self.config = config
        self.sizes = sizes
        self.rewards = rewards
        self.varied = varied
        self.num_actions = sizes[0]
        self.sigma = config.sigma

        def tensor(values: object) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=device)

        gamma = np.array([gamma for gamma, _ in config.members])
        terms = np.array([NETWORK_KINDS[kind] for _, kind in config.members])
        self.gammas = tensor(gamma)
        self.local, self.near, self.known = tensor(terms[:, :3]).T[..., None, None, None]
        self.learned = tensor(terms[:, 3])
        self.columns = torch.tensor(varied, dtype=torch.long, device=device)
        mean, variance = rewards
        variance = variance + 1e-6  # rewards may all be equal
        unknown = config.sigma**2 * np.where(terms[:, 2] > 0, gamma**2, 1.0)
        self.mean_offset = tensor(mean / (1 - gamma))
        self.mean_scale = tensor((variance / (1 - gamma**2)) ** 0.5)
        self.scale = tensor((variance + unknown) / (1 - gamma**2))

    @classmethod
    def of(cls, tables: QueryTables, config: Config, device: str | torch.device = "cpu") -> Network:
        """The ensemble whose sizes and units fit the tables."""
        sizes = (tables.num_actions, tables.observations.shape[1])
        rewards = (float(tables.rewards.mean()), float(tables.rewards.var()))
        return cls(config, sizes, rewards, varied_features(tables), device)

    @property
    def policy(self) -> Tensor:
        """(A,) what every branch plays: uniform random actions."""
        return torch.full((self.num_actions,), 1.0 / self.num_actions, device=self.scale.device)

    def initial(self, generator: torch.Generator) -> Params:
        """He-uniform weights, drawn on the CPU: the same for every member and device."""
        config = self.config
        params: Params = {}
        width = len(self.varied)

        def layer(name: str, *shape: int, fan_in: float, gain: float = 6.0) -> None:
            size = (gain / max(fan_in, 1)) ** 0.5
            weight = (2 * torch.rand(shape, generator=generator) - 1) * size
            for part, drawn in ((name, weight), (f"{name}_bias", torch.zeros(1, shape[-1]))):
                member = drawn.expand(len(self.scale), *drawn.shape)
                params[part] = member.contiguous().to(self.scale.device)

        outputs = self.num_actions * sum(self._outputs) + self.num_spreads
        for trunk, size in (("mean", self.num_actions), ("sigma", outputs)):
            layer(f"{trunk}_0", width, config.hidden, fan_in=width)
            layer(f"{trunk}_1", config.hidden, config.hidden, fan_in=config.hidden)
            layer(f"{trunk}_2", config.hidden, size, fan_in=config.hidden, gain=3.0)
        # Two states that differ in _BITS features are at distance one.
        layer("place", width, config.place_dim, fan_in=_BITS * config.place_dim, gain=3.0)
        return params

    @property
    def _outputs(self) -> tuple[int, int, int, int]:
        """Sizes of the outputs of an action: v, q, u, own."""
        any_near = any(NETWORK_KINDS[kind][1] for kind in self.config.kinds)
        near = self.config.near_dim if any_near else 0
        return self.config.shared_dim, near, self.config.local_dim, 1

    @property
    def num_spreads(self) -> int:
        """1 if a member learns the spread: the last output of its trunk."""
        return int(any(NETWORK_KINDS[kind][3] for kind in self.config.kinds))

    def _spread(self, mean: Tensor, learned: Tensor) -> Tensor:
        """Var_A mu(s, A) (E, N): of the mean (E, N, A), or as learned (E, N, 0 or 1)."""
        found = mean.var(-1, correction=0)
        if not learned.shape[-1]:
            return found
        own = functional.softplus(learned[..., 0] - 3.0) * self.mean_scale[:, None] ** 2
        return torch.where(self.learned[:, None] > 0, own, found)

    def __call__(self, params: Params, observations: Tensor) -> Estimate:
        """The moments at observations (..., D) uint8."""
        seen = ram_features(observations.flatten(0, -2)).index_select(1, self.columns)
        seen = seen.expand(len(self.scale), *seen.shape)  # (E, N, features), all N states in a row
        mean = _dense(params, "mean", seen)
        mean = self.mean_offset[:, None, None] + self.mean_scale[:, None, None] * mean
        out = _dense(params, "sigma", seen)
        by_action, learned = out.split([out.shape[-1] - self.num_spreads, self.num_spreads], -1)
        by_action = by_action.unflatten(-1, (self.num_actions, -1))
        shared, near, local, own = by_action.split(self._outputs, -1)  # (E, N, A, .)
        unit = self.scale[:, None, None, None]

        def vector(part: Tensor) -> Tensor:
            return part * (unit / max(part.shape[-1], 1)).sqrt()

        shock = (self.sigma * self.known).expand(own.shape)
        here = Estimate(
            mean=mean,
            shared=vector(shared),
            near=vector(near) * self.near,
            local=torch.cat([shock, vector(local) * self.local], -1),
            own=(functional.softplus(own) * unit * self.local)[..., 0],
            place=torch.baddbmm(params["place_bias"], seen, params["place"]),
            spread=self._spread(mean, learned),
        )
        return Estimate(*(part.unflatten(1, observations.shape[:-1]) for part in here))


def _dense(params: Params, trunk: str, x: Tensor) -> Tensor:
    """(E, B, outputs) of one trunk, for inputs (E, B, features)."""
    for i in range(3):
        x = torch.baddbmm(params[f"{trunk}_{i}_bias"], x, params[f"{trunk}_{i}"])
        x = functional.relu(x) if i < 2 else x
    return x


def varied_features(tables: QueryTables) -> list[int]:
    """Numbers of the `ram_features` that are not the same at all states of the tables."""
    seen = tables.observations
    after = tables.next_observations.reshape(-1, seen.shape[1])
    bits = np.bitwise_or.reduce(seen ^ seen[0]) | np.bitwise_or.reduce(after ^ seen[0])
    each_bit = np.unpackbits(bits, bitorder="little")
    return np.flatnonzero(np.concatenate([bits > 0, each_bit])).tolist()


def ram_features(observations: Tensor) -> Tensor:
    """(..., 9 D): bytes / 255, and their bits."""
    places = torch.arange(8, dtype=torch.uint8, device=observations.device)
    bits = (observations[..., None] >> places) & 1
    return torch.cat([observations.float() / 255, bits.flatten(-2).float()], -1)
