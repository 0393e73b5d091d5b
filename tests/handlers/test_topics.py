"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords: by version and by error.

Covers: kafkawire.handlers.create_partitions, kafkawire.handlers.create_topics,
kafkawire.handlers.delete_records, kafkawire.handlers.delete_topics,
kafkawire.handlers.topic_parts.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.configs.settings import TOPIC_CONFIGS
from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.security.acls.model import Operation, ResourceKind
from tests.kit.admin import FakeBroker, by_name, call
from tests.kit.configs import make

# -- CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_topics_in_every_version(version: int) -> None:
    broker = FakeBroker()
    topics = [
        CreatableTopic("t", 3, 1, configs=[CreatableTopicConfig("retention.ms", "7")]),
        CreatableTopic("no good", 1, 1),
    ]
    answer = by_name((await call(broker, CreateTopicsRequest(topics), version)).topics)
    good, bad = answer["t"], answer["no good"]
    assert (good.error_code, good.error_message) == (0, None)
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "ASCII" in bad.error_message
    if version >= 5:
        assert (good.num_partitions, good.replication_factor) == (3, 1)
        configs = by_name(good.configs)
        assert set(configs) == set(TOPIC_CONFIGS) - {"max.decompressed.message.bytes"}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("7", 1)
        assert configs["max.message.bytes"].config_source == 5
        assert bad.configs == []  # never null: Java's admin client fails on it
    if version >= 7:
        assert good.topic_id == broker.topic("t").id
        assert bad.topic_id == bytes(16)


async def test_create_topics_validate_only_creates_nothing() -> None:
    broker = FakeBroker()
    request = CreateTopicsRequest([CreatableTopic("t", 3, 1)], validate_only=True)
    (row,) = (await call(broker, request, 7)).topics
    assert (row.error_code, row.num_partitions, row.topic_id) == (0, 3, bytes(16))
    assert broker.catalog.by_name == {}


async def test_topic_named_twice_is_refused() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    topics = [CreatableTopic(name, count, 1) for name, count in (("t", 1), ("u", 1), ("t", 2))]
    rows = by_name((await call(broker, CreateTopicsRequest(topics), 7)).topics)
    assert {name: row.error_code for name, row in rows.items()} == {
        "t": ErrorCode.INVALID_REQUEST,
        "u": 0,
    }
    assert rows["t"].error_message == "Duplicate topic name."


# -- DeleteTopics


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_topics_by_name(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t")
    await make(broker, "kept")
    names = ["nope", "two", "t", "nope2", "two", "nope3"]
    if version >= 6:
        request = DeleteTopicsRequest(list(map(DeleteTopicState, names)))
    else:
        request = DeleteTopicsRequest(topic_names=names)
    answer = await call(broker, request, version)
    rows = by_name(answer.responses)
    unknown = dict.fromkeys(("nope", "nope2", "nope3"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert {name: row.error_code for name, row in rows.items()} == {
        **unknown,
        "t": 0,
        "two": ErrorCode.INVALID_REQUEST,
    }
    assert len(answer.responses) == len(rows)
    assert list(broker.catalog.by_name) == ["kept"]
    if version >= 5:
        assert (rows["t"].error_message, bool(rows["nope"].error_message)) == (None, True)


async def test_delete_topics_by_id() -> None:
    broker = FakeBroker()
    topic_id, unknown = await make(broker, "t"), bytes([9]) * 16
    request = DeleteTopicsRequest(
        [DeleteTopicState(topic_id=topic_id), DeleteTopicState(topic_id=unknown)]
    )
    rows = (await call(broker, request, 6)).responses
    assert [(row.name, row.topic_id, row.error_code) for row in rows] == [
        ("t", topic_id, 0),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_delete_topics_with_name_and_id_is_refused() -> None:
    broker = FakeBroker()
    names = ("both", "idtoo", "twice", "ids")
    both, id_too, _, ids = [await make(broker, name) for name in names]
    request = DeleteTopicsRequest(
        [
            DeleteTopicState(),
            DeleteTopicState("both", both),
            DeleteTopicState("twice"),
            DeleteTopicState("twice"),
            DeleteTopicState(topic_id=id_too),
            DeleteTopicState("idtoo"),
            DeleteTopicState("ids"),
            DeleteTopicState(topic_id=ids),
            DeleteTopicState(topic_id=ids),
        ]
    )
    rows = (await call(broker, request, 6)).responses
    mapped = "The provided topic name maps to an ID that was already supplied."
    assert {(row.name, row.topic_id): row.error_message for row in rows} == {
        (None, bytes(16)): "Neither topic name nor id were specified.",
        ("both", both): "You may not specify both topic name and topic id.",
        ("twice", bytes(16)): "Duplicate topic name.",
        ("idtoo", id_too): mapped,
        ("ids", ids): mapped,
        (None, ids): "Duplicate topic id.",
    }
    assert {row.error_code for row in rows} == {ErrorCode.INVALID_REQUEST}
    assert sorted(broker.catalog.by_name) == sorted(names)


class _Rights:
    """`allowed`: (operation, topic) pairs."""

    def __init__(self, *allowed: tuple[Operation, str]) -> None:
        self._allowed = allowed

    def may(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        return kind is ResourceKind.TOPIC and (operation, name) in self._allowed


async def test_delete_topics_without_rights_does_not_say_which_topics_exist() -> None:
    broker = FakeBroker()
    described, hidden = [await make(broker, name) for name in ("described", "hidden")]
    asked = [
        DeleteTopicState("missing"),
        DeleteTopicState("hidden"),
        DeleteTopicState("described"),
        DeleteTopicState(topic_id=described),
        DeleteTopicState("missing2"),
        DeleteTopicState(topic_id=hidden),
    ]
    rights = _Rights(
        (Operation.DESCRIBE, "described"),
        (Operation.DELETE, "hidden"),
        (Operation.DELETE, "missing"),
    )
    rows = (await call(broker, DeleteTopicsRequest(asked), 6, rights=rights)).responses
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [(row.name, row.topic_id, row.error_code) for row in rows] == [
        ("missing", bytes(16), denied),
        ("hidden", bytes(16), denied),  # only who may describe a topic may name it, as in Kafka
        ("described", bytes(16), denied),
        ("described", described, denied),
        ("missing2", bytes(16), denied),
        ("hidden", hidden, 0),
    ]
    assert list(broker.catalog.by_name) == ["described"]


@pytest.mark.parametrize(
    ("version", "code"), [(2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)]
)
async def test_delete_topics_disabled_is_refused(version: int, code: ErrorCode) -> None:
    broker = FakeBroker(delete_topic_enable="false")
    await make(broker, "t")
    answer = await call(broker, DeleteTopicsRequest(topic_names=["t"]), version)
    assert answer.responses[0].error_code == code
    assert "t" in broker.catalog.by_name


async def test_deleting_internal_topic_is_refused() -> None:
    broker = FakeBroker()
    await broker.topics.offsets_partitions()
    answer = await call(broker, DeleteTopicsRequest(topic_names=["__consumer_offsets"]), 5)
    assert answer.responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# -- CreatePartitions


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t", 2)
    await make(broker, "same", 2)
    topics = [
        CreatePartitionsTopic("t", 5, None),
        CreatePartitionsTopic("same", 2, None),
        CreatePartitionsTopic("nope", 2, None),
        CreatePartitionsTopic("twice", 2, None),
        CreatePartitionsTopic("twice", 3, None),
    ]
    rows = by_name((await call(broker, CreatePartitionsRequest(topics), version)).results)
    assert {name: row.error_code for name, row in rows.items()} == {
        "t": 0,
        "same": ErrorCode.INVALID_PARTITIONS,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "twice": ErrorCode.INVALID_REQUEST,
    }
    assert len(broker.topic("t").partitions) == 5
    assert rows["same"].error_message == "Topic already has 2 partition(s)."


async def test_create_partitions_returns_error_when_sql_fails() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    broker.metadata.fails = OSError("full")
    request = CreatePartitionsRequest([CreatePartitionsTopic("t", 5, None)])
    answer = await call(broker, request, 3)
    assert answer.results[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


# -- DeleteRecords


async def delete_records(
    broker: FakeBroker, offset: int, topic: str = "t", index: int = 0, version: int = 2
) -> tuple[int, int]:
    request = DeleteRecordsRequest(
        [DeleteRecordsTopic(topic, [DeleteRecordsPartition(index, offset)])]
    )
    answer = await call(broker, request, version)
    row = answer.topics[0].partitions[0]
    assert (answer.topics[0].name, row.partition_index) == (topic, index)
    return row.error_code, row.low_watermark


@pytest.mark.parametrize("version", range(3))
async def test_delete_records(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t")
    broker.partition("t").next_offset = 10
    assert await delete_records(broker, 4, version=version) == (0, 4)
    assert "commit" in broker.steps  # the client's own writes count
    assert await delete_records(broker, 2, version=version) == (0, 4)
    assert await delete_records(broker, -1, version=version) == (0, 10)


@pytest.mark.parametrize(
    ("offset", "topic", "index", "code"),
    [
        (11, "t", 0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-2, "t", 0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (1, "t", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, "nope", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, "compacted", 0, ErrorCode.POLICY_VIOLATION),
        (1, "__consumer_offsets", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
async def test_delete_records_errors(offset: int, topic: str, index: int, code: ErrorCode) -> None:
    broker = FakeBroker()
    await make(broker, "t")
    await make(broker, "compacted", cleanup_policy="compact")
    await broker.topics.offsets_partitions()
    broker.partition("t").next_offset = 10
    assert await delete_records(broker, offset, topic, index) == (code, -1)


async def test_delete_records_returns_error_when_disk_fails() -> None:
    broker = FakeBroker()
    await make(broker, "t")
    broker.partition("t").next_offset = 10
    broker.log.commit_log.fails = OSError("full")
    assert await delete_records(broker, 3) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
