"""ListOffsets: offsets by timestamp, and the special offsets of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.handlers.context import RequestContext
from kafkawire.log.segments.store.remote_tier import local_log_start, readable_log_start
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from kafkawire.security.acls.model import Operation

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SINCE = {  # the version that brought each special timestamp
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,  # KIP-734
    EARLIEST_LOCAL: 8,  # KIP-405
    LATEST_TIERED: 9,  # KIP-1005
    EARLIEST_PENDING_UPLOAD: 11,  # KIP-1023
}
UNKNOWN = -1
READ_COMMITTED = 1
"""The isolation level of a reader of committed records."""

LOOKUPS_AT_ONCE = 16
"""Concurrent lookups by time of one request: each may wait for object storage."""

Found = tuple[int, int, int]  # offset, timestamp, leader epoch; -1 for what there is not
_NOTHING: Found = (UNKNOWN, UNKNOWN, UNKNOWN)


async def list_offsets(ctx: RequestContext, req: ListOffsetsRequest) -> ListOffsetsResponse:
    """ListOffsets v1-11.

    v2 isolation level; v4 leader epochs; v6 flexible; v7 timestamp -3 (offset of the largest
    timestamp); v8 -4 (earliest local); v9 -5 (latest in the remote tier); v10 timeout for remote
    lookups; v11 -6 (earliest to be uploaded). Results that depend on the log end wait for the
    commit that covers it, so that a client reads its own writes. Lookups that read data run
    concurrently, within that timeout (`remote.list.offsets.request.timeout.ms` if the client sends
    none): REQUEST_TIMED_OUT for partitions without a result by then. Readers of
    committed records get the last stable offset as the end, and nothing that is not below it.
    """
    req.topics, refused = await ctx.split_by_rights(
        Operation.DESCRIBE, req.topics, attrgetter("name")
    )
    twice = await ctx.duplicates(_keys(req))
    await ctx.broker.table.load(_keys(req))
    uncommitted = await _commit(ctx, req)
    committed = req.isolation_level == READ_COMMITTED
    topics: list[ListOffsetsTopicResponse] = []
    readings: list[Lookup] = []
    for topic in req.topics:
        rows: list[ListOffsetsPartitionResponse] = []
        for asked in topic.partitions:
            error = uncommitted
            if (topic.name, asked.partition_index) in twice:
                error = ErrorCode.INVALID_REQUEST
            rows.append(ListOffsetsPartitionResponse(partition_index=asked.partition_index))
            look_up = Lookup(ctx, topic.name, asked, error, rows[-1], committed=committed)
            if _reads(asked.timestamp):
                readings.append(look_up)
            else:
                await look_up.answer()
            await ctx.give_way()
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        await ctx.give_way()
    if readings:
        await _run_lookups(ctx, readings, req.timeout_ms)
    await ctx.empty_slowly(twice, readings)
    for topic in refused:
        topics.append(await _refuse_topic(ctx, topic))
    return ListOffsetsResponse(topics=topics)


async def _refuse_topic(ctx: RequestContext, topic: ListOffsetsTopic) -> ListOffsetsTopicResponse:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rows = (
        ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=code)
        for asked in topic.partitions
    )
    return ListOffsetsTopicResponse(name=topic.name, partitions=await ctx.list_in_slices(rows))


def _keys(req: ListOffsetsRequest) -> Iterator[tuple[str, int]]:
    return (
        (topic.name, asked.partition_index) for topic in req.topics for asked in topic.partitions
    )


class Lookup:
    """One partition of a request, and its row in the response."""

    __slots__ = ("_asked", "_committed", "_ctx", "_error", "_topic", "done", "row")

    def __init__(
        self,
        ctx: RequestContext,
        topic: str,
        asked: ListOffsetsPartition,
        error: ErrorCode,
        row: ListOffsetsPartitionResponse,
        *,
        committed: bool,
    ) -> None:
        """`committed`: for a reader of committed records."""
        self._ctx = ctx
        self._topic = topic
        self._asked = asked
        self._error = error
        self._committed = committed
        self.row = row
        self.done = False

    def _end(self, partition: Partition) -> int:
        """The end of what the reader may see."""
        return partition.last_stable_offset if self._committed else partition.high_watermark

    async def answer(self) -> None:
        """Look it up; errors are set in the row."""
        ctx, asked, error, row = self._ctx, self._asked, self._error, self.row
        try:
            if error is ErrorCode.INVALID_REQUEST or (error and _needs_end(asked.timestamp)):
                raise KafkaError(error)
            since = _SINCE.get(asked.timestamp, 0 if asked.timestamp >= 0 else None)
            if since is None or ctx.version < since:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            partition = ctx.find_readable(
                self._topic, asked.partition_index, asked.current_leader_epoch
            )
            row.offset, row.timestamp, epoch = await _find(
                ctx, partition, asked.timestamp, self._end(partition)
            )
            if partition.resigned:  # while data was read: the leader may have other records
                row.offset = row.timestamp = UNKNOWN
                raise partition.refusal()
            if ctx.version >= 4:
                row.leader_epoch = epoch
        except (KafkaError, OSError) as refused:
            row.error_code = code_of(refused)
        self.done = True


async def _run_lookups(ctx: RequestContext, lookups: list[Lookup], timeout_ms: int) -> None:
    """Run lookups that may read data, with limited concurrency, until the timeout."""
    if timeout_ms <= 0:
        timeout_ms = ctx.broker.config.remote_list_offsets_request_timeout_ms
    waiting: Iterator[Lookup] = iter(lookups)

    async def answer_some() -> None:
        for look_up in waiting:
            await look_up.answer()
            await ctx.give_way()

    ctx.park()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            at_once = min(LOOKUPS_AT_ONCE, len(lookups))
            await asyncio.gather(*[answer_some() for _ in range(at_once)])
    except TimeoutError:
        for look_up in lookups:
            if not look_up.done:
                look_up.row.error_code = ErrorCode.REQUEST_TIMED_OUT
            await ctx.give_way()


async def _commit(ctx: RequestContext, req: ListOffsetsRequest) -> ErrorCode:
    """Wait once for all partitions of the request whose end is requested and not durable yet.
    Return the code for those: NONE, or that of the failed commit."""
    if not await _waits(ctx, req):
        return ErrorCode.NONE
    ctx.park()  # it is applied: the client's next request may start before the commit
    try:
        await ctx.broker.log.commit_log.wait_until_committed()
    except (KafkaError, OSError) as error:
        return code_of(error)
    return ErrorCode.NONE


async def _waits(ctx: RequestContext, req: ListOffsetsRequest) -> bool:
    for topic in req.topics:
        for asked in topic.partitions:
            if _needs_end(asked.timestamp) and any(
                _open_end(partition) for partition in _find_partition(ctx, topic.name, asked)
            ):
                return True
            await ctx.give_way()
        await ctx.give_way()
    return False


def _find_partition(
    ctx: RequestContext, topic: str, asked: ListOffsetsPartition
) -> Iterable[Partition]:
    try:
        return (ctx.broker.table.find_readable(topic, asked.partition_index),)
    except KafkaError:
        return ()  # answered later, with its code


def _open_end(partition: Partition) -> bool:
    # Queued batches count, too: an acks=0 Produce may precede it on the same connection.
    return partition.high_watermark < partition.offsets.pending


def _needs_end(timestamp: int) -> bool:
    return timestamp in (LATEST, MAX_TIMESTAMP) or timestamp >= 0


def _reads(timestamp: int) -> bool:
    """Return whether it may have to read data that is not in memory."""
    return timestamp == MAX_TIMESTAMP or timestamp >= 0


async def _find(ctx: RequestContext, partition: Partition, timestamp: int, end: int) -> Found:
    if timestamp == LATEST:
        return end, UNKNOWN, partition.leader_epoch
    if timestamp == EARLIEST:
        return _place(partition, readable_log_start(partition, ctx.broker.log.segments.store))
    if timestamp == EARLIEST_LOCAL:
        return _place(partition, local_log_start(partition, ctx.broker.log.segments.store))
    if timestamp == LATEST_TIERED:
        tiered = partition.commit_offset > partition.log_start
        return _place(partition, partition.commit_offset - 1) if tiered else _NOTHING
    if timestamp == EARLIEST_PENDING_UPLOAD:
        pending = max(partition.commit_offset, partition.log_start)
        return _place(partition, pending) if partition.config.tiered else _NOTHING
    if timestamp == MAX_TIMESTAMP:
        offset, found_timestamp = await partition.max_timestamp()
    else:
        found = await partition.offset_for_time(timestamp)
        if found is None:
            return _NOTHING
        offset, found_timestamp = found
    # Uncommitted records may be lost, and their offsets assigned again.
    if offset < 0 or offset >= end:
        return _NOTHING
    return offset, found_timestamp, _epoch_at(partition, offset)


def _place(partition: Partition, offset: int) -> Found:
    return offset, UNKNOWN, _epoch_at(partition, offset)


def _epoch_at(partition: Partition, offset: int) -> int:
    """Return the leader epoch of the record at `offset`, -1 if unknown."""
    epoch = UNKNOWN
    for number, start in partition.epochs:
        if start > offset:
            break
        epoch = number
    return epoch
