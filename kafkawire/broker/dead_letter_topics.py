"""The topics of the cluster as share groups write their dead letters to them (KIP-1191).

A topic is used if it has errors.deadletterqueue.group.enable, and its name begins with
errors.deadletterqueue.topic.name.prefix. A missing one is created where
errors.deadletterqueue.auto.create.topics.enable says so. Kafka: ShareGroupDLQStateManager.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from kafkawire.broker.other_brokers import OtherBrokers, known_code
from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.share.dead_letters import LetterTopic

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition
    from kafkawire.metadata.catalog import Catalog

ENABLE = "errors.deadletterqueue.group.enable"
PRODUCE = 0
TIMEOUT_MS = 30_000
"""How long the leader of a partition waits for its followers, as producers do by default."""

CreateTopics = Callable[[Sequence[CreatableTopic]], Awaitable[Sequence[object]]]
"""Creates topics; a result for each, KafkaError for one that was not created."""


class ClusterDeadLetterTopics:
    """Finds topics in the catalog. `config_of`: the settings of a topic by its id."""

    def __init__(
        self,
        node_id: int,
        config: BrokerConfig,
        catalog: Catalog,
        config_of: Callable[[bytes], TopicConfig],
        load_partition: Callable[[str, int], Awaitable[Partition]],
        create: CreateTopics,
        take_producer_id: Callable[[], Awaitable[int]],
        brokers: Callable[[], OtherBrokers],
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._catalog = catalog
        self._config_of = config_of
        self._load_partition = load_partition
        self._create = create
        self._take_producer_id = take_producer_id
        self._connect = brokers
        self._brokers: OtherBrokers | None = None

    async def find(self, name: str) -> LetterTopic:
        """Return a topic for dead letters, after creating it if needed; see DeadLetterTopics."""
        prefix = self._config.errors_deadletterqueue_topic_name_prefix
        if name.startswith("__") or not name.startswith(prefix):
            text = f"the name of the dead-letter topic {name} does not begin with {prefix!r}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        if name not in self._catalog.by_name:
            if not self._config.errors_deadletterqueue_auto_create_topics_enable:
                text = f"the dead-letter topic {name} does not exist"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
            configs = [
                CreatableTopicConfig(ENABLE, "true"),
                CreatableTopicConfig("message.timestamp.type", "CreateTime"),
            ]
            (created,) = await self._create([CreatableTopic(name, -1, -1, [], configs)])
            if (
                isinstance(created, KafkaError)
                and created.code is not ErrorCode.TOPIC_ALREADY_EXISTS
            ):
                raise created
        info = self._catalog.by_name.get(name)
        if info is None:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the topic {name} is being created")
        config = self._config_of(info.id)
        if not config.dead_letters:
            text = f"the topic {name} does not have {ENABLE}"
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
        return LetterTopic(name, info.id, len(info.partitions), config)

    async def partition(self, topic: LetterTopic, index: int) -> Partition | None:
        """Return a partition, in memory; None: another broker leads it."""
        info = self._catalog.by_id.partition_of(topic.topic_id, index)
        if info is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} is deleted")
        if info.leader != self._node_id:
            return None
        return await self._load_partition(topic.name, index)

    async def produce(self, topic: LetterTopic, index: int, batch: Buffer) -> None:
        """Have the leader of a partition append a batch, with acks=all."""
        info = self._catalog.by_id.partition_of(topic.topic_id, index)
        if info is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} is deleted")
        if self._brokers is None:
            self._brokers = self._connect()
        row = TopicProduceData(topic.name, topic.topic_id, [PartitionProduceData(index, batch)])
        answer = await self._brokers.request(
            info.leader, PRODUCE, ProduceRequest(None, -1, TIMEOUT_MS, [row])
        )
        for each in answer.responses:
            for partition in each.partition_responses:
                code = known_code(partition.error_code)
                # What it has already is not appended again.
                if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    raise KafkaError(code, partition.error_message)
                return
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer has no partition")

    async def take_producer_id(self) -> int:
        return await self._take_producer_id()

    def close(self) -> None:
        """End the connections."""
        if self._brokers is not None:
            self._brokers.close()
