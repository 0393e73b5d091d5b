"""Metadata, DescribeTopicPartitions and DescribeCluster: what a client sees of the catalog.

Covers: kafkawire.handlers.describe_cluster, kafkawire.handlers.describe_topic_partitions,
kafkawire.broker.answer_cache, kafkawire.handlers.nodes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkawire.codec.compile import decode, encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.metadata import metadata
from kafkawire.handlers.slices import array_count
from kafkawire.messages.create_topics import (
    CreatableTopic,
)
from kafkawire.messages.describe_cluster import DescribeClusterRequest
from kafkawire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kafkawire.metadata.catalog import BrokerInfo
from tests.kit.admin import ME, OTHER, FakeBroker, by_name, call, context
from tests.kit.configs import assigned, create

VERSIONS = range(14)


def asked(*names: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


async def make(broker: FakeBroker, name: str, *leaders: int) -> bytes:
    return (await create(broker, assigned(name, *([leader] for leader in leaders)))).id


@pytest.mark.parametrize("version", VERSIONS)
async def test_metadata_of_all_topics(version: int) -> None:
    broker = FakeBroker()
    topic_id = await make(broker, "t", ME, OTHER)
    await make(broker, "__consumer_offsets", ME)
    request = MetadataRequest(topics=[] if version == 0 else None)
    answer = await call(broker, request, version)
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [
        (ME, "kafka.example", 19092),
        (OTHER, "other.example", 29092),
    ]
    topics = by_name(answer.topics)
    assert [(p.partition_index, p.leader_id, p.error_code) for p in topics["t"].partitions] == [
        (0, ME, 0),
        (1, OTHER, 0),
    ]
    assert [p.replica_nodes + p.isr_nodes for p in topics["t"].partitions] == [[1, 1], [2, 2]]
    if version >= 1:
        assert answer.controller_id == ME
        assert [b.rack for b in answer.brokers] == ["rack-a", None]
        assert (topics["t"].is_internal, topics["__consumer_offsets"].is_internal) == (False, True)
    if version >= 2:
        assert answer.cluster_id == broker.cluster_id
    if version >= 7:
        assert topics["t"].partitions[0].leader_epoch == 0
    if version >= 10:
        assert topics["t"].topic_id == topic_id


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("partitions", [1, 130, 700])
async def test_sliced_response_equals_whole_encoding(version: int, partitions: int) -> None:
    broker = FakeBroker()
    await make(broker, "long", *[ME] * partitions)
    await broker.topics.create([CreatableTopic(f"t{index}", 1, 1) for index in range(130)])
    request = MetadataRequest(topics=[] if version == 0 else None)
    if 8 <= version <= 10:
        request.include_cluster_authorized_operations = True
    parts = await metadata(context(broker, version), request)
    raw = b"".join(parts)
    message = decode(MetadataResponse, version, raw)
    assert encode(message, version) == raw
    assert len(message.topics) == 131
    assert len(by_name(message.topics)["long"].partitions) == partitions
    assert broker.env.pauses > 10  # the event loop ran other callbacks in between


@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 16383, 16384, 2_000_000])
def test_array_counts(count: int) -> None:
    from kafkawire.messages.delete_topics import DeleteTopicsRequest

    if count > 20_000:
        assert array_count(count, True) == b"\x81\x89\x7a"
        return
    raw = encode(DeleteTopicsRequest(topic_names=[""] * count), 4)
    assert raw.startswith(array_count(count, True) + b"\1" * min(count, 1))
    raw = encode(DeleteTopicsRequest(topic_names=[""] * count), 3)
    assert raw.startswith(array_count(count, False))


async def test_broker_address_is_of_the_listener_that_was_asked() -> None:
    broker = FakeBroker()
    await make(broker, "t", ME, OTHER)
    answer = await call(broker, MetadataRequest(topics=asked("t")), 13, listener="INTERNAL")
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(ME, "10.0.0.1", 9092)]
    mine, other = answer.topics[0].partitions
    assert (mine.leader_id, mine.error_code, mine.offline_replicas) == (ME, 0, [])
    assert (other.leader_id, other.error_code, other.offline_replicas) == (
        -1,
        ErrorCode.LISTENER_NOT_FOUND,
        [OTHER],
    )


@pytest.mark.parametrize(
    ("version", "code"),
    [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)],
)
async def test_leader_without_this_listener_is_listener_not_found(
    version: int, code: ErrorCode
) -> None:
    broker = FakeBroker()
    await make(broker, "t", OTHER)
    answer = await call(broker, MetadataRequest(topics=asked("t")), version, listener="INTERNAL")
    assert answer.topics[0].partitions[0].error_code == code


async def test_unknown_leader_is_leader_not_available() -> None:
    broker = FakeBroker()
    await make(broker, "t", OTHER)
    del broker.catalog.brokers[OTHER]
    answer = await call(broker, MetadataRequest(topics=asked("t")), 13)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_named_topics_are_returned_once_in_request_order() -> None:
    broker = FakeBroker(auto_create_topics_enable="false")
    for name in "abc":
        await make(broker, name, ME)
    answer = await call(
        broker, MetadataRequest(topics=asked("c", "nope", "a", "c", "bad name")), 12
    )
    assert [(t.name, t.error_code) for t in answer.topics] == [
        ("c", 0),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a", 0),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert (await call(broker, MetadataRequest(topics=[]), 12)).topics == []


async def test_topics_by_id() -> None:
    broker = FakeBroker()
    topic_id, nobody = await make(broker, "t", ME), bytes([7]) * 16
    request = MetadataRequest(
        topics=[
            MetadataRequestTopic(topic_id=nobody, name=None),
            MetadataRequestTopic(topic_id=topic_id, name=None),
            MetadataRequestTopic(name="ignored-beside-ids"),
        ]
    )
    answer = await call(broker, request, 12)
    assert [(t.name, t.topic_id, t.error_code) for t in answer.topics] == [
        (None, nobody, ErrorCode.UNKNOWN_TOPIC_ID),
        ("t", topic_id, 0),
    ]
    refused = await call(broker, request, 11)
    assert {t.error_code for t in refused.topics} == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("version", [1, 3, 4, 13])
async def test_metadata_creates_missing_topics(version: int) -> None:
    broker = FakeBroker(num_partitions="3")
    answer = await call(broker, MetadataRequest(topics=asked("new", "no/good", "..")), version)
    topics = by_name(answer.topics)
    assert (topics["new"].error_code, len(topics["new"].partitions)) == (0, 3)
    assert topics["no/good"].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert topics[".."].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert list(broker.catalog.by_name) == ["new"]
    if version >= 4:
        request = MetadataRequest(topics=asked("other"), allow_auto_topic_creation=False)
        answer = await call(broker, request, version)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_auto_create_disabled_is_unknown_topic() -> None:
    broker = FakeBroker(auto_create_topics_enable="false")
    answer = await call(broker, MetadataRequest(topics=asked("new")), 3)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.catalog.by_name == {}


async def test_concurrent_auto_create_creates_topic_once() -> None:
    broker = FakeBroker()
    answers = await asyncio.gather(
        *(call(broker, MetadataRequest(topics=asked("new")), 12) for _ in range(20))
    )
    assert {answer.topics[0].error_code for answer in answers} == {0}
    assert len({answer.topics[0].topic_id for answer in answers}) == 1
    assert broker.steps.count("sql create new") == 1


async def test_auto_create_of_internal_topics() -> None:
    sizes = {"offsets_topic_num_partitions": "7", "transaction_state_log_num_partitions": "3"}
    broker = FakeBroker(**sizes)
    names = ("__consumer_offsets", "__transaction_state", "__share_group_state")
    topics = by_name((await call(broker, MetadataRequest(topics=asked(*names)), 12)).topics)
    assert [len(topics[name].partitions) for name in names] == [7, 3, 50]
    policies = [broker.topic(name).configs["cleanup.policy"] for name in names]
    assert policies == ["compact", "compact", "delete"]


async def test_failed_auto_create_is_reported() -> None:
    broker = FakeBroker()
    broker.metadata.fails = OSError("disk")
    answer = await call(broker, MetadataRequest(topics=asked("new")), 12)
    assert answer.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("version", [8, 10, 11])
async def test_authorized_operations(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t", ME)
    request = MetadataRequest(topics=asked("t"), include_topic_authorized_operations=True)
    if version <= 10:
        request.include_cluster_authorized_operations = True
    answer = await call(broker, request, version)
    assert answer.topics[0].topic_authorized_operations == 3576
    if version <= 10:
        assert answer.cluster_authorized_operations == 8096
    plain = await call(broker, MetadataRequest(topics=asked("t")), version)
    assert plain.topics[0].topic_authorized_operations == -(2**31)


async def all_topics(broker: FakeBroker, version: int = 12, listener: str = "EXTERNAL") -> Any:
    return await metadata(context(broker, version, listener), MetadataRequest(topics=None))


async def test_all_topics_response_is_cached_until_catalog_changes() -> None:
    broker = FakeBroker()
    await make(broker, "t", ME)
    first = await all_topics(broker)
    assert await all_topics(broker) is first
    assert await all_topics(broker, listener="INTERNAL") != first
    assert await all_topics(broker, version=9) != first
    await make(broker, "u", ME)
    second = await all_topics(broker)
    assert len(decode(MetadataResponse, 12, b"".join(second)).topics) == 2
    await broker.topics.delete([broker.topic("t").id])
    assert [
        t.name for t in decode(MetadataResponse, 12, b"".join(await all_topics(broker))).topics
    ] == ["u"]


async def test_concurrent_requests_share_one_response() -> None:
    broker = FakeBroker()
    await make(broker, "t", ME)
    first, *others = await asyncio.gather(*(all_topics(broker) for _ in range(10)))
    assert all(answer is first for answer in others)


async def test_change_during_encoding_is_in_next_response() -> None:
    broker = FakeBroker()
    await make(broker, "t", ME)

    pause = broker.env.slices.pause

    async def change() -> None:
        broker.catalog.version += 1
        await pause()

    broker.env.slices.pause = change  # type: ignore[method-assign]
    await make(broker, "long", *[ME] * 100)
    first = await all_topics(broker)
    assert await all_topics(broker) is not first


async def test_topic_deleted_during_long_response_is_missing() -> None:
    broker = FakeBroker()
    for start in range(0, 3000, 1000):
        wanted = [CreatableTopic(f"t{n}", 1, 1) for n in range(start, start + 1000)]
        await broker.topics.create(wanted)
    broker.env.pauses = 0
    gone = broker.topic("t2999")
    pause = broker.env.slices.pause

    async def delete() -> None:
        await pause()
        if gone.name in broker.catalog.by_name:
            broker.catalog.remove_topic(gone.id)

    broker.env.slices.pause = delete  # type: ignore[method-assign]
    parts = await all_topics(broker)
    assert broker.env.pauses > 10
    assert len(parts) < 3000
    answer = decode(MetadataResponse, 12, b"".join(parts))
    rows = by_name(answer.topics)
    assert len(answer.topics) == 3000
    assert rows["t2999"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(rows["t2998"].partitions) == 1


async def test_cached_responses_are_bounded() -> None:
    broker = FakeBroker(metadata_cache_bytes="10")
    await make(broker, "t", ME)
    assert await all_topics(broker) is not await all_topics(broker)


@pytest.mark.parametrize("version", VERSIONS)
async def test_broker_that_is_not_alive_is_not_listed(version: int) -> None:
    broker = FakeBroker()
    await make(broker, "t", ME, OTHER)
    request = MetadataRequest(topics=[] if version == 0 else None)
    before = await call(broker, request, version)
    assert len(before.brokers) == 2
    broker.catalog.set_silent(frozenset({OTHER}))
    answer = await call(broker, request, version)
    assert [b.node_id for b in answer.brokers] == [ME]
    (topic,) = answer.topics
    assert [(p.leader_id, p.error_code) for p in topic.partitions] == [
        (ME, 0),
        (-1, ErrorCode.LEADER_NOT_AVAILABLE),
    ]
    assert topic.partitions[1].replica_nodes == [OTHER]
    if version >= 5:
        assert topic.partitions[1].offline_replicas == [OTHER]
    broker.catalog.set_silent(frozenset())
    assert await call(broker, request, version) == before


async def test_controller_is_the_broker_that_answers() -> None:
    broker = FakeBroker()
    broker.catalog.add_broker(BrokerInfo(0, {"EXTERNAL": ("zero", 1)}, None))
    for silent in (set(), {0}, {0, OTHER}):
        broker.catalog.set_silent(frozenset(silent))
        assert (await call(broker, MetadataRequest(), 12)).controller_id == ME
        assert (await call(broker, DescribeClusterRequest(), 2)).controller_id == ME


# -- DescribeTopicPartitions


async def test_describe_topic_partitions_pages() -> None:
    broker = FakeBroker()
    await make(broker, "b", *[ME] * 3)
    await make(broker, "a", *[ME] * 2)
    await make(broker, "c", ME)
    seen: list[tuple[str, int]] = []
    cursor, pages = None, 0
    while True:
        request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
        answer = await call(broker, request, 0)
        got = [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
        assert 1 <= len(got) <= 2
        seen += got
        pages += 1
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    assert pages == 3


async def test_describe_topic_partitions_is_bounded() -> None:
    broker = FakeBroker(max_request_partition_size_limit="4")
    await make(broker, "t", *[ME] * 9)
    answer = await call(broker, DescribeTopicPartitionsRequest(), 0)
    assert len(answer.topics[0].partitions) == 4
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("t", 4)
    request = DescribeTopicPartitionsRequest(response_partition_limit=-5)
    assert len((await call(broker, request, 0)).topics[0].partitions) == 1


async def test_describe_topic_partitions_of_named_topics() -> None:
    broker = FakeBroker()
    topic_id = await make(broker, "t", ME, OTHER)
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest("t"), TopicRequest("nope"), TopicRequest("b@d")]
    )
    answer = await call(broker, request, 0, listener="INTERNAL")
    assert [(t.name, t.error_code, t.topic_id) for t in answer.topics] == [
        ("b@d", ErrorCode.INVALID_TOPIC_EXCEPTION, bytes(16)),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, bytes(16)),
        ("t", 0, topic_id),
    ]
    mine, other = answer.topics[2].partitions
    assert (mine.leader_id, other.leader_id, other.offline_replicas) == (ME, -1, [OTHER])
    # Java's admin client fails on null here.
    assert (mine.eligible_leader_replicas, mine.last_known_elr) == ([], [])
    assert answer.topics[2].topic_authorized_operations == 3576


@pytest.mark.parametrize("cursor", [Cursor("zz", 0), Cursor("t", -1)])
async def test_describe_topic_partitions_with_invalid_cursor_is_refused(cursor: Cursor) -> None:
    broker = FakeBroker()
    await make(broker, "t", ME)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest("t")], cursor=cursor)
    (row,) = (await call(broker, request, 0)).topics
    assert (row.name, row.error_code, row.partitions) == ("t", ErrorCode.INVALID_REQUEST, [])


# -- DescribeCluster


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_describe_cluster(version: int) -> None:
    broker = FakeBroker()
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    answer = await call(broker, request, version)
    assert (answer.cluster_id, answer.controller_id, answer.error_code) == (
        broker.cluster_id,
        ME,
        0,
    )
    assert [(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers] == [
        (ME, "kafka.example", 19092, "rack-a"),
        (OTHER, "other.example", 29092, None),
    ]
    assert answer.cluster_authorized_operations == 8096
    plain = await call(broker, DescribeClusterRequest(), version)
    assert plain.cluster_authorized_operations == -(2**31)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_describe_cluster_lists_fenced_brokers_on_request(version: int) -> None:
    broker = FakeBroker()
    broker.catalog.set_silent(frozenset({OTHER}))
    answer = await call(broker, DescribeClusterRequest(), version)
    assert [(b.broker_id, b.is_fenced) for b in answer.brokers] == [(ME, False)]
    if version >= 2:
        request = DescribeClusterRequest(include_fenced_brokers=True)
        answer = await call(broker, request, version)
        assert [(b.broker_id, b.is_fenced) for b in answer.brokers] == [(ME, False), (OTHER, True)]


@pytest.mark.parametrize(
    ("kind", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_describe_cluster_of_controllers(kind: int, code: ErrorCode) -> None:
    answer = await call(FakeBroker(), DescribeClusterRequest(endpoint_type=kind), 1)
    assert (answer.error_code, answer.brokers) == (code, [])
    assert answer.error_message
