"""Compiled search: from some multisets to all that the pair (triple, ...) chain can reach."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True)
def _slot(table: Any, keys: Any, key: Any) -> Any:
    """Where `key` stands, or would stand, in the open-addressing `table` of indices into `keys`."""
    mask = table.size - 1
    place = (key * np.int64(-7046029254386353131)) >> 20 & mask
    while table[place] >= 0 and keys[table[place]] != key:
        place = (place + 1) & mask
    return place


@njit(cache=True)
def _grown(array: Any, size: int) -> Any:
    bigger = np.empty((size, *array.shape[1:]), array.dtype)
    bigger[: array.shape[0]] = array
    return bigger


@njit(cache=True)
def close_and_compile(
    seeds: Any, law_starts: Any, coefficients: Any, law_codes: Any, signature_keys: Any,
    signature_of: Any, num_states: int, n: int, max_entries: int,
) -> Any:  # fmt: skip
    """Close `seeds` (F, n) under one step and write the step as a sparse matrix.

    Multisets are sorted branch codes s * n + m - 1, padded with -1. Entry i of `law_codes` (L, n)
    and `coefficients` (L,) is one successor of the group of branches whose law it belongs to:
    group (s, signature) owns law_starts[s * num_signatures + signature] onwards, where the
    signature of multiplicities m_0 <= m_1 <= ... is found by its key sum_j m_j (n + 1)^j.

    Returns constant (N,), data, columns, starts (N + 1,) of the matrix, and the multisets (N, n);
    starts[-1] = -1 says that more than max_entries entries would be needed.
    """
    base = np.int64(num_states * n + 1)
    capacity = max(1024, 2 * len(seeds))
    found = np.full((capacity, n), -1, np.int64)
    keys = np.empty(capacity, np.int64)
    size = 4096
    while size < 4 * capacity:
        size *= 2
    table = np.full(size, -1, np.int64)
    constant = np.zeros(capacity)
    starts = np.zeros(capacity + 1, np.int64)
    total = np.empty(capacity)  # the row being written, per column
    row_of = np.full(capacity, -1, np.int64)  # which row wrote there last
    data, columns = np.empty(capacity * 8), np.empty(capacity * 8, np.int32)
    touched = np.empty(1024, np.int64)
    group_law, choice = np.empty(n, np.int64), np.empty(n, np.int64)
    prefix = np.ones(n + 1)
    codes = np.empty(n, np.int64)
    count, entries, row = 0, 0, 0

    for i in range(len(seeds)):
        key = np.int64(0)
        for j in range(n):
            key = key * base + seeds[i, j] + 1
        place = _slot(table, keys, key)
        if table[place] < 0:
            table[place], keys[count], found[count] = count, key, seeds[i]
            count += 1

    while row < count:
        groups, j = 0, 0  # the groups of branches that share a state, and their laws
        while j < n and found[row, j] >= 0:
            state, signature, scale = found[row, j] // n, 0, 1
            while j < n and found[row, j] >= 0 and found[row, j] // n == state:
                signature += (found[row, j] % n + 1) * scale
                scale *= n + 1
                j += 1
            known = signature_of[np.searchsorted(signature_keys, signature)]
            group_law[groups] = state * signature_keys.size + known
            choice[groups] = law_starts[group_law[groups]]
            groups += 1

        width, level = 0, 0  # all combinations of one outcome per group, depth first
        while level >= 0:
            if choice[level] == law_starts[group_law[level] + 1]:
                level -= 1
                if level >= 0:
                    choice[level] += 1
                continue
            prefix[level + 1] = prefix[level] * coefficients[choice[level]]
            if level + 1 < groups:
                level += 1
                choice[level] = law_starts[group_law[level]]
                continue
            length = 0
            for g in range(groups):
                for j in range(n):
                    code = law_codes[choice[g], j]
                    if code < 0:
                        break
                    place = length
                    while place > 0 and codes[place - 1] > code:
                        codes[place] = codes[place - 1]
                        place -= 1
                    codes[place] = code
                    length += 1
            if length == 0:
                constant[row] += prefix[groups]
            else:
                key = np.int64(0)
                for j in range(n):
                    key = key * base + (codes[j] + 1 if j < length else 0)
                place = _slot(table, keys, key)
                if table[place] < 0:
                    if count == capacity:
                        capacity *= 2
                        found, keys = _grown(found, capacity), _grown(keys, capacity)
                        constant, total = _grown(constant, capacity), _grown(total, capacity)
                        row_of = _grown(row_of, capacity)
                        starts = _grown(starts, capacity + 1)
                        constant[count:] = 0.0
                        row_of[count:] = -1
                        while size < 4 * capacity:
                            size *= 2
                        table = np.full(size, -1, np.int64)
                        for i in range(count):
                            table[_slot(table, keys, keys[i])] = i
                        place = _slot(table, keys, key)
                    table[place], keys[count] = count, key
                    for j in range(n):
                        found[count, j] = codes[j] if j < length else -1
                    count += 1
                column = table[place]
                if row_of[column] != row:
                    row_of[column], total[column] = row, 0.0
                    if width == touched.size:
                        touched = _grown(touched, 2 * width)
                    touched[width] = column
                    width += 1
                total[column] += prefix[groups]
            choice[level] += 1

        if entries + width > max_entries:
            starts[count] = -1
            break
        if entries + width > data.size:
            size_now = min(max(2 * data.size, entries + width), max_entries)
            data, columns = _grown(data, size_now), _grown(columns, size_now)
        for j in range(width):
            data[entries], columns[entries] = total[touched[j]], touched[j]
            entries += 1
        row += 1
        starts[row] = entries
    return constant[:count], data[:entries], columns[:entries], starts[: count + 1], found[:count]
