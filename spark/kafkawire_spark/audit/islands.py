"""Offsets as islands: runs of consecutive offsets of one partition. Pure.

A file that was written in order has one island per partition and gap, whatever the number of rows,
so the results of tasks are small. Arrays are numpy arrays; all arrays of an `Islands` have the same
length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]


class Islands(NamedTuple):
    """Offsets [base[i], end[i]) of partition[i], in the order they were read."""

    partition: Longs
    base: Longs
    end: Longs


NONE = Islands(*(np.empty(0, np.int64) for _ in range(3)))


def islands(partition: Longs, offset: Longs) -> Islands:
    """Return the islands of rows (partition[i], offset[i]). Rows that are not ascending are sorted
    first, which gives fewer islands. Every duplicate of an offset begins an island, so that none is
    lost."""
    if not len(offset):
        return NONE
    falls = (partition[1:] == partition[:-1]) & (offset[1:] < offset[:-1])
    if falls.any() or (partition[1:] < partition[:-1]).any():
        order = np.lexsort((offset, partition))
        partition, offset = partition[order], offset[order]
    goes_on = (partition[1:] == partition[:-1]) & (offset[1:] == offset[:-1] + 1)
    first = np.flatnonzero(np.concatenate(([True], ~goes_on)))
    last = np.append(first[1:], len(offset)) - 1
    return Islands(partition[first], offset[first], offset[last] + 1)


def outside(found: Islands, base: int, end: int) -> Islands:
    """Return the parts of islands below `base` and from `end` on."""
    below = Islands(found.partition, found.base, np.minimum(found.end, base))
    above = Islands(found.partition, np.maximum(found.base, end), found.end)
    return join([keep(below, below.base < below.end), keep(above, above.base < above.end)])


def keep(found: Islands, wanted: NDArray[np.bool_]) -> Islands:
    """Return the islands for which `wanted` is true."""
    return Islands(*(column[wanted] for column in found))


def join(many: list[Islands]) -> Islands:
    """Concatenate islands."""
    return Islands(*(np.concatenate(columns) for columns in zip(*many, strict=True)))


def between(base: Longs, end: Longs, boundaries: Longs) -> Longs:
    """Count how many offsets of the ascending, disjoint islands [base[i], end[i]) are in each
    [borders[i], borders[i + 1])."""
    sums = np.concatenate(([0], np.cumsum(end - base)))
    begun = np.searchsorted(base, boundaries, "left")  # islands that begin below a border
    below = sums[begun]
    some = begun > 0
    below[some] -= np.maximum(0, end[begun[some] - 1] - boundaries[some])
    return np.diff(below).astype(np.int64)
