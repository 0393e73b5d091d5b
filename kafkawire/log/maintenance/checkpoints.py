"""Checkpoints: the state of the partitions in SQL, which is never ahead of what is durable.

A checkpoint is taken in one step (log position and rows belong together), then waits until
everything before its log position is committed, then is stored in one transaction. Called by
kafkawire.log.manager (roll, timer, close), DeleteRecords and retention.

Followers and the remote tier may be away for hours. Except in a start, they are waited for with the
limit WAIT_S, and followers before the lock is taken, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.state import LoadedPartition
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.offsets.catalog.port import SegmentCatalog

ROWS_AT_ONCE = 2000
"""Partitions of one transaction: packing them takes some milliseconds on the event loop."""
WAIT_S = 10.0
"""How long followers and the remote tier are waited for: then produces are refused, too."""


class Checkpoints:
    """Stores checkpoints, one transaction at a time. `log_position` is the last one stored; `due`:
    store one even if nothing has changed. CommitLog.dirty has the changed partitions."""

    __slots__ = (
        "_commit_log",
        "_lock",
        "_node_id",
        "_partitions",
        "_released",
        "_storage",
        "_wait_s",
        "due",
        "log_position",
    )

    def __init__(
        self,
        storage: SegmentCatalog,
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
        # None: as long as it takes, while the broker starts.
        self._wait_s: float | None = None
        self.log_position = 0
        self.due = False

    def start(self, log_position: int, *, due: bool) -> None:
        self.log_position = log_position
        self.due = due

    def note_started(self) -> None:
        """Note that the start is complete: waits have a limit from now on."""
        self._wait_s = WAIT_S

    @asynccontextmanager
    async def hold_back(self) -> AsyncIterator[None]:
        """Hold back checkpoints; meanwhile everything that is not dirty is stored."""
        async with self._lock:
            yield

    async def save(self) -> None:
        """Store what has changed since the last checkpoint. Raises what the commit or SQL raises,
        and TimeoutError."""
        # Before the lock is taken, so that log starts need not wait for followers.
        if self._commit_log.follower_sink.began and not self._is_current():
            await self._wait_until_durable()
        async with self._lock:
            # Another caller may have stored it meanwhile.
            if self._is_current():
                return
            # In one step with the list of partitions: they belong together.
            log_position = self._commit_log.written
            dirty = self._commit_log.dirty
            changed, dirty[:] = dirty[:], []
            # Parts have the old log position: rows may be ahead of it, which recovery allows for.
            while len(changed) > ROWS_AT_ONCE:
                await self._save(changed, self.log_position)
            # The last part: everything before the new log position is stored now.
            await self._save(changed, log_position)
            self.log_position = log_position
            self.due = False
            self._commit_log.ledger.note_checkpoint()

    def _is_current(self) -> bool:
        log = self._commit_log
        return not (log.dirty or log.written != self.log_position or self.due)

    async def _wait_until_durable(self) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._commit_log.wait_until_durable()
        except TimeoutError:
            raise TimeoutError(
                f"followers, or the remote tier, did not get the log within {WAIT_S:g} s"
            ) from None

    async def _save(self, changed: list[LoadedPartition], log_position: int) -> None:
        """Take a part from the end of `changed` and store it; put all back if that fails."""
        part = [partition for partition in changed[-ROWS_AT_ONCE:] if not partition.removed]
        del changed[-ROWS_AT_ONCE:]
        # As of now; what changes from here on makes the partition dirty again.
        rows = [partition.snapshot() for partition in part]
        for partition in part:
            partition.dirty = False
            if partition.producers.states:
                self._commit_log.producing[partition] = None
        try:
            # SQL must not have what a crash can take.
            await self._wait_until_durable()
            await self._storage.save_checkpoint(Checkpoint(self._node_id, log_position, rows))
            self._commit_log.hooks.report_stored()
        except BaseException:
            for partition in part:
                partition.mark_dirty()
            self._commit_log.dirty.extend(changed)
            raise

    async def store_states(self, states: list[PartitionCheckpoint]) -> None:
        """Store states of partitions that are not in memory, under the last log position."""
        async with self._lock:
            await self._storage.save_checkpoint(
                Checkpoint(self._node_id, self.log_position, states)
            )

    async def move_log_starts(self, starts: Mapping[int, int]) -> None:
        """Move the log starts of some partitions (number -> offset): in SQL, then in memory.

        Log starts that would decrease, or of partitions that were removed, are not changed. Raises
        what the commit or SQL raises, and TimeoutError.
        """
        found = {number: self._partitions.get(number) for number in starts}
        disk = self._commit_log.disk_sink
        # Those with durability=local wait for the own disk only.
        waiting = {number for number, each in found.items() if each and each.sink is not disk}
        local = {number: start for number, start in starts.items() if number not in waiting}
        await self._move(local, disk.wait_until_durable)
        if waiting:
            # Before the lock, which followers may hold up for long.
            await self._wait_until_durable()
            await self._move(
                {number: starts[number] for number in waiting}, self._wait_until_durable
            )

    async def _move(
        self, starts: Mapping[int, int], committed: Callable[[], Awaitable[None]]
    ) -> None:
        """Move log starts once what their partitions have now is `committed`."""
        async with self._lock:
            moving = [
                (self._partitions[number], start)
                for number, start in starts.items()
                if number in self._partitions and start > self._partitions[number].log_start
            ]
            rows = []
            for partition, start in moving:
                row = partition.snapshot()
                # A snapshot with this one change; memory changes after SQL.
                row.log_start = start
                rows.append(row)
            if not rows:
                return
            await committed()
            try:
                # Under the last log position: the row may be ahead of it, which recovery allows
                # for.
                await self._storage.save_checkpoint(
                    Checkpoint(self._node_id, self.log_position, rows)
                )
            except BaseException:
                # It may have been committed all the same.
                self._commit_log.hooks.in_doubt()
                raise
            for partition, start in moving:
                if not partition.removed:
                    self._released(partition.start_at(start))
            self._commit_log.hooks.log_starts([partition.number for partition, _ in moving])
