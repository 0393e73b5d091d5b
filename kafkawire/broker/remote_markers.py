"""Markers of transactions for partitions that other brokers lead: WriteTxnMarkers requests.

Each broker has one connection (kafkawire.client), used in a thread by one request at a time:
kafkawire.transactions.marker_sender sends the next one after the answer, and repeats what failed.
A repeated marker is written twice, which is legal. Used by kafkawire.broker.markers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import ClientError
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafkawire.metadata.catalog import Catalog
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.transaction import TopicPartition

WRITE_TXN_MARKERS = 27
CONNECT_TIMEOUT_S = 5.0
"""Time for connecting: a stop of this broker waits for it."""

Address = tuple[str, int]
Codes = dict[TopicPartition, ErrorCode | None]


class RemoteMarkers:
    """Connections to the brokers that lead partitions of transactions, at most one to each.
    `listeners`: the names of this broker's listeners, which are tried first at the other."""

    def __init__(self, env: Env, catalog: Catalog, listeners: Iterable[str]) -> None:
        self._env = env
        self._catalog = catalog
        self._listeners = tuple(listeners)
        self._connections: dict[int, tuple[Address, ClientConnection]] = {}
        self._closed = False

    async def write(self, broker: int, work: Sequence[SendMarkers]) -> list[Codes]:
        """Have a broker write markers; the codes it answered for each work. Raises KafkaError if
        the broker has no address, or the outcome is unknown."""
        address = self._address(broker)
        request = request_of(work)
        try:
            response = await self._env.offload.submit(
                "brokers", self._exchange, broker, address, request
            )
        except ClientError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)) from None
        return codes_of(response, work)

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

    def _exchange(
        self, broker: int, address: Address, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        """Send a request and wait for its answer; runs in a thread."""
        known, connection = self._connections.get(broker, (None, None))
        if connection is not None and known != address:
            connection.close()
            connection = None
        if connection is None:
            connection = ClientConnection(*address, connect_timeout_s=CONNECT_TIMEOUT_S)
            self._connections[broker] = address, connection
        try:
            if self._closed:
                raise ClientError("this broker is stopping")
            response: WriteTxnMarkersResponse = connection.request(WRITE_TXN_MARKERS, request)
        except BaseException:
            connection.close()
            self._connections.pop(broker, None)
            raise
        return response


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


def codes_of(response: WriteTxnMarkersResponse, work: Iterable[SendMarkers]) -> list[Codes]:
    """The codes of each work; partitions that the response leaves out are left out."""
    answered = {
        (marker.producer_id, (topic.name, row.partition_index)): _code(row.error_code)
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


def _code(number: int) -> ErrorCode:
    return ErrorCode(number) if number in set(ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR
