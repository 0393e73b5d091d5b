"""Reads of segments: whole batches, by threads of their own pool.

A read continues from one segment to the next, and from the last into the journals, within its
limits. Sparse indexes are cached for readers that continue; blocks are checked when they are read
for the first time since the index was loaded. Long stretches are not read but sent from the file
(kafkawire.log.segments.store.sendable). A damaged batch is read from the segment's object in
the remote tier, if there is one. If not, readers of its offsets get CORRUPT_MESSAGE, and it is
logged once; all batches before and after it are served.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from kafkawire.codec.configs.settings import TierLevel
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import DamagedOffsets, ErrorCode, KafkaError, code_of
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.types import Part
from kafkawire.log.io.file_span import FileSpan, unpin
from kafkawire.log.io.ports import Buffer, Env, File
from kafkawire.log.io.read_limits import InFlight
from kafkawire.log.partition.read_plan import (
    SegmentRead,
    next_offset,
    rest_of,
    skip_before,
    whole_batches,
)
from kafkawire.log.segments.file.open import read_aborted
from kafkawire.log.segments.store.index_cache import (
    DamagedSegment,
    SegmentAborted,
    WarmIndex,
    WarmIndexes,
    has_transactions,
    read_index,
    sound_part,
)
from kafkawire.log.segments.store.key_lookup import OffsetRanges, find_key_ranges
from kafkawire.log.segments.store.remote_tier import (
    Cold,
    Exchanged,
    RemoteReadRequest,
    RemoteTier,
    Taken,
    local_log_start,
)
from kafkawire.log.segments.store.segment_store import NotLocal, Segment, SegmentStore
from kafkawire.log.segments.store.sendable import (
    SegmentSpans,
    check_blocks,
    is_long,
    is_ready,
    plan_send,
    row_of,
)
from kafkawire.offsets.catalog.port import SegmentRange

if TYPE_CHECKING:
    from kafkawire.log.partition.reader import ReadPlan
    from kafkawire.log.partition.state import LoadedPartition

logger = logging.getLogger(__name__)

IN_FLIGHT_BYTES = 64 << 20
"""Bytes in flight, as for the journals (kafkawire.log.partition.reader): a few Fetches of the
largest usual size."""
SLACK_BYTES = 8 << 10
"""Bytes read beyond the request: the block that contains `offset` begins before it."""
MAX_NAMED = 1000
"""Damaged ranges named in the log, so that each is named once."""

MAX_KEY_RANGES = 1_000
"""Rows and sets of keys whose ranges of offsets are kept: of a few readers by key."""

MAX_ROWS_REPLACED = 3
"""How often one read looks up its row again because it was replaced meanwhile: once is rare."""


class WarmReader:
    """Reads batches from segments. `fallbacks` counts reads that the remote tier could not do and a
    local file served."""

    __slots__ = (
        "_env",
        "_in_flight",
        "_key_ranges",
        "_named",
        "_remote",
        "_spans",
        "_store",
        "fallbacks",
        "indexes",
    )

    def __init__(self, env: Env, store: SegmentStore, remote: RemoteTier) -> None:
        self._env = env
        self._store = store
        self._remote = remote
        self._in_flight = InFlight(IN_FLIGHT_BYTES)
        self._named: set[str] = set()
        self._key_ranges: dict[tuple[int, int, frozenset[int]], OffsetRanges] = {}
        self.indexes = WarmIndexes()
        self._spans = SegmentSpans(store, self.indexes)
        self.fallbacks = 0

    async def read(
        self,
        plan: SegmentRead,
        read_journals: ReadPlan,
        patience_s: float | None,
        aborted: list[Aborted] | None = None,
    ) -> list[Buffer]:
        """Return the bytes of a plan that begins in a segment, cut to the whole batches it covers.
        `read_journals` reads what follows in the journals. `aborted`, if given, is extended by the
        aborted transactions that touch what is read.

        Raises OSError from the disk, CORRUPT_MESSAGE for damage, and KAFKA_STORAGE_ERROR for what a
        remote tier cannot deliver. Returns nothing if that does not respond within `patience_s`; a
        reader that has something does not wait for more.
        """
        parts = await self._read_rows(plan, read_journals, patience_s, aborted, spans=False)
        return cast("list[Buffer]", parts)

    async def read_parts(
        self,
        plan: SegmentRead,
        read_journals: ReadPlan,
        patience_s: float | None,
        aborted: list[Aborted] | None = None,
    ) -> list[Part]:
        """As `read`, with spans of local files for long stretches; the caller unpins each."""
        return await self._read_rows(plan, read_journals, patience_s, aborted, spans=True)

    def ready(self, plan: SegmentRead, aborted: list[Aborted] | None) -> FileSpan | None:
        """Return what `read_parts` would if that is one span, and nothing of it has to be read,
        checked or waited for; None otherwise."""
        level = plan.partition.config.tier_level
        # These levels read the object even where there is a file, or ask the page cache first.
        if self._remote.cold is not None and level in (TierLevel.FORCE, TierLevel.NOT_IN_MEM):
            return None
        return self._spans.ready(plan, aborted)

    async def _read_rows(
        self,
        plan: SegmentRead,
        read_journals: ReadPlan,
        patience_s: float | None,
        aborted: list[Aborted] | None,
        *,
        spans: bool,
    ) -> list[Part]:
        kept: list[Part] = []
        try:
            await self._extend(kept, plan, read_journals, patience_s, aborted, spans=spans)
        # Spans that will not be sent must release their files.
        except BaseException:
            unpin(kept)
            raise
        return kept

    async def _extend(
        self,
        kept: list[Part],
        plan: SegmentRead,
        read_journals: ReadPlan,
        patience_s: float | None,
        aborted: list[Aborted] | None,
        *,
        spans: bool,
    ) -> None:
        partition = plan.partition
        found: list[Aborted] = [] if aborted is None else aborted
        offset, size = plan.offset, 0
        while offset < min(plan.end, partition.cut_offset):
            room = plan.max_bytes - size
            first = plan.first and not kept
            if room <= 0 and not first:
                break
            # A reader that has something does not wait for more.
            wait_s = 0.0 if kept else patience_s
            try:
                taken = await self._take_row(
                    RemoteReadRequest(
                        partition, offset, plan.end, room, first, wait_s, aborted is not None, spans
                    )
                )
            except (KafkaError, OSError):
                if kept:
                    break  # reported when the reader gets there
                raise
            kept += taken.batches if taken.span is None else [taken.span]
            found += taken.aborted
            size += taken.size_bytes
            offset = taken.next_offset
            # The row was not read to its end: limits, or bytes that are not there yet.
            if not taken.whole:
                break
        if offset >= partition.cut_offset:
            if partition.resigned and not kept:
                raise partition.refusal()  # its records from here on are at its leader
            if offset < plan.end:
                kept += await _rest(plan, offset, size, read_journals, aborted)

    async def first_offset_since(self, partition: LoadedPartition, at: int, timestamp: int) -> int:
        """Return from which offset on row `at` of a partition may have a record at or after a
        time."""
        mapping = partition.segments.mapping(partition.number, at)
        if self._remote.cold is not None and not self._store.is_local(mapping.segment_id):
            # What is only in the remote tier is not read.
            if partition.config.tier_level is TierLevel.DISABLE:
                return mapping.end_offset
            segment = self._store.get_segment(mapping.segment_id)
            warm = await self._remote.cold.load_index(partition, mapping, segment)
        else:
            async with self._open_segment(mapping, partition) as (segment, file):
                warm = await self._index(segment, file, mapping, partition)
        offset = warm.index.offset_since(timestamp)
        return mapping.end_offset if offset is None else max(mapping.base_offset, offset)

    async def key_ranges(
        self, partition: LoadedPartition, at: int, hashes: frozenset[int]
    ) -> OffsetRanges:
        """Return the ranges of offsets of row `at` of a partition that may have a key with one of
        the hashes: all of it if its segment has no key index, or that cannot be read."""
        mapping = partition.segments.mapping(partition.number, at)
        if not mapping.length:
            return []  # compaction has removed all
        known_as = mapping.segment_id, mapping.number, hashes
        known = self._key_ranges.get(known_as)
        if known is None:
            whole = [(mapping.base_offset, mapping.end_offset)]
            try:
                known = await self._find_key_ranges(partition, mapping, hashes)
            except (KafkaError, OSError, FormatError, NotLocal, Exchanged):
                return whole  # its readers report it
            if len(self._key_ranges) >= MAX_KEY_RANGES:
                self._key_ranges.clear()
            self._key_ranges[known_as] = known
        return known

    async def _find_key_ranges(
        self, partition: LoadedPartition, mapping: SegmentRange, hashes: frozenset[int]
    ) -> OffsetRanges:
        cold = self._remote.cold
        found: OffsetRanges | None
        if cold is not None and not self._store.is_local(mapping.segment_id):
            segment = self._store.get_segment(mapping.segment_id)
            warm = await cold.load_index(partition, mapping, segment)
            read = partial(cold.read_range, partition, mapping, segment)
            size = segment.row.size_bytes
            found = await find_key_ranges(read, size, mapping, warm.index, hashes)
        else:
            async with self._open_segment(mapping, partition) as (segment, file):
                warm = await self._index(segment, file, mapping, partition)

                async def read_file(start: int, length: int) -> bytes:
                    return await self._env.offload.submit("warm", file.pread, length, start)

                size = segment.row.size_bytes
                found = await find_key_ranges(read_file, size, mapping, warm.index, hashes)
        return [(mapping.base_offset, mapping.end_offset)] if found is None else found

    async def _take_row(self, request: RemoteReadRequest) -> Taken:
        """As `_take`; with the aborted transactions whose markers are in the journals."""
        taken = await self._take(request)
        if request.committed:
            # A rebuild of mixed folders puts open transactions into segments.
            taken.aborted += request.partition.list_aborted(request.offset, taken.next_offset)
        return taken

    async def _take(self, request: RemoteReadRequest) -> Taken:
        """Read batches out of the row that covers the offset."""
        if self._remote.cold is None:
            return await self._take_local(request)
        # A row that a merge has replaced is looked up again.
        for _ in range(MAX_ROWS_REPLACED):
            try:
                return await self._take_tiered(request, self._remote.cold)
            except (NotLocal, Exchanged):
                continue
        # Replaced again and again, or no file: the local read reports which.
        return await self._take_local(request)

    async def _take_tiered(self, request: RemoteReadRequest, cold: Cold) -> Taken:
        """Read from the remote tier or from the local file, by the topic's tieredStorageLevel."""
        mapping = row_of(request)
        segment = self._store.find(mapping.segment_id)
        # Without bytes there is nothing to read from the tier: compaction removed all.
        if segment is None or not mapping.length:
            return await self._take_local(request)
        if not await self._goes_cold(request, segment):
            return await self._take_either(request, cold, mapping, segment)
        failure: KafkaError | OSError | None = None
        try:
            taken = await cold.read_batches(request, mapping, segment)
            if taken.batches or taken.whole or not request.patience_s or not segment.row.local:
                return taken
        except (KafkaError, OSError) as caught:
            failure = caught
        if not segment.row.local:
            assert failure is not None
            raise failure
        # The tier failed, or was too slow, and there is a file.
        self.fallbacks += 1
        logger.debug("reading segment %s from the local file: %s", segment.name, failure)
        return await self._take_local(request)

    async def _take_either(
        self, request: RemoteReadRequest, cold: Cold, mapping: SegmentRange, segment: Segment
    ) -> Taken:
        """Read from the local file, or from the object if the file is damaged or cannot be read."""
        try:
            return await self._take_local(request)
        except NotLocal:
            raise
        except (KafkaError, OSError) as failure:
            if not segment.row.object or code_of(failure) is ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            taken = await cold.read_batches(request, mapping, segment)
            logger.debug("reading segment %s from its object: %s", segment.name, failure)
            # Only after the object was read: the file alone is bad.
            cold.file_damaged(segment)
            return taken

    async def _goes_cold(self, request: RemoteReadRequest, segment: Segment) -> bool:
        row, level = segment.row, request.partition.config.tier_level
        if not row.object:
            return False
        # Only in the remote tier.
        if not row.local:
            if level is TierLevel.DISABLE:
                start = local_log_start(request.partition, self._store)
                text = f"tieredStorageLevel is disable, and local data begins at offset {start}"
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
            return True
        if level is TierLevel.NOT_IN_MEM:
            try:
                return not await self._is_cached(request)
            except (KafkaError, OSError):  # the file cannot be read, the object perhaps can
                return True
        return level is TierLevel.FORCE

    async def _is_cached(self, request: RemoteReadRequest) -> bool:
        """Return whether the local file's bytes are in the page cache."""
        mapping = row_of(request)
        async with self._open_segment(mapping, request.partition) as (segment, file):
            warm = await self._index(segment, file, mapping, request.partition)
            position, length = warm.index.span(request.offset, max(request.room, 0) + SLACK_BYTES)
            return await self._env.offload.submit("warm", file.is_cached, length, position)

    async def _take_local(self, request: RemoteReadRequest) -> Taken:
        # 1. As a span of the file, if all of it was or can be checked.
        if request.spans and is_long(request.room):
            taken = await self._take_span(request)
            if taken is not None:
                return taken
        size = max(request.room, 0)
        # 2. As bytes, of which only so many are in memory at a time.
        await self._in_flight.wait_for_room(size)
        try:
            # From here to the pin nothing may be awaited, since rows and files may be replaced
            # meanwhile.
            mapping = row_of(request)
            # Compaction has removed everything in the row.
            if not mapping.length:
                return Taken([], mapping.end_offset, True)
            async with self._open_segment(mapping, request.partition) as (segment, file):
                warm = await self._index(segment, file, mapping, request.partition)
                try:
                    taken = await self._env.offload.submit(
                        "warm", take, file, warm, mapping, request
                    )
                    if request.committed:
                        await self._add_aborted(taken, file, mapping, request.offset)
                except DamagedSegment as damage:
                    raise self._report_damage(segment, request.partition, damage) from damage
                return taken
        finally:
            self._in_flight.give(size)

    async def _take_span(self, request: RemoteReadRequest) -> Taken | None:
        """Return the requested batches as a span of the local file, which keeps it pinned; None if
        they must be read instead."""
        mapping = row_of(request)  # the pin follows without an await, as in `_take_local`
        if not is_long(mapping.length):
            return None
        async with self._open_segment(mapping, request.partition) as (segment, file):
            warm = await self._index(segment, file, mapping, request.partition)
            batches = plan_send(warm, mapping, request)
            if batches is not None and not is_ready(warm, batches, request.offset):
                batches = await self._env.offload.submit(
                    "warm", check_blocks, file, warm, mapping, batches, request.offset
                )
            if batches is None:
                return None
            # `read_batches` needs them in the cache.
            if request.committed:
                await self._read_aborted(file, mapping)
            return self._spans.checked_span(segment, file, mapping, request, warm, batches)

    async def _read_aborted(self, file: File, mapping: SegmentRange) -> SegmentAborted:
        known = self.indexes.aborted.find(mapping.segment_id)
        if known is None:
            known = await self._env.offload.submit("warm", load_aborted, file)
            # Damage is not cached: the next reader tries again.
            if known.damaged is None:
                known = self.indexes.aborted.keep(mapping.segment_id, known)
        return known

    async def _add_aborted(
        self, taken: Taken, file: File, mapping: SegmentRange, offset: int
    ) -> None:
        """Add the aborted transactions that touch what was read. DamagedSegment if there are
        transactions and the segment's state, which says which were aborted, is damaged."""
        known = await self._read_aborted(file, mapping)
        # Without transactions nothing has to be known.
        if known.damaged is not None and has_transactions(taken.batches):
            raise DamagedSegment(offset, taken.next_offset, known.damaged)
        taken.aborted = known.overlapping(mapping.number, offset, taken.next_offset)

    async def _index(
        self, segment: Segment, file: File, mapping: SegmentRange, partition: LoadedPartition
    ) -> WarmIndex:
        key = mapping.segment_id, mapping.number
        warm = self.indexes.find(key)
        if warm is None:
            try:
                warm = await self._env.offload.submit("warm", load_index, file, mapping)
            except DamagedSegment as damage:
                raise self._report_damage(segment, partition, damage) from damage
            warm = self.indexes.keep(key, warm)
        return warm

    @asynccontextmanager
    async def _open_segment(
        self, mapping: SegmentRange, partition: LoadedPartition
    ) -> AsyncIterator[tuple[Segment, File]]:
        """Open the file of a mapping. Raises as SegmentStore.open_segment; where the whole file is
        damaged or missing, the offsets of the partition in it are logged."""
        segment = None
        try:
            async with self._store.open_segment(mapping.segment_id) as (segment, file):
                yield segment, file
        except KafkaError as failure:
            # Once the file is open the failure is the reader's own, which has named its offsets.
            if segment is not None or failure.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            share = DamagedSegment(
                mapping.base_offset, mapping.end_offset, failure.message or failure.code.name
            )
            found = self._store.get_segment(mapping.segment_id)
            raise self._report_damage(found, partition, share) from failure

    def _report_damage(
        self, segment: Segment, partition: LoadedPartition, damage: DamagedSegment
    ) -> KafkaError:
        """Return the error for readers of damaged offsets; it is logged once."""
        text = f"segment {segment.name}, {partition.topic}-{partition.index}: {damage}"
        # Once for each range, and for so many: readers retry.
        if text not in self._named and len(self._named) < MAX_NAMED:
            self._named.add(text)
            consequence = "The object in the remote tier is read instead"
            if self._remote.cold is None or not segment.row.object:
                consequence = "Reading them returns an error, all other offsets are served"
            logger.critical("%s. %s", text, consequence)
        return DamagedOffsets(damage.end, text)


async def _rest(
    plan: SegmentRead,
    offset: int,
    size_bytes: int,
    read_journals: ReadPlan,
    aborted: list[Aborted] | None,
) -> list[Buffer]:
    """Read what follows in the journals, at `offset`, after `size_bytes` of segments. A failure is
    left to the next read if there are some."""
    rest = rest_of(plan, offset, size_bytes)
    try:
        return await read_journals(rest, None, aborted) if rest.size_bytes else []
    except (KafkaError, OSError):
        if not size_bytes:
            raise
        return []


def load_index(file: File, mapping: SegmentRange) -> WarmIndex:
    """Read an index; runs in a thread. DamagedSegment if the checksum is wrong."""
    return read_index(file.pread(mapping.index_length, mapping.index_start), mapping)


def load_aborted(file: File) -> SegmentAborted:
    """Read the aborted transactions of a segment; runs in a thread. OSError from the disk."""
    try:
        return SegmentAborted(read_aborted(file))
    except FormatError as failure:
        return SegmentAborted({}, f"which transactions were aborted cannot be read: {failure}")


def take(file: File, warm: WarmIndex, mapping: SegmentRange, request: RemoteReadRequest) -> Taken:
    """Read the requested batches from a local file; runs in a thread. DamagedSegment if the batch
    at the offset is not what was written."""
    stop, offset = mapping.start + mapping.length, request.offset
    position, length = warm.index.span(offset, max(request.room, 0) + SLACK_BYTES)
    while True:
        position, data, upto = _read(file, warm, position, length, mapping, offset)
        start = skip_before(data, 0, len(data), offset)
        if start < len(data) or upto >= stop:
            break
        # Compaction has removed everything at or after `offset` from these blocks.
        position, length = warm.block_at(upto)
    cut = whole_batches(data, start, len(data), request.end, request.room, request.first)
    # At the row's end the next offset is that of the next row, also where compaction removed the
    # last offsets.
    whole = position + cut >= stop
    after = mapping.end_offset if whole else next_offset(data, start, cut, offset)
    return Taken([data[start:cut]] if cut > start else [], after, whole)


def _read(
    file: File, warm: WarmIndex, position: int, length: int, mapping: SegmentRange, offset: int
) -> tuple[int, memoryview, int]:
    """Return where they begin, intact batches from `position` on, and where the blocks that were
    read end: fewer than requested if a later block is bad; of a first block that is bad those
    around `offset`."""
    data = memoryview(file.pread(length, position))
    bad = warm.find_damaged_block(position, data)
    # The file ends within a block.
    if bad is None and len(data) < length:
        bad = warm.index.block(warm.index.find(position + len(data)))[0]
    if bad is None:
        return position, data, position + length
    # What is intact before it; the bad block is reported when a reader begins there.
    if bad > position:
        return position, data[: bad - position], bad
    return sound_part(warm.index, position, data, offset, mapping)
