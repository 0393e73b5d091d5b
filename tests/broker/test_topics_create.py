"""The topic service creates topics: which checks, in which order, and the state after a failure."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.broker.new_topics import (
    MAX_PARTITIONS,
    MAX_PARTITIONS_PER_REQUEST,
    check_total,
    missing_topic_error,
    name_fault,
)
from kafkawire.broker.topics import Created, TopicService
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.messages.create_partitions import CreatePartitionsTopic
from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
)
from kafkawire.metadata.store import MetadataError
from tests.kit.admin import ME, OTHER, FakeBroker
from tests.kit.configs import assigned, create, wanted


async def refusal(broker: FakeBroker, topic: CreatableTopic) -> KafkaError:
    (outcome,) = await broker.topics.create([topic])
    assert isinstance(outcome, KafkaError), outcome
    return outcome


async def test_topic_reaches_catalog_and_log_before_response() -> None:
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


async def test_settings_of_new_topic_reach_its_partitions() -> None:
    broker = FakeBroker(log_retention_ms="1000")
    await create(broker, wanted("t", 2, max_message_bytes="77"))
    first, second = broker.partition("t"), broker.partition("t", 1)
    assert first.config is second.config
    assert (first.config.max_message_bytes, first.config.retention_ms) == (77, 1000)


async def test_defaults_of_new_topic() -> None:
    broker = FakeBroker(num_partitions="5")
    assert len((await create(broker, wanted("t"))).partitions) == 5
    assert [p.leader for p in broker.topic("t").partitions] == [ME] * 5


async def test_manual_assignment_sets_leaders() -> None:
    broker = FakeBroker()
    await create(broker, assigned("t", [OTHER, ME], [ME, OTHER]))
    assert [p.leader for p in broker.topic("t").partitions] == [OTHER, ME]
    assert [p is None for p in broker.table.by_name["t"]] == [True, False]


async def test_new_partitions_go_to_live_brokers_in_turn() -> None:
    broker = FakeBroker()
    live = [ME, OTHER]
    broker.topics = TopicService(broker, lambda: live)  # type: ignore[arg-type]
    await broker.topics.create([wanted("a", 3), wanted("b", 2)])
    await create(broker, wanted("c"))
    leaders = [[p.leader for p in broker.topic(name).partitions] for name in "abc"]
    assert leaders == [[ME, OTHER, ME], [OTHER, ME], [OTHER]]
    await broker.topics.create_partitions(CreatePartitionsTopic("c", 4, None), False)
    assert [p.leader for p in broker.topic("c").partitions] == [OTHER, ME, OTHER, ME]
    assert len(await broker.topics.offsets_partitions()) == 50
    leaders_of_groups = [p.leader for p in broker.topic("__consumer_offsets").partitions]
    assert (leaders_of_groups.count(ME), leaders_of_groups.count(OTHER)) == (25, 25)
    live.remove(OTHER)
    await broker.topics.auto_create(["d"], "client")
    assert [p.leader for p in broker.topic("d").partitions] == [ME]


async def test_other_service_continues_with_the_next_broker() -> None:
    broker = FakeBroker()
    for name in "abcd":  # each time as after a start
        broker.topics = TopicService(broker, lambda: [ME, OTHER])  # type: ignore[arg-type]
        await create(broker, wanted(name))
    assert [broker.topic(name).partitions[0].leader for name in "abcd"] == [ME, OTHER, ME, OTHER]


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
async def test_invalid_topics_are_refused(topic: CreatableTopic, code: ErrorCode) -> None:
    broker = FakeBroker()
    await create(broker, wanted("ex_ists"))
    del broker.steps[:]
    error = await refusal(broker, topic)
    assert error.code is code
    assert error.message
    assert broker.steps == []


async def test_valid_topics_of_request_are_created() -> None:
    broker = FakeBroker()
    outcomes = await broker.topics.create(
        [wanted("a"), wanted("b", 0), wanted("c"), wanted("d.e"), wanted("d_e")]
    )
    codes = [o.code if isinstance(o, KafkaError) else 0 for o in outcomes]
    assert codes == [
        0,
        ErrorCode.INVALID_PARTITIONS,
        0,
        0,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert broker.steps[0] == "sql create a c d.e"


async def test_partition_limit_applies_to_whole_request() -> None:
    broker = FakeBroker()
    outcomes = await broker.topics.create(
        [wanted("a", 9_000), wanted("b", 2_000), wanted("c", 1_000)], validate_only=True
    )
    codes = [o.code if isinstance(o, KafkaError) else 0 for o in outcomes]
    assert codes == [0, ErrorCode.POLICY_VIOLATION, 0]


def test_partition_limit_of_catalog() -> None:
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
async def test_failed_transaction_creates_nothing(failure: Exception, code: ErrorCode) -> None:
    broker = FakeBroker()
    broker.metadata.fails = failure
    assert (await refusal(broker, wanted("t"))).code is code
    assert (broker.steps, dict(broker.catalog.by_name), broker.table.by_name) == ([], {}, {})
    broker.metadata.fails = None
    await create(broker, wanted("t"))


async def test_failed_commit_is_reported() -> None:
    broker = FakeBroker()
    broker.log.commit_log.fails = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    assert (await refusal(broker, wanted("t"))).code is ErrorCode.KAFKA_STORAGE_ERROR
    # SQL has it, so it is there: a second attempt says so.
    assert (await refusal(broker, wanted("t"))).code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_concurrent_creation_of_same_topic() -> None:
    broker = FakeBroker()
    outcomes = await asyncio.gather(*(broker.topics.create([wanted("t")]) for _ in range(5)))
    codes = sorted(o.code if isinstance(o, KafkaError) else 0 for (o,) in outcomes)
    assert codes == [0, *[ErrorCode.TOPIC_ALREADY_EXISTS] * 4]


# -- names


@given(st.text(max_size=260))
def test_topic_name_rules(name: str) -> None:
    legal = (
        0 < len(name) <= 249
        and name not in (".", "..")
        and all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    )
    assert (name_fault(name) is None) == legal
    assert (missing_topic_error(name) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == legal
