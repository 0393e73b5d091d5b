"""Check whether records are in uploaded segments, so that another copy of them is not needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.log.io.slices import Slices
    from kafkawire.log.partition.loader import Loader
    from kafkawire.offsets.catalog.port import SegmentCatalog

SLICE = 256
"""Partitions checked per event-loop iteration: a fraction of a millisecond."""
ALL = -1
"""In place of an end offset: all that a partition has now."""


class UploadCheck:
    """Compares offsets of partitions, in memory or not, with what is uploaded of them."""

    __slots__ = ("_loader", "_slices", "_storage")

    def __init__(self, loader: Loader, storage: SegmentCatalog, slices: Slices) -> None:
        self._loader = loader
        self._storage = storage
        self._slices = slices

    async def cut_ends(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """Return the partitions with durability=replicated among these that are led here, each with
        the end offset of what was cut of it."""
        ends: list[tuple[int, int]] = []
        for at, number in enumerate(sorted(numbers)):
            config = self._loader.config_of(number)
            if config is not None and config.replicated:
                partition = self._loader.partitions.get(number)
                ends.append((number, ALL if partition is None else partition.cut_offset))
            if at % SLICE == SLICE - 1:
                await self._slices.pause()
        return ends

    async def is_uploaded(self, ends: Iterable[tuple[int, int]]) -> bool:
        """Return whether the records below these end offsets, by partition number, are uploaded,
        or are not needed because of the log start, or because their partition was deleted or has
        another leader. Raises what the storage raises."""
        unloaded: list[tuple[int, int]] = []
        for at, (number, end) in enumerate(ends):
            partition = self._loader.partitions.get(number)
            if partition is None:
                # Otherwise deleted, or led elsewhere: not needed here.
                if self._loader.config_of(number) is not None:
                    unloaded.append((number, end))
            else:
                # It was not in memory when the journal was checked, so what it had then is unknown.
                wanted = partition.next_offset if end == ALL else end
                if max(partition.commit_offset, partition.log_start) < wanted:
                    return False
            if at % SLICE == SLICE - 1:
                await self._slices.pause()
        return not unloaded or await self._is_uploaded_by_rows(unloaded)

    async def _is_uploaded_by_rows(self, unloaded: list[tuple[int, int]]) -> bool:
        rows = await self._storage.load_partitions([number for number, _ in unloaded])
        for row, (_, end) in zip(rows, unloaded, strict=True):
            state = row.checkpoint
            start, next_offset = (0, 0) if state is None else (state.log_start, state.next_offset)
            if max(row.commit_offset, start) < (next_offset if end == ALL else end):
                return False
        return True
