"""TD errors of incremental JIPE-2, block by block (Section 5.2, Appendix C).

The centred, collapsed operator of `operators.pairs`, on a batch of queried tables. With
y_a = R_a + gamma m(S'_a) of one table, E over the tables of a state, and W = sigma^2 w w' the
covariance of the reward shock (in closed form: it is never sampled),

    mu           mu(s,a)     <-  E y_a
    sigma_diag   C(s,a; s,a) <-  W_aa + E[(y_a - c_a)^2]           + gamma^2 E single(S'_a)
    sigma_same   C(s,a; s,b) <-  W_ab + E[(y_a - c_a)(y_b - c_b)]  + gamma^2 E pair(S'_a, S'_b)
    sigma_cross  C(s,a; t,b) <-                                      gamma^2 E pair(S'_a, S'_b)
    sigma_pairs  the same, for the two branches of one query, followed until they merge
    gap          C_aa + C_bb - 2 C_ab, each with the target above (Appendix C, centred)

where single(x) = Var Z(x, A), an ended branch is worth 0, and

    pair(x, y) = <vbar(x), vbar(y)> + k(x, y) <qbar(x), qbar(y)> + 1{x = y} merged(x).

The local term enters at queried coordinates of one state, and at successors only where they are
one state, which `next_ids` says: branches of one table, or of two states.

**Why centred.** C = Sigma - mu mu' is fitted, not Sigma: at gamma = 0.99 mu mu' is orders of
magnitude above a gap's variance. An error e of the mean enters C as e^2, and Sigma as 2 mu e.

**The centre c.** Where the rows of a state are its whole law, c = E y is known: a deterministic
emulator has no reward covariance but W, however wrong the mean network is. From single draws,
c = mu(s, .), the current mean: the product is then biased by (E y_a - mu_a)(E y_b - mu_b), which is
of second order and goes with the mean's error. That bias is not all bad where rewards are the only
variance: what the mean does not foresee is uncertain to it, and c = E y would leave it out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jmdp_lib.atari.config import BLOCKS
from jmdp_lib.atari.data import Batch
from jmdp_lib.atari.networks import Collapsed, Estimate, inner, nearness

Errors = dict[str, Tensor]


def state_targets(
    batch: Batch, here: Estimate, ahead: Collapsed, gamma: Tensor, shock: Tensor, complete: bool
) -> tuple[Tensor, Tensor]:
    """Targets of mu (E, B, m) and of C at one state (E, B, m, m).

    here: at the queried states, m actions each, (E, B, m); only its mean is used, as a centre.
    ahead: at the successors, (E, B, K, m). gamma: (E,). shock: (A,) sigma w_a.
    """
    gamma = gamma[:, None, None, None]
    weights = batch.weights[:, :, None]
    y = batch.rewards + gamma * batch.alive * ahead.value  # (E, B, K, m)
    mean = (weights * y).sum(2)
    deviation = y - (mean if complete else here.mean).unsqueeze(2)

    merging = (batch.next_ids[..., :, None] == batch.next_ids[..., None, :]) * ahead.merged[
        ..., None
    ]
    near = inner(ahead.near) * nearness(ahead.place, ahead.place)
    pair = outer(batch.alive, batch.alive) * (inner(ahead.shared) + near + merging)
    single = batch.alive * ahead.single
    off = 1.0 - torch.eye(y.shape[-1], device=y.device)
    carried = pair * off + torch.diag_embed(single)
    drawn = outer(deviation, deviation) + (gamma**2)[..., None] * carried
    loading = shock[batch.actions]
    return mean, outer(loading, loading) + (weights[..., None] * drawn).sum(2)


def cross_targets(batch: Batch, ahead: Collapsed, gamma: Tensor, pairs: Tensor) -> Tensor:
    """Targets (E, P, m, m) of C between the states at the places `pairs` (P, 2) of the batch."""
    i, j = pairs.unbind(1)
    worth = batch.weights[:, :, None] * batch.alive  # (B, K, m)
    moved = (worth[..., None] * ahead.shared).sum(2)  # (E, B, m, V): E vbar(S'_a)
    apart = inner(moved[:, i], moved[:, j]) + _expected_near(ahead, worth, i, j)
    left, right = batch.next_ids[i], batch.next_ids[j]
    meet = left[:, :, :, None, None] == right[:, None, None, :, :]  # (P, K, m, K, m)
    likely = (meet * worth[j][:, None, None]).sum(-2)  # (P, K, m, m)
    merged = worth[i] * ahead.merged[:, i]  # (E, P, K, m)
    local = (likely * merged[..., None]).sum(2)
    return gamma[:, None, None, None] ** 2 * (apart + local)


def _expected_near(ahead: Collapsed, worth: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """E[k <qbar, qbar>] (E, P, m, m) between the successors of the states i and j (P,)."""
    near = worth[..., None] * ahead.near  # (E, B, K, m, Q)
    flat, place = near.flatten(2, 3), ahead.place.flatten(2, 3)  # (E, B, K m, .)
    each = inner(flat[:, i], flat[:, j]) * nearness(place[:, i], place[:, j])
    tables = near.shape[2:4]
    return each.unflatten(3, tables).unflatten(2, tables).sum((2, 4))


def state_errors(here: Estimate, mean: Tensor, covariance: Tensor, raw: bool) -> Errors:
    """Errors of mu (E, B, m), sigma_diag (E, B, m), sigma_same and gap (E, B, m (m - 1)).

    raw: of Sigma = C + mu mu' rather than of C.
    """
    error = here.covariance - covariance
    if raw:
        error = error + outer(here.mean, here.mean) - outer(mean, mean)
    diagonal = error.diagonal(dim1=-2, dim2=-1)
    gap = diagonal[..., :, None] + diagonal[..., None, :] - 2 * error
    return {
        "mu": here.mean - mean,
        "sigma_diag": diagonal,
        "sigma_same": _off_diagonal(error),
        "gap": _off_diagonal(gap),
    }


def cross_error(here: Estimate, mean: Tensor, target: Tensor, pairs: Tensor, raw: bool) -> Tensor:
    """Errors (E, P, m, m) of C(s, a; t, b) between distinct states, or of Sigma."""
    i, j = pairs.unbind(1)
    close = (here.place[:, i] - here.place[:, j]).square().sum(-1).neg().exp()  # (E, P)
    near = close[..., None, None] * inner(here.near[:, i], here.near[:, j])
    error = inner(here.shared[:, i], here.shared[:, j]) + near - target
    if raw:
        error = error + outer(here.mean[:, i], here.mean[:, j]) - outer(mean[:, i], mean[:, j])
    return error


def _off_diagonal(square: Tensor) -> Tensor:
    """(..., m, m) to (..., m (m - 1)); by strides, for a mask would make a GPU wait."""
    size = square.shape[-1]
    behind = square.flatten(-2)[..., 1:].unflatten(-1, (size - 1, size + 1))
    return behind[..., :-1].flatten(-2)


def outer(left: Tensor, right: Tensor) -> Tensor:
    """(..., m), (..., m) to (..., m, m)."""
    return left[..., :, None] * right[..., None, :]


def block_errors(
    batch: Batch,
    here: Estimate,
    ahead: Collapsed,
    followed: Tensor,
    gamma: Tensor,
    shock: Tensor,
    complete: bool,
    raw: bool = False,
) -> Tensor:
    """(len(BLOCKS), E) mean squared TD errors; targets carry no gradient. followed: (p, 2)."""
    with torch.no_grad():
        mean, covariance = state_targets(batch, here, ahead, gamma, shock, complete)
        pairs = compared_pairs(batch, followed)
        target = cross_targets(batch, ahead, gamma, pairs)
    errors = state_errors(here, mean, covariance, raw)
    return mean_squares(batch, errors, cross_error(here, mean, target, pairs, raw), pairs)


def compared_pairs(batch: Batch, followed: Tensor) -> Tensor:
    """(B + p, 2) places: neighbours in the batch, which were drawn independently; then followed."""
    every = torch.arange(len(batch.actions), device=followed.device)
    return torch.cat([torch.stack([every, every.roll(-1)], 1), followed])


def mean_squares(batch: Batch, errors: Errors, cross: Tensor, pairs: Tensor) -> Tensor:
    """(len(BLOCKS), E); cross (E, B + p, m, m) are the errors of the `compared_pairs`."""
    squares = {name: error.square().flatten(1) for name, error in errors.items()}
    distinct = (batch.state_ids[pairs[:, 0]] != batch.state_ids[pairs[:, 1]]).float()
    each = cross.square().mean((-1, -2)) * distinct  # (E, B + p)
    split = len(batch.actions)
    for name, part in (("sigma_cross", slice(split)), ("sigma_pairs", slice(split, None))):
        squares[name] = each[:, part] / distinct[part].mean().clamp(min=1e-9)
    zero = torch.zeros(len(cross), device=cross.device)
    return torch.stack([squares[b].mean(1) if squares[b].numel() else zero for b in BLOCKS])
