"""The topic service deletes topics and adds partitions; the internal topic; a restart.

Covers: kafkawire.broker.parts.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kafkawire.broker.config_service import AlterConfigOp, Op, Resource
from kafkawire.broker.new_topics import MAX_PARTITIONS_PER_REQUEST
from kafkawire.broker.producer_ids import BLOCK
from kafkawire.broker.topics import Created
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.messages.create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic
from tests.kit.admin import ME, OTHER, FakeBroker
from tests.kit.configs import create, wanted
from tests.kit.server import running

# -- delete


async def test_recreated_topic_has_new_id() -> None:
    broker = FakeBroker()
    first = await create(broker, wanted("t"))
    old = broker.partition("t")
    await broker.topics.delete([first.id])
    second = await create(broker, wanted("t"))
    new = broker.partition("t")
    assert first.id != second.id
    assert first.partitions[0].number != second.partitions[0].number
    assert new is not old
    with pytest.raises(KafkaError) as refused:
        broker.table.find_by_id(first.id, 0)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_ID


async def test_deleting_missing_topic_is_unknown_topic() -> None:
    broker = FakeBroker()
    topic = await create(broker, wanted("t"))
    refused = await broker.topics.delete([bytes(16), topic.id])
    assert {i: e.code for i, e in refused.items()} == {bytes(16): ErrorCode.UNKNOWN_TOPIC_ID}
    assert broker.catalog.by_name == {}


async def test_internal_topics_cannot_be_deleted() -> None:
    broker = FakeBroker(offsets_topic_num_partitions="2")
    rows = await broker.topics.offsets_partitions()
    assert len(rows) == 2
    topic = broker.topic("__consumer_offsets")
    (error,) = (await broker.topics.delete([topic.id])).values()
    assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    with pytest.raises(KafkaError) as refused:
        await broker.topics.create_partitions(
            CreatePartitionsTopic("__consumer_offsets", 9, None), False
        )
    assert refused.value.code is ErrorCode.INVALID_PARTITIONS
    assert await broker.topics.offsets_partitions() == rows


async def test_failed_deletion_keeps_topic() -> None:
    broker = FakeBroker()
    topic = await create(broker, wanted("t"))
    broker.metadata.fails = OSError("full")
    refused = await broker.topics.delete([topic.id])
    assert refused[topic.id].code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "t" in broker.catalog.by_name
    assert "t" in broker.table.by_name


# -- the internal topics of groups and transactions


async def test_offsets_topic_ignores_disallowed_segment_settings() -> None:
    broker = FakeBroker(offsets_topic_segment_bytes="1")
    await broker.topics.offsets_partitions()
    assert broker.topic("__consumer_offsets").configs["segment.bytes"] == "1048576"


async def test_offsets_topic_has_kafkas_settings() -> None:
    broker = FakeBroker(offsets_topic_segment_bytes="2097152")
    both = await asyncio.gather(*(broker.topics.offsets_partitions() for _ in range(3)))
    assert [len(rows) for rows in both] == [50, 50, 50]
    topic = broker.topic("__consumer_offsets")
    assert topic.internal
    assert topic.configs == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "2097152",
    }
    assert broker.partition("__consumer_offsets").config.cleanup_compact


async def test_transaction_state_topic_has_kafkas_settings() -> None:
    broker = FakeBroker(
        transaction_state_log_num_partitions="7", transaction_state_log_segment_bytes="2097152"
    )
    found = await asyncio.gather(*(broker.topics.transaction_state_partitions() for _ in range(3)))
    assert [len(rows) for rows in found] == [7, 7, 7]
    topic = broker.topic("__transaction_state")
    assert topic.internal
    assert topic.configs == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": "2097152",
    }
    (error,) = (await broker.topics.delete([topic.id])).values()
    assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_offsets_topic_created_by_user_stays_compacted() -> None:
    broker = FakeBroker()
    await create(broker, wanted("__consumer_offsets", 3, segment_bytes="1048576"))
    rows = await broker.topics.offsets_partitions()
    assert len(rows) == 3
    assert rows[0] is not None
    assert rows[0].config.cleanup_compact
    assert broker.topic("__consumer_offsets").configs["segment.bytes"] == "1048576"


async def test_failed_creation_of_offsets_topic_is_reported() -> None:
    broker = FakeBroker()
    broker.metadata.fails = OSError("full")
    with pytest.raises(KafkaError) as refused:
        await broker.topics.offsets_partitions()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


# -- partitions


def more(count: int, *replicas: list[int]) -> CreatePartitionsTopic:
    rows = [CreatePartitionsAssignment(ids) for ids in replicas] if replicas else None
    return CreatePartitionsTopic("t", count, rows)


async def test_partitions_are_added() -> None:
    broker = FakeBroker()
    await create(broker, wanted("t", 2, max_message_bytes="99"))
    rows = broker.table.by_name["t"]
    await broker.topics.create_partitions(more(4, [OTHER], [ME]), False)
    assert broker.table.by_name["t"] is rows  # holders of the list see the new ones
    assert [p is None for p in rows] == [False, False, True, False]
    assert rows[3] is not None
    assert rows[0] is not None
    assert rows[3].config is rows[0].config
    await broker.topics.create_partitions(more(9), True)
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (more(2), ErrorCode.INVALID_PARTITIONS),
        (more(1), ErrorCode.INVALID_PARTITIONS),
        (more(-1), ErrorCode.INVALID_PARTITIONS),
        (more(2 + MAX_PARTITIONS_PER_REQUEST + 1), ErrorCode.POLICY_VIOLATION),
        (more(4, [ME]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (more(3, [7]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (more(3, [ME, OTHER]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_invalid_partition_counts_are_refused(
    wish: CreatePartitionsTopic, code: ErrorCode
) -> None:
    broker = FakeBroker()
    await create(broker, wanted("t", 2))
    with pytest.raises(KafkaError) as refused:
        await broker.topics.create_partitions(wish, False)
    assert refused.value.code is code
    assert len(broker.topic("t").partitions) == 2


# -- with real parts


async def test_changes_survive_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "data", log_retention_ms="1000") as server:
        broker = server.broker
        outcomes = await broker.topics.create([wanted("t", 2, segment_ms="5"), wanted("gone")])
        assert all(isinstance(outcome, Created) for outcome in outcomes)
        topic_id = broker.catalog.by_name["t"].id
        await broker.topics.create_partitions(more(3), False)
        await broker.topics.delete([broker.catalog.by_name["gone"].id])
        changes = [
            Resource(2, "t", [AlterConfigOp("max.message.bytes", Op.SET, "99")]),
            Resource(4, "", [AlterConfigOp("log.retention.ms", Op.SET, "2000")]),
            Resource(4, "1", [AlterConfigOp("max.connections", Op.SET, "77")]),
        ]
        assert await broker.topics.configs.alter(changes, False) == [None, None, None]
        first = await broker.producer_ids.next_id()
    async with running(tmp_path / "data", log_retention_ms="1000") as server:
        broker = server.broker
        assert list(broker.catalog.by_name) == ["t"]
        assert broker.catalog.by_name["t"].id == topic_id
        assert broker.table.by_name == {}  # no request has used it
        await broker.table.load(("t", index) for index in range(3))
        rows = broker.table.by_name["t"]
        assert [row is not None and row.index for row in rows] == [0, 1, 2]
        assert broker.table.by_id[topic_id] is rows
        for row in rows:
            assert row is not None
            assert (row.config.max_message_bytes, row.config.retention_ms) == (99, 2000)
        assert rows[0] is not None
        assert rows[2] is not None
        assert rows[0].config is rows[2].config
        assert broker.config.max_connections == 77
        assert await broker.producer_ids.next_id() >= first + BLOCK
