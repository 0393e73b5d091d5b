"""AddOffsetsToTxn v0-4: the offsets of a group join the transaction of a producer.

v2 answers PRODUCER_FENCED; v3 is flexible; v4 may answer TRANSACTION_ABORTABLE. It adds the
partition of `__consumer_offsets` that has the group, as AddPartitionsToTxn adds others. Clients of
transaction version 2 do not send it, because TxnOffsetCommit v5 adds the partition.
"""

from __future__ import annotations

import logging

from kafkawire.broker.new_topics import GROUP_METADATA_TOPIC
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kafkawire.transactions.machine.wire import (
    FENCED_FROM_ADD_OFFSETS,
    add_offsets_of,
    fenced_code,
)

logger = logging.getLogger(__name__)


async def add_offsets_to_txn(
    ctx: RequestContext, req: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the partition of the group to the transaction."""
    try:
        partition = await ctx.broker.groups.coordinator_of(req.group_id)
    except KafkaError as error:
        logger.warning(
            "cannot create topic __consumer_offsets, clients retry AddOffsetsToTxn: %s", error
        )
        return AddOffsetsToTxnResponse(error_code=int(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    at = (GROUP_METADATA_TOPIC, partition.index)
    answer = await ctx.broker.transactions.answer_request(add_offsets_of(req, at), ctx.park)
    code = fenced_code(answer.code, ctx.version, FENCED_FROM_ADD_OFFSETS)
    return AddOffsetsToTxnResponse(error_code=int(code))
