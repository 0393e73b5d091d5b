"""Checkpoints: what SQL knows of the partitions, and never more than is durable.

A checkpoint is taken in one step (place and rows belong together), then waits until everything
before its place is committed, then becomes one transaction. A log start that moves is stored the
same way, but under the place of the last full checkpoint: its row may be ahead of the place, which
recovery allows for. Called by log.manager (roll, timer, close), DeleteRecords and retention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from kafkawire.metadata.checkpoint import Checkpoint
from log.commitlog import CommitLog
from log.partition import Partition
from offsets.storage import OffsetStorage


class Checkpoints:
    """The last place stored is `place`. One transaction at a time."""

    __slots__ = (
        "_commit_log",
        "_lock",
        "_node_id",
        "_partitions",
        "_released",
        "_storage",
        "place",
    )

    def __init__(
        self,
        storage: OffsetStorage,
        node_id: int,
        commit_log: CommitLog,
        partitions: Mapping[int, Partition],
        released: Callable[[list[int]], None],
    ) -> None:
        self._storage = storage
        self._node_id = node_id
        self._commit_log = commit_log
        self._partitions = partitions
        self._released = released
        self._lock = asyncio.Lock()
        self.place = 0

    async def save(self) -> None:
        """Store what has changed since the last one. Raises what the commit or SQL raises."""
        async with self._lock:
            place = self._commit_log.written
            changed = [partition for partition in self._partitions.values() if partition.dirty]
            if not changed and place == self.place:
                return
            rows = [partition.snapshot() for partition in changed]
            for partition in changed:
                partition.dirty = False
            try:
                await self._commit_log.commits.durable()
                await self._storage.save_checkpoint(Checkpoint(self._node_id, place, rows))
            except BaseException:
                for partition in changed:
                    partition.dirty = True
                raise
            self.place = place

    async def move_log_starts(self, starts: Mapping[int, int]) -> None:
        """Move the log starts of some partitions (number -> offset): in SQL, then here.

        Starts that would go back, or of partitions that are gone, are left alone.
        """
        async with self._lock:
            moving = [
                (self._partitions[number], start)
                for number, start in starts.items()
                if number in self._partitions and start > self._partitions[number].log_start
            ]
            rows = []
            for partition, start in moving:
                row = partition.snapshot()
                row.log_start = start
                rows.append(row)
            if not rows:
                return
            await self._commit_log.commits.durable()
            await self._storage.save_checkpoint(Checkpoint(self._node_id, self.place, rows))
            for partition, start in moving:
                if not partition.removed:
                    self._released(partition.start_at(start))
