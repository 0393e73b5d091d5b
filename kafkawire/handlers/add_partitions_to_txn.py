"""AddPartitionsToTxn v0-5: partitions join the transaction of a producer, or are verified.

v2 answers PRODUCER_FENCED; v3 is flexible and the last that clients send; v4 has many transactions,
each with partitions to add or only to verify (KIP-890), and speaks transaction version 2; v5 may
answer TRANSACTION_ABORTABLE. A partition that does not exist refuses all of its transaction: the
others get OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from kafkawire.security.acls.model import CLUSTER_NAME, Operation, ResourceKind
from kafkawire.transactions.machine.request import AddPartitions
from kafkawire.transactions.machine.transaction import TopicPartition
from kafkawire.transactions.machine.wire import (
    BATCHED_FROM,
    FENCED_FROM_ADD_PARTITIONS,
    fenced_code,
    partitions_request,
    single_transaction,
)

MAX_WAITING = 64
"""Transactions of one request that wait for the same commit."""

CodeOf = Callable[[TopicPartition], ErrorCode]


async def add_partitions_to_txn(
    ctx: RequestContext, req: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add or verify the partitions of each transaction of the request."""
    if ctx.version < BATCHED_FROM:
        topics = await _results(ctx, single_transaction(req), ctx.park)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
    ctx.check(Operation.CLUSTER_ACTION, ResourceKind.CLUSTER, CLUSTER_NAME)
    response = AddPartitionsToTxnResponse()
    for start in range(0, len(req.transactions), MAX_WAITING):
        part = req.transactions[start : start + MAX_WAITING]
        found = await asyncio.gather(*(_results(ctx, one) for one in part))
        response.results_by_transaction += [
            AddPartitionsToTxnResult(one.transactional_id, topics)
            for one, topics in zip(part, found, strict=True)
        ]
        await ctx.give_way()
    return response


async def _results(
    ctx: RequestContext,
    one: AddPartitionsToTxnTransaction,
    decided: Callable[[], None] | None = None,
) -> list[AddPartitionsToTxnTopicResult]:
    """Return the result of each partition of one transaction, by topic; call `decided` when the
    coordinator has decided on all of them."""
    partitions = await ctx.count_keys(
        (topic.name, index) for topic in one.topics for index in topic.partitions
    )
    code_of = await _find_refusals(ctx, partitions) or await _ask_coordinator(
        ctx, one, frozenset(partitions), decided
    )
    found: dict[str, AddPartitionsToTxnTopicResult] = {}
    for at in partitions:
        topic, index = at
        if topic not in found:
            found[topic] = AddPartitionsToTxnTopicResult(topic)
        code = fenced_code(code_of(at), ctx.version, FENCED_FROM_ADD_PARTITIONS)
        found[topic].results_by_partition.append(
            AddPartitionsToTxnPartitionResult(index, int(code))
        )
        await ctx.give_way()
    await ctx.empty_slowly(partitions)
    return list(found.values())


async def _find_refusals(
    ctx: RequestContext, partitions: Iterable[TopicPartition]
) -> CodeOf | None:
    """Return the codes of all partitions if one does not exist or may not be written; None if all
    may be added."""
    catalog = ctx.broker.catalog.by_name
    codes: dict[TopicPartition, ErrorCode] = {}
    by_client = ctx.version < BATCHED_FROM
    for at in partitions:
        if by_client and not ctx.may_topic(Operation.WRITE, at[0]):
            codes[at] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif catalog.partition_of(*at) is None:
            codes[at] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await ctx.give_way()
    if not codes:
        return None
    return lambda at: codes.get(at, ErrorCode.OPERATION_NOT_ATTEMPTED)


async def _ask_coordinator(
    ctx: RequestContext,
    one: AddPartitionsToTxnTransaction,
    partitions: frozenset[TopicPartition],
    decided: Callable[[], None] | None,
) -> CodeOf:
    """Return the codes that the coordinator answers."""
    request = partitions_request(one, partitions, ctx.version)
    transactions = ctx.broker.transactions
    if isinstance(request, AddPartitions):
        code = (await transactions.answer_request(request, decided)).code
        return lambda _: code
    return (await transactions.verify(request)).__getitem__
