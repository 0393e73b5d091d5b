"""DescribeTransactions v0: state, producer and partitions of transactions by id (KIP-664).

Each id has an error of its own: TRANSACTIONAL_ID_NOT_FOUND, INVALID_REQUEST for an empty one,
NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS. Of a decided transaction, the partitions are those
without their marker. Topics that the
client may not describe are left out.
"""

from __future__ import annotations

import asyncio

from kafkawire.handlers.context import UNAUTHORIZED, RequestContext
from kafkawire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from kafkawire.security.acls.model import Operation, ResourceKind

_KIND = ResourceKind.TRANSACTIONAL_ID

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
        part = ids[start : start + MAX_WAITING]
        allowed = [each for each in part if ctx.may(Operation.DESCRIBE, _KIND, each)]
        found = iter(await asyncio.gather(*map(describe, allowed)))
        may_see = set(allowed)
        for each in part:
            state = next(found) if each in may_see else _refuse_id(each)
            state.topics = await ctx.list_in_slices(
                topic
                for topic in state.topics
                if ctx.may_topic(Operation.DESCRIBE, topic.topic, logged=False)
            )
            response.transaction_states.append(state)
        await ctx.give_way()
    return response


def _refuse_id(transactional_id: str) -> TransactionState:
    return TransactionState(UNAUTHORIZED[_KIND], transactional_id)
