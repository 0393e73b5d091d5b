"""Verification with the coordinators of other brokers: AddPartitionsToTxn 4-5 (KIP-890).

Used by kafkawire.broker.verification for transactional ids whose partition of
`__transaction_state` another broker leads.
"""

from __future__ import annotations

from kafkawire.broker.new_topics import TRANSACTION_STATE_TOPIC
from kafkawire.broker.other_brokers import OtherBrokers, known_code
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.java_hash import partition_of
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kafkawire.metadata.catalog import Catalog
from kafkawire.transactions.machine.request import AddPartitions, VerifyPartitions
from kafkawire.transactions.machine.transaction import TopicPartition

ADD_PARTITIONS_TO_TXN = 24

Codes = dict[TopicPartition, ErrorCode]


class RemoteCoordinators:
    """The coordinators of other brokers."""

    def __init__(self, node_id: int, catalog: Catalog, brokers: OtherBrokers) -> None:
        self._node_id = node_id
        self._topics = catalog.by_name
        self._brokers = brokers

    def find(self, transactional_id: str) -> int | None:
        """Return the other broker that coordinates an id; None: this one, or none yet."""
        count = self._topics.size_of(TRANSACTION_STATE_TOPIC)
        if count is None:
            return None
        index = partition_of(transactional_id, count)
        row = self._topics.partition_of(TRANSACTION_STATE_TOPIC, index)
        return None if row is None or row.leader == self._node_id else row.leader

    async def request(self, broker: int, request: AddPartitions | VerifyPartitions) -> Codes:
        """Return a code for each partition: whether it is part of the open transaction now. With
        an error of the network all have that code."""
        asked = _request_of(request)
        codes: Codes = {}
        try:
            answer = await self._brokers.request(broker, ADD_PARTITIONS_TO_TXN, asked)
        except KafkaError as error:
            return dict.fromkeys(request.partitions, error.code)
        for one in answer.results_by_transaction:
            for topic in one.topic_results:
                for row in topic.results_by_partition:
                    codes[topic.name, row.partition_index] = known_code(row.partition_error_code)
        missing = known_code(answer.error_code) or ErrorCode.UNKNOWN_SERVER_ERROR
        return {at: codes.get(at, missing) for at in request.partitions}

    def close(self) -> None:
        """End the connections."""
        self._brokers.close()


def _request_of(request: AddPartitions | VerifyPartitions) -> AddPartitionsToTxnRequest:
    topics: dict[str, AddPartitionsToTxnTopic] = {}
    for topic, index in sorted(request.partitions):
        if topic not in topics:
            topics[topic] = AddPartitionsToTxnTopic(topic)
        topics[topic].partitions.append(index)
    one = AddPartitionsToTxnTransaction(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        isinstance(request, VerifyPartitions),
        list(topics.values()),
    )
    return AddPartitionsToTxnRequest([one])
