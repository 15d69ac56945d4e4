"""Independent references: everything here is written from the definitions, slowly, for tiny cases.

Nothing is shared with `jmdp_lib` but the arrays of the model.
"""

from itertools import combinations_with_replacement, product

import numpy as np


def tables_of(jm, s):
    """[(probability, rewards (A,), next_states (A,))] of state s."""
    rows = range(jm.starts[s], jm.starts[s + 1])
    return [(jm.probs[i], jm.rewards[i], jm.next_states[i]) for i in rows]


def product_jmdp(jm):
    """The JMDP with the same marginals and independent actions, built in full."""
    import jmdp_lib as jl

    states, probs, rewards, successors = [], [], [], []
    actions = np.arange(jm.num_actions)
    for s in range(jm.num_states):
        for draws in product(tables_of(jm, s), repeat=jm.num_actions):
            chances, paid, after = map(np.array, zip(*draws, strict=True))
            states.append(s)
            probs.append(chances.prod())
            rewards.append(paid[actions, actions])
            successors.append(after[actions, actions])
    return jl.JMDP.from_tables(states, probs, rewards, successors, jm.num_states, jm.gamma)


def one_step(jm, policy, branches, common=False):
    """Joint one-step outcomes of distinct branches [(s, a), ...]: [(prob, [(r, (s', a')), ...])].

    Branches at one state share its table; states are independent, or with `common` share the index
    of the table. Next actions are drawn once per branch: equal (s, a) are passed only once.
    """
    states = sorted({s for s, _ in branches})
    results = []
    draw = zip if common else product
    for draws in draw(*(tables_of(jm, s) for s in states)):
        table = dict(zip(states, draws, strict=True))
        prob = draws[0][0] if common else np.prod([d[0] for d in draws])
        moves = [(table[s][1][a], int(table[s][2][a])) for s, a in branches]
        for actions in product(*(np.flatnonzero(policy[x]) for _, x in moves)):
            weight = prob * np.prod(
                [policy[x, a] for (_, x), a in zip(moves, actions, strict=True)]
            )
            after = [(r, (x, int(a))) for (r, x), a in zip(moves, actions, strict=True)]
            results.append((weight, after))
    return results


def moments(jm, policy, order, common=False):
    """{sorted tuple of (s, a): E prod Z} for all tuples of length 1..order, by linear solves."""
    everything = list(product(range(jm.num_states), range(jm.num_actions)))
    solved = {(): 1.0}
    for k in range(1, order + 1):
        unknown = list(combinations_with_replacement(everything, k))
        place = {x: i for i, x in enumerate(unknown)}
        matrix, right = np.eye(len(unknown)), np.zeros(len(unknown))
        for x, i in place.items():
            branches = sorted(set(x))
            for prob, after in one_step(jm, policy, branches, common):
                to = dict(zip(branches, after, strict=True))
                for picks in product((0, 1), repeat=k):  # reward or continuation, factor by factor
                    others = tuple(
                        sorted(to[y][1] for y, pick in zip(x, picks, strict=True) if pick)
                    )
                    coefficient = prob * jm.gamma ** len(others)
                    for y, pick in zip(x, picks, strict=True):
                        coefficient *= 1.0 if pick else to[y][0]
                    if len(others) == k:
                        matrix[i, place[others]] -= coefficient
                    else:
                        right[i] += coefficient * solved[others]
        solved.update(zip(unknown, np.linalg.solve(matrix, right), strict=True))
    return solved


def gap_paths(jm, policy, query, coupling, depth, digits=3):
    """All paths of two branches from query (s, a, b): gaps, probabilities and error bounds, (N,).

    Gaps are rounded, so that fewer differ.
    """
    s, a, b = query
    tail = jm.gamma**depth * np.ptp(jm.rewards) / (1 - jm.gamma)
    nodes, merged = {(s, s): (np.zeros(1), np.ones(1))}, []
    for step in range(depth):
        new = {}
        for (x, y), (gaps, probs) in nodes.items():
            for c, e in product(range(jm.num_actions), repeat=2):
                weight = policy[x, c] * policy[y, e] if step else float((c, e) == (a, b))
                if weight and step and x == y and c == e:
                    merged.append((gaps, weight * probs))
                    continue
                one = coupling == "common" or (coupling == "joint" and x == y)
                pairs = (zip if one else product)(tables_of(jm, x), tables_of(jm, y))
                for (p, r, n), (q, r_, n_) in pairs if weight else ():
                    gap = gaps + jm.gamma**step * (r[c] - r_[e])
                    chance = weight * p * (1 if one else q) * probs
                    new.setdefault((int(n[c]), int(n_[e])), []).append((gap, chance))
        nodes = {}
        for pair, parts in new.items():
            gaps, probs = (np.concatenate(part) for part in zip(*parts, strict=True))
            gaps, where = np.unique(np.round(gaps, digits), return_inverse=True)
            nodes[pair] = gaps, np.bincount(where, probs)
    ends = [*((g, p, 0.0) for g, p in merged), *((g, p, tail) for g, p in nodes.values())]
    parts = [(g, p, np.full(g.size, rest + depth * 0.1**digits)) for g, p, rest in ends]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def normal_p_values(z):
    """P-values of normal z: of the largest |z| and, two-sided, of the sum of squares."""
    from scipy import special

    z = np.asarray(z)
    beyond = 2.0 * special.ndtr(-np.abs(z).max())
    below = special.chdtr(z.size, np.sum(z**2))
    return -np.expm1(z.size * np.log1p(-beyond)), 2.0 * min(below, 1.0 - below)


def log_capital(x, mean, low, high):
    """(T, ...) logarithm of the capital of the gambler of `betting_bound` after each value."""
    z = (x - low) / (high - low)
    m = (mean - low) / (high - low)
    total = np.full(np.shape(x), -np.inf)
    for j in range(16):
        with np.errstate(divide="ignore"):  # a share that stakes everything may lose everything
            growth = np.cumsum(np.log1p(2.0**-j * (z / m - 1.0)), 0)
        total = np.logaddexp(total, growth - np.log((j + 1) * (j + 2)))
    return total
