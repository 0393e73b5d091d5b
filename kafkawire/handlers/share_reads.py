"""The records of one ShareFetch: planned, waited for, acquired, and sent as those of a Fetch.

Each of the session's partitions says from where it can give records; from there a read is planned
as for a Fetch. With `min_bytes` or at the end of `max_wait_ms` the plans are read: views of mapped
journals at once, and then what is on disk or in the remote tier, for which one request at a time
reads a share partition. Batch heads are read to find the borders of batches, control batches and
those of aborted transactions, and then records are acquired. If there are none the request waits
on. What was acquired is in the response; if that cannot be sent, the connection is closed, and its
session releases it.

Called by kafkawire.handlers.share_fetch. Kafka: DelayedShareFetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkawire.broker.partitions import NotLoaded
from kafkawire.codec.batches import CONTROL, HEAD_BYTES, PREFIX_BYTES, TRANSACTIONAL
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.share_acknowledge import topic_name
from kafkawire.log.partition.read_plan import HotRead, aborted_in, bad_batch
from kafkawire.messages.share_fetch import AcquiredRecords, PartitionData, ShareFetchRequest
from kafkawire.security.acls.model import Operation
from kafkawire.share.leader import ShareLeader
from kafkawire.share.partition import Acquire, Acquired, FetchedBatch
from kafkawire.share.sessions import Place

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition, Plan

STRICT: Final = 1
"""The acquire mode with which max_records is not exceeded (KIP-1206)."""
WALKED_MAX = 2_000
"""Batches whose heads are read for one share partition: a millisecond or two. By default no more
offsets are in flight."""
COLD_BYTES = 1 << 20
"""Bytes of one share partition that are read from disk for one request: thousands of records, of
which few can be acquired at once."""
JOIN_VIEWS_FROM = 64
"""From this number of views on they are copied, as for a Fetch."""
MEMORY_PATIENCE_S = 10.0
"""How long a request waits for memory that other responses hold, as a Fetch does."""

_HEAD = Struct(">qi9xhi16xq")  # base offset, length, attributes, last delta, producer id
assert _HEAD.size <= HEAD_BYTES


class Part(NamedTuple):
    """A batch in the buffers of a read: buffer[start:stop]."""

    batch: FetchedBatch
    buffer: int
    start: int
    stop: int


class ShareRead:
    """Reads records for one request, of some places in this order."""

    def __init__(
        self, ctx: RequestContext, req: ShareFetchRequest, places: Sequence[Place]
    ) -> None:
        self._ctx = ctx
        self._req = req
        self._group_id, self._member = req.group_id or "", req.member_id or ""
        self._places = places
        broker = ctx.broker
        self._broker = broker
        self._commit_log = broker.log.commit_log
        self._committed = broker.config.share_group_settings(self._group_id).read_committed
        self._leaders: dict[Place, ShareLeader] = {}
        self._rows: dict[Place, PartitionData] = {}
        self._moved = asyncio.Event()
        self._last = False  # answer with what there is
        self._acquired = 0
        bytes_max = min(max(req.max_bytes, 0), broker.config.fetch_max_bytes)
        if ctx.quotas is not None:
            bytes_max = ctx.quotas.fetch_bytes_max(bytes_max)
        self._bytes_max = bytes_max

    async def run(self) -> dict[Place, PartitionData]:
        """Return what the response has of each partition: records, or an error."""
        if self._req.max_records <= 0 or self._bytes_max <= 0:
            return {}
        await self._find_leaders()
        if self._leaders:
            self._last = self._req.max_wait_ms <= 0
            await self._wait_and_read()
        return self._rows

    async def _find_leaders(self) -> None:
        ctx, shares = self._ctx, self._broker.shares
        may_read: dict[bytes, bool] = {}
        await self._broker.table.load(self._places)
        for place in self._places:
            topic_id = place[0]
            name = topic_name(ctx, topic_id)
            if name is None:
                self._fail(place, ErrorCode.UNKNOWN_TOPIC_ID)
                continue
            if topic_id not in may_read:
                may_read[topic_id] = ctx.may_topic(Operation.READ, name)
            if not may_read[topic_id]:
                self._fail(place, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                continue
            try:
                leader = shares.find_leader(self._group_id, *place)
                leader.watch(self._moved.set)
                self._leaders[place] = leader
            except (KafkaError, NotLoaded) as error:
                self._fail(place, code_of(error))
            await ctx.give_way()

    def _fail(self, place: Place, code: ErrorCode | int, message: str | None = None) -> None:
        self._rows[place] = PartitionData(place[1], int(code), message)

    async def _wait_and_read(self) -> None:
        ctx, shares = self._ctx, self._broker.shares
        timer = None
        if not self._last:
            # At most a day: a client may say any number, and is waited for until it disconnects.
            wait_s = min(self._req.max_wait_ms / 1000, 86_400.0)
            timer = self._broker.env.call_later(wait_s, self._expire)
        ctx.closing[self._moved.set] = None
        try:
            while not await self._read() and not (self._last or ctx.is_gone() or shares.closed):
                ctx.park()
                with shares.waiting_request() as admitted:
                    self._last = not admitted
                    if admitted:
                        await self._moved.wait()
        finally:
            if timer is not None:
                timer.cancel()
            ctx.closing.pop(self._moved.set, None)
            for leader in self._leaders.values():
                leader.unwatch(self._moved.set)

    def _expire(self) -> None:
        self._last = True
        self._moved.set()

    async def _read(self) -> bool:
        """Acquire what there is; return whether that is an answer."""
        # First: what changes from here on is tried again.
        self._moved.clear()
        plans = await self._plan()
        size_bytes = sum(plan.size_bytes for _, plan in plans)
        if not plans or (size_bytes < self._req.min_bytes and not self._last):
            return False
        cold = [each for each in plans if not isinstance(each[1], HotRead)]
        for place, plan in plans:
            # No other task has run since the plan was made: its bytes are mapped.
            if isinstance(plan, HotRead):
                self._read_mapped(place, plan)
        for place, plan in cold:
            await self._read_cold(place, plan)
        return bool(self._acquired) or any(row.error_code for row in self._rows.values())

    async def _plan(self) -> list[tuple[Place, Plan]]:
        """Plan a read of each partition that can give records."""
        able: list[tuple[Place, ShareLeader, int, int]] = []
        for place, leader in list(self._leaders.items()):
            leader.check()
            if leader.ended is not None:
                del self._leaders[place]
                self._fail(place, leader.ended.code, leader.ended.message)
                self._last = True
                continue
            offset = leader.fetch_offset()
            if offset is not None:
                end = self._end(leader.partition, offset)
                if offset < end:
                    able.append((place, leader, offset, end))
            await self._ctx.give_way()
        plans: list[tuple[Place, Plan]] = []
        for place, leader, offset, end in able:
            most = max(1, self._bytes_max // len(able))
            try:
                plan = leader.partition.plan(offset, most, end, True)
                if not isinstance(plan, HotRead):
                    plan = leader.partition.plan(offset, min(most, COLD_BYTES), end, True)
            except KafkaError as error:
                # Below the log start: the leader is notified of that, and has another offset then.
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._fail(place, error.code, error.message)
                continue
            if plan.size_bytes:
                plans.append((place, plan))
        return plans

    def _end(self, partition: Partition, offset: int) -> int:
        """Return up to where the group may read."""
        if partition.next_offset > partition.high_watermark:
            self._commit_log.want_commit()
        return partition.committed_end(offset) if self._committed else partition.high_watermark

    def _read_mapped(self, place: Place, plan: HotRead) -> None:
        views, release = self._commit_log.views(plan)
        sent = False
        try:
            aborted = aborted_in(plan) if self._committed else []
            sent = self._acquire(place, plan, views, aborted, release)
        except KafkaError as error:
            self._fail(place, error.code, error.message)
        finally:
            if not sent:
                release()

    def _acquire(
        self,
        place: Place,
        plan: Plan,
        buffers: Sequence[Buffer],
        aborted: Sequence[Aborted],
        release: Callable[[], None] | None,
    ) -> bool:
        """Acquire records that were read; return whether their bytes are in the response."""
        req, leader = self._req, self._leaders[place]
        wanted = req.max_records - self._acquired
        if wanted <= 0:
            return False
        parts = walk(buffers, plan.offset + wanted, aborted)
        ask = Acquire(
            self._member,
            plan.offset,
            [part.batch for part in parts],
            wanted,
            max(1, req.batch_size),
            req.share_acquire_mode == STRICT,
        )
        acquired, changed = leader.acquire(ask)
        if changed and not acquired:
            self._moved.set()  # what was dropped is not in the way any more
        if not acquired:
            return False
        self._acquired += sum(run.last - run.first + 1 for run in acquired)
        row = PartitionData(place[1])
        row.records = self._cut(buffers, parts, acquired, release)
        row.acquired_records = [AcquiredRecords(*run) for run in acquired]
        self._rows[place] = row
        size_bytes = sum(map(len, row.records))
        leader.partition.traffic.out_bytes += size_bytes
        self._broker.counts.fetched_bytes += size_bytes
        if self._ctx.quotas is not None:
            delay_ms = self._ctx.quotas.record_share_fetch(size_bytes)
            self._ctx.fetch_delay_ms = max(self._ctx.fetch_delay_ms, delay_ms)
        return True

    def _cut(
        self,
        buffers: Sequence[Buffer],
        parts: Sequence[Part],
        acquired: Sequence[Acquired],
        release: Callable[[], None] | None,
    ) -> list[Buffer]:
        """Return the batches from the first to the last that has acquired records."""
        first, last = acquired[0].first, acquired[-1].last
        cut: list[Buffer] = []
        kept = [part for part in parts if part.batch.last >= first and part.batch.first <= last]
        at = 0
        while at < len(kept):
            begin = kept[at]
            while at + 1 < len(kept) and kept[at + 1].buffer == begin.buffer:
                at += 1
            cut.append(memoryview(buffers[begin.buffer])[begin.start : kept[at].stop])
            at += 1
        if release is None:
            self._ctx.held_bytes += sum(map(len, buffers))
        elif len(cut) >= JOIN_VIEWS_FROM:
            joined = b"".join(cut)
            cut = [joined]
            release()
            self._broker.answer_memory.add_bytes(len(joined))
            self._ctx.held_bytes += len(joined)
        else:
            self._ctx.call_after_response(release)
        return cut

    async def _read_cold(self, place: Place, plan: Plan) -> None:
        """Read from disk or the remote tier, while no other request does so for the partition."""
        leader = self._leaders[place]
        if leader.reading or self._acquired >= self._req.max_records:
            return
        leader.begin_reading()
        held = 0
        try:
            held = await self._take_memory(plan.size_bytes)
            if not held:
                return
            aborted: list[Aborted] | None = [] if self._committed else None
            patience_s = self._broker.config.remote_fetch_max_wait_ms / 1000
            buffers = await self._commit_log.read(plan, patience_s, aborted)
            size_bytes = sum(map(len, buffers))
            if size_bytes > held:  # one batch is read whatever its size
                self._broker.answer_memory.add_bytes(size_bytes - held)
                held = size_bytes
            if not self._ctx.is_gone() and self._acquire(place, plan, buffers, aborted or [], None):
                self._broker.answer_memory.release(held - size_bytes)
                held = 0
        except (KafkaError, OSError) as error:
            self._fail(place, code_of(error))
        finally:
            if held:
                self._broker.answer_memory.release(held)
            leader.stop_reading()

    async def _take_memory(self, size_bytes: int) -> int:
        """Reserve memory for what is read; 0 if there is none for long."""
        memory = self._broker.answer_memory
        granted = memory.reserve(size_bytes)
        if granted:
            return granted
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def grant(granted_bytes: int) -> None:
            if done.done():
                memory.release(granted_bytes)
            else:
                done.set_result(granted_bytes)

        memory.when_free(size_bytes, grant)
        timer = self._broker.env.call_later(MEMORY_PATIENCE_S, done.cancel)
        try:
            return await done
        except asyncio.CancelledError:
            memory.cancel(grant)
            if not done.cancelled():
                raise
            return 0
        finally:
            timer.cancel()


def walk(buffers: Sequence[Buffer], end: int, aborted: Sequence[Aborted]) -> list[Part]:
    """Return the batches of a read up to the one that reaches offset `end`. Raises
    CORRUPT_MESSAGE."""
    parts: list[Part] = []
    for number, buffer in enumerate(buffers):
        at, size = 0, len(buffer)
        while at < size:
            if size - at < HEAD_BYTES:
                raise bad_batch(at)
            base, length, attributes, delta, producer_id = _HEAD.unpack_from(buffer, at)
            stop = at + length + PREFIX_BYTES
            if length < HEAD_BYTES - PREFIX_BYTES or stop > size or delta < 0:
                raise bad_batch(at)
            dropped = bool(attributes & CONTROL)
            if attributes & TRANSACTIONAL and aborted and not dropped:
                dropped = any(
                    producer_id == owner and first <= base <= last for owner, first, last in aborted
                )
            parts.append(Part(FetchedBatch(base, base + delta, dropped), number, at, stop))
            if base + delta + 1 >= end or len(parts) >= WALKED_MAX:
                return parts
            at = stop
    return parts
