"""The topic service: what is checked, in which order things happen, and what a failure leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.broker.config_service import Op, Resource, Wish
from kafkawire.broker.newtopics import (
    MAX_PARTITIONS,
    MAX_PARTITIONS_PER_REQUEST,
    check_total,
    missing_topic_error,
    name_fault,
)
from kafkawire.broker.producer_ids import BLOCK, ProducerIds
from kafkawire.broker.topics import Created
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.messages.create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic
from kafkawire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
)
from kafkawire.metadata.catalog import TopicInfo
from kafkawire.metadata.store import MetadataError
from tests.kit.admin import ME, OTHER, FakeBroker, FakeMetadata
from tests.kit.server import running


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


async def refusal(broker: FakeBroker, topic: CreatableTopic) -> KafkaError:
    (outcome,) = await broker.topics.create([topic])
    assert isinstance(outcome, KafkaError), outcome
    return outcome


# -- create


async def test_each_change_goes_its_way_before_it_is_answered() -> None:
    broker = FakeBroker()
    await broker.topics.create([wanted("a", 2), wanted("b")])
    assert broker.steps == ["sql create a b", "log add a b", "commit"]
    assert [p.index for p in broker.log.partitions.values()] == [0, 1, 0]
    assert broker.table.by_id[broker.topic("a").id] is broker.table.by_name["a"]
    del broker.steps[:]
    await broker.topics.create_partitions(CreatePartitionsTopic("a", 3, None), False)
    assert broker.steps == ["sql partitions 3", "log add a", "commit"]
    del broker.steps[:]
    await broker.topics.delete([broker.topic("a").id])
    assert broker.steps == ["sql delete 1", "groups forget a", "log remove", "commit"]
    assert list(broker.catalog.by_name) == ["b"]
    assert list(broker.table.by_name) == ["b"]


async def test_settings_of_a_new_topic_reach_its_partitions() -> None:
    broker = FakeBroker(log_retention_ms="1000")
    await create(broker, wanted("t", 2, max_message_bytes="77"))
    first, second = broker.partition("t"), broker.partition("t", 1)
    assert first.config is second.config
    assert (first.config.max_message_bytes, first.config.retention_ms) == (77, 1000)


async def test_defaults() -> None:
    broker = FakeBroker(num_partitions="5")
    assert len((await create(broker, wanted("t"))).partitions) == 5
    assert [p.leader for p in broker.topic("t").partitions] == [ME] * 5


async def test_a_manual_assignment_names_the_leaders() -> None:
    broker = FakeBroker()
    await create(broker, assigned("t", [OTHER, ME], [ME, OTHER]))
    assert [p.leader for p in broker.topic("t").partitions] == [OTHER, ME]
    assert [p is None for p in broker.table.by_name["t"]] == [True, False]


def shuffled() -> CreatableTopic:
    topic = assigned("t", [ME], [ME])
    topic.assignments[0].partition_index = 5
    return topic


def doubled() -> CreatableTopic:
    topic = assigned("t", [ME], [ME])
    topic.assignments[0].partition_index = 1
    return topic


def with_factor() -> CreatableTopic:
    topic = assigned("t", [ME])
    topic.replication_factor = 1
    return topic


def with_count() -> CreatableTopic:
    topic = assigned("t", [ME])
    topic.num_partitions = 1
    return topic


def with_null() -> CreatableTopic:
    topic = wanted("t")
    topic.configs = [CreatableTopicConfig("retention.ms", None)]
    return topic


REFUSED = [
    (wanted(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (wanted("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (wanted(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (wanted("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (wanted("ü"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (wanted("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (wanted("ex.ists"), ErrorCode.INVALID_TOPIC_EXCEPTION),  # collides with ex_ists
    (wanted("ex_ists"), ErrorCode.TOPIC_ALREADY_EXISTS),
    (wanted("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
    (wanted("t", 0), ErrorCode.INVALID_PARTITIONS),
    (wanted("t", -2), ErrorCode.INVALID_PARTITIONS),
    (wanted("t", MAX_PARTITIONS_PER_REQUEST + 1), ErrorCode.POLICY_VIOLATION),
    (wanted("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
    (wanted("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
    (wanted("t", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
    (wanted("t", no_such_thing="1"), ErrorCode.INVALID_CONFIG),
    (wanted("t", retention_ms="soon"), ErrorCode.INVALID_CONFIG),
    (wanted("t", cleanup_policy="compact,burn"), ErrorCode.INVALID_CONFIG),
    (with_null(), ErrorCode.INVALID_CONFIG),
    (assigned("t", []), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (assigned("t", [3]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (assigned("t", [ME, ME]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (assigned("t", [ME], [ME, OTHER]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (shuffled(), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (doubled(), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    (with_factor(), ErrorCode.INVALID_REQUEST),
    (with_count(), ErrorCode.INVALID_REQUEST),
]


@pytest.mark.parametrize(("topic", "code"), REFUSED)
async def test_refused(topic: CreatableTopic, code: ErrorCode) -> None:
    broker = FakeBroker()
    await create(broker, wanted("ex_ists"))
    del broker.steps[:]
    error = await refusal(broker, topic)
    assert error.code is code
    assert error.message
    assert broker.steps == []


async def test_the_good_ones_of_a_request_are_made() -> None:
    broker = FakeBroker()
    outcomes = await broker.topics.create(
        [wanted("a"), wanted("twice"), wanted("b", 0), wanted("twice"), wanted("c"), wanted("d.e"),
         wanted("d_e")]
    )  # fmt: skip
    codes = [o.code if isinstance(o, KafkaError) else 0 for o in outcomes]
    assert codes == [
        0,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REQUEST,
        0,
        0,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert broker.steps[0] == "sql create a c d.e"


async def test_the_bound_of_a_request_is_for_all_its_topics() -> None:
    broker = FakeBroker()
    outcomes = await broker.topics.create(
        [wanted("a", 9_000), wanted("b", 2_000), wanted("c", 1_000)], validate_only=True
    )
    codes = [o.code if isinstance(o, KafkaError) else 0 for o in outcomes]
    assert codes == [0, ErrorCode.POLICY_VIOLATION, 0]


def test_the_bound_of_the_catalog() -> None:
    check_total(MAX_PARTITIONS - 1, 1)
    with pytest.raises(KafkaError) as refused:
        check_total(MAX_PARTITIONS, 1)
    assert refused.value.code is ErrorCode.INVALID_PARTITIONS


async def test_validate_only_changes_nothing() -> None:
    broker = FakeBroker()
    outcomes = await broker.topics.create([wanted("t", 4, retention_ms="5")], validate_only=True)
    assert outcomes == [Created(4, {"retention.ms": "5"})]
    assert (broker.steps, len(broker.catalog.by_name)) == ([], 0)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (OSError("full"), ErrorCode.KAFKA_STORAGE_ERROR),
        (MetadataError("gone"), ErrorCode.KAFKA_STORAGE_ERROR),
        (KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS), ErrorCode.TOPIC_ALREADY_EXISTS),
    ],
)
async def test_a_failed_transaction_leaves_nothing(failure: Exception, code: ErrorCode) -> None:
    broker = FakeBroker()
    broker.metadata.fails = failure
    assert (await refusal(broker, wanted("t"))).code is code
    assert (broker.steps, dict(broker.catalog.by_name), broker.table.by_name) == ([], {}, {})
    broker.metadata.fails = None
    await create(broker, wanted("t"))


async def test_a_failed_commit_is_not_answered_as_success() -> None:
    broker = FakeBroker()
    broker.log.commit_log.fails = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert (await refusal(broker, wanted("t"))).code is ErrorCode.KAFKA_STORAGE_ERROR
    # SQL has it, so it is there: a second attempt says so.
    assert (await refusal(broker, wanted("t"))).code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_two_who_create_the_same_topic() -> None:
    broker = FakeBroker()
    outcomes = await asyncio.gather(*(broker.topics.create([wanted("t")]) for _ in range(5)))
    codes = sorted(o.code if isinstance(o, KafkaError) else 0 for (o,) in outcomes)
    assert codes == [0, *[ErrorCode.TOPIC_ALREADY_EXISTS] * 4]


# -- delete


async def test_a_topic_made_again_is_another() -> None:
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
        broker.table.identified(first.id, 0)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_ID


async def test_delete_what_is_not_there() -> None:
    broker = FakeBroker()
    topic = await create(broker, wanted("t"))
    refused = await broker.topics.delete([bytes(16), topic.id])
    assert {i: e.code for i, e in refused.items()} == {bytes(16): ErrorCode.UNKNOWN_TOPIC_ID}
    assert broker.catalog.by_name == {}


async def test_internal_topics_stay() -> None:
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


async def test_a_failed_deletion_leaves_the_topic() -> None:
    broker = FakeBroker()
    topic = await create(broker, wanted("t"))
    broker.metadata.fails = OSError("full")
    refused = await broker.topics.delete([topic.id])
    assert refused[topic.id].code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "t" in broker.catalog.by_name
    assert "t" in broker.table.by_name


# -- the internal topic of groups


async def test_the_offsets_topic_has_kafkas_settings() -> None:
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


async def test_a_user_may_make_the_offsets_topic_but_it_stays_compacted() -> None:
    broker = FakeBroker()
    await create(broker, wanted("__consumer_offsets", 3, segment_bytes="1048576"))
    rows = await broker.topics.offsets_partitions()
    assert len(rows) == 3
    assert rows[0] is not None
    assert rows[0].config.cleanup_compact
    assert broker.topic("__consumer_offsets").configs["segment.bytes"] == "1048576"


async def test_the_offsets_topic_that_cannot_be_made() -> None:
    broker = FakeBroker()
    broker.metadata.fails = OSError("full")
    with pytest.raises(KafkaError) as refused:
        await broker.topics.offsets_partitions()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


# -- partitions


def more(count: int, *replicas: list[int]) -> CreatePartitionsTopic:
    rows = [CreatePartitionsAssignment(ids) for ids in replicas] if replicas else None
    return CreatePartitionsTopic("t", count, rows)


async def test_more_partitions() -> None:
    broker = FakeBroker()
    await create(broker, wanted("t", 2, max_message_bytes="99"))
    rows = broker.table.by_name["t"]
    await broker.topics.create_partitions(more(4, [OTHER], [ME]), False)
    assert broker.table.by_name["t"] is rows  # who holds the list sees the new ones
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
async def test_partitions_refused(wish: CreatePartitionsTopic, code: ErrorCode) -> None:
    broker = FakeBroker()
    await create(broker, wanted("t", 2))
    with pytest.raises(KafkaError) as refused:
        await broker.topics.create_partitions(wish, False)
    assert refused.value.code is code
    assert len(broker.topic("t").partitions) == 2


# -- names


@given(st.text(max_size=260))
def test_names(name: str) -> None:
    legal = (
        0 < len(name) <= 249
        and name not in (".", "..")
        and all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    )
    assert (name_fault(name) is None) == legal
    assert (missing_topic_error(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == legal


# -- producer ids


async def test_producer_ids_are_given_once() -> None:
    metadata = FakeMetadata([])
    first, second = ProducerIds(metadata), ProducerIds(metadata)  # type: ignore[arg-type]
    taken = await asyncio.gather(
        *(source.take() for _ in range(BLOCK + 1) for source in (first, second))
    )
    assert len(set(taken)) == 2 * (BLOCK + 1)
    assert metadata.steps == ["sql lease"] * 4


async def test_no_producer_id_before_its_block_is_durable() -> None:
    metadata = FakeMetadata([])
    ids = ProducerIds(metadata)  # type: ignore[arg-type]
    metadata.fails = OSError("full")
    with pytest.raises(OSError, match="full"):
        await ids.take()
    metadata.fails = None
    assert await ids.take() == 0


# -- with real parts


async def test_what_was_changed_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "data", log_retention_ms="1000") as server:
        broker = server.broker
        outcomes = await broker.topics.create([wanted("t", 2, segment_ms="5"), wanted("gone")])
        assert all(isinstance(outcome, Created) for outcome in outcomes)
        topic_id = broker.catalog.by_name["t"].id
        await broker.topics.create_partitions(more(3), False)
        await broker.topics.delete([broker.catalog.by_name["gone"].id])
        changes = [
            Resource(2, "t", [Wish("max.message.bytes", Op.SET, "99")]),
            Resource(4, "", [Wish("log.retention.ms", Op.SET, "2000")]),
            Resource(4, "1", [Wish("max.connections", Op.SET, "77")]),
        ]
        assert await broker.topics.configs.alter(changes, False) == [None, None, None]
        first = await broker.producer_ids.take()
    async with running(tmp_path / "data", log_retention_ms="1000") as server:
        broker = server.broker
        assert list(broker.catalog.by_name) == ["t"]
        assert broker.catalog.by_name["t"].id == topic_id
        assert broker.table.by_name == {}  # nobody has touched it
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
        assert await broker.producer_ids.take() >= first + BLOCK
