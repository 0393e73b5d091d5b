"""Cold reads: whole batches of segments whose objects are in the remote tier.

The index is loaded first, then the data: two round trips for the first byte, or one if the position
of the data is known (the beginning of a row, a small share) or the index is in memory. A read waits
only for its first bytes and only until its reader's time limit. Every block is verified against the
sparse index, as local ones are; a damaged one is loaded once more before it is reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial

from kafkawire.codec.configs.settings import BrokerConfig, TierLevel
from kafkawire.codec.errors import DamagedOffsets, ErrorCode, KafkaError
from kafkawire.codec.segment.format import HEADER_BYTES, SparseIndex
from kafkawire.log.io.ports import Env
from kafkawire.log.io.read_limits import InFlight, SlowLane
from kafkawire.log.partition.state import LoadedPartition
from kafkawire.log.segments.store.index_cache import (
    DamagedSegment,
    Key,
    WarmIndex,
    WarmIndexes,
    read_index,
)
from kafkawire.log.segments.store.remote_tier import Exchanged, RemoteReadRequest, Taken
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.log.segments.store.warm_reader import SLACK_BYTES
from kafkawire.objectstore.errors import NoSuchObject, Refused, StoreError
from kafkawire.offsets.catalog.port import SegmentCatalog, SegmentRange, SegmentRow
from kafkawire.tiering.read.aborted import AbortedLoads
from kafkawire.tiering.read.batch_stream import Stretch, blocks_of
from kafkawire.tiering.read.block_cache import BLOCK_BYTES, BlockCache, BlockKey
from kafkawire.tiering.read.loader import RUN_BLOCKS, Loads
from kafkawire.tiering.read.readahead import ReadAhead, ReadaheadWindow
from kafkawire.tiering.read.readers import Readers
from kafkawire.tiering.read.requests import ColdCounts, Object, Requests, WrongSize, within
from kafkawire.tiering.store.metering import charging
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.store_folder import whole_store

logger = logging.getLogger(__name__)

ANSWER_BYTES = 1 << 20
"""Maximum bytes of a partition per read, except for one larger batch: the usual fetch size. The
kernel copies them in less than half a millisecond of event-loop time."""
SHARED_ANSWER_BYTES = 192 << 10
"""The same while produce requests are waiting: a twentieth of a millisecond."""
CONCURRENT_RUNS = 4
"""Number of requests a window is loaded with, started one after another rather than all at once."""
SMALL_SHARE_BLOCKS = 2
"""If a share of an object has at most so many blocks, they are loaded together with its index,
which saves a round trip."""
MAX_COPIED_BYTES = 64 << 20
"""Batches larger than a block that are assembled at a time. A still larger one is assembled alone.
"""
MAX_NAMED = 1000
"""Damaged, missing and refused objects that were logged, so that each is logged once."""
MAX_REFUSED = 1000
"""Refused objects that are remembered, so that they are not requested again at once."""


class Copy(StrEnum):
    """Which copy of a segment."""

    FILE = "file"
    OBJECT = "object"


class Tier:
    """The readers of one store: its cache, requests and read-ahead. Tiers in folders of one store
    share them."""

    __slots__ = ("ahead", "cache", "loads", "readers", "requests")

    def __init__(
        self, env: Env, store: ObjectStore, config: BrokerConfig, counts: ColdCounts, size: int
    ) -> None:
        self.readers = Readers()
        self.cache = BlockCache(store.memory, size, self.readers, env.clock.monotonic)
        self.ahead = ReadAhead(self.cache.slots)
        self.requests = Requests(env, store, config, counts)
        self.loads = Loads(env, self.requests, self.cache, config)


class ColdReader:
    """Reads batches from segments in the remote tier (port:
    kafkawire.log.segments.store.remote_tier.Cold). `stores` returns the store of a tier by its
    number; `indexes` are shared with the warm reader, `lane` with kafkawire.log.partition.reader.
    `report` is called for a damaged copy of a segment that has another copy, `find_tier` before the
    first read of a tier, which another broker may just have begun."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        segments: SegmentStore,
        indexes: WarmIndexes,
        lane: SlowLane,
        storage: SegmentCatalog,
        stores: Callable[[int], ObjectStore | None],
        block_bytes: int = BLOCK_BYTES,
        report: Callable[[Segment, Copy], None] = lambda segment, copy: None,
        find_tier: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._env = env
        self._config = config
        self._segments = segments
        self._indexes = indexes
        self._storage = storage
        self._stores = stores
        self._block_bytes = block_bytes
        self._report = report
        self._find_tier = find_tier or _find_no_tier
        self._tiers: dict[int, tuple[Tier, str]] = {}
        self._by_store: dict[int, Tier] = {}
        self._aborted = AbortedLoads(env, indexes.aborted)
        self._indexing: dict[Key, asyncio.Task[WarmIndex]] = {}
        self._troubled: dict[Key, StoreError] = {}
        self._lane = lane
        self._copied = InFlight(MAX_COPIED_BYTES)
        self._refused: dict[bytes, tuple[float, Refused]] = {}
        self._named: set[str] = set()
        self.counts = ColdCounts()

    @property
    def caches(self) -> list[BlockCache]:
        """The block caches, one for each store that was read."""
        return [tier.cache for tier in self._by_store.values()]

    def tier(self, number: int) -> Tier:
        """The components for reading a tier, created by its first read."""
        return self._place(number)[0]

    def _place(self, number: int) -> tuple[Tier, str]:
        """The components for reading a tier, and its folder in their store."""
        found = self._tiers.get(number)
        if found is None:
            store = self._stores(number)
            if store is None:
                raise Refused("UnknownTier", f"tier {number} cannot be reached from here")
            whole, folder = whole_store(store)
            tier = self._by_store.get(id(whole))
            if tier is None:
                tier = Tier(self._env, whole, self._config, self.counts, self._block_bytes)
                self._by_store[id(whole)] = tier
            found = self._tiers[number] = tier, folder
        return found

    def _object(self, row: SegmentRow) -> Object:
        return Object(row.object, row.size_bytes, self._place(row.tier)[1])

    async def read_batches(
        self, request: RemoteReadRequest, mapping: SegmentRange, segment: Segment
    ) -> Taken:
        row, deadline = segment.row, None
        most = SHARED_ANSWER_BYTES if self._lane.shared else ANSWER_BYTES
        request = request._replace(room=min(request.room, most))
        if request.patience_s is not None:
            deadline = self._env.clock.monotonic() + request.patience_s
        try:
            with charging({request.partition.topic: 1}):
                taken = await self._take(request, mapping, row, deadline)
        except (StoreError, DamagedSegment) as failure:
            raise await self._refusal(
                request.partition, request.offset, mapping, segment, row, failure
            ) from failure
        if taken is None:
            self.counts.late += request.patience_s != 0
            return Taken([], request.offset, False)
        return taken

    def file_damaged(self, segment: Segment) -> None:
        self._report(segment, Copy.FILE)

    async def load_index(
        self, partition: LoadedPartition, mapping: SegmentRange, segment: Segment
    ) -> WarmIndex:
        row = segment.row
        try:
            self._check_refused(row)
            warm = self._indexes.find((mapping.segment_id, mapping.number))
            if warm is None:
                if row.tier not in self._tiers:
                    await self._find_tier(row.tier)
                with charging({partition.topic: 1}):
                    task = self._index(mapping, row)
                # Other readers may wait for it, too.
                warm = await asyncio.shield(task)
            return warm
        except (StoreError, DamagedSegment) as failure:
            offset = mapping.base_offset
            raise await self._refusal(
                partition, offset, mapping, segment, row, failure
            ) from failure

    async def read_range(
        self,
        partition: LoadedPartition,
        mapping: SegmentRange,
        segment: Segment,
        start: int,
        length: int,
    ) -> bytes:
        row = segment.row
        try:
            self._check_refused(row)
            if row.tier not in self._tiers:
                await self._find_tier(row.tier)
            with charging({partition.topic: 1}):
                return await self._get_range(row, start, length)
        except StoreError as failure:
            offset = mapping.base_offset
            raise await self._refusal(
                partition, offset, mapping, segment, row, failure
            ) from failure

    async def _take(
        self,
        request: RemoteReadRequest,
        mapping: SegmentRange,
        row: SegmentRow,
        deadline: float | None,
    ) -> Taken | None:
        if row.tier not in self._tiers:
            await self._find_tier(row.tier)
        tier, target = self.tier(row.tier), self._object(row)
        self._check_refused(row)
        if request.committed:
            self._aborted.want(mapping.segment_id, tier.requests, target)
        warm = self._indexes.find((mapping.segment_id, mapping.number))
        if warm is None:
            self._foresee(tier.loads, target, mapping, request)
            task = self._index(mapping, row)
            if not await within(task, tier.loads.seconds_until(deadline)):
                self._check_trouble(mapping)
                # The load continues, and then that of the data: the client asks again, and finds
                # both.
                task.add_done_callback(partial(self._go_on, tier.loads, target, request))
                return None
            warm = task.result()
        position, length = warm.index.span(request.offset, max(request.room, 0) + SLACK_BYTES)
        window = self._load(tier, target, mapping, request, warm.index, position, position + length)
        stretch = Stretch(
            self._lane, tier.loads, self.counts, self._copied, target, warm.index, mapping
        )
        taken = await stretch.read_batches(request, position, position + length, deadline)
        if taken is not None:
            now = self._env.clock.monotonic()
            tier.ahead.went(window, request.offset, taken.next_offset, now)
            tier.readers.note_read(mapping.number, request.offset, taken.next_offset, now)
        if taken is not None and request.committed:
            left = tier.loads.seconds_until(deadline)
            if not await self._aborted.add(
                taken, mapping, request.offset, tier.requests, target, left
            ):
                return None
        return taken

    def _go_on(
        self,
        loads: Loads,
        target: Object,
        request: RemoteReadRequest,
        task: asyncio.Task[WarmIndex],
    ) -> None:
        """The index was not loaded in time for a read: start to load the data for the next one."""
        if not task.cancelled() and task.exception() is None:
            position, length = task.result().index.span(
                request.offset, max(request.room, 0) + SLACK_BYTES
            )
            loads.want(target, blocks_of(position, position + length, self._block_bytes))

    def _foresee(
        self, loads: Loads, target: Object, mapping: SegmentRange, request: RemoteReadRequest
    ) -> None:
        """Start to load data whose position is known before the index is loaded."""
        size, stop = self._block_bytes, mapping.start + mapping.length
        share = blocks_of(mapping.start, stop, size)
        # Of a large share only its beginning is known; a small one is loaded as a whole.
        if len(share) > SMALL_SHARE_BLOCKS:
            if request.offset > mapping.base_offset:
                return
            room = max(request.room, 0) + SLACK_BYTES
            share = blocks_of(mapping.start, min(stop, mapping.start + room), size)
        loads.want(target, share)

    def _load(
        self,
        tier: Tier,
        target: Object,
        mapping: SegmentRange,
        request: RemoteReadRequest,
        index: SparseIndex,
        start: int,
        stop: int,
    ) -> ReadaheadWindow:
        """Start to load the requested data and what its reader is expected to read next."""
        now, number, size = self._env.clock.monotonic(), mapping.number, self._block_bytes
        asked = blocks_of(start, stop, size)
        window = tier.ahead.find(number, request.offset)
        follows = window is not None and window.next_offset != request.offset
        there = asked and BlockKey(target.uuid, asked[0]) in tier.cache
        # A reader that follows another one reads from its blocks. If those have been evicted it
        # needs a window of its own.
        if window is None or (follows and not there):
            window, follows = tier.ahead.open_window(number, request.offset, now), False
        tier.loads.want(target, asked)
        self._note_offsets(tier.cache, target, mapping, index, asked)
        room = 0 if follows else tier.ahead.room(window, now)
        if room:
            share_stop = mapping.start + mapping.length
            own = blocks_of(asked.stop * size if asked else start, share_stop, size)[:room]
            self._read_ahead(tier, request.partition, mapping, target, own, room, window)
            self._note_offsets(tier.cache, target, mapping, index, own)
        return window

    def _note_offsets(
        self,
        cache: BlockCache,
        target: Object,
        mapping: SegmentRange,
        index: SparseIndex,
        numbers: range,
    ) -> None:
        """Record which offsets are in these blocks, by which the cache knows who will need them."""
        size, stop = self._block_bytes, mapping.start + mapping.length
        for number in numbers:
            block = cache.peek(BlockKey(target.uuid, number))
            # Not a block with batches of several partitions: readers of another may need it.
            if block is None or block.offsets is not None or (number + 1) * size > stop:
                continue
            if number * size >= mapping.start or mapping.start == HEADER_BYTES:
                first, end = (index.offset_from(at * size) for at in (number, number + 1))
                first = mapping.base_offset if first is None else first
                end = mapping.end_offset if end is None else end
                block.offsets = mapping.number, first, end

    def _read_ahead(
        self,
        tier: Tier,
        partition: LoadedPartition,
        mapping: SegmentRange,
        target: Object,
        own: range,
        room: int,
        window: ReadaheadWindow,
    ) -> None:
        """Load the next `room` blocks after a read, of this row and the following ones, once enough
        are missing for a request."""
        stretches = [(target, own)]
        room -= len(own)
        segments = partition.segments
        forced = partition.config.tier_level is TierLevel.FORCE
        at = segments.find(mapping.end_offset)
        while room > 0 and at < len(segments):
            following = segments.mapping(partition.number, at)
            segment = self._segments.find(following.segment_id)
            if segment is None or not segment.row.object or (segment.row.local and not forced):
                break
            if following.length and segment.row.tier in self._tiers:
                if self.tier(segment.row.tier) is not tier:
                    break
                if self._indexes.find((following.segment_id, following.number)) is None:
                    self._index(following, segment.row)
                stop = following.start + following.length
                share = blocks_of(following.start, stop, self._block_bytes)[:room]
                stretches.append((self._object(segment.row), share))
                room -= len(share)
            at += 1
        keys = [BlockKey(found.uuid, number) for found, share in stretches for number in share]
        missing = sum(key not in tier.cache for key in keys)
        # Not a request for each block that was used: it waits until a run of them is missing.
        run_blocks = min(RUN_BLOCKS, max(2, len(keys) // CONCURRENT_RUNS), len(keys))
        if missing and missing >= run_blocks:
            for found, share in stretches:
                tier.loads.want(found, share, window, run_blocks)

    def _index(self, mapping: SegmentRange, row: SegmentRow) -> asyncio.Task[WarmIndex]:
        key = mapping.segment_id, mapping.number
        task = self._indexing.get(key)
        if task is None:
            task = self._env.spawn(self._load_index(mapping, row), "cold index")
            self._indexing[key] = task
            task.add_done_callback(partial(self._on_index_loaded, key))
        return task

    def _on_index_loaded(self, key: Key, task: asyncio.Task[WarmIndex]) -> None:
        del self._indexing[key]
        self._troubled.pop(key, None)
        if not task.cancelled() and task.exception() is None:
            self._indexes.keep(key, task.result())

    async def _load_index(self, mapping: SegmentRange, row: SegmentRow) -> WarmIndex:
        requests, length = self.tier(row.tier).requests, mapping.index_length
        target = self._object(row)
        failing = partial(self._troubled.__setitem__, (mapping.segment_id, mapping.number))

        async def attempt() -> bytes:
            return await self._get_range(row, mapping.index_start, length)

        try:
            return read_index(await requests.persist(target, attempt, failing), mapping)
        # Once more: the bytes may have been damaged in transit.
        except DamagedSegment:
            return read_index(await requests.persist(target, attempt, failing), mapping)

    async def _get_range(self, row: SegmentRow, start: int, length: int) -> bytes:
        """Return bytes of an object, which are not cached. Raises StoreError."""
        requests, target = self.tier(row.tier).requests, self._object(row)

        async def get() -> bytes:
            body, _ = await requests.store.get(target.key, start, length)
            if len(body) != length:
                raise StoreError("IncompleteRead", f"{length} bytes of {target.key} ended early")
            return body

        await requests.pay(length)
        return await requests.run_hedged(length, get, lambda: get)

    def _check_trouble(self, mapping: SegmentRange) -> None:
        """Report the failure to a reader whose wait timed out, unless the load is just slow."""
        trouble = self._troubled.get((mapping.segment_id, mapping.number))
        if trouble is not None:
            raise trouble

    def _check_refused(self, row: SegmentRow) -> None:
        """Raise a refused object's error until a retry is due."""
        known = self._refused.get(row.object)
        if known is not None:
            if self._env.clock.monotonic() < known[0]:
                raise known[1]
            del self._refused[row.object]

    async def _refusal(
        self,
        partition: LoadedPartition,
        offset: int,
        mapping: SegmentRange,
        segment: Segment,
        row: SegmentRow,
        failure: StoreError | DamagedSegment,
    ) -> Exception:
        """Return the error for a reader: CORRUPT_MESSAGE if no later attempt can succeed, otherwise
        KAFKA_STORAGE_ERROR; Exchanged if the row was replaced meanwhile."""
        counts = self.counts
        # A merge may have replaced the segment, and its object was deleted since.
        if isinstance(failure, NoSuchObject):
            if await self._refresh_row(segment, row):
                return Exchanged()
            counts.gone += 1
        elif (
            isinstance(failure, Refused)
            and row.tier in self._tiers  # else the next read finds it, or is refused
            and row.object not in self._refused
        ):
            until = self._env.clock.monotonic() + self._config.tier_retry_max_ms / 1000
            self._refused[row.object] = until, failure
            if len(self._refused) > MAX_REFUSED:
                del self._refused[next(iter(self._refused))]
        within = f"of offsets {mapping.base_offset}-{mapping.end_offset - 1}"
        where = f"{partition.topic}-{partition.index} at offset {offset}"
        text = f"{Object(row.object, 0).key}, {where} {within}: {failure}"
        name = f"{row.object.hex()} {type(failure).__name__} {partition.number}"
        if isinstance(failure, DamagedSegment):
            text = f"{Object(row.object, 0).key}, {where}: {failure}"
            name += f" {failure.first}"
        reported = isinstance(failure, DamagedSegment) or not failure.retryable
        if reported and name not in self._named and len(self._named) < MAX_NAMED:
            self._named.add(name)
            logger.error("%s. Reading them returns an error, all other offsets are served", text)
        # Clients repeat KAFKA_STORAGE_ERROR forever, so it is for refusals and outages. They report
        # CORRUPT_MESSAGE, and can seek past its offsets.
        if not isinstance(failure, (DamagedSegment, NoSuchObject, WrongSize)):
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        # Its file is another copy.
        if row.local:
            self._report(segment, Copy.OBJECT)
        if isinstance(failure, DamagedSegment):
            return DamagedOffsets(failure.end, text)
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, text)

    async def _refresh_row(self, segment: Segment, row: SegmentRow) -> bool:
        """Read the row from SQL again: the segment may have another object or a file now."""
        if segment.row is row:
            try:
                found = await self._storage.segments_by_id([row.id])
            except OSError:
                return False
            if not found:
                return True
            # Unless another call has changed it meanwhile.
            if segment.row is row:
                segment.row = found[0]
        now = segment.row
        return (now.object, now.local, now.tier) != (row.object, row.local, row.tier)


async def _find_no_tier(tier: int) -> None:
    """Do nothing; the default of `find_tier`."""
