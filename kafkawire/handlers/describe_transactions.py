"""DescribeTransactions v0: state, producer and partitions of transactions by id (KIP-664).

Each id has an error of its own: TRANSACTIONAL_ID_NOT_FOUND, INVALID_REQUEST for an empty one,
NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS. Of a decided transaction, the partitions are those
without their marker. Not done: access control.
"""

from __future__ import annotations

import asyncio

from kafkawire.handlers.context import RequestContext
from kafkawire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)

MAX_WAITING = 64
"""Ids of one request that wait for the same commit."""


async def describe_transactions(
    ctx: RequestContext, req: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Describe each id, in the order of the request."""
    response = DescribeTransactionsResponse()
    describe = ctx.broker.transactions.describe
    ids = req.transactional_ids
    for start in range(0, len(ids), MAX_WAITING):
        part = (describe(each) for each in ids[start : start + MAX_WAITING])
        response.transaction_states += await asyncio.gather(*part)
        await ctx.give_way()
    return response
