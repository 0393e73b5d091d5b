"""Verification that a partition belongs to a transaction before records of it are appended.

Asks the partition first, which knows open transactions, then the transaction coordinator (KIP-890).
Used by the groups for TxnOffsetCommit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkawire.broker.new_topics import GROUP_METADATA_TOPIC
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.transactional import Verification, Verified
from kafkawire.transactions.machine.request import AddPartitions, VerifyPartitions

if TYPE_CHECKING:
    from kafkawire.broker.parts import BrokerParts

WITHOUT_SEQUENCE = -1
VERSION_2 = 2
"""The transaction.version of requests that add partitions themselves."""


async def verify_offsets(broker: BrokerParts, asked: Verification) -> Verified:
    """Verify a partition of `__consumer_offsets`, or add it to the transaction."""
    at = (GROUP_METADATA_TOPIC, asked.partition)
    producer = asked.producer_id, asked.producer_epoch
    try:
        await broker.table.load([at])
        partition = broker.table.named(*at)
        guard = partition.begin_verification(
            *producer, WITHOUT_SEQUENCE, broker.env.clock.now_ms(), adds=asked.adds
        )
    except KafkaError as error:
        return Verified(error.code)
    if guard is None:
        return Verified()  # the transaction is open in this partition
    who = asked.transactional_id, *producer
    if asked.adds:
        added = await broker.transactions.ask(AddPartitions(*who, frozenset({at}), VERSION_2))
        code = added.code
    else:
        codes = await broker.transactions.verify(VerifyPartitions(*who, frozenset({at})))
        code = codes[at]
    if code is ErrorCode.NONE:
        return Verified(code, guard)
    if not code.retriable:  # else the next request of the producer may use the guard
        partition.producers.drop_guard(asked.producer_id, guard)
    return Verified(code)
