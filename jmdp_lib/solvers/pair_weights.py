"""Weights over pairs of state-actions for the projection of second moments (Appendix B).

The paper projects in a stationary law of the pair chain. The diagonal is absorbing for that chain,
so wherever branches meet at all the law sits on it and says nothing about gaps. The discounted
occupancy d = (1 - eta) sum_t eta^t rho_0 P_2^t keeps every pair that rho_0 gives weight to, and
d P_2 <= d / eta keeps P_2 bounded: ||P_2 h||_d <= eta^(-1/2) ||h||_d.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csgraph, csr_array
from scipy.sparse.linalg import LinearOperator, gmres

from jmdp_lib import checks
from jmdp_lib.checks import Floats
from jmdp_lib.model import JMDP
from jmdp_lib.operators.pairs import push


def start_law(jm: JMDP) -> Floats:
    """rho_0 (S, A, S, A): half uniform over all pairs, half over the pairs of one state."""
    num_states, num_actions = jm.num_states, jm.num_actions
    law = np.full((num_states, num_actions) * 2, 0.5 / (num_states * num_actions) ** 2)
    states = np.arange(num_states)
    law[states, :, states] += 0.5 / (num_states * num_actions**2)
    return law


def occupancy(jm: JMDP, policy: Floats, eta: float) -> Floats:
    """The discounted pair occupancy (S, A, S, A), to rounding: d = (1 - eta) rho_0 + eta d P_2.

    Summed where the series is short, else solved for.
    """
    law = start_law(jm)
    if eta > 0.98:

        def rest(d: Floats) -> Floats:
            return d - eta * push(jm, policy, d.reshape(law.shape)).ravel()

        operator = LinearOperator((law.size, law.size), matvec=rest, dtype=float)
        right = (1.0 - eta) * law.ravel()
        found, failed = gmres(operator, right, rtol=1e-11, restart=60, maxiter=200)
        if failed:
            raise ValueError(f"the pair occupancy at eta = {eta} could not be solved for")
        last = push(jm, policy, np.maximum(found, 0.0).reshape(law.shape))
        total = (1.0 - eta) * law + eta * last  # at least (1 - eta) rho_0, whatever was rounded
        return total / total.sum()
    total, weight = (1.0 - eta) * law, 1.0 - eta
    while weight * eta > 1e-15 * (1.0 - eta) and eta > 0.0:
        law = push(jm, policy, law)
        weight *= eta
        total += weight * law
    return total / total.sum()


def stationary_pairs(jm: JMDP, policy: Floats) -> Floats:
    """The paper's weights: the stationary law that the pair chain reaches from rho_0.

    Refused where the chain over state-actions is not ergodic with full support (Assumption B.2).
    """
    _check_ergodic(jm, policy)
    law = start_law(jm)
    for _ in range(200_000):
        new = push(jm, policy, law)
        if np.abs(new - law).max() <= 1e-15:
            return new
        law = new
    raise ValueError("the pair chain did not settle within 200,000 steps")


def _check_ergodic(jm: JMDP, policy: Floats) -> None:
    num_states, num_actions = policy.shape
    checks.refuse(
        "policy", policy, policy == 0.0,
        "leaves the state-action without stationary weight (Assumption B.2); "
        'use weights="occupancy"', ["state", "action"],
    )  # fmt: skip
    rows = np.repeat(np.arange(num_states), num_actions)
    averaging = csr_array((policy.ravel(), (rows, np.arange(rows.size))))
    chain = (averaging @ jm.transitions).tocsr()
    count, label = csgraph.connected_components(chain, directed=True, connection="strong")
    if count > 1:
        left = [c for c in range(count) if chain[label == c][:, label != c].nnz == 0]
        closed = np.flatnonzero(label == left[0])
        outside = np.flatnonzero(label != left[0])
        raise ValueError(
            f"the chain is not ergodic (Assumption B.2): from state {closed[0]} it never comes "
            f'back to state {outside[0]}; use weights="occupancy"'
        )
    depth = csgraph.breadth_first_order(chain, 0, return_predecessors=False)
    level = np.zeros(num_states, dtype=np.int64)
    distances = csgraph.shortest_path(chain, unweighted=True, indices=0)
    level[depth] = distances[depth].astype(np.int64)
    source, target = chain.nonzero()
    period = np.gcd.reduce(np.abs(level[source] + 1 - level[target]))
    if period != 1:
        raise ValueError(
            f"the chain is not ergodic (Assumption B.2): it has period {period}; "
            'use weights="occupancy"'
        )
