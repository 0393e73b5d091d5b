"""DeleteRecords: raise the log start of partitions (KIP-107)."""

from __future__ import annotations

from operator import attrgetter

from kafkawire.broker.new_topics import INTERNAL_TOPICS
from kafkawire.broker.read_only import check_writable
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from kafkawire.security.acls.model import Operation

HIGH_WATERMARK = -1  # delete all records
NO_WATERMARK = -1


async def delete_records(ctx: RequestContext, req: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """DeleteRecords v0-2.

    v1 throttle time; v2 flexible. The low watermark of the response is the new log start, which is
    durable when it is sent. For a tiered partition the manifest in the bucket has it, too;
    otherwise a restore could bring the records back. If that exceeds the request's timeout, the
    code is REQUEST_TIMED_OUT although the log start has moved.
    """
    req.topics, refused = await ctx.split_by_rights(
        Operation.DELETE, req.topics, attrgetter("name")
    )
    await ctx.broker.table.load(
        (topic.name, asked.partition_index) for topic in req.topics for asked in topic.partitions
    )
    response = DeleteRecordsResponse()
    for topic in req.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        for asked in topic.partitions:
            result.partitions.append(await _delete(ctx, topic.name, asked))
            await ctx.give_way()
        response.topics.append(result)
        await ctx.give_way()
    for topic in refused:
        response.topics.append(await _refuse_topic(ctx, topic))
    if ctx.broker.tiering is not None:
        await _notify_tier(ctx, response, req.timeout_ms / 1000)
    return response


async def _refuse_topic(ctx: RequestContext, topic: DeleteRecordsTopic) -> DeleteRecordsTopicResult:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rows = (
        DeleteRecordsPartitionResult(asked.partition_index, NO_WATERMARK, code)
        for asked in topic.partitions
    )
    return DeleteRecordsTopicResult(topic.name, await ctx.list_in_slices(rows))


async def _notify_tier(
    ctx: RequestContext, response: DeleteRecordsResponse, timeout_s: float
) -> None:
    """Publish the new log starts in the bucket's manifest; set errors in the results if that
    fails."""
    moved = [
        (topic.name, result)
        for topic in response.topics
        for result in topic.partitions
        if not result.error_code
    ]
    assert ctx.broker.tiering is not None
    names = [(name, result.partition_index) for name, result in moved]
    late = await ctx.broker.tiering.log_starts_reported(names, timeout_s)
    for name, result in moved:
        if (name, result.partition_index) in late:
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.low_watermark = NO_WATERMARK


async def _delete(
    ctx: RequestContext, topic: str, asked: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=NO_WATERMARK
    )
    try:
        result.low_watermark = await _low_watermark(ctx, topic, asked)
    except (KafkaError, OSError) as error:
        result.error_code = code_of(error)
    return result


async def _low_watermark(ctx: RequestContext, topic: str, asked: DeleteRecordsPartition) -> int:
    """Return the log start after the deletion. Raises KafkaError (Kafka:
    Partition.deleteRecordsOnLeader)."""
    partition = ctx.broker.table.find_by_name(topic, asked.partition_index)
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    check_writable(ctx.broker.config)
    if not partition.config.cleanup_delete:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    if partition.high_watermark < partition.offsets.pending:
        # Offsets that the client has written are included, so that deleting up to its end works.
        await ctx.broker.log.commit_log.wait_until_committed()
        if partition.resigned:
            raise partition.refusal()
    offset = asked.offset
    if offset == HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if offset <= partition.log_start:
        return partition.log_start
    log_start = await partition.delete_records(offset)
    ctx.broker.topics.changes.report_records_deleted(
        topic, asked.partition_index, log_start, ctx.sender
    )
    return log_start
