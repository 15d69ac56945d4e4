"""TD errors of incremental JIPE-2, block by block (Section 5.2, Appendix C).

The centred operator T_2 with the policy averaged out, on a batch of queried tables. With
y_a = R_a + gamma m(S'_a) of one table, E over the tables of a state, and W = sigma^2 the
covariance of the reward shock (in closed form: it is never sampled),

    mu           mu(s,a)     <-  E y_a
    sigma_diag   C(s,a; s,a) <-  W + Var y_a         + gamma^2 E variance(S'_a)
    sigma_same   C(s,a; s,b) <-  W + Cov(y_a, y_b)   + gamma^2 E pair(S'_a, S'_b)
    sigma_cross  C(s,a; t,b) <-                        gamma^2 E pair(S'_a, S'_b)
    sigma_pairs  the same, for the two branches of one query, followed until they merge
    gap          C_aa + C_bb - 2 C_ab, each with the target above (Appendix C, centred)

where variance(x) = Var Z(x, A), an ended branch is worth 0, and

    pair(x, y) = <vbar(x), vbar(y)> + k(x, y) <qbar(x), qbar(y)> + 1{x = y} merged(x).

The local term enters at queried coordinates of one state, and at successors only where they are
one state, which `next_ids` says: branches of one table, or of two states.

**Why centred.** C = Sigma - mu mu' is fitted, not Sigma: at gamma = 0.99 mu mu' is orders of
magnitude above a gap's variance. An error e of the mean enters C as e^2, and Sigma as 2 mu e.
"""

from __future__ import annotations

from typing import NamedTuple

from experiments.atari.networks import Estimate, Network, Params, inner
from experiments.atari.replay import Batch
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor


class PolicyMoments(NamedTuple):
    """All that T_2 needs of a successor x: moments with the policy averaged out, each (E, ...).

    value: m(x) = E mu(x, A). variance: Var Z(x, A) of one branch. merged: what C(x, A; x, B) of two
    branches in this one state has beyond <shared, shared> + <near, near>. shared, near:
    E v(x, A), E q(x, A) (E, ..., dimension). place: f(x) (E, ..., F).
    """

    value: Tensor
    variance: Tensor
    merged: Tensor
    shared: Tensor
    near: Tensor
    place: Tensor


def nearness(left: Tensor, right: Tensor) -> Tensor:
    """k (..., m, n) between places (..., m, F) and (..., n, F)."""
    squares = left.square().sum(-1)[..., :, None] + right.square().sum(-1)[..., None, :]
    return (2 * inner(left, right) - squares).clamp(max=0.0).exp()


def policy_moments(estimate: Estimate, policy: Tensor) -> PolicyMoments:
    """m, Var_A mu + E C(x, A; x, A), |ubar|^2 + sum_a pi_a^2 own_a, vbar; policy (..., A).

    A and B are independent but may be the same action, and are then one branch: hence pi_a^2 own_a.
    """
    mean, shared, near, local, own, place = estimate

    def average(vectors: Tensor) -> Tensor:
        return (policy[..., None] * vectors).sum(-2)

    value = (policy * mean).sum(-1)
    by_action = sum(part.square().sum(-1) for part in (shared, near, local)) + own
    by_action = by_action + (mean - value[..., None]).square()
    variance = (policy * by_action).sum(-1)
    merged = average(local).square().sum(-1) + (policy**2 * own).sum(-1)
    return PolicyMoments(value, variance, merged, average(shared), average(near), place)


def look_ahead(network: Network, params: Params, batch: Batch) -> PolicyMoments:
    """The moments of every successor of a batch, (E, B, K, m), policy averaged out."""
    return policy_moments(network(params, batch.next_observations), network.policy)


def state_targets(network: Network, batch: Batch, ahead: PolicyMoments) -> tuple[Tensor, Tensor]:
    """Targets of mu (E, B, m) and of C at one state (E, B, m, m).

    ahead: at the successors, (E, B, K, m).
    """
    gamma = network.gammas
    weights = batch.weights[:, :, None]
    y = batch.rewards + gamma * batch.alive * ahead.value  # (E, B, K, m)
    mean = (weights * y).sum(2)
    deviation = y - mean.unsqueeze(2)

    same = batch.next_ids[..., :, None] == batch.next_ids[..., None, :]
    near = inner(ahead.near) * nearness(ahead.place, ahead.place)
    pair = outer(batch.alive, batch.alive) * (
        inner(ahead.shared) + near + same * ahead.merged[..., None]
    )
    carried = pair * off_diagonal(pair) + torch.diag_embed(batch.alive * ahead.variance)
    drawn = outer(deviation, deviation) + gamma[..., None] ** 2 * carried
    return mean, network.sigmas**2 + (weights[..., None] * drawn).sum(2)


def cross_targets(network: Network, batch: Batch, ahead: PolicyMoments, pairs: Tensor) -> Tensor:
    """Targets (E, P, m, m) of C between the states at the places `pairs` (P, 2) of the batch."""
    i, j = pairs.unbind(1)
    worth = batch.weights[:, :, None] * batch.alive  # (B, K, m)
    moved = (worth[..., None] * ahead.shared).sum(2)  # (E, B, m, V): E vbar(S'_a)
    apart = inner(moved[:, i], moved[:, j]) + _expected_near(ahead, worth, i, j)
    left = batch.next_ids[i][:, :, :, None, None]
    right = batch.next_ids[j][:, None, None, :, :]
    meet = left == right  # (P, K, m, K, m)
    likely = (meet * worth[j][:, None, None]).sum(-2)  # (P, K, m, m)
    merged = worth[i] * ahead.merged[:, i]  # (E, P, K, m)
    local = (likely * merged[..., None]).sum(2)
    return network.gammas**2 * (apart + local)


def _expected_near(ahead: PolicyMoments, worth: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """E[k <qbar, qbar>] (E, P, m, m) between the successors of the states i and j (P,)."""
    near = worth[..., None] * ahead.near  # (E, B, K, m, Q)
    flat = near.flatten(2, 3)  # (E, B, K m, Q)
    place = ahead.place.flatten(2, 3)
    each = inner(flat[:, i], flat[:, j]) * nearness(place[:, i], place[:, j])
    tables = near.shape[2:4]
    return each.unflatten(3, tables).unflatten(2, tables).sum((2, 4))


def off_diagonal(square: Tensor) -> Tensor:
    """(m, m) for a tensor (..., m, m): 0 on the diagonal, and 1 off it."""
    return 1.0 - torch.eye(square.shape[-1], device=square.device)


def outer(left: Tensor, right: Tensor) -> Tensor:
    """(..., m), (..., m) to (..., m, m)."""
    return left[..., :, None] * right[..., None, :]


def compared_pairs(batch: Batch) -> Tensor:
    """(B + p, 2) places: neighbours in the batch, which were drawn independently; then followed."""
    every = torch.arange(len(batch.actions), device=batch.actions.device)
    left = every[: batch.pairs]
    followed = torch.stack([left, left + batch.pairs], 1)
    return torch.cat([torch.stack([every, every.roll(-1)], 1), followed])


def block_errors(network: Network, online: Params, target: Params, batch: Batch) -> Tensor:
    """(len(TD_BLOCKS), E) mean squared TD errors of one batch, in the order of TD_BLOCKS.

    target: the weights that targets are made from; they carry no gradient.
    """
    here = network(online, batch.observations).at(batch.actions)
    pairs = compared_pairs(batch)
    with torch.no_grad():
        ahead = look_ahead(network, target, batch)
        mean, covariance = state_targets(network, batch, ahead)
        between = cross_targets(network, batch, ahead, pairs)
    same_errors = here.covariance - covariance
    diagonal = same_errors.diagonal(dim1=-2, dim2=-1)
    gap_errors = diagonal[..., :, None] + diagonal[..., None, :] - 2 * same_errors
    between_errors = between_states(here, pairs) - between
    distinct = (batch.state_ids[pairs[:, 0]] != batch.state_ids[pairs[:, 1]]).float()
    distinct = distinct[:, None, None]
    apart = off_diagonal(same_errors)
    size = len(batch.actions)
    return torch.stack(
        [
            mean_square(here.mean - mean),
            mean_square(diagonal),
            mean_square(same_errors, apart),
            mean_square(between_errors[:, :size], distinct[:size]),
            mean_square(between_errors[:, size:], distinct[size:]),
            mean_square(gap_errors, apart),
        ]
    )


def between_states(here: Estimate, pairs: Tensor) -> Tensor:
    """C (E, P, m, m) between the states at the places `pairs` (P, 2), if they are distinct."""
    i, j = pairs.unbind(1)
    close = (here.place[:, i] - here.place[:, j]).square().sum(-1).neg().exp()  # (E, P)
    near = close[..., None, None] * inner(here.near[:, i], here.near[:, j])
    return inner(here.shared[:, i], here.shared[:, j]) + near


def mean_square(errors: Tensor, counted: Tensor | None = None) -> Tensor:
    """(E,) of errors (E, ...), or of the `counted` ones, 1 and not 0; zero if there are none."""
    if not errors.numel():
        return errors.new_zeros(len(errors))
    squares = errors.square()
    if counted is not None:
        squares = squares * counted / counted.mean().clamp(min=1e-9)
    return squares.flatten(1).mean(1)
