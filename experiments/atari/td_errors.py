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

**Sampled errors** are the paper's own: one table, one shock, one next action of a branch, with
X' = (S'_a, A') and Y' = (S'_b, B'),

    mu        R_a + gamma mu(X') - mu(x)
    sigma     R_a R_b + gamma (R_a mu(Y') + R_b mu(X')) + gamma^2 Sigma(X', Y') - Sigma(x, y)

Branches in one state read one shock; with the same next action there they are one branch. The mean
square of such an error has a floor, the variance of its target, that no learning removes
(`sampled_errors`). So our own training reports sampled errors but does not descend them. With
`Config.descend` = "sampled" it does, like the paper's.
"""

from __future__ import annotations

from typing import NamedTuple

from experiments.atari.networks import TD_BLOCKS, Estimate, Network, Params, inner
from experiments.atari.replay import Batch, Replay
from jmdp_lib.machine import extra

with extra("torch"):
    import torch
    from torch import Tensor

Targets = tuple[Tensor, Tensor, Tensor]  # of mu, of C at one state, of C between states


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
    mean, shared, near, local, own, place, spread = estimate
    value = (policy * mean).sum(-1)
    by_action = sum(part.square().sum(-1) for part in (shared, near, local)) + own
    variance = spread + (policy * by_action).sum(-1)
    merged = (policy[..., None] * local).sum(-2).square().sum(-1) + (policy**2 * own).sum(-1)
    vbar, qbar = ((policy[..., None] * part).sum(-2) for part in (shared, near))
    return PolicyMoments(value, variance, merged, vbar, qbar, place)


def look_ahead(network: Network, params: Params, batch: Batch) -> PolicyMoments:
    """The moments of every successor of a batch, (E, B, K, m), policy averaged out."""
    return policy_moments(network(params, batch.next_observations), network.policy)


def state_targets(network: Network, batch: Batch, ahead: PolicyMoments) -> tuple[Tensor, Tensor]:
    """Targets of mu (E, B, m) and of C at one state (E, B, m, m).

    ahead: at the successors, (E, B, K, m).
    """
    gamma = network.gammas[:, None, None, None]
    weights = batch.weights[:, :, None]
    earned = network.earned[:, None, None, None] * batch.rewards
    y = earned + gamma * batch.alive * ahead.value  # (E, B, K, m)
    mean = (weights * y).sum(2)
    deviation = y - mean.unsqueeze(2)

    same = batch.next_ids[..., :, None] == batch.next_ids[..., None, :]
    near = inner(ahead.near) * nearness(ahead.place, ahead.place)
    pair = outer(batch.alive, batch.alive) * (
        inner(ahead.shared) + near + same * ahead.merged[..., None]
    )
    off = 1.0 - torch.eye(y.shape[-1], device=y.device)
    carried = pair * off + torch.diag_embed(batch.alive * ahead.variance)
    drawn = outer(deviation, deviation) + (gamma**2)[..., None] * carried
    loading = network.shock[:, batch.actions]
    return mean, outer(loading, loading) + (weights[..., None] * drawn).sum(2)


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
    return network.gammas[:, None, None, None] ** 2 * (apart + local)


def _expected_near(ahead: PolicyMoments, worth: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """E[k <qbar, qbar>] (E, P, m, m) between the successors of the states i and j (P,)."""
    near = worth[..., None] * ahead.near  # (E, B, K, m, Q)
    flat = near.flatten(2, 3)  # (E, B, K m, Q)
    place = ahead.place.flatten(2, 3)
    each = inner(flat[:, i], flat[:, j]) * nearness(place[:, i], place[:, j])
    tables = near.shape[2:4]
    return each.unflatten(3, tables).unflatten(2, tables).sum((2, 4))


def errors_of(here: Estimate, targets: Targets, pairs: Tensor, raw: bool) -> Targets:
    """Errors of mu (E, B, m), of C at one state (E, B, m, m) and between the `pairs`.

    raw: of Sigma = C + mu mu' instead.
    """
    i, j = pairs.unbind(1)
    own = here.covariance - targets[1]
    if raw:
        own = own + outer(here.mean, here.mean)
    mean = here.mean - targets[0]
    close = (here.place[:, i] - here.place[:, j]).square().sum(-1).neg().exp()  # (E, P)
    near = close[..., None, None] * inner(here.near[:, i], here.near[:, j])
    between = inner(here.shared[:, i], here.shared[:, j]) + near - targets[2]
    if raw:
        between = between + outer(here.mean[:, i], here.mean[:, j])
    return mean, own, between


def _off_diagonal(square: Tensor) -> Tensor:
    """(..., m, m) to (..., m (m - 1)); by strides, for a mask would make a GPU wait."""
    size = square.shape[-1]
    behind = square.flatten(-2)[..., 1:].unflatten(-1, (size - 1, size + 1))
    return behind[..., :-1].flatten(-2)


def outer(left: Tensor, right: Tensor) -> Tensor:
    """(..., m), (..., m) to (..., m, m)."""
    return left[..., :, None] * right[..., None, :]


def block_errors(
    network: Network,
    online: Params,
    target: Params,
    batch: Batch,
    generator: torch.Generator | None = None,
) -> Tensor:
    """(len(TD_BLOCKS), E) mean squared TD errors of one batch: expected ones, of mu and C.

    target: the weights that targets are made from; they carry no gradient. generator: if given,
    sampled errors, of mu and Sigma, of a batch with one drawn table of each state (K = 1).
    """
    here = network(online, batch.observations).at(batch.actions)
    pairs = compared_pairs(batch)
    with torch.no_grad():
        if generator is not None:
            targets = sampled_targets(network, target, batch, pairs, generator)
        else:
            ahead = look_ahead(network, target, batch)
            own = state_targets(network, batch, ahead)
            targets = (*own, cross_targets(network, batch, ahead, pairs))
    errors = errors_of(here, targets, pairs, raw=generator is not None)
    spread = None
    if network.num_spreads and generator is None:
        spread = here.spread - spread_targets(network, targets[0])
    return mean_squares(batch, errors, pairs, spread)


def spread_targets(network: Network, mean: Tensor) -> Tensor:
    """Targets (E, B) of Var_A mu(s, A), from those of mu (E, B, m) at some of the actions."""
    return mean.var(-1) * (1 - 1 / network.num_actions)  # unbiased: they are drawn


def compared_pairs(batch: Batch) -> Tensor:
    """(B + p, 2) places: neighbours in the batch, which were drawn independently; then followed."""
    every = torch.arange(len(batch.actions), device=batch.actions.device)
    left = every[: batch.pairs]
    followed = torch.stack([left, left + batch.pairs], 1)
    return torch.cat([torch.stack([every, every.roll(-1)], 1), followed])


def mean_squares(
    batch: Batch, errors: Targets, pairs: Tensor, spread: Tensor | None = None
) -> Tensor:
    """(len(TD_BLOCKS), E) of errors as of `errors_of`; pairs: the `compared_pairs`.

    spread: errors (E, B) of the spread; None: not looked at.
    """
    mean, own, between = errors
    diagonal = own.diagonal(dim1=-2, dim2=-1)
    gap = diagonal[..., :, None] + diagonal[..., None, :] - 2 * own
    blocks = {"mu": mean, "sigma_diag": diagonal}
    blocks |= {"sigma_same": _off_diagonal(own), "gap": _off_diagonal(gap)}
    squares = {name: error.square().flatten(1) for name, error in blocks.items()}
    distinct = (batch.state_ids[pairs[:, 0]] != batch.state_ids[pairs[:, 1]]).float()
    each = between.square().mean((-1, -2)) * distinct  # (E, B + p)
    split = len(batch.actions)
    for name, part in (("sigma_cross", slice(split)), ("sigma_pairs", slice(split, None))):
        squares[name] = each[:, part] / distinct[part].mean().clamp(min=1e-9)
    squares["spread"] = mean[:, :0, 0] if spread is None else spread.square()
    zero = torch.zeros(len(mean), device=mean.device)
    return torch.stack([squares[b].mean(1) if squares[b].numel() else zero for b in TD_BLOCKS])


@torch.no_grad()
def expected_errors(network: Network, params: Params, data: Replay) -> Tensor:
    """(len(TD_BLOCKS), E) mean squared error of the expected backup, M - T_2 M, of mu and C.

    Shock and policy are averaged out in closed form, tables by their probabilities: `data` must be
    complete. Unlike a sampled TD error, its only floor is what the network cannot represent.
    States are compared with their neighbours.
    """
    parts = []
    shares = []
    for batch, share in data.chunks():
        parts.append(share * block_errors(network, params, params, batch))
        shares.append(share)
    return torch.stack(parts).sum(0) / torch.stack(shares).sum(0).clamp(min=1e-12)


class _SampledStep(NamedTuple):
    """What each of the m branches of B states drew in one step: the reward and X' = (S'_a, A').

    rewards, mean: (E, B, m), mean of mu(X'), 0 where the branch ended. alive: (B, m).
    state_ids, actions: (B, m) of X'. after: the moments at X', (E, B, m, ...).
    """

    rewards: Tensor
    mean: Tensor
    alive: Tensor
    state_ids: Tensor
    actions: Tensor
    after: Estimate


def _sampled_step(
    network: Network, params: Params, batch: Batch, generator: torch.Generator
) -> _SampledStep:
    """Draw the shock of each state, and the next action of each branch."""
    seen = batch.next_observations[:, 0]  # (B, m, D)

    def uniform(*size: int) -> Tensor:
        return torch.rand(size, generator=generator, device=seen.device)

    below = network.policy.cumsum(0)[:-1] <= uniform(*seen.shape[:2], 1)
    actions = below.sum(-1, keepdim=True)  # not torch.multinomial, which makes a GPU wait
    ahead = network(params, seen).at(actions)  # (E, B, m, 1, .)
    after = Estimate._make([*(part.squeeze(3) for part in ahead[:-2]), *ahead[-2:]])
    coin = 2.0 * (uniform(len(seen), 1) < 0.5) - 1.0
    earned = network.earned[:, None, None] * batch.rewards[:, 0]
    return _SampledStep(
        rewards=earned + network.shock[:, batch.actions] * coin,
        mean=batch.alive[:, 0] * after.mean,
        alive=batch.alive[:, 0],
        state_ids=batch.next_ids[:, 0],
        actions=actions[..., 0],
        after=after,
    )


def _sampled_products(network: Network, step: _SampledStep, pairs: Tensor) -> Tensor:
    """Targets of Sigma (E, P, m, m) between the branches of the states at the places `pairs`."""
    i, j = pairs.unbind(1)
    gamma = network.gammas[:, None, None, None]
    left, right = (Estimate(*(part[:, at] for part in step.after)) for at in (i, j))
    same = step.state_ids[i][..., :, None] == step.state_ids[j][..., None, :]
    one = same & (step.actions[i][..., :, None] == step.actions[j][..., None, :])
    covariance = inner(left.shared, right.shared) + same * inner(left.local, right.local)
    covariance += nearness(left.place, right.place) * inner(left.near, right.near)
    covariance += one * left.own[..., :, None]
    rewards = step.rewards
    mean = step.mean
    second = outer(step.alive[i], step.alive[j]) * covariance + outer(mean[:, i], mean[:, j])
    mixed = outer(rewards[:, i], mean[:, j]) + outer(mean[:, i], rewards[:, j])
    return outer(rewards[:, i], rewards[:, j]) + gamma * mixed + gamma**2 * second


@torch.no_grad()
def sampled_targets(
    network: Network, params: Params, batch: Batch, pairs: Tensor, generator: torch.Generator
) -> Targets:
    """Targets of mu (E, B, m), of Sigma at one state (E, B, m, m) and between the `pairs`.

    Of a batch with one drawn table of each state (K = 1); the shock and the next action of each
    branch are drawn here.
    """
    step = _sampled_step(network, params, batch, generator)
    every = torch.arange(len(batch.actions), device=pairs.device)
    compared = torch.cat([torch.stack([every, every], 1), pairs])
    products = _sampled_products(network, step, compared)
    own, between = products.split([len(every), len(pairs)], 1)
    return step.rewards + network.gammas[:, None, None] * step.mean, own, between


@torch.no_grad()
def sampled_errors(
    network: Network,
    online: Params,
    target: Params,
    batch: Batch,
    generator: torch.Generator,
    draws: int = 8,
) -> tuple[Tensor, Tensor]:
    """(len(TD_BLOCKS), E) mean squared sampled errors of one batch, and their floor.

    Both from the same draws of the targets. The floor is the mean variance of a target given the
    state and the table: no estimate has smaller errors on average.
    """
    here = network(online, batch.observations).at(batch.actions)
    pairs = compared_pairs(batch)
    drawn = [sampled_targets(network, target, batch, pairs, generator) for _ in range(draws)]
    errors = [mean_squares(batch, errors_of(here, y, pairs, raw=True), pairs) for y in drawn]
    mean, own, between = (torch.stack(part).mean(0) for part in zip(*drawn, strict=True))
    noise = [mean_squares(batch, (y[0] - mean, y[1] - own, y[2] - between), pairs) for y in drawn]
    return torch.stack(errors).mean(0), torch.stack(noise).sum(0) / (draws - 1)
