"""Topics made, and settings asked for and altered, in a line: admin APIs of a `FakeBroker`."""

from __future__ import annotations

from typing import Any

from kafkawire.codec.errors import KafkaError
from kafkawire.messages.create_topics import CreatableTopic, CreatableTopicConfig
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.kit.admin import FakeBroker, call

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


async def make(broker: FakeBroker, name: str, partitions: int = 1, **configs: str) -> bytes:
    rows = [CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items()]
    (outcome,) = await broker.topics.create([CreatableTopic(name, partitions, 1, configs=rows)])
    assert not isinstance(outcome, KafkaError), outcome
    assert outcome.topic is not None
    return outcome.topic.id


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
