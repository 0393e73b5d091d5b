"""Transactions of a cluster: by transactional id, by partition, and markers that end them.

Works with any Kafka broker, like Admin.listTransactions, describeTransactions, describeProducers
and abortTransaction of the Java client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kafkawire.client.cluster import TRANSACTION, Cluster
from kafkawire.client.errors import BrokerError, ClientError, check
from kafkawire.client.offsets import Partition
from kafkawire.codec.errors import ErrorCode

WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS = 27, 61
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66

PARTITIONS_AT_ONCE = 500
"""Partitions of one DescribeProducers request, as in Kafka's find-hanging."""


class TransactionListing(NamedTuple):
    """A transactional id, and the broker that coordinates it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class Producing(NamedTuple):
    """A producer in one partition; -1 where there is nothing: `coordinator_epoch` before its first
    marker, `start_offset` without an open transaction."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int
    start_offset: int


def list_transactions(
    cluster: Cluster,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    min_duration_ms: int = -1,
    pattern: str | None = None,
) -> list[TransactionListing]:
    """Return the transactional ids of all brokers that pass every filter, sorted. A filter that is
    empty, -1 or None is off. BrokerError, and ClientError if a broker does not know a filter."""
    from kafkawire.messages.list_transactions import ListTransactionsRequest

    asked = ListTransactionsRequest(list(states), list(producer_ids), min_duration_ms, pattern)
    needed = 2 if pattern is not None else 1 if min_duration_ms >= 0 else 0
    found: list[TransactionListing] = []
    for node in cluster.nodes():
        connection = cluster.node(node)
        if connection.version(LIST_TRANSACTIONS) < needed:
            raise ClientError(
                f"the broker at {connection.address} cannot list transactions by "
                + ("a pattern" if needed == 2 else "duration")
            )
        answer = connection.request(LIST_TRANSACTIONS, asked)
        check(f"transactions of broker {node}", answer.error_code)
        found += [
            TransactionListing(row.transactional_id, node, row.producer_id, row.transaction_state)
            for row in answer.transaction_states
        ]
    return sorted(found)


def describe_transactions(cluster: Cluster, ids: Iterable[str]) -> Iterator[tuple[str, int, Any]]:
    """Yield (id, broker, TransactionState) of each id, in this order; the state may have an error
    code. BrokerError if a coordinator cannot be found."""
    from kafkawire.messages.describe_transactions import DescribeTransactionsRequest

    for transactional_id in ids:
        node = cluster.coordinator_id(transactional_id, TRANSACTION)
        asked = DescribeTransactionsRequest([transactional_id])
        answer = cluster.node(node).request(DESCRIBE_TRANSACTIONS, asked)
        yield transactional_id, node, answer.transaction_states[0]


def describe_listed(
    cluster: Cluster, listed: Iterable[TransactionListing]
) -> Iterator[tuple[TransactionListing, Any]]:
    """Yield each listed id with its TransactionState, from one request for each coordinator; the
    state may have an error code, such as of an id that was deleted meanwhile."""
    from kafkawire.messages.describe_transactions import DescribeTransactionsRequest

    by_node: dict[int, dict[str, TransactionListing]] = {}
    for each in listed:
        by_node.setdefault(each.coordinator, {})[each.transactional_id] = each
    for node, rows in by_node.items():
        asked = DescribeTransactionsRequest(list(rows))
        answer = cluster.node(node).request(DESCRIBE_TRANSACTIONS, asked)
        for state in answer.transaction_states:
            yield rows[state.transactional_id], state


def producers(cluster: Cluster, led_by: Mapping[Partition, int]) -> Iterator[Producing]:
    """Yield the producers of partitions, given with their leaders. BrokerError if a partition
    cannot be described."""
    from kafkawire.messages.describe_producers import DescribeProducersRequest, TopicRequest

    by_node: dict[int, list[Partition]] = {}
    for partition, node in led_by.items():
        if node < 0:
            raise ClientError(f"{partition[0]}-{partition[1]} has no leader")
        by_node.setdefault(node, []).append(partition)
    for node, partitions in by_node.items():
        for start in range(0, len(partitions), PARTITIONS_AT_ONCE):
            topics: dict[str, list[int]] = {}
            for topic, index in partitions[start : start + PARTITIONS_AT_ONCE]:
                topics.setdefault(topic, []).append(index)
            asked = DescribeProducersRequest([TopicRequest(*each) for each in topics.items()])
            answer = cluster.node(node).request(DESCRIBE_PRODUCERS, asked)
            yield from _producers_in(answer)


def find_holders(
    cluster: Cluster, led_by: Mapping[Partition, int]
) -> tuple[dict[Partition, Producing], dict[Partition, BrokerError]]:
    """Return the producer with the oldest open transaction of each partition, given with their
    leaders, and why a partition could not be described. ClientError."""
    found: dict[Partition, Producing] = {}
    try:
        for each in producers(cluster, led_by):
            first = found.get(each.partition)
            if each.start_offset >= 0 and (first is None or each.start_offset < first.start_offset):
                found[each.partition] = each
    except BrokerError as error:
        if len(led_by) == 1:
            return {}, dict.fromkeys(led_by, error)
        # One partition is enough, such as of a topic that the user may not read: ask one by one.
        answers = [find_holders(cluster, {place: node}) for place, node in led_by.items()]
        errors = {place: each for _, failed in answers for place, each in failed.items()}
        return {place: each for held, _ in answers for place, each in held.items()}, errors
    return found, {}


def _producers_in(answer: Any) -> Iterator[Producing]:
    for topic in answer.topics:
        for row in topic.partitions:
            check(f"{topic.name}-{row.partition_index}", row.error_code, row.error_message)
            for each in row.active_producers:
                yield Producing(
                    (topic.name, row.partition_index),
                    each.producer_id,
                    each.producer_epoch,
                    each.coordinator_epoch,
                    each.last_timestamp,
                    each.current_txn_start_offset,
                )


def find_hanging(
    cluster: Cluster, candidates: Sequence[Producing]
) -> list[tuple[Producing, str | None]]:
    """Return the candidates whose coordinator does not know of them, and the transactional id of
    each, if there is one (Kafka: TransactionsCommand.FindHangingTransactionsCommand)."""
    if not candidates:
        return []
    producer_ids = sorted({each.producer_id for each in candidates})
    id_of = {
        each.producer_id: each.transactional_id
        for each in list_transactions(cluster, producer_ids=producer_ids)
    }
    known: dict[str, set[Partition]] = {}
    for transactional_id, _, found in describe_transactions(cluster, sorted(id_of.values())):
        if found.error_code and found.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise BrokerError(f"transactional id {transactional_id}", found.error_code)
        known[transactional_id] = {(row.topic, n) for row in found.topics for n in row.partitions}
    owned = ((each, id_of.get(each.producer_id)) for each in candidates)
    return [
        (each, owner)
        for each, owner in owned
        if owner is None or each.partition not in known[owner]
    ]


def abort_transaction(cluster: Cluster, opened: Producing, leader: int) -> None:
    """Write the marker that aborts an open transaction in one partition, whatever its coordinator
    knows of it. BrokerError if the broker refuses it."""
    from kafkawire.messages.write_txn_markers import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )

    topic, index = opened.partition
    marker = WritableTxnMarker(
        opened.producer_id,
        opened.producer_epoch,
        False,
        [WritableTxnMarkerTopic(topic, [index])],
        max(0, opened.coordinator_epoch),  # as Kafka's Admin does before the first marker
    )
    answer = cluster.node(leader).request(WRITE_TXN_MARKERS, WriteTxnMarkersRequest([marker]))
    codes = [
        row.error_code
        for result in answer.markers
        for each in result.topics
        for row in each.partitions
    ]
    if len(codes) != 1:
        raise BrokerError(f"{topic}-{index}", ErrorCode.UNKNOWN_SERVER_ERROR)
    check(f"{topic}-{index}", codes[0])
