"""Offsets as islands: runs of consecutive offsets of one partition. Pure.

A file of a table that was written in order gives one island for each partition and gap, whatever
the number of rows, so what tasks hand on is small. Arrays are numpy's; all of an `Islands` have
one length.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]


class Islands(NamedTuple):
    """Offsets [base[i], end[i]) of partition[i], each island one after the other as read."""

    partition: Longs
    base: Longs
    end: Longs


NONE = Islands(*(np.empty(0, np.int64) for _ in range(3)))


def islands(partition: Longs, offset: Longs) -> Islands:
    """The islands of rows (partition[i], offset[i]). Rows that do not rise are sorted first: the
    order of rows is not what is proven, and sorted ones make fewer islands. An offset that comes
    twice begins an island each time, so that none is lost."""
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
    """The parts of islands below `base` and from `end` on."""
    below = Islands(found.partition, found.base, np.minimum(found.end, base))
    above = Islands(found.partition, np.maximum(found.base, end), found.end)
    return join([keep(below, below.base < below.end), keep(above, above.base < above.end)])


def keep(found: Islands, wanted: NDArray[np.bool_]) -> Islands:
    """Those for which `wanted` is true."""
    return Islands(*(column[wanted] for column in found))


def join(many: list[Islands]) -> Islands:
    """Concatenate islands."""
    return Islands(*(np.concatenate(columns) for columns in zip(*many, strict=True)))


def between(base: Longs, end: Longs, borders: Longs) -> Longs:
    """Count how many offsets of islands [base[i], end[i]), rising and apart from each other, lie in
    each [borders[i], borders[i + 1]); borders rise."""
    sums = np.concatenate(([0], np.cumsum(end - base)))
    begun = np.searchsorted(base, borders, "left")  # islands that begin below a border
    below = sums[begun]
    some = begun > 0
    below[some] -= np.maximum(0, end[begun[some] - 1] - borders[some])
    return np.diff(below).astype(np.int64)
