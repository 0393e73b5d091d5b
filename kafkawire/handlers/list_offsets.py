"""ListOffsets: offsets by timestamp, and the ends of a partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafkawire.broker.newtopics import duplicates
from kafkawire.broker.partitions import check_leader_epoch
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from log.partition import Partition

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

Found = tuple[int, int, int]  # offset, timestamp, leader epoch; -1 for what there is not
_NOTHING: Found = (UNKNOWN, UNKNOWN, UNKNOWN)


async def list_offsets(ctx: RequestContext, req: ListOffsetsRequest) -> ListOffsetsResponse:
    """ListOffsets v1-11.

    v2 isolation level; v4 leader epochs; v6 flexible; v7 timestamp -3 (offset of the largest
    timestamp); v8 -4 (earliest local); v9 -5 (latest in the remote tier); v10 timeout for remote
    look-ups; v11 -6 (earliest to be uploaded).
    Whatever depends on the log end waits for the commit that covers the end it found, so that
    a client reads its own writes.
    Not done: the remote tier (-4 is the log start, -5 and -6 are unknown), transactions (the last
    stable offset is the high watermark), the timeout (nothing here takes long).
    """
    twice = duplicates(
        (topic.name, partition.partition_index)
        for topic in req.topics
        for partition in topic.partitions
    )
    await ctx.broker.table.load(
        (topic.name, asked.partition_index) for topic in req.topics for asked in topic.partitions
    )
    uncommitted = await _commit(ctx, req)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    await _answer(
                        ctx, topic.name, asked,
                        ErrorCode.INVALID_REQUEST
                        if (topic.name, asked.partition_index) in twice
                        else uncommitted,
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in req.topics
        ]
    )  # fmt: skip


async def _commit(ctx: RequestContext, req: ListOffsetsRequest) -> ErrorCode:
    """Wait once for all partitions of the request whose end is asked for and not yet durable.
    The code is for those: NONE, or that of the failed commit."""
    waits = any(
        _open_end(partition)
        for topic in req.topics
        for asked in topic.partitions
        if _needs_end(asked.timestamp)
        for partition in _found(ctx, topic.name, asked)
    )
    if not waits:
        return ErrorCode.NONE
    ctx.park()  # it is applied: what the client sends next may start before the disk is done
    try:
        await ctx.broker.log.commit_log.committed()
    except (KafkaError, OSError) as error:
        return code_of(error)
    return ErrorCode.NONE


def _found(ctx: RequestContext, topic: str, asked: ListOffsetsPartition) -> Iterable[Partition]:
    try:
        return (ctx.broker.table.named(topic, asked.partition_index),)
    except KafkaError:
        return ()  # answered later, with its code


def _open_end(partition: Partition) -> bool:
    # Also what is only queued: an acks=0 produce just before on the same connection counts.
    return partition.high_watermark < partition.offsets.pending


def _needs_end(timestamp: int) -> bool:
    return timestamp in (LATEST, MAX_TIMESTAMP) or timestamp >= 0


async def _answer(
    ctx: RequestContext, topic: str, asked: ListOffsetsPartition, error: ErrorCode
) -> ListOffsetsPartitionResponse:
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    try:
        if error is ErrorCode.INVALID_REQUEST or (error and _needs_end(asked.timestamp)):
            raise KafkaError(error)
        since = _SINCE.get(asked.timestamp, 0 if asked.timestamp >= 0 else None)
        if since is None or ctx.version < since:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        partition = ctx.broker.table.named(topic, asked.partition_index)
        check_leader_epoch(partition, asked.current_leader_epoch)
        answer.offset, answer.timestamp, epoch = await _look_up(partition, asked.timestamp)
        if ctx.version >= 4:
            answer.leader_epoch = epoch
    except (KafkaError, OSError) as refused:
        answer.error_code = code_of(refused)
    return answer


async def _look_up(partition: Partition, timestamp: int) -> Found:
    if timestamp == LATEST:
        return partition.high_watermark, UNKNOWN, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return partition.log_start, UNKNOWN, _epoch_at(partition, partition.log_start)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOTHING
    if timestamp == MAX_TIMESTAMP:
        offset, found_timestamp = await partition.max_timestamp()
    else:
        found = await partition.offset_for_time(timestamp)
        if found is None:
            return _NOTHING
        offset, found_timestamp = found
    # What is not committed may still be lost, and its offset given again to another record.
    if offset < 0 or offset >= partition.high_watermark:
        return _NOTHING
    return offset, found_timestamp, _epoch_at(partition, offset)


def _epoch_at(partition: Partition, offset: int) -> int:
    """The leader epoch under which the record at `offset` was written, -1 when unknown."""
    epoch = UNKNOWN
    for number, start in partition.epochs:
        if start > offset:
            break
        epoch = number
    return epoch
