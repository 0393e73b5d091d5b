"""The ends of partitions, of this broker and of others: for the lag of share groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkawire.broker.other_brokers import known_code
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from kafkawire.broker.other_brokers import OtherBrokers
    from kafkawire.broker.partitions import PartitionTable
    from kafkawire.metadata.catalog import Catalog

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
