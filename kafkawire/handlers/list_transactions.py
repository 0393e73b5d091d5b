"""ListTransactions: this broker coordinates no transactions yet (KIP-664)."""

from __future__ import annotations

from collections.abc import Generator

from kafkawire.handlers.context import RequestContext
from kafkawire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

# The states of a transaction in Kafka (TransactionState), by their names on the wire.
_STATES = frozenset(
    (
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
        "Dead", "PrepareEpochFence",
    )
)  # fmt: skip


async def list_transactions(
    ctx: RequestContext, req: ListTransactionsRequest
) -> ListTransactionsResponse:
    """ListTransactions v0-2.

    v1 filters by duration (KIP-994); v2 by a pattern of the id (KIP-1152). The answer lists the
    filters of states that do not exist, and no transactions.
    Not done: transactions.
    """
    answer = ListTransactionsResponse()
    await ctx.broker.env.slices.run(_unknown(req.state_filters, answer.unknown_state_filters))
    return answer


def _unknown(filters: list[str], found: list[str]) -> Generator[None, None, None]:
    for name in filters:
        if name not in _STATES:
            found.append(name)
        yield None
