"""Manifest: what is in a bucket, for readers that read records from it.

The one rule for readers: for each offset of a partition in [log start, end) the entry of the object
with the highest generation holds (a rewritten segment is there next to what it replaces, for a
while). Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from kafkawire.manifest.columns import (
    Entry,
    EntryColumns,
    ManifestObject,
    ManifestPartition,
    ObjectColumns,
)
from kafkawire.manifest.format import first_entries
from kafkawire.manifest.state import ClusterFacts, ManifestTopic, Snapshot


class Span(NamedTuple):
    """The offsets [base, end) of a partition are to be read from `entry` of `object`, rows of
    `Manifest.entries` and `Manifest.objects`. There may be gaps within (compaction)."""

    base: int
    end: int
    object: int
    entry: int


Rank = tuple[int, int, int]
"""Generation, time of writing, row: of two entries with the same offsets the greater holds."""


class Manifest:
    """The contents of a snapshot, with lookups. `spans` first sorts all entries: half
    a second for a million."""

    def __init__(self, state: Snapshot) -> None:
        self.state = state

    @property
    def sequence(self) -> int:
        """The last delta that is in it."""
        return self.state.sequence

    @property
    def cluster(self) -> ClusterFacts:
        """The facts of the cluster that belong to no topic."""
        return self.state.cluster or ClusterFacts()

    @cached_property
    def topics(self) -> dict[str, ManifestTopic]:
        """Topics by name."""
        return {topic.name: topic for topic in self.state.topics}

    @property
    def objects(self) -> ObjectColumns:
        """All objects that are not deleted."""
        return self.state.objects

    @property
    def entries(self) -> EntryColumns:
        """The entries of all objects: which offsets each holds."""
        return self.state.entries

    @property
    def deleted(self) -> dict[bytes, int]:
        """Objects that are or soon will be gone: uuid -> until when (ms) they stay."""
        return self.state.deleted

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The partitions of which something was ever uploaded, rising."""
        return self.state.partitions.number

    def partition(self, number: int) -> ManifestPartition | None:
        """One partition; None: nothing of it was ever uploaded, or there is no such."""
        row = self._partition_rows.get(number)
        return None if row is None else self.state.partitions[row]

    def object_entries(self, row: int) -> list[Entry]:
        """The entries of one object."""
        return [self.entries[at] for at in range(self._firsts[row], self._firsts[row + 1])]

    def object_of(self, entry: int) -> int:
        """The object an entry belongs to."""
        return bisect_right(self._firsts, entry) - 1

    def find_object(self, uuid: bytes) -> ManifestObject | None:
        """One object by its uuid, if it is there and not deleted."""
        row = self._object_rows.get(uuid)
        return None if row is None else self.objects[row]

    def spans(self, number: int) -> list[Span]:
        """Where the offsets of a partition lie, rising, each once. Offsets between two of them, or
        between the last one and the partition's end, are in no object of the bucket."""
        row = self._partition_rows.get(number)
        if row is None:
            return []
        _, log_start, end, _ = self.state.partitions[row]
        start, stop = self._ranges.get(number, (0, 0))
        bases, ends = self.entries.base_offset, self.entries.end_offset
        rows = [
            (max(bases[at], log_start), min(ends[at], end), at) for at in self._order[start:stop]
        ]
        rows = sorted(each for each in rows if each[0] < each[1])
        if all(one[1] <= two[0] for one, two in pairwise(rows)):
            return [Span(base, last, self.object_of(at), at) for base, last, at in rows]
        return self._resolve(rows)

    def _resolve(self, rows: list[tuple[int, int, int]]) -> list[Span]:
        """Spans of entries that overlap: (base, end, entry) each, rising. Between two neighbouring
        borders the entry with the greatest rank of those that are open there holds."""
        borders = sorted({row[0] for row in rows} | {row[1] for row in rows})
        spans: list[Span] = []
        opened: list[tuple[Rank, int, Span]] = []
        following = 0
        for left, right in pairwise(borders):
            while following < len(rows) and rows[following][0] <= left:
                base, end, entry = rows[following]
                owner = self.object_of(entry)
                # A heap gives the least first.
                rank = -self.objects.generation[owner], -self.objects.created_ms[owner], -owner
                heappush(opened, (rank, entry, Span(base, end, owner, entry)))
                following += 1
            while opened and opened[0][2].end <= left:
                heappop(opened)
            if not opened:
                continue
            best = opened[0][2]
            last = spans[-1] if spans else None
            if last is not None and last.entry == best.entry and last.end == left:
                spans[-1] = last._replace(end=right)
            else:
                spans.append(best._replace(base=left, end=right))
        return spans

    @cached_property
    def _firsts(self) -> array[int]:
        return first_entries(self.objects)

    @cached_property
    def _partition_rows(self) -> dict[int, int]:
        return {number: row for row, number in enumerate(self.state.partitions.number)}

    @cached_property
    def _object_rows(self) -> dict[bytes, int]:
        return {self.objects.uuid(row): row for row in range(len(self.objects))}

    @cached_property
    def _order(self) -> array[int]:
        """Entries by partition."""
        numbers = self.entries.number
        return array("Q", sorted(range(len(numbers)), key=numbers.__getitem__))

    @cached_property
    def _ranges(self) -> dict[int, tuple[int, int]]:
        """Partition -> where in `_order` its entries are."""
        ranges: dict[int, tuple[int, int]] = {}
        numbers, order = self.entries.number, self._order
        start = 0
        for at in range(1, len(order) + 1):
            if at == len(order) or numbers[order[at]] != numbers[order[start]]:
                ranges[numbers[order[start]]] = start, at
                start = at
        return ranges
