"""Networks for the mean and the covariance of the joint returns, an ensemble at a time.

Every weight has a leading ensemble axis (E, in, out): E members, each with a discount factor and a
kind of its own, go through one batched product. For a state s and all its actions at once

    mu(s, a)      mean
    v(s, a)       shared Gram vector       C(x, y) = <v(x), v(y)>
    q(s, a)       near Gram vector                 + k(s, t) <q(x), q(y)>         x = (s, a)
    u(s, a)       local Gram vector                + 1{s = t} <u(x), u(y)>        y = (t, b)
    d(s, a) >= 0  own variance                     + 1{x = y} d(x)

and M_Sigma = mu mu' + C. Kind "gram" is the paper's, the first term alone; "local" has all but
q; "near" has all, with k(s, t) = exp(-|f(s) - f(t)|^2) of a learned linear map f of the features.
Each term is a Gram kernel: k is one, and so are its products with <q, q>, the vectors 1_s (x) u,
and sqrt(d) 1_x. So C is positive semidefinite whatever the weights. The terms are the ways in
which two branches are related: distinct states, which may merge later, and the likelier the nearer
they are; one state and so one table; and one branch. The reward shock sigma w_a U of one table is
known, and is a coordinate of u that is not learned.

Mean and covariance have trunks of their own: errors of the one, at scale 1/(1 - gamma), do not
steer the features of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from jmdp_lib.atari.config import Config

Params = dict[str, Tensor]
_SIZES = ("config", "num_actions", "features")
_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # (channels, kernel, stride)
_BITS = 20.0  # features in which siblings typically differ: how near is near, at the start


class Estimate(NamedTuple):
    """Moments of all actions at a batch of states; E members, any batch axes.

    mean: (E, ..., A). shared, near, local: v, q, u (E, ..., A, dimension). own: d (E, ..., A).
    place: f (E, ..., F), of the state alone.
    """

    mean: Tensor
    shared: Tensor
    near: Tensor
    local: Tensor
    own: Tensor
    place: Tensor

    def at(self, actions: Tensor) -> Estimate:
        """The m actions (B, m) of each of B states."""

        def chosen(part: Tensor) -> Tensor:
            index = actions.reshape(1, *actions.shape, *[1] * (part.ndim - 3))
            return part.take_along_dim(index, 2)

        parts = {name: chosen(part) for name, part in self._asdict().items() if name != "place"}
        return self._replace(**parts)

    @property
    def covariance(self) -> Tensor:
        """C(s, a; s, b) (E, ..., A, A)."""
        return (
            inner(self.shared) + inner(self.near) + inner(self.local) + torch.diag_embed(self.own)
        )


class Collapsed(NamedTuple):
    """All that T_2 asks of a successor x, policy averaged out, each (E, ...).

    value: m(x) = E mu(x, A). single: Var Z(x, A) of one branch. merged: what C(x, A; x, B) of two
    branches in this one state has beyond <shared, shared> + <near, near>. shared, near:
    E v(x, A), E q(x, A) (E, ..., dimension). place: f(x) (E, ..., F).
    """

    value: Tensor
    single: Tensor
    merged: Tensor
    shared: Tensor
    near: Tensor
    place: Tensor


def inner(left: Tensor, right: Tensor | None = None) -> Tensor:
    """Inner products (..., m, n) of vectors (..., m, V) and (..., n, V)."""
    return left @ (left if right is None else right).transpose(-1, -2)


def nearness(left: Tensor, right: Tensor) -> Tensor:
    """k (..., m, n) between places (..., m, F) and (..., n, F)."""
    squares = left.square().sum(-1)[..., :, None] + right.square().sum(-1)[..., None, :]
    return (2 * inner(left, right) - squares).clamp(max=0.0).exp()


def collapse(estimate: Estimate, policy: Tensor) -> Collapsed:
    """m, Var_A mu + E C(x, A; x, A), |ubar|^2 + sum_a pi_a^2 d_a, vbar; policy (..., A).

    A and B are independent but may be the same action, and are then one branch: hence pi_a^2 d_a.
    """
    mean, shared, near, local, own, place = estimate
    value = (policy * mean).sum(-1)
    spread = (policy * (mean - value[..., None]) ** 2).sum(-1)
    variance = sum(part.square().sum(-1) for part in (shared, near, local)) + own
    merged = (policy[..., None] * local).sum(-2).square().sum(-1) + (policy**2 * own).sum(-1)
    single = spread + (policy * variance).sum(-1)
    vbar, qbar = ((policy[..., None] * part).sum(-2) for part in (shared, near))
    return Collapsed(value, single, merged, vbar, qbar, place)


@dataclass(frozen=True, eq=False)
class Network:
    """Everything of the ensemble that is not learned.

    num_actions: A. features: width of the input.
    gammas: (E,). local: (E,) 0 for kind "gram", 1 for others. near: (E,) 1 for kind "near".
    shock: (A,) sigma w_a.
    mean_offset, mean_scale, scale: (E,) units of mu and C (see `data.network_for`): the outputs
    of the last layers are near one in size at every discount.
    """

    config: Config
    num_actions: int
    features: int
    gammas: Tensor
    local: Tensor
    near: Tensor
    shock: Tensor
    mean_offset: Tensor
    mean_scale: Tensor
    scale: Tensor

    @property
    def units(self) -> Params:
        """Its tensors, by name: with config and sizes, all of it."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _SIZES}

    def initial(self, generator: torch.Generator) -> Params:
        """He-uniform weights, drawn on the CPU: the same for every member and device."""
        config, params = self.config, {}

        def layer(name: str, *shape: int, fan_in: float, gain: float = 6.0) -> None:
            weight = (2 * torch.rand(shape, generator=generator) - 1) * (gain / fan_in) ** 0.5
            for part, drawn in ((name, weight), (f"{name}_bias", torch.zeros(1, shape[-1]))):
                member = drawn.expand(len(self.scale), *drawn.shape)
                params[part] = member.contiguous().to(self.scale.device)

        outputs = self.num_actions * sum(self._sizes)
        for trunk, width in (("mean", self.num_actions), ("sigma", outputs)):
            if config.image:
                channels = config.image[0]
                for i, (out, kernel, _) in enumerate(_CONVOLUTIONS):
                    fan_in = channels * kernel**2
                    layer(f"{trunk}_conv{i}", channels, kernel, kernel, out, fan_in=fan_in)
                    channels = out
            layer(f"{trunk}_0", self.features, config.hidden, fan_in=self.features)
            layer(f"{trunk}_1", config.hidden, config.hidden, fan_in=config.hidden)
            layer(f"{trunk}_2", config.hidden, width, fan_in=config.hidden, gain=3.0)
        # Two states that differ in _BITS features are at distance one.
        layer("place", self.features, config.place_dim, fan_in=_BITS * config.place_dim, gain=3.0)
        return params

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        """Outputs of an action: v, q, u, d."""
        near = self.config.near_dim if "near" in self.config.kinds else 0
        return self.config.shared_dim, near, self.config.local_dim, 1

    def __call__(self, params: Params, observations: Tensor, previous: Tensor) -> Estimate:
        """Observations (..., D) uint8 and previous actions (...)."""
        batch = observations.shape[:-1]
        flat, last = observations.reshape(-1, observations.shape[-1]), previous.reshape(-1)
        seen = self._seen(params, flat, last)
        mean = self._dense(params, "mean", seen["mean"])
        out = self._dense(params, "sigma", seen["sigma"])
        place = torch.baddbmm(params["place_bias"], seen["sigma"], params["place"])
        mean = self.mean_offset[:, None, None] + self.mean_scale[:, None, None] * mean
        members, shape = len(out), (*batch, self.num_actions)
        shared, near, local, own = out.reshape(members, *shape, -1).split(self._sizes, -1)

        def by_member(values: Tensor) -> Tensor:
            return values.reshape(-1, *[1] * (len(shape) + 1))

        def vector(part: Tensor) -> Tensor:
            return part * (by_member(self.scale) / max(part.shape[-1], 1)).sqrt()

        shock = self.shock[:, None].expand(members, *shape, 1)
        here = by_member(self.local)
        return Estimate(
            mean.reshape(members, *shape),
            vector(shared),
            vector(near) * by_member(self.near),
            torch.cat([shock, vector(local)], -1) * here,
            (functional.softplus(own) * by_member(self.scale) * here)[..., 0],
            place.reshape(members, *batch, -1),
        )

    def _seen(self, params: Params, observations: Tensor, previous: Tensor) -> dict[str, Tensor]:
        """What each trunk's dense layers see of B observations, (E, B, features)."""
        if not self.config.image:
            x = ram_features(observations, previous, self.num_actions)
            x = x.expand(len(self.scale), *x.shape)
            return {"mean": x, "sigma": x}
        hot = functional.one_hot(previous, self.num_actions + 1).float()
        hot = hot.expand(len(self.scale), *hot.shape)
        return {
            trunk: torch.cat([self._convolved(params, trunk, observations), hot], -1)
            for trunk in ("mean", "sigma")
        }

    def _dense(self, params: Params, trunk: str, x: Tensor) -> Tensor:
        """(E, B, outputs)."""
        for i in range(3):
            x = torch.baddbmm(params[f"{trunk}_{i}_bias"], x, params[f"{trunk}_{i}"])
            x = functional.relu(x) if i < 2 else x
        return x

    def _convolved(self, params: Params, name: str, observations: Tensor) -> Tensor:
        """(E, B, features) of frames; one group of channels per member."""
        assert self.config.image is not None
        members, count = len(self.scale), len(observations)
        x = observations.reshape(count, *self.config.image).float() / 255
        x = x.repeat(1, members, 1, 1)
        for i, (_, _, stride) in enumerate(_CONVOLUTIONS):
            weight = params[f"{name}_conv{i}"].permute(0, 4, 1, 2, 3).flatten(0, 1)
            bias = params[f"{name}_conv{i}_bias"].flatten()
            x = functional.relu(functional.conv2d(x, weight, bias, stride, groups=members))
        return x.reshape(count, members, -1).transpose(0, 1)


def ram_features(observations: Tensor, previous: Tensor, num_actions: int) -> Tensor:
    """(..., 9 D + A + 1): bytes / 255, their bits, and the previous action one-hot (A: none)."""
    places = torch.arange(8, dtype=torch.uint8, device=observations.device)
    bits = (observations[..., None] >> places) & 1
    hot = functional.one_hot(previous, num_actions + 1)
    parts = (observations.float() / 255, bits.flatten(-2).float(), hot.float())
    return torch.cat(parts, -1)


def num_features(config: Config, num_actions: int, observation_size: int) -> int:
    """Width of the first dense layer's input."""
    if config.image is None:
        return 9 * observation_size + num_actions + 1
    channels, height, width = config.image
    if channels * height * width != observation_size:
        raise ValueError(f"image {config.image} does not have {observation_size} bytes")
    for out, kernel, stride in _CONVOLUTIONS:
        channels = out
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    if min(height, width) < 1:
        raise ValueError(f"image {config.image} is too small for the convolutions")
    return channels * height * width + num_actions + 1
