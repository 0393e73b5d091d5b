"""Runs of offsets with equal values, without holes. Pure.

The records that a member acquires, and acknowledges, are usually whole batches: a run for each is a
hundred times less than an object for each record. A run is split where a value changes inside of
it, and joined to neighbours with an equal value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")


class OffsetRun(NamedTuple, Generic[V]):
    """The offsets `first` to `last`, both included, with one value."""

    first: int
    last: int
    value: V

    @property
    def length(self) -> int:
        return self.last - self.first + 1


class Runs(Generic[V]):
    """Values of the offsets from `start` to before `end`. Values are compared with `==`."""

    __slots__ = ("_firsts", "_values", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self._firsts: list[int] = []  # rising; the first is `start`
        self._values: list[V] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[OffsetRun[V]]:
        """Yield all runs. Nothing may be changed meanwhile."""
        firsts, end = self._firsts, self.end
        for at, value in enumerate(self._values):
            last = firsts[at + 1] if at + 1 < len(firsts) else end
            yield OffsetRun(firsts[at], last - 1, value)

    def within(self, first: int, last: int) -> list[OffsetRun[V]]:
        """Return the runs of these offsets, cut to them; offsets outside of all are ignored."""
        first, last = max(first, self.start), min(last, self.end - 1)
        found: list[OffsetRun[V]] = []
        if first > last:
            return found
        firsts, values = self._firsts, self._values
        at = bisect_right(firsts, first) - 1
        while at < len(firsts) and firsts[at] <= last:
            stop = firsts[at + 1] if at + 1 < len(firsts) else self.end
            found.append(OffsetRun(max(first, firsts[at]), min(last, stop - 1), values[at]))
            at += 1
        return found

    def replace(self, runs: list[OffsetRun[V]]) -> None:
        """Set the values of these runs, each of which begins where the one before it ends; the
        first begins inside of those that are there, or directly after them."""
        first, last = runs[0].first, runs[-1].last
        assert self.start <= first <= self.end, "runs have no holes"
        begin = self._split(first)
        if last + 1 >= self.end:
            self.end, stop = last + 1, len(self._firsts)
        else:
            stop = self._split(last + 1)
        firsts: list[int] = []
        values: list[V] = []
        if begin:  # the one before it may be joined
            begin -= 1
            firsts.append(self._firsts[begin])
            values.append(self._values[begin])
        for run in runs:
            if not values or values[-1] != run.value:
                firsts.append(run.first)
                values.append(run.value)
        if stop < len(self._firsts) and self._values[stop] == values[-1]:
            stop += 1
        self._firsts[begin:stop] = firsts
        self._values[begin:stop] = values

    def _split(self, offset: int) -> int:
        """Return the position of the run that begins at `offset`, after splitting one if needed."""
        if offset == self.end:
            return len(self._firsts)
        at = bisect_right(self._firsts, offset) - 1
        if self._firsts[at] == offset:
            return at
        self._firsts.insert(at + 1, offset)
        self._values.insert(at + 1, self._values[at])
        return at + 1

    def trim(self, start: int) -> None:
        """Remove the offsets below `start`, which may be after the end."""
        if start >= self.end:
            self._firsts.clear()
            self._values.clear()
            self.end = max(start, self.end)
        elif start > self.start:
            at = self._split(start)
            del self._firsts[:at], self._values[:at]
        self.start = max(start, self.start)
