"""Markers of transactions for partitions that other brokers lead: WriteTxnMarkers requests.

kafkawire.transactions.marker_sender sends the next request to a broker after the answer, and
repeats what failed. A repeated marker is written twice, which is legal. Used by
kafkawire.broker.markers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafkawire.broker.other_brokers import OtherBrokers, known_code
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.transaction import TopicPartition

WRITE_TXN_MARKERS = 27
Codes = dict[TopicPartition, ErrorCode | None]


class RemoteMarkers:
    """Markers for the partitions that other brokers lead."""

    def __init__(self, brokers: OtherBrokers) -> None:
        self._brokers = brokers

    async def write(self, broker: int, work: Sequence[SendMarkers]) -> list[Codes]:
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


def codes_of(response: WriteTxnMarkersResponse, work: Iterable[SendMarkers]) -> list[Codes]:
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
