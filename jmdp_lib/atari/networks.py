"""Networks for the mean and the covariance of the joint returns, an ensemble at a time.

Every weight has a leading ensemble axis (E, in, out): E members, each with a discount factor and a
kind of its own, go through one batched product. For a state s and all its actions at once

    mu(s, a)      mean
    v(s, a)       shared Gram vector       C(x, y) = <v(x), v(y)>
    u(s, a)       local Gram vector                + 1{s = t} <u(x), u(y)>        x = (s, a)
    d(s, a) >= 0  own variance                     + 1{x = y} d(x)                y = (t, b)

and M_Sigma = mu mu' + C. Kind "gram" is the paper's, the first term alone. Each term is a Gram
kernel: the second of the vectors 1_s (x) u, the third of sqrt(d) 1_x. So C is positive
semidefinite whatever the weights. The three terms are the three ways in which two branches are
related: distinct states (they may merge later), one state and so one table, and one branch. The
reward shock sigma w_a U of one table is known, and is a coordinate of u that is not learned.

Mean and covariance have trunks of their own: errors of the one, at scale 1/(1 - gamma), do not
steer the features of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from jmdp_lib.atari.config import Config

Params = dict[str, Tensor]
_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # (channels, kernel, stride)


class Estimate(NamedTuple):
    """Moments of all actions at a batch of states; E members, any batch axes.

    mean: (E, ..., A). shared: v (E, ..., A, V). local: u (E, ..., A, U). own: d (E, ..., A).
    """

    mean: Tensor
    shared: Tensor
    local: Tensor
    own: Tensor

    def at(self, actions: Tensor) -> Estimate:
        """The m actions (B, m) of each of B states."""
        member = torch.arange(len(self.mean), device=actions.device)[:, None, None]
        entry = torch.arange(len(actions), device=actions.device)[None, :, None]
        return Estimate(*(part[member, entry, actions] for part in self))

    @property
    def covariance(self) -> Tensor:
        """C(s, a; s, b) (E, ..., A, A)."""
        shared = self.shared @ self.shared.transpose(-1, -2)
        return shared + self.local @ self.local.transpose(-1, -2) + torch.diag_embed(self.own)


class Collapsed(NamedTuple):
    """All that T_2 asks of a successor x, policy averaged out, each (E, ...).

    value: m(x) = E mu(x, A). single: Var Z(x, A) of one branch. merged: what C(x, A; x, B) of two
    branches in this one state has beyond <shared, shared>. shared: vbar(x) = E v(x, A) (E, ..., V).
    """

    value: Tensor
    single: Tensor
    merged: Tensor
    shared: Tensor


def collapse(estimate: Estimate, policy: Tensor) -> Collapsed:
    """m, Var_A mu + E C(x, A; x, A), |ubar|^2 + sum_a pi_a^2 d_a, vbar; policy (..., A).

    A and B are independent but may be the same action, and are then one branch: hence pi_a^2 d_a.
    """
    mean, shared, local, own = estimate
    value = (policy * mean).sum(-1)
    spread = (policy * (mean - value[..., None]) ** 2).sum(-1)
    variance = shared.square().sum(-1) + local.square().sum(-1) + own
    merged = (policy[..., None] * local).sum(-2).square().sum(-1) + (policy**2 * own).sum(-1)
    single = spread + (policy * variance).sum(-1)
    return Collapsed(value, single, merged, (policy[..., None] * shared).sum(-2))


@dataclass(frozen=True, eq=False)
class Network:
    """Everything of the ensemble that is not learned.

    num_actions: A. features: width of the input.
    local: (E,) 1 for kind "local", 0 for "gram". shock: (A,) sigma w_a.
    mean_offset, mean_scale, scale: (E,) units of mu and C (see `data.network_for`): the outputs
    of the last layers are near one in size at every discount.
    """

    config: Config
    num_actions: int
    features: int
    local: Tensor
    shock: Tensor
    mean_offset: Tensor
    mean_scale: Tensor
    scale: Tensor

    def initial(self, generator: torch.Generator) -> Params:
        """He-uniform weights, drawn on the CPU: the same for every member and device."""
        config, params = self.config, {}

        def layer(name: str, *shape: int, fan_in: int, gain: float = 6.0) -> None:
            weight = (2 * torch.rand(shape, generator=generator) - 1) * (gain / fan_in) ** 0.5
            for part, drawn in ((name, weight), (f"{name}_bias", torch.zeros(1, shape[-1]))):
                member = drawn.expand(len(self.scale), *drawn.shape)
                params[part] = member.contiguous().to(self.scale.device)

        outputs = self.num_actions * (config.shared_dim + config.local_dim + 1)
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
        return params

    def __call__(self, params: Params, observations: Tensor, previous: Tensor) -> Estimate:
        """Observations (..., D) uint8 and previous actions (...)."""
        batch = observations.shape[:-1]
        flat, last = observations.reshape(-1, observations.shape[-1]), previous.reshape(-1)
        mean = self._trunk(params, "mean", flat, last)
        out = self._trunk(params, "sigma", flat, last)
        mean = self.mean_offset[:, None, None] + self.mean_scale[:, None, None] * mean
        members, config, shape = len(out), self.config, (*batch, self.num_actions)
        sizes = (config.shared_dim, config.local_dim, 1)
        shared, local, own = out.reshape(members, *shape, sum(sizes)).split(sizes, -1)
        unit = self.scale.reshape(-1, *[1] * (len(shape) + 1))
        here = self.local.reshape(unit.shape)
        shock = self.shock[:, None].expand(members, *shape, 1)
        return Estimate(
            mean.reshape(members, *shape),
            shared * (unit / config.shared_dim).sqrt(),
            torch.cat([shock, local * (unit / config.local_dim).sqrt()], -1) * here,
            (functional.softplus(own) * unit * here)[..., 0],
        )

    def _trunk(self, params: Params, name: str, observations: Tensor, previous: Tensor) -> Tensor:
        """(E, B, outputs) of B observations."""
        if self.config.image:
            x = self._convolved(params, name, observations)
            hot = functional.one_hot(previous, self.num_actions + 1).to(x.dtype)
            x = torch.cat([x, hot.expand(len(x), *hot.shape)], -1)
        else:
            x = ram_features(observations, previous, self.num_actions)
            x = x.expand(len(self.scale), *x.shape)
        for i in range(3):
            x = torch.baddbmm(params[f"{name}_{i}_bias"], x, params[f"{name}_{i}"])
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
