"""Create topics and query or alter settings in one line: admin APIs of a `FakeBroker`."""

from __future__ import annotations

from typing import Any

from kafkawire.broker.topics import Created
from kafkawire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.metadata.catalog import TopicInfo
from tests.kit.admin import FakeBroker, call

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
OWN_TOPIC_CONFIGS = {
    "durability",
    "index.keys.enable",
    "schedule.target.header",
    "schedule.target.topic",
    "view.filter",
    "view.source.topic",
    "tieredStorageLevel",
    "tiering.max.lag.ms",
    "tiering.min.object.bytes",
}
"""Settings of topics that Kafka does not have."""
NEWER_TOPIC_CONFIGS = {
    "errors.deadletterqueue.group.enable",
    "max.decompressed.message.bytes",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
}
"""Settings of topics that Kafka has from 4.4 on."""


def wanted(name: str, partitions: int = -1, replicas: int = -1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items()],
    )


def assigned(name: str, *replicas: list[int]) -> CreatableTopic:
    topic = wanted(name)
    topic.assignments = [CreatableReplicaAssignment(i, ids) for i, ids in enumerate(replicas)]
    return topic


async def create(broker: FakeBroker, topic: CreatableTopic) -> TopicInfo:
    (outcome,) = await broker.topics.create([topic])
    assert isinstance(outcome, Created), outcome
    assert outcome.topic is not None
    return outcome.topic


async def make(broker: FakeBroker, name: str, partitions: int = 1, **configs: str) -> bytes:
    """The id of the new topic."""
    return (await create(broker, wanted(name, partitions, 1, **configs))).id


async def describe(
    broker: FakeBroker, kind: int, name: str, *keys: str, version: int = 4, **flags: bool
) -> Any:
    resource = DescribeConfigsResource(kind, name, list(keys) or None)
    request = DescribeConfigsRequest([resource])
    for flag, value in flags.items():
        setattr(request, flag, value)
    (result,) = (await call(broker, request, version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


Wish = tuple[str, int, str | None]


async def alter(
    broker: FakeBroker,
    kind: int,
    name: str,
    *wishes: Wish,
    version: int = 1,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    resource = AlterConfigsResource(kind, name, [AlterableConfig(*wish) for wish in wishes])
    request = IncrementalAlterConfigsRequest([resource], validate_only)
    (row,) = (await call(broker, request, version)).responses
    assert (row.resource_type, row.resource_name) == (kind, name)
    return row.error_code, row.error_message
