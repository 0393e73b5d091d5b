"""Requests to the other brokers of the cluster: one connection to each, in threads.

A connection (kafkawire.client) has one request at a time. Requests that wait for their turn fail
with the one before them: none waits for several timeouts of a broker that does not answer. Markers
of transactions and their verification have connections of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kafkawire.broker.new_topics import TRANSACTION_STATE_TOPIC
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import ClientError
from kafkawire.client.security import NO_SECURITY, ClientSecurity
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.java_hash import partition_of
from kafkawire.log.io.ports import Env
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafkawire.metadata.catalog import Catalog
from kafkawire.share.state.machine import StateAnswer, StateRequest
from kafkawire.share.state.wire import FORMATS, format_message, parse_response
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.request import AddPartitions, VerifyPartitions
from kafkawire.transactions.machine.transaction import TopicPartition

if TYPE_CHECKING:
    from kafkawire.broker.partitions import PartitionTable
    from kafkawire.metadata.catalog import Catalog


CONNECT_TIMEOUT_S = 5.0
"""Time for connecting: a stop of this broker waits for it."""

Address = tuple[str, int]


class OtherBrokers:
    """Connections to other brokers. `listeners`: names of listeners, of which the first that the
    other broker has is used; `security` returns encryption and log-in of a new connection, in any
    thread, or raises ClientError."""

    def __init__(
        self,
        env: Env,
        catalog: Catalog,
        listeners: Iterable[str],
        security: Callable[[], ClientSecurity] = lambda: NO_SECURITY,
    ) -> None:
        self._security = security
        self._env = env
        self._catalog = catalog
        self._listeners = tuple(listeners)
        self._connections: dict[int, tuple[Address, ClientConnection]] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._failures: dict[int, int] = {}
        self._closed = False

    async def request(self, broker: int, key: int, message: object) -> Any:
        """Send a request to a broker and return its decoded response. Raises KafkaError:
        BROKER_NOT_AVAILABLE without an address, NETWORK_EXCEPTION if the outcome is unknown."""
        address = self._address(broker)
        before = self._failures.get(broker, 0)
        async with self._locks.setdefault(broker, asyncio.Lock()):
            if self._failures.get(broker, 0) != before:
                text = f"broker {broker} did not answer the request before"
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, text)
            try:
                return await self._env.offload.submit(
                    "brokers", self._exchange, broker, address, key, message
                )
            except ClientError as error:
                self._failures[broker] = before + 1
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)) from None

    def close(self) -> None:
        """End every connection; a request that waits for its answer fails."""
        self._closed = True
        for _, connection in list(self._connections.values()):
            connection.close()

    def _address(self, broker: int) -> Address:
        info = self._catalog.brokers.get(broker)
        offered = {} if info is None else info.listeners
        for name in (*self._listeners, *offered):
            if name in offered:
                return offered[name]
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not registered with an address"
        )

    def _exchange(self, broker: int, address: Address, key: int, message: object) -> Any:
        """Send a request and wait for its answer; runs in a thread."""
        known, connection = self._connections.get(broker, (None, None))
        if connection is not None and known != address:
            connection.close()
            connection = None
        if connection is None:
            connection = ClientConnection(
                *address, connect_timeout_s=CONNECT_TIMEOUT_S, security=self._security()
            )
            self._connections[broker] = address, connection
        try:
            if self._closed:
                raise ClientError("this broker is stopping")
            return connection.request(key, message)
        except BaseException:
            connection.close()
            self._connections.pop(broker, None)
            raise


def known_code(number: int) -> ErrorCode:
    """The error code that another broker answered."""
    return ErrorCode(number) if number in set(ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR


# Verification with the coordinators of other brokers: AddPartitionsToTxn 4-5 (KIP-890).
#
# Used by kafkawire.broker.verification for transactional ids whose partition of
# `__transaction_state` another broker leads.


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

    async def request_verification(
        self, broker: int, request: AddPartitions | VerifyPartitions
    ) -> Codes:
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


# Markers of transactions for partitions that other brokers lead: WriteTxnMarkers requests.
#
# kafkawire.transactions.marker_sender sends the next request to a broker after the answer, and
# repeats what failed. A repeated marker is written twice, which is legal. Used by
# kafkawire.broker.markers.


WRITE_TXN_MARKERS = 27
MarkerCodes = dict[TopicPartition, ErrorCode | None]


class RemoteMarkers:
    """Markers for the partitions that other brokers lead."""

    def __init__(self, brokers: OtherBrokers) -> None:
        self._brokers = brokers

    async def write(self, broker: int, work: Sequence[SendMarkers]) -> list[MarkerCodes]:
        """Have a broker write markers; the codes it answered for each work. Raises KafkaError if
        the broker has no address, or the outcome is unknown."""
        response = await self._brokers.request(broker, WRITE_TXN_MARKERS, request_of(work))
        return codes_of(response, work)

    def close(self) -> None:
        """End the connections."""
        self._brokers.close()


def request_of(work: Iterable[SendMarkers]) -> WriteTxnMarkersRequest:
    """The markers as a request."""
    request = WriteTxnMarkersRequest()
    for each in work:
        topics: dict[str, WritableTxnMarkerTopic] = {}
        for topic, index in sorted(each.partitions):
            if topic not in topics:
                topics[topic] = WritableTxnMarkerTopic(topic)
            topics[topic].partition_indexes.append(index)
        request.markers.append(
            WritableTxnMarker(
                each.producer_id,
                each.producer_epoch,
                each.commit,
                list(topics.values()),
                each.coordinator_epoch,
                each.transaction_version,
            )
        )
    return request


def codes_of(response: WriteTxnMarkersResponse, work: Iterable[SendMarkers]) -> list[MarkerCodes]:
    """The codes of each work; partitions that the response leaves out are left out."""
    answered = {
        (marker.producer_id, (topic.name, row.partition_index)): known_code(row.error_code)
        for marker in response.markers
        for topic in marker.topics
        for row in topic.partitions
    }
    return [
        {
            partition: answered[each.producer_id, partition]
            for partition in each.partitions
            if (each.producer_id, partition) in answered
        }
        for each in work
    ]


LIST_OFFSETS = 2
LATEST = -1
CONSUMER = -1


class EndOffsets:
    """Finds the high watermarks of partitions."""

    def __init__(
        self, node_id: int, catalog: Catalog, table: PartitionTable, brokers: OtherBrokers
    ) -> None:
        self._node_id = node_id
        self._catalog = catalog
        self._table = table
        self._brokers = brokers

    async def find(self, topic: str, index: int) -> int | ErrorCode:
        """Return the high watermark of a partition, from its leader; or an error."""
        row = self._catalog.by_name.partition_of(topic, index)
        if row is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            if row.leader == self._node_id:
                return (await self._table.load_partition(topic, index)).high_watermark
            wanted = ListOffsetsPartition(index, timestamp=LATEST)
            request = ListOffsetsRequest(CONSUMER, topics=[ListOffsetsTopic(topic, [wanted])])
            answer = await self._brokers.request(row.leader, LIST_OFFSETS, request)
        except KafkaError as error:
            return error.code
        found = answer.topics[0].partitions[0]
        return known_code(found.error_code) or int(found.offset)

    def close(self) -> None:
        """End the connections."""
        self._brokers.close()


class RemoteShareStates:
    """The RemoteStates of a broker: a connection to each other one."""

    def __init__(self, brokers: OtherBrokers) -> None:
        self._brokers = brokers

    async def send(
        self, broker: int, requests: Sequence[StateRequest]
    ) -> dict[tuple[bytes, int], StateAnswer]:
        """Send requests of one kind and one group; see RemoteStates."""
        key = FORMATS[type(requests[0])].key
        return parse_response(await self._brokers.request(broker, key, format_message(requests)))

    def close(self) -> None:
        """End the connections."""
        self._brokers.close()
