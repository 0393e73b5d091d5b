"""UnregisterBroker: remove a broker that does not come back (KIP-500)."""

from __future__ import annotations

from kafkawire.broker.config_service import FAILURES, as_kafka_error
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


async def unregister_broker(
    ctx: RequestContext, req: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """UnregisterBroker v0.

    INVALID_REQUEST for a broker that is alive, leads partitions, or has segments or objects: Kafka
    removes it, and its replicas serve its partitions. Settings of the broker are removed too, which
    Kafka keeps. A broker that is started again is registered again.
    """
    try:
        await ctx.broker.removal.remove(req.broker_id, ctx.sender)
    except FAILURES as failure:
        error = as_kafka_error(failure)
        return UnregisterBrokerResponse(
            error_code=error.code, error_message=error.message or error.code.sentence
        )
    return UnregisterBrokerResponse()
