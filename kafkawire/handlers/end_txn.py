"""EndTxn v0-5: commit or abort the transaction of a producer.

v2 answers PRODUCER_FENCED; v3 is flexible; v4 may answer TRANSACTION_ABORTABLE; v5 raises the epoch
and answers the producer id and epoch of the next transaction (KIP-890). Answered when the outcome
is durable; the markers are written afterwards.
"""

from __future__ import annotations

from kafkawire.handlers.context import RequestContext
from kafkawire.messages.end_txn import EndTxnRequest, EndTxnResponse
from kafkawire.transactions.machine.wire import end_of, end_response


async def end_txn(ctx: RequestContext, req: EndTxnRequest) -> EndTxnResponse:
    """Decide the outcome of the transaction."""
    answer = await ctx.broker.transactions.ask(end_of(req, ctx.version))
    return end_response(answer, ctx.version)
