"""The upload progress of a partition: its dispatch and commit offsets.

Both are ends of a contiguous range from the log start. Every segment below the commit offset has a
finished object; every segment below the dispatch offset has a finished or started one. They are
computed from rows, in memory or SQL, and never decrease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kafkawire.log.io.ports import Env
from kafkawire.log.partition.partition import Partition
from kafkawire.offsets.catalog.port import PartitionRow, SegmentCatalog

Has = Callable[[int], bool]
"""Returns whether the segment of this id meets the condition."""

PAGE = 500
"""Partitions read from SQL at a time, and checked per event-loop iteration."""


def stretch(rows: Iterable[tuple[int, int, int]], start: int, has: Has) -> int:
    """Return the end of the contiguous range from `start`; `rows` are (base, end, segment id) in
    offset order, contiguous, from the one that covers `start` on."""
    for _, end, segment_id in rows:
        if not has(segment_id):
            break
        start = max(start, end)
    return start


class UploadProgress:
    """The dispatch and commit offsets of partitions. `partitions` are those in memory; others are
    read from SQL."""

    def __init__(
        self,
        env: Env,
        partitions: Mapping[int, Partition],
        storage: SegmentCatalog,
        led_elsewhere: Callable[[int], bool],
    ) -> None:
        self._led_elsewhere = led_elsewhere
        self._env = env
        self._partitions = partitions
        self._storage = storage

    async def find_commit_offsets(self, numbers: Iterable[int], has: Has) -> dict[int, int]:
        """Return commit offsets that can rise, if the segments that `has` accepts are finished."""
        return await self._ends(numbers, has, dispatch=False)

    async def find_dispatch_offsets(self, numbers: Iterable[int], has: Has) -> dict[int, int]:
        return await self._ends(numbers, has, dispatch=True)

    def raise_dispatch(self, offsets: Mapping[int, int]) -> None:
        for number, offset in offsets.items():
            partition = self._partitions.get(number)
            if partition is not None:
                partition.dispatch_offset = max(partition.dispatch_offset, offset)

    def raise_commit(self, offsets: Mapping[int, int]) -> None:
        for number, offset in offsets.items():
            partition = self._partitions.get(number)
            if partition is not None:
                partition.commit_offset = max(partition.commit_offset, offset)
                # Never below the commit offset, e.g. after uploads by another broker.
                partition.dispatch_offset = max(partition.dispatch_offset, offset)

    async def _ends(self, numbers: Iterable[int], has: Has, *, dispatch: bool) -> dict[int, int]:
        found: dict[int, int] = {}
        # A segment may have parts of partitions that another broker leads by now, which raises
        # their offsets.
        wanted = [each for each in sorted(set(numbers)) if not self._led_elsewhere(each)]
        for at in range(0, len(wanted), PAGE):
            part = wanted[at : at + PAGE]
            stored = [number for number in part if number not in self._partitions]
            rows = await self._storage.load_partitions(stored) if stored else []
            for row in rows:
                _note(found, row.number, *_find_end_of_stored(row, has, dispatch))
            for number in part:
                partition = self._partitions.get(number)
                if partition is not None:
                    _note(found, number, *_find_end_of_loaded(partition, has, dispatch))
            await self._env.slices.pause()
        return found


def _note(found: dict[int, int], number: int, before: int, after: int) -> None:
    if after > before:
        found[number] = after


def _find_end_of_loaded(partition: Partition, has: Has, dispatch: bool) -> tuple[int, int]:
    before = partition.dispatch_offset if dispatch else partition.commit_offset
    start = max(before, partition.log_start)
    rows = partition.segments
    at = rows.find(start)
    columns = zip(rows.base[at:], rows.end[at:], rows.segment[at:], strict=True)
    return before, stretch(columns, start, has)


def _find_end_of_stored(row: PartitionRow, has: Has, dispatch: bool) -> tuple[int, int]:
    before = row.dispatch_offset if dispatch else row.commit_offset
    log_start = row.checkpoint.log_start if row.checkpoint is not None else 0
    start = max(before, log_start)
    ahead: Sequence[tuple[int, int, int]] = [
        (each.base_offset, each.end_offset, each.segment_id)
        for each in row.mappings
        if each.end_offset > start
    ]
    return before, stretch(ahead, start, has)
