"""The topics of the broker as targets of schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.schedules.configs import is_schedule
from kafkawire.schedules.step import Place, TargetTopic

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog

GetPartition = Callable[[str, int], Awaitable["Partition"]]
"""Returns a partition by topic name and index, after loading it. Raises KafkaError."""


class ScheduleTargets:
    """Finds targets in the catalog. `config_of`: the settings of a topic by its id."""

    def __init__(
        self,
        catalog: Catalog,
        config_of: Callable[[bytes], TopicConfig],
        get_partition: GetPartition,
        take_producer_id: Callable[[], Awaitable[int]],
    ) -> None:
        self._catalog = catalog
        self._config_of = config_of
        self._get_partition = get_partition
        self._take_producer_id = take_producer_id

    def find_target(self, topic: str) -> TargetTopic:
        """Return a topic that records may be delivered to. Raises KafkaError with the reason:
        UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION for an internal or a schedule topic."""
        info = self._catalog.by_name.get(topic)
        if info is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the target topic {topic} does not exist"
            )
        # Schedule topics could deliver to each other without end.
        if info.internal or is_schedule(info.configs):
            kind = "an internal topic" if info.internal else "a schedule topic itself"
            text = f"the target topic {topic} is {kind}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        return TargetTopic(topic, info.id, len(info.partitions), self._config_of(info.id))

    async def partition(self, place: Place) -> Partition:
        """Return a partition, in memory. Raises KafkaError: UNKNOWN_TOPIC_ID if its topic is
        deleted, else as the broker's table of partitions."""
        topic_id, index = place
        info = self._catalog.by_id.get(topic_id)
        if info is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "the target topic is deleted")
        return await self._get_partition(info.name, index)

    async def take_producer_id(self) -> int:
        return await self._take_producer_id()
