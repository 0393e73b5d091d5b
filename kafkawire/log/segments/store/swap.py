"""Swaps of segments: new segments replace journal rows, or other segments, in SQL and in memory.

`version` rises with every swap: rows that were read from SQL during one must be read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import Made, unpack
from kafkawire.log.partition import truncate
from kafkawire.log.partition.hooks import Hooks
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.stored_rows import RowVersion
from kafkawire.log.segments.store.delete_delay import FileDelays
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.offsets.catalog.port import (
    LIVE,
    NEVER,
    SegmentCatalog,
    SegmentRange,
    SegmentRow,
    StaleSwap,
    Swap,
    range_of,
)

logger = logging.getLogger(__name__)

SLICE = 64
"""Partitions changed per event-loop iteration: half a millisecond."""


def due_ms(config: TopicConfig, max_timestamp: int) -> int:
    """Return when retention should check a mapping whose newest record has this timestamp."""
    # Retention by time does not apply, or the times are not known.
    if not config.cleanup_delete or config.retention_ms < 0 or max_timestamp < 0:
        return NEVER
    return min(NEVER, max_timestamp + config.retention_ms)


class Swapper:
    """Replaces segments in rows and in memory."""

    __slots__ = (
        "_answers",
        "_doubts",
        "_env",
        "_hooks",
        "_lock",
        "_partitions",
        "_released",
        "_rows",
        "_storage",
        "_store",
        "delays",
    )

    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        store: SegmentStore,
        partitions: Mapping[int, Partition],
        released: Callable[[list[int]], None],
        delays: FileDelays,
        hooks: Hooks,
        rows: RowVersion,
    ) -> None:
        self._env = env
        self._storage = storage
        self._store = store
        self._partitions = partitions
        self._released = released
        # Swaps of which it is unknown whether they were committed.
        self._doubts: list[Swap] = []
        # One swap at a time; `_answers` orders the application of rows of SQL.
        self._lock = asyncio.Lock()
        self._answers = asyncio.Lock()
        self.delays = delays
        self._hooks = hooks
        self._rows = rows

    @property
    def version(self) -> int:
        """A count that rises with every swap."""
        return self._rows.number

    async def add(
        self,
        finished: list[tuple[SegmentRow, list[SegmentRange]]],
        since: float | None = None,
        partitions: Collection[Partition] = (),
    ) -> None:
        """Add segments cut from the journals of `partitions` after the existing ones, without those
        that were resigned since the cut was planned; `since`: see Segment."""
        await self._swap(Swap(finished), since, partitions)

    async def replace(
        self, finished: list[tuple[SegmentRow, list[SegmentRange]]], removed: Sequence[SegmentRange]
    ) -> None:
        """Replace segments by new ones: `removed` are the mappings that are replaced.

        StaleSwap if these have changed since they were read, or one of the partitions is being
        handed over; then the files can be discarded.
        """
        assert finished, "a swap without a new segment cannot be distinguished from none"
        own_ms = await self.delays.own_ms({mapping.number for mapping in removed})
        after_ms = self._env.clock.now_ms() + self.delays.stored_ms(own_ms)
        await self._swap(Swap(finished, list(removed), delete_after_ms=after_ms))
        gone = {mapping.segment_id for mapping in removed}
        found = [segment.row for each in gone if (segment := self._store.by_id.get(each))]
        self.delays.apply_to_dead_segments(found, own_ms)

    async def _swap(
        self, swap: Swap, since: float | None = None, partitions: Collection[Partition] = ()
    ) -> None:
        async with self._lock:
            # A swap whose outcome is unknown may have replaced the same rows.
            await self._settle()
            # Under the lock: the hand-over takes it after it has closed its partitions, and then
            # waits for the uploads of all that it finds. The next leader could not read a segment
            # that comes later.
            if self.any_handed_over({mapping.number for mapping in swap.removed}):
                raise StaleSwap("a partition is being handed over to another broker")
            # Another broker leads them since the cut was planned: their rows are its.
            if resigned := {each.number for each in partitions if each.resigned}:
                swap.finished[:] = [
                    (row, [mapping for mapping in mappings if mapping.number not in resigned])
                    for row, mappings in swap.finished
                ]
            try:
                # The transaction comes first. A crash after it shows the new segments at the next
                # start; one before it leaves STARTED rows, whose files that start removes.
                await self._storage.finish_segments(swap)
            # The transaction was rolled back: nothing is in doubt.
            except StaleSwap:
                raise
            except BaseException:
                # It may have been committed all the same; `_settle` finds out by the rows.
                self._hooks.in_doubt()
                self._doubts.append(swap)
                raise
            try:
                await self._show(swap, since)
            except BaseException:  # cancelled: no caller has the result
                self._hooks.in_doubt()
                raise

    def any_handed_over(self, numbers: Iterable[int]) -> bool:
        """Return whether one of these partitions is closed until its leader changes
        (kafkawire.log.handover). Of those that have changed, the storage refuses a swap itself."""
        found = (self._partitions.get(number) for number in numbers)
        return any(each is not None and each.closed and not each.removed for each in found)

    @asynccontextmanager
    async def hold_back(self) -> AsyncIterator[None]:
        async with self._lock:
            yield

    @property
    def quiet(self) -> bool:
        """Return whether SQL, memory and the listeners agree on swaps."""
        return not self._lock.locked() and not self._doubts

    def in_doubt(self, row: SegmentRow) -> bool:
        """Return whether the outcome of the swap that finishes this segment is unknown;
        `check_unknown_outcomes` finds it out, and discards the file if it was not committed."""
        return any(each is row for swap in self._doubts for each, _ in swap.finished)

    async def check_unknown_outcomes(self) -> None:
        """Check whether swaps with an unknown outcome were committed, and apply those that were."""
        async with self._lock:
            await self._settle()

    async def _settle(self) -> None:
        while self._doubts:
            swap = self._doubts[0]
            rows = [row for row, _ in swap.finished]
            # Raises if the database cannot be read: then the doubt stays.
            found = await self._storage.segments_by_id([row.id for row in rows])
            del self._doubts[0]
            # One transaction: all are LIVE, or none.
            if found and all(row.state >= LIVE for row in found):
                await self._show(swap)
            else:
                # Not committed: the files are not referred to.
                await self._store.discard([Segment(row, self._store.folder) for row in rows])

    async def _show(self, swap: Swap, since: float | None = None) -> None:
        """Apply a swap that is in SQL, so that readers see it."""
        # Rows that were read from SQL before are read again.
        self._rows.note_replacement()
        added: dict[int, list[SegmentRange]] = {}
        removed: dict[int, list[SegmentRange]] = {}
        for row, mappings in swap.finished:
            row.state = LIVE
            row.live_bytes = sum(mapping.length for mapping in mappings)
            segment = self._store.add(row)
            # New for the local manifest.
            segment.listed = False
            segment.payload_bytes, segment.since = row.live_bytes, since
            for mapping in mappings:
                added.setdefault(mapping.number, []).append(mapping)
        # In memory each partition changes in one step, so that a reader finds each batch in exactly
        # one segment or journal.
        for mapping in swap.removed:
            removed.setdefault(mapping.number, []).append(mapping)
        for at, number in enumerate(sorted(added.keys() | removed.keys())):
            partition = self._partitions.get(number)
            if partition is not None:
                new = sorted(added.get(number, ()), key=lambda mapping: mapping.base_offset)
                self._change(partition, new, removed.get(number))
            # Between partitions the event loop runs; within one nothing is awaited.
            if at % SLICE == SLICE - 1:
                await self._env.slices.pause()
        made = {row.id for row, _ in swap.finished}
        try:
            # Replaced segments without other mappings are dead by now: their files go after their
            # delay, since a reader may have begun before.
            await self.refresh(made | {mapping.segment_id for mapping in swap.removed})
        except Exception as failure:
            # The swap is done, and its caller must not undo it. The states of the other segments
            # are read when dead files are deleted.
            logger.warning(
                "cannot read the state of replaced segments, retrying later: %s", failure
            )
            self._hooks.in_doubt()
            self._hooks.segments(made)

    def _change(
        self, partition: Partition, added: list[SegmentRange], removed: list[SegmentRange] | None
    ) -> None:
        if removed is None:
            # Journals in which nothing of the partition is left may be recycled.
            self._released(truncate.cut(partition, added))
        else:
            truncate.replace(partition, added, removed)
        if added and added[0].end_offset <= partition.log_start:
            # The log start moved past a row during the swap: the row is deleted later.
            partition.log.trimmed[partition.number] = partition.log_start

    async def refresh(self, ids: set[int]) -> None:
        """Apply the current states of these segments."""
        if ids:
            await self.update(lambda: self._storage.segments_by_id(sorted(ids)))

    async def update(self, call: Callable[[], Awaitable[list[SegmentRow]]]) -> list[SegmentRow]:
        """Apply the states of segments that a call of the storage returns."""
        # One call at a time: no older result is applied after a newer one.
        async with self._answers:
            rows = await call()
            self.apply_states(rows)
            return rows

    def apply_states(self, rows: Sequence[SegmentRow]) -> None:
        """Apply the states of segments in SQL; those without mappings wait for their deletion."""
        others = self._store.others
        for row in rows:
            segment = self._store.by_id.get(row.id)
            if segment is not None:
                segment.row = row
                segment.has_file |= row.local
            elif row.id in others:  # its file is removed by the broker that wrote it
                self._store.renew_other(row.id, row)
        self._store.schedule_removal(row.id for row in rows if row.state > LIVE)
        own = [row.id for row in rows if row.id in self._store.by_id]
        if own:
            self._hooks.segments(own)


async def mappings_of(
    env: Env, made: Made, row: SegmentRow, partitions: Mapping[int, Partition]
) -> list[SegmentRange]:
    """Return the mappings into a segment that was written, and complete its row. In slices."""
    row.size_bytes = made.size_bytes
    found: list[SegmentRange] = []
    for packed in made.entries:
        for entry in unpack(packed):
            partition = partitions.get(entry.number)
            newest = entry.max_timestamp
            # Soon if it is not loaded; retention then sets the time by its settings.
            due = due_ms(partition.config, newest) if partition is not None else 0
            found.append(range_of(entry, row.id, due))
            row.max_timestamp = max(row.max_timestamp, newest)
        await env.slices.pause()
    return found
