"""Requests of a transactional producer (KIP-98): one function per request, without retries.

Partitions are added explicitly, as every broker since Kafka 2.5 supports (Produce up to version 11,
EndTxn up to 4). In this version of the protocol a transaction keeps the epoch of its producer, so a
delayed EndTxn could end the next transaction (KIP-890): a caller should call `init_producer` before
each transaction, which increments the epoch and fences every earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

from kafkawire.client.cluster import TRANSACTION, Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import BrokerError, check
from kafkawire.client.offsets import Partition
from kafkawire.codec.batches import ATTRIBUTES_AT, PRODUCER_ID_AT, TRANSACTIONAL, resum

INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
ADD_PARTITIONS_UNTIL, END_TXN_UNTIL, TXN_OFFSET_COMMIT_UNTIL = 3, 4, 4
"""The last versions for clients that add partitions explicitly."""

SEQUENCES = 1 << 31
"""A producer's sequence numbers restart at 0 after this many."""

_ATTRIBUTES = Struct(">h")
_PRODUCER = Struct(">qhi")


class TransactionalProducer(NamedTuple):
    """A producer id and epoch of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int

    def coordinator(self, cluster: Cluster) -> ClientConnection:
        """Return a connection to the transaction coordinator."""
        return cluster.coordinator(self.transactional_id, TRANSACTION)

    def seal(self, batch: bytearray, sequence: int) -> None:
        """Make a batch one of this producer's transaction, in place. `sequence`: of its first
        record."""
        (attributes,) = _ATTRIBUTES.unpack_from(batch, ATTRIBUTES_AT)
        _ATTRIBUTES.pack_into(batch, ATTRIBUTES_AT, attributes | TRANSACTIONAL)
        _PRODUCER.pack_into(batch, PRODUCER_ID_AT, self.producer_id, self.epoch, sequence)
        resum(batch, 0, len(batch))


def init_producer(
    cluster: Cluster, transactional_id: str, timeout_ms: int
) -> TransactionalProducer:
    """Return a new epoch of a transactional id; earlier ones are fenced, and their open transaction
    is aborted. BrokerError CONCURRENT_TRANSACTIONS until the earlier transaction has ended."""
    from kafkawire.messages.init_producer_id import InitProducerIdRequest

    asked = InitProducerIdRequest(transactional_id, timeout_ms)
    connection = cluster.coordinator(transactional_id, TRANSACTION)
    answer = connection.request(INIT_PRODUCER_ID, asked)
    check(f"InitProducerId of {transactional_id}", answer.error_code)
    return TransactionalProducer(transactional_id, answer.producer_id, answer.producer_epoch)


def add_partitions(
    cluster: Cluster, producer: TransactionalProducer, partitions: Iterable[Partition]
) -> None:
    """Add partitions to the transaction; begins it if necessary. BrokerError: none was added."""
    from kafkawire.messages.add_partitions_to_txn import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnTopic,
    )

    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    asked = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(*item) for item in topics.items()],
    )
    connection = producer.coordinator(cluster)
    answer = connection.request(ADD_PARTITIONS, asked, at_most=ADD_PARTITIONS_UNTIL)
    _check_all(
        f"AddPartitionsToTxn of {producer.transactional_id}",
        {
            (topic.name, row.partition_index): row.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        },
    )


def add_offsets(cluster: Cluster, producer: TransactionalProducer, group: str) -> None:
    """Add the offsets of a group to the transaction; begins it if necessary."""
    from kafkawire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest

    asked = AddOffsetsToTxnRequest(*producer, group)
    answer = producer.coordinator(cluster).request(ADD_OFFSETS, asked)
    check(f"AddOffsetsToTxn of {producer.transactional_id}", answer.error_code)


def commit_offsets(
    cluster: Cluster,
    producer: TransactionalProducer,
    group: str,
    offsets: Mapping[Partition, tuple[int, str]],
) -> None:
    """Commit (offset, metadata) of partitions for a group, as part of the transaction."""
    from kafkawire.messages.txn_offset_commit import (
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequestPartition,
        TxnOffsetCommitRequestTopic,
    )

    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for (name, index), (offset, metadata) in offsets.items():
        topic = topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name, partitions=[]))
        topic.partitions.append(
            TxnOffsetCommitRequestPartition(index, offset, committed_metadata=metadata)
        )
    asked = TxnOffsetCommitRequest(
        producer.transactional_id,
        group,
        producer.producer_id,
        producer.epoch,
        topics=list(topics.values()),
    )
    connection = cluster.coordinator(group)
    answer = connection.request(TXN_OFFSET_COMMIT, asked, at_most=TXN_OFFSET_COMMIT_UNTIL)
    _check_all(
        f"TxnOffsetCommit of group {group}",
        {
            (found.name, row.partition_index): row.error_code
            for found in answer.topics
            for row in found.partitions
        },
    )


def end(cluster: Cluster, producer: TransactionalProducer, *, committed: bool) -> None:
    """Commit or abort the transaction. The outcome is fixed when this returns; its markers follow.
    May be repeated with the same outcome."""
    from kafkawire.messages.end_txn import EndTxnRequest

    asked = EndTxnRequest(*producer, committed)
    answer = producer.coordinator(cluster).request(END_TXN, asked, at_most=END_TXN_UNTIL)
    check(f"EndTxn of {producer.transactional_id}", answer.error_code)


def _check_all(what: str, codes: Mapping[Partition, int]) -> None:
    """Raise BrokerError for the partition that has an error of its own (OPERATION_NOT_ATTEMPTED is
    the consequence of another partition's)."""
    from kafkawire.codec.errors import ErrorCode

    failed = {key: code for key, code in codes.items() if code}
    for own in (True, False):
        for (topic, index), code in sorted(failed.items()):
            if not own or code != ErrorCode.OPERATION_NOT_ATTEMPTED:
                raise BrokerError(f"{what}, {topic}-{index}", code)
