"""The partitions this broker leads and has in memory, found by topic name or id and index.

The table that Produce, Fetch and ListOffsets use: two plain dicts of lists, so the hot path does
one lookup and one list access. Other partitions are looked up in the catalog, which has every topic
of the cluster and its leaders; one that is led here but not in memory raises `NotLoaded`
(kafkawire.log.partition.loader). None in a list is a partition that another broker leads, or one
that was not used yet.

Filled by the log's loader, emptied by broker.topics when a topic is deleted; read by the handlers.
Both dicts share one list per topic, which grows in place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kafkawire.codec.configs.view_rules import VIEW_SOURCE
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.loader import NotLoaded

if TYPE_CHECKING:
    from kafkawire.log.partition.loader import Loader
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog, TopicInfo, Topics

__all__ = ["NotLoaded", "PartitionTable", "ViewTopic"]

Key = tuple[str | bytes, int]  # topic name or id, index
T = TypeVar("T", str, bytes)


class ViewTopic(KafkaError):
    """A topic is a view, which has no partitions: readers use those of its `source`. The error for
    all other requests."""

    def __init__(self, view: TopicInfo) -> None:
        self.view = view
        self.source = view.configs[VIEW_SOURCE]
        text = f"The topic {view.name} is a view of {self.source}, and can only be read."
        super().__init__(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


logger = logging.getLogger(__name__)


class PartitionTable:
    """Partitions by topic name and by topic id (16 bytes)."""

    __slots__ = ("_catalog", "_loader", "_node_id", "by_id", "by_name")

    def __init__(self, catalog: Catalog, loader: Loader, node_id: int) -> None:
        self.by_name: dict[str, list[Partition | None]] = {}
        self.by_id: dict[bytes, list[Partition | None]] = {}
        self._catalog = catalog
        self._loader = loader
        self._node_id = node_id
        loader.register(self)
        for partition in loader.partitions.values():
            self.partition_loaded(partition)

    def partition_loaded(self, partition: Partition) -> None:
        """Add a partition that is in memory now."""
        rows = self.by_id.get(partition.topic_id)
        if rows is None:
            rows = self.by_id[partition.topic_id] = self.by_name[partition.topic] = []
        index = partition.index
        rows.extend([None] * (index + 1 - len(rows)))
        rows[index] = partition

    def leave(self, partition: Partition) -> None:
        """Remove a partition that was unloaded."""
        rows = self.by_id.get(partition.topic_id)
        if rows is not None and rows[partition.index] is partition:
            rows[partition.index] = None
            while rows and rows[-1] is None:
                rows.pop()
            if not rows:
                del self.by_id[partition.topic_id]
                if self.by_name.get(partition.topic) is rows:
                    del self.by_name[partition.topic]

    def remove(self, topic: TopicInfo) -> None:
        """Remove a topic. Its name is removed only if it still refers to this topic id."""
        rows = self.by_id.pop(topic.id, None)
        if rows is not None and self.by_name.get(topic.name) is rows:
            del self.by_name[topic.name]

    def find_by_name(self, topic: str, index: int) -> Partition:
        """Return the partition of a name. Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION if it does
        not exist, NOT_LEADER_OR_FOLLOWER if another broker leads it or its leader changed during
        its last load, KAFKA_STORAGE_ERROR if that failed otherwise. After NotLoaded load it and
        call again."""
        rows = self.by_name.get(topic)
        if rows is not None and 0 <= index < len(rows):
            partition = rows[index]
            if partition is not None:
                return partition
        return self._missing(self._catalog.by_name, topic, index)

    def find_readable(self, topic: str | bytes, index: int, leader_epoch: int = -1) -> Partition:
        """Like `find`, for readers: the partition of the source for a view."""
        try:
            return self.find(topic, index, leader_epoch)
        except ViewTopic as found:
            return self.find(found.source, index, leader_epoch)

    def find_by_id(self, topic_id: bytes, index: int) -> Partition:
        """Like `find_by_name`; an unknown id is UNKNOWN_TOPIC_ID (Kafka: ReplicaManager)."""
        rows = self.by_id.get(topic_id)
        if rows is not None and 0 <= index < len(rows):
            partition = rows[index]
            if partition is not None:
                return partition
        if topic_id not in self._catalog.by_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self._missing(self._catalog.by_id, topic_id, index)

    def find(self, topic: str | bytes, index: int, leader_epoch: int = -1) -> Partition:
        """Return the partition of a topic's name or id. Hot.

        `leader_epoch`: the one the client knows (KIP-320), -1: unknown. Raises NotLoaded, and
        KafkaError if the partition is not led here or the leader epoch differs.
        """
        partition = (
            self.find_by_name(topic, index)
            if isinstance(topic, str)
            else self.find_by_id(topic, index)
        )
        if leader_epoch >= 0 and leader_epoch != partition.leader_epoch:
            newer = leader_epoch > partition.leader_epoch
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH if newer else ErrorCode.FENCED_LEADER_EPOCH
            )
        return partition

    def not_loaded(self, keys: Iterable[Key]) -> list[int]:
        """Return those of the partitions that must be loaded first."""
        numbers: list[int] = []
        for topic, index in keys:
            numbers += self._absent(topic, index)
        return numbers

    def _absent(self, topic: str | bytes, index: int) -> Sequence[int]:
        """Return the partition's number if it must be loaded; raise the error for the client
        otherwise."""
        try:
            self.find_readable(topic, index)
        except NotLoaded as missing:
            return missing.numbers
        except KafkaError:
            pass  # raised again by the lookup
        return ()

    async def load(self, keys: Iterable[Key]) -> None:
        """Load partitions into memory. Never raises for a failed load: the lookup reports it."""
        numbers: list[int] = []
        slices = self._loader.slices
        for topic, index in keys:
            numbers += self._absent(topic, index)
            await slices.give_way()
        if numbers:
            await self._load(numbers)

    async def _load(self, numbers: list[int]) -> None:
        try:
            await self._loader.load(numbers)
        except Exception:  # for a while `find_by_name` raises it
            logger.debug("cannot load partitions %s", numbers[:10], exc_info=True)

    async def load_partition(self, topic: str, index: int) -> Partition:
        """Return a partition, after loading it if it is not in memory. Raises KafkaError as
        `find_by_name` does."""
        await self.load([(topic, index)])
        try:
            return self.find_by_name(topic, index)
        except NotLoaded as unloaded:  # again, by a concurrent deletion or for lack of memory
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(unloaded)) from None

    def load_then(self, numbers: Iterable[int], resume: Callable[[], None]) -> None:
        """Start to load partitions and call `resume` when it has ended, successfully or not: the
        lookup then finds the partitions or raises the error."""
        wanted = list(numbers)

        async def go() -> None:
            await self._load(wanted)
            resume()

        self._loader.spawn(go())

    def _missing(self, topics: Topics[T], key: T, index: int) -> Partition:
        info = topics.partition_of(key, index)
        if info is None:
            topic = topics.get(key)
            if topic is not None and topic.configs.get(VIEW_SOURCE):
                raise ViewTopic(topic)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if info.leader != self._node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._loader.get(info.number)
