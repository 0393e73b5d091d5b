"""AddPartitionsToTxn v0-5: partitions join the transaction of a producer, or are verified.

v2 answers PRODUCER_FENCED; v3 is flexible and the last that clients send; v4 has many transactions,
each with partitions to add or only to verify (KIP-890), and speaks transaction version 2; v5 may
answer TRANSACTION_ABORTABLE. A partition that does not exist refuses all of its transaction: the
others get OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from kafkawire.transactions.machine.request import AddPartitions
from kafkawire.transactions.machine.transaction import TopicPartition
from kafkawire.transactions.machine.wire import (
    PartitionsOfOne,
    partitions_of,
    partitions_response,
)

Codes = dict[TopicPartition, ErrorCode]


async def add_partitions_to_txn(
    ctx: RequestContext, req: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add or verify the partitions of each transaction of the request."""
    results: list[tuple[str, Codes]] = []
    for one in partitions_of(req, ctx.version):
        codes = await _not_existing(ctx, one)
        results.append((one.ask.transactional_id, codes or await _ask(ctx, one)))
        await ctx.give_way()
    return partitions_response(results, ctx.version)


async def _not_existing(ctx: RequestContext, one: PartitionsOfOne) -> Codes:
    """Return the codes of all partitions if one does not exist; empty if all do."""
    catalog = ctx.broker.catalog.by_name
    absent: set[TopicPartition] = set()
    for partition in one.order:
        if catalog.partition_of(*partition) is None:
            absent.add(partition)
        await ctx.give_way()
    return one.refused(absent) if absent else {}


async def _ask(ctx: RequestContext, one: PartitionsOfOne) -> Codes:
    transactions = ctx.broker.transactions
    if isinstance(one.ask, AddPartitions):
        return one.all_with((await transactions.ask(one.ask)).code)
    codes = await transactions.verify(one.ask)
    return {partition: codes[partition] for partition in one.order}
