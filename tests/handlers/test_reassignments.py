"""AlterPartitionReassignments and ListPartitionReassignments.

Covers: kafkawire.handlers.alter_partition_reassignments,
kafkawire.handlers.list_partition_reassignments.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from kafkawire.metadata.catalog import TOPIC_RESOURCE, ConfigChange, Replicas
from kafkawire.metadata.store import MetadataError
from tests.kit.admin import ME, OTHER, FakeBroker, call


async def made(*names: str) -> FakeBroker:
    broker = FakeBroker()
    await broker.topics.create([CreatableTopic(name, 3, 1) for name in names])
    for name in names:
        assert [p.leader for p in broker.topic(name).partitions] == [ME] * 3
    return broker


async def alter(broker: FakeBroker, version: int, **wishes: dict[int, list[int] | None]) -> Any:
    topics = [
        ReassignableTopic(name, [ReassignablePartition(at, to) for at, to in rows.items()])
        for name, rows in wishes.items()
    ]
    return await call(broker, AlterPartitionReassignmentsRequest(5_000, True, topics), version)


async def listed(broker: FakeBroker, **asked: list[int]) -> dict[str, list[Any]]:
    rows = [ListPartitionReassignmentsTopics(name, at) for name, at in asked.items()]
    answer = await call(broker, ListPartitionReassignmentsRequest(5_000, rows or None), 0)
    assert (answer.error_code, answer.error_message) == (0, None)
    return {
        topic.name: [
            (p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
            for p in topic.partitions
        ]
        for topic in answer.topics
    }


@pytest.mark.parametrize("version", [0, 1])
async def test_each_partition_has_its_result(version: int) -> None:
    broker = await made("a", "b")
    answer = await alter(
        broker, version, a={0: [OTHER], 9: [OTHER]}, b={2: [99], 1: [OTHER], 0: None}
    )
    assert (answer.error_code, answer.error_message) == (0, None)
    found = {
        topic.name: {p.partition_index: p.error_code for p in topic.partitions}
        for topic in answer.responses
    }
    assert found == {
        "a": {0: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        "b": {
            2: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            1: 0,
            0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        },
    }
    texts = [p.error_message for topic in answer.responses for p in topic.partitions]
    assert [text is None for text in texts] == [True, False, False, True, False]


async def test_replicated_topics_take_all_replicas_of_the_new_leader() -> None:
    broker = await made("a")
    broker.catalog.set_replicas({OTHER: Replicas([OTHER, ME], [OTHER])})
    lists: dict[int, list[int] | None] = {0: [OTHER, ME]}
    answer = await alter(broker, 1, a=lists)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    topic = broker.topic("a")
    broker.catalog.apply_config(ConfigChange(TOPIC_RESOURCE, "a", "durability", "replicated"))
    answer = await alter(broker, 1, a=lists)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE
    assert broker.catalog.moves == {topic.partitions[0].number: OTHER}
    answer = await alter(broker, 1, a={1: [ME, OTHER, 99]})
    assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_planned_moves_are_listed_until_they_end() -> None:
    broker = await made("a", "b")
    assert await listed(broker) == {}
    await alter(broker, 1, a={0: [OTHER], 2: [OTHER]}, b={1: [OTHER]})
    moving = ([OTHER, ME], [OTHER], [ME])
    assert await listed(broker) == {"a": [(0, *moving), (2, *moving)], "b": [(1, *moving)]}
    assert await listed(broker, a=[0, 1, 7], absent=[0]) == {"a": [(0, *moving)]}
    await alter(broker, 1, a={0: None, 2: [ME]}, b={1: None})
    assert await listed(broker) == {}


async def test_metadata_that_fails_is_an_error_of_the_request() -> None:
    broker = await made("a")
    broker.metadata.fails = MetadataError("the database is away")
    answer = await alter(broker, 1, a={0: [OTHER]})
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert answer.responses == []
    assert await listed(broker) == {}
