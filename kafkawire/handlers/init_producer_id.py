"""InitProducerId: a producer id, and the epoch that fences earlier producers (KIP-98, KIP-360)."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import UNAUTHORIZED, RequestContext
from kafkawire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kafkawire.security.acls.model import Operation, ResourceKind
from kafkawire.transactions.machine.request import Answer
from kafkawire.transactions.machine.wire import init_producer_of, init_producer_response

NONE = -1  # no producer id, no epoch


async def init_producer_id(
    ctx: RequestContext, req: InitProducerIdRequest
) -> InitProducerIdResponse:
    """InitProducerId v0-5.

    v2 flexible; v3 the producer's old id and epoch (KIP-360), which matter only with a
    transactional id: an idempotent producer that lost its state always gets a new id at epoch 0, as
    in Kafka; v4 PRODUCER_FENCED; v5 TRANSACTION_ABORTABLE. Not done: two-phase commit over the wire
    (v6, KIP-939), which Kafka does not advertise either.
    """
    refusal = await _refusal(ctx, req.transactional_id)
    if refusal is not None:
        return init_producer_response(Answer(refusal), ctx.version)
    # An id without an epoch, or the reverse, is invalid (KafkaApis).
    if (req.producer_id == NONE) != (req.producer_epoch == NONE):
        return init_producer_response(Answer(ErrorCode.INVALID_REQUEST), ctx.version)
    asked = None if req.transactional_id is None else init_producer_of(req)
    # Parked once it is decided: the commits of pipelined requests are shared.
    transactions = await ctx.broker.load_transactions()
    answer = await transactions.init_producer(asked, ctx.park)
    return init_producer_response(answer, ctx.version)


async def _refusal(ctx: RequestContext, transactional_id: str | None) -> ErrorCode | None:
    """Return the error of a client that may not write; without a transactional id it needs any
    topic to write to, or IDEMPOTENT_WRITE (KIP-679)."""
    if transactional_id is not None:
        kind = ResourceKind.TRANSACTIONAL_ID
        return None if ctx.may(Operation.WRITE, kind, transactional_id) else UNAUTHORIZED[kind]
    acls, rights = ctx.broker.security.acls, ctx.rights
    if acls is None or rights is None:
        return None
    if await acls.may_any(rights, Operation.WRITE, ResourceKind.TOPIC):
        return None
    if ctx.may_cluster(Operation.IDEMPOTENT_WRITE):
        return None
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
