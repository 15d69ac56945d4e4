"""Networks for the mean and the covariance of the joint returns, an ensemble at a time.

Every weight has a leading ensemble axis (E, in, out): E members, each with a discount factor, a
kind and a shock of its own, go through one batched product. For a state s and all its actions

    mu(s, a)      mean
    v(s, a)       shared Gram vector       C(x, y) = <v(x), v(y)>
    q(s, a)       near Gram vector                 + k(s, t) <q(x), q(y)>         x = (s, a)
    u(s, a)       local Gram vector                + 1{s = t} <u(x), u(y)>        y = (t, b)
    own(s, a) >= 0  own variance                   + 1{x = y} own(x)

and M_Sigma = mu mu' + C. Kind "gram" is the first term alone, as in Appendix C; "local" has all but
q; "near" has all, with k(s, t) = exp(-|f(s) - f(t)|^2) of a learned linear map f of the features.
Each term is a Gram kernel: k is one, and so are its products with <q, q>, the vectors 1_s (x) u,
and sqrt(own) 1_x. So C is positive semidefinite whatever the weights. The terms are the ways in
which two branches can be related. At distinct states they may merge later, more likely if the
states are near; at one state they share a table; or they are one branch. "local" and "near" are
given the reward shock sigma U of a table: it is a coordinate of u that is not learned. "gram" is
not. For a fair comparison, "gram told" has that coordinate and no other of u, and "local learned"
and "near learned" have to learn it.

Mean and covariance have separate trunks, so that errors of the mean, at scale 1/(1 - gamma), do not
steer the features of the covariance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from experiments.atari.settings import NETWORK_KINDS, Config
from experiments.atari.tables import QueryTables
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional

Params = dict[str, Tensor]
_BITS = 20.0  # features in which siblings typically differ; the initial unit of nearness


class Estimate(NamedTuple):
    """Moments of all actions at a batch of states; E members, any batch axes.

    mean: (E, ..., A). shared, near, local: v, q, u (E, ..., A, dimension). own: (E, ..., A).
    place: f (E, ..., F), of the state alone.
    """

    mean: Tensor
    shared: Tensor
    near: Tensor
    local: Tensor
    own: Tensor
    place: Tensor

    def at(self, actions: Tensor) -> Estimate:
        """The actions (B, m) of B states."""

        def chosen(part: Tensor) -> Tensor:
            index = actions[None] if part.ndim == 3 else actions[None, ..., None]
            return part.take_along_dim(index, 2)

        return Estimate._make([*map(chosen, self[:-1]), self.place])

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

    columns: indices of the `ram_features` that vary in the tables; the others are left out.
    gammas, sigmas: (E, 1, 1, 1). local, near, told: (E, 1, 1, 1) 1 for kinds with that term, and
    that are given the shock.
    mean_offset, mean_scale: (E, 1, 1), scale (E, 1, 1, 1): units of mu and C, so that the outputs
    of the last layers are near one in size at every discount. Rewards of mean r and variance s^2 in
    every step give returns of mean r / (1 - gamma) and variance (s^2 + sigma^2) / (1 - gamma^2);
    a network that is given the shock has to learn only what comes a step later. Only a unit: it
    need not be right.
    """

    def __init__(
        self, tables: QueryTables, config: Config, device: str | torch.device = "cpu"
    ) -> None:
        self.config = config
        self.num_actions = tables.num_actions
        self.columns = torch.tensor(varied_features(tables), device=device)

        def of_members(values: Any) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None, None, None]

        gamma, kinds, sigma = (np.array(part) for part in zip(*config.members, strict=True))
        local, near, told = np.array([NETWORK_KINDS[kind] for kind in kinds]).T
        self.gammas, self.sigmas = of_members(gamma), of_members(sigma)
        self.local, self.near, self.told = map(of_members, (local, near, told))
        variance = tables.rewards.var() + 1e-6  # rewards may all be equal
        to_learn = sigma**2 * np.where(told > 0, gamma**2, 1.0)
        self.mean_offset = of_members(tables.rewards.mean() / (1 - gamma))[..., 0]
        self.mean_scale = of_members((variance / (1 - gamma**2)) ** 0.5)[..., 0]
        self.scale = of_members((variance + to_learn) / (1 - gamma**2))

    @property
    def policy(self) -> Tensor:
        """The policy (A,) of every branch: uniform random actions."""
        return torch.full((self.num_actions,), 1.0 / self.num_actions, device=self.scale.device)

    @property
    def dimensions(self) -> list[int]:
        """Sizes of the covariance trunk's outputs for an action: v, q, u, own."""
        config = self.config
        return [config.shared_dim, config.near_dim, config.local_dim, 1]

    def initial(self, generator: torch.Generator) -> Params:
        """He-uniform weights, drawn on the CPU: the same for every member and device."""
        config = self.config
        params: Params = {}
        width = len(self.columns)

        def layer(name: str, *shape: int, fan_in: float, gain: float = 6.0) -> None:
            size = (gain / max(fan_in, 1)) ** 0.5
            weight = (2 * torch.rand(shape, generator=generator) - 1) * size
            for part, drawn in ((name, weight), (f"{name}_bias", torch.zeros(1, shape[-1]))):
                member = drawn.expand(len(self.scale), *drawn.shape)
                params[part] = member.contiguous().to(self.scale.device)

        outputs = self.num_actions * sum(self.dimensions)
        for trunk, size in (("mean", self.num_actions), ("sigma", outputs)):
            layer(f"{trunk}_0", width, config.hidden, fan_in=width)
            layer(f"{trunk}_1", config.hidden, config.hidden, fan_in=config.hidden)
            layer(f"{trunk}_2", config.hidden, size, fan_in=config.hidden, gain=3.0)
        # Two states that differ in _BITS features are at distance one.
        layer("place", width, config.place_dim, fan_in=_BITS * config.place_dim, gain=3.0)
        return params

    def __call__(self, params: Params, observations: Tensor) -> Estimate:
        """The moments at observations (..., D) uint8."""
        features = ram_features(observations.flatten(0, -2)).index_select(1, self.columns)
        features = features.expand(len(self.scale), *features.shape)  # (E, N, .), N states in a row
        mean = _dense(params, "mean", features)
        outputs = _dense(params, "sigma", features).unflatten(-1, (self.num_actions, -1))
        shared, near, local, own = outputs.split(self.dimensions, -1)  # (E, N, A, .)
        shock = (self.sigmas * self.told).expand(own.shape)
        moments = Estimate(
            mean=self.mean_offset + self.mean_scale * mean,
            shared=self._in_units(shared),
            near=self.near * self._in_units(near),
            local=torch.cat([shock, self.local * self._in_units(local)], -1),
            own=(self.local * self.scale * functional.softplus(own))[..., 0],
            place=torch.baddbmm(params["place_bias"], features, params["place"]),
        )
        return Estimate(*(part.unflatten(1, observations.shape[:-1]) for part in moments))

    def _in_units(self, vectors: Tensor) -> Tensor:
        """Gram vectors (E, N, A, V) whose inner products have the size of C."""
        return vectors * (self.scale / vectors.shape[-1]).sqrt()


def _dense(params: Params, trunk: str, x: Tensor) -> Tensor:
    """(E, N, outputs) of one trunk, for inputs (E, N, features)."""
    for i in range(3):
        x = torch.baddbmm(params[f"{trunk}_{i}_bias"], x, params[f"{trunk}_{i}"])
        x = functional.relu(x) if i < 2 else x
    return x


def varied_features(tables: QueryTables) -> list[int]:
    """Indices of the `ram_features` that are not the same at all states of the tables."""
    after = tables.next_observations.reshape(-1, tables.observations.shape[1])
    seen = np.concatenate([tables.observations, after])
    bits = np.bitwise_or.reduce(seen ^ seen[0])
    each_bit = np.unpackbits(bits, bitorder="little")
    return np.flatnonzero(np.concatenate([bits > 0, each_bit])).tolist()


def ram_features(observations: Tensor) -> Tensor:
    """(..., 9 D): bytes / 255, and their bits."""
    places = torch.arange(8, dtype=torch.uint8, device=observations.device)
    bits = (observations[..., None] >> places) & 1
    return torch.cat([observations.float() / 255, bits.flatten(-2).float()], -1)
