"""InitProducerId: a producer id for an idempotent producer (KIP-98, KIP-360)."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NONE = -1  # no producer id, no epoch


async def init_producer_id(
    ctx: RequestContext, req: InitProducerIdRequest
) -> InitProducerIdResponse:
    """InitProducerId v0-5.

    v2 flexible; v3 the producer's old id and epoch (KIP-360), which matter only with a
    transactional id: an idempotent producer that lost its state always gets a new id at epoch 0, as
    in Kafka; v4 PRODUCER_FENCED; v5 TRANSACTION_ABORTABLE. Not done: transactions. A transactional
    id is answered TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which clients report at once and never
    retry.
    """
    # An id without an epoch, or the reverse, is invalid (KafkaApis).
    if (req.producer_id == NONE) != (req.producer_epoch == NONE):
        return _failed(ErrorCode.INVALID_REQUEST)
    if req.transactional_id is not None:
        if not req.transactional_id:
            return _failed(ErrorCode.INVALID_REQUEST)
        return _failed(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        producer_id = await ctx.broker.producer_ids.take()
    except KafkaError as error:
        return _failed(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _failed(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NONE, producer_epoch=NONE)
