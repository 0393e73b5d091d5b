"""The contents of a bucket, for readers of its records.

The rule for readers: each offset of a partition in [log start, end) is read from the object with
the highest generation. Pure.
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
    """The offsets [base, end) of a partition are read from `entry` of `object`, rows of
    `Manifest.entries` and `Manifest.objects`. There may be gaps within (compaction)."""

    base: int
    end: int
    object: int
    entry: int


Rank = tuple[int, int, int]
"""Generation, creation time, row: of two entries with the same offsets the greater is used."""


class Manifest:
    """The contents of a snapshot, with lookups. The first call of `spans` sorts all entries: half a
    second for a million."""

    def __init__(self, state: Snapshot) -> None:
        self.state = state

    @property
    def sequence(self) -> int:
        return self.state.sequence

    @property
    def cluster(self) -> ClusterFacts:
        """The facts of the cluster that belong to no topic."""
        return self.state.cluster or ClusterFacts()

    @cached_property
    def topics(self) -> dict[str, ManifestTopic]:
        return {topic.name: topic for topic in self.state.topics}

    @property
    def objects(self) -> ObjectColumns:
        """All objects except deleted ones."""
        return self.state.objects

    @property
    def entries(self) -> EntryColumns:
        return self.state.entries

    @property
    def deleted(self) -> dict[bytes, int]:
        """Objects that are deleted or soon will be: uuid -> time (ms) until which they are kept."""
        return self.state.deleted

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The partitions with uploads, ascending."""
        return self.state.partitions.number

    def get_partition(self, number: int) -> ManifestPartition | None:
        """Return one partition; None if it has no uploads or does not exist."""
        row = self._partition_rows.get(number)
        return None if row is None else self.state.partitions[row]

    def object_entries(self, row: int) -> list[Entry]:
        return [self.entries[at] for at in range(self._firsts[row], self._firsts[row + 1])]

    def entries_of(self, number: int) -> Sequence[int]:
        """Return the rows of all entries of a partition, in any order."""
        start, stop = self._ranges.get(number, (0, 0))
        return self._order[start:stop]

    def object_of(self, entry: int) -> int:
        return bisect_right(self._firsts, entry) - 1

    def find_object(self, uuid: bytes) -> ManifestObject | None:
        """Return an object by its uuid, unless deleted or unknown."""
        row = self._object_rows.get(uuid)
        return None if row is None else self.objects[row]

    def spans(self, number: int, upto: int | None = None) -> list[Span]:
        """Return the location of a partition's offsets, ascending, each once. Offsets between two
        spans, or between the last one and the partition's end, are in no object of the bucket.
        `upto`: the end of a partition of which other manifests name objects, too."""
        row = self._partition_rows.get(number)
        if row is None:
            return []
        _, log_start, end, _ = self.state.partitions[row]
        end = end if upto is None else upto
        bases, ends = self.entries.base_offset, self.entries.end_offset
        rows = [
            (max(bases[at], log_start), min(ends[at], end), at) for at in self.entries_of(number)
        ]
        rows = sorted(each for each in rows if each[0] < each[1])
        # The usual case. They overlap only while a rewritten segment and its inputs both exist.
        if all(one[1] <= two[0] for one, two in pairwise(rows)):
            return [Span(base, last, self.object_of(at), at) for base, last, at in rows]
        return self._resolve(rows)

    def _resolve(self, rows: list[tuple[int, int, int]]) -> list[Span]:
        """Resolve overlapping entries to (base, end, entry), ascending. Between two adjacent
        boundaries the entry with the highest rank is used."""
        borders = sorted({row[0] for row in rows} | {row[1] for row in rows})
        spans: list[Span] = []
        opened: list[tuple[Rank, int, Span]] = []
        following = 0
        for left, right in pairwise(borders):
            while following < len(rows) and rows[following][0] <= left:
                base, end, entry = rows[following]
                owner = self.object_of(entry)
                # A heap returns the smallest first. Of one generation the later upload is used, so
                # that all readers read the same object.
                rank = -self.objects.generation[owner], -self.objects.created_ms[owner], -owner
                heappush(opened, (rank, entry, Span(base, end, owner, entry)))
                following += 1
            # Others that have ended stay below the first, and are removed when they become it.
            while opened and opened[0][2].end <= left:
                heappop(opened)
            if not opened:
                continue
            best = opened[0][2]
            last = spans[-1] if spans else None
            # A boundary of an entry that is not read splits no span.
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
        """Entry numbers sorted by partition."""
        numbers = self.entries.number
        return array("Q", sorted(range(len(numbers)), key=numbers.__getitem__))

    @cached_property
    def _ranges(self) -> dict[int, tuple[int, int]]:
        """Partition -> range of its entries in `_order`."""
        ranges: dict[int, tuple[int, int]] = {}
        numbers, order = self.entries.number, self._order
        start = 0
        for at in range(1, len(order) + 1):
            if at == len(order) or numbers[order[at]] != numbers[order[start]]:
                ranges[numbers[order[start]]] = start, at
                start = at
        return ranges
