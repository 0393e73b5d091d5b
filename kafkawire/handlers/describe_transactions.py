"""DescribeTransactions: this broker coordinates no transactions yet (KIP-664)."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import sliced
from kafkawire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)


async def describe_transactions(
    ctx: RequestContext, req: DescribeTransactionsRequest
) -> list[Buffer]:
    """DescribeTransactions v0.

    Every id is TRANSACTIONAL_ID_NOT_FOUND, as in Kafka for one that has no transaction.
    Not done: transactions.
    """
    return await sliced(
        ctx.broker.env,
        DescribeTransactionsResponse(),
        ctx.version,
        TransactionState,
        (
            TransactionState(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=name)
            for name in req.transactional_ids
        ),
        len(req.transactional_ids),
    )
