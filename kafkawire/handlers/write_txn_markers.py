"""WriteTxnMarkers v1-2: write the markers that end transactions to partitions led here.

v1 is flexible; v2 has the transaction version of each marker (KIP-1228). Sent by the coordinators
of other brokers, and by operators who abort a hanging transaction (`kafka-transactions abort`,
`kafkawire transactions abort`). Answered when the markers are durable and offsets committed in
their transactions are current or dropped.
"""

from __future__ import annotations

from kafkawire.broker.markers import Marked
from kafkawire.codec.control import ABORT, COMMIT, TransactionMarker
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafkawire.transactions.machine.transaction import TopicPartition
from kafkawire.transactions.marker_sender import MAX_MARKERS_AT_ONCE

Results = dict[int, dict[TopicPartition, ErrorCode | None]]
"""Codes by producer ID, as Kafka answers them: a later marker of the same producer replaces the
code of an earlier one for the same partition."""


async def write_txn_markers(
    ctx: RequestContext, req: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Write the markers in their order, MAX_MARKERS_AT_ONCE partitions by one commit."""
    results: Results = {}
    work: list[Marked] = []
    count = 0
    for each in req.markers:
        results.setdefault(each.producer_id, {})
        marker = _marker(each)
        for topic in each.topics:
            for index in topic.partition_indexes:
                if marker is None:
                    results[each.producer_id][topic.name, index] = ErrorCode.INVALID_REQUEST
                else:
                    work.append((marker, [(topic.name, index)]))
                    count += 1
                if count == MAX_MARKERS_AT_ONCE:
                    await _write(ctx, work, results)
                    work, count = [], 0
                await ctx.give_way()
        await ctx.give_way()
    await _write(ctx, work, results)
    return await _response(ctx, results)


def _marker(each: WritableTxnMarker) -> TransactionMarker | None:
    """The marker; None if its producer cannot exist: a reader would ignore such a marker."""
    if each.producer_id < 0 or each.producer_epoch < 0:
        return None
    return TransactionMarker(
        each.producer_id,
        each.producer_epoch,
        each.coordinator_epoch,
        COMMIT if each.transaction_result else ABORT,
        each.transaction_version,
    )


async def _write(ctx: RequestContext, work: list[Marked], results: Results) -> None:
    written = await ctx.broker.markers.write(work)
    for (marker, _), codes in zip(work, written, strict=True):
        results[marker.producer_id].update(codes)


async def _response(ctx: RequestContext, results: Results) -> WriteTxnMarkersResponse:
    response = WriteTxnMarkersResponse()
    for producer_id, codes in results.items():
        topics: dict[str, WritableTxnMarkerTopicResult] = {}
        for (topic, index), code in codes.items():
            if topic not in topics:
                topics[topic] = WritableTxnMarkerTopicResult(name=topic)
            row = WritableTxnMarkerPartitionResult(index, int(code or 0))
            topics[topic].partitions.append(row)
            await ctx.give_way()
        response.markers.append(WritableTxnMarkerResult(producer_id, list(topics.values())))
        await ctx.give_way()
    return response
