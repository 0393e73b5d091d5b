"""Two brokers on one database serve one catalog.

Covers: kafkawire.broker.following.applier, kafkawire.broker.following.applier.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.broker import Broker
from kafkawire.broker.config_service import Resource
from kafkawire.broker.overrides import AlterConfigOp, Op, ResourceType
from kafkawire.codec.batches import build
from kafkawire.codec.configs.features import FeatureUpdate
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import ZERO_UUID
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.groups.coordinator import Coordinator
from kafkawire.messages.create_partitions import CreatePartitionsTopic
from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from kafkawire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.metadata.catalog import TOPIC_RESOURCE
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import MetadataError
from tests.kit.client import Client
from tests.kit.postgres import new_database
from tests.kit.server import running
from tests.kit.waiting import until

Pair = tuple[Broker, Broker]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return await new_database(request.getfixturevalue("postgres_url"))
    return f"sqlite+aiosqlite:///{tmp_path}/shared.db"


@asynccontextmanager
async def both(folder: Path, url: str) -> AsyncIterator[Pair]:
    """Two started brokers that know of each other."""
    async with (
        running(folder / "1", metadata=url, node_id="1") as first,
        running(folder / "2", metadata=url, node_id="2") as second,
    ):
        one, two = first.broker, second.broker
        await until(lambda: all(len(each.catalog.brokers) == 2 for each in (one, two)))
        # New topics need not wait until heartbeats are seen to rise.
        one.liveness.running([2])
        two.liveness.running([1])
        yield one, two


@pytest.fixture
async def pair(tmp_path: Path, url: str) -> AsyncIterator[Pair]:
    async with both(tmp_path, url) as made:
        yield made


def topic(name: str, *leaders: int) -> CreatableTopic:
    made = CreatableTopic(name, -1, -1)
    made.assignments = [CreatableReplicaAssignment(n, [led]) for n, led in enumerate(leaders)]
    return made


async def create(broker: Broker, name: str, *leaders: int) -> KafkaError | None:
    (outcome,) = await broker.topics.create([topic(name, *leaders)])
    return outcome if isinstance(outcome, KafkaError) else None


def alteration(kind: int, name: str, key: str, value: str | None) -> Resource:
    op = Op.DELETE if value is None else Op.SET
    return Resource(kind, name, [AlterConfigOp(key, op, value)])


async def test_topics_are_created_changed_and_deleted_at_any_broker(pair: Pair) -> None:
    one, two = pair
    assert await create(one, "t", 1, 2) is None
    await until(lambda: "t" in two.catalog.by_name)
    assert two.catalog.by_name["t"] == one.catalog.by_name["t"]
    assert (await two.table.load_partition("t", 1)).next_offset == 0
    with pytest.raises(KafkaError) as caught:
        await two.table.load_partition("t", 0)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    await two.topics.configs.alter(
        [alteration(ResourceType.TOPIC, "t", "retention.ms", "5")], False
    )
    await until(lambda: one.catalog.by_name["t"].configs == {"retention.ms": "5"})
    assert (await one.table.load_partition("t", 0)).config.retention_ms == 5
    await two.topics.configs.alter(
        [alteration(ResourceType.TOPIC, "t", "retention.ms", None)], False
    )
    await until(lambda: one.catalog.by_name["t"].configs == {})
    assert (await one.table.load_partition("t", 0)).config.retention_ms != 5

    await two.topics.create_partitions(CreatePartitionsTopic("t", 3, None), False)
    await until(lambda: len(one.catalog.by_name["t"].partitions) == 3)
    topic_id = one.catalog.by_name["t"].id
    held = await one.table.load_partition("t", 0)
    assert await two.topics.delete([topic_id]) == {}
    await until(lambda: "t" not in one.catalog.by_name)
    assert held.removed
    assert await create(one, "t", 2) is None  # the name is free at once
    await until(lambda: two.catalog.by_name.size_of("t") == 1)


async def test_settings_of_brokers_and_features_are_followed(pair: Pair) -> None:
    one, two = pair
    change = alteration(ResourceType.BROKER, "", "worker.bytes.per.second", "1234567")
    assert await one.topics.configs.alter([change], False) == [None]
    await until(lambda: two.config.worker_bytes_per_second == 1234567)
    await one.topics.configs.alter(
        [alteration(ResourceType.BROKER, "", "worker.bytes.per.second", None)], False
    )
    await until(lambda: two.config.worker_bytes_per_second != 1234567)
    group = alteration(ResourceType.GROUP, "g", "consumer.session.timeout.ms", "50000")
    assert await one.topics.configs.alter([group], False) == [None]
    await until(lambda: two.config.consumer_group_settings("g").session_timeout_ms == 50_000)
    group = alteration(ResourceType.GROUP, "g", "consumer.session.timeout.ms", None)
    assert await two.topics.configs.alter([group], False) == [None]
    await until(lambda: not one.catalog.group_overrides)
    assert one.config.consumer_group_settings("g").session_timeout_ms == 45_000
    metrics = alteration(ResourceType.CLIENT_METRICS, "m", "metrics", "*")
    assert await one.topics.configs.alter([metrics], False) == [None]
    await until(lambda: two.catalog.client_metrics == {"m": {"metrics": "*"}})
    metrics = alteration(ResourceType.CLIENT_METRICS, "m", "metrics", None)
    assert await two.topics.configs.alter([metrics], False) == [None]
    await until(lambda: not one.catalog.client_metrics)
    before = two.catalog.features.epoch
    level = one.catalog.features.level("transaction.version")
    await one.features.update([FeatureUpdate("transaction.version", level - 1, 2)], False)
    await until(lambda: two.catalog.features.level("transaction.version") == level - 1)
    assert two.catalog.features.epoch == one.catalog.features.epoch > before


async def test_concurrent_changes_are_checked_against_each_other(pair: Pair) -> None:
    """Names that differ in '.' and '_' only may not both exist, whichever broker creates them; each
    change is planned with those of the other broker."""
    names = [("a.b", "a_b"), ("c_d", "c.d"), ("same", "same")]
    for chosen in names:
        outcomes = await asyncio.gather(
            *(create(broker, name, 1) for broker, name in zip(pair, chosen, strict=True))
        )
        assert sum(outcome is None for outcome in outcomes) == 1, (chosen, outcomes)
    sizes = [CreatePartitionsTopic("same", total, None) for total in (3, 2)]
    await asyncio.gather(
        *(
            broker.topics.create_partitions(wish, False)
            for broker, wish in zip(pair, sizes, strict=True)
        ),
        return_exceptions=True,
    )
    for broker in pair:
        await broker.topics.lock.apply_changes()
        assert broker.catalog.by_name.size_of("same") == 3
        assert len(broker.catalog.by_name) == 3


async def test_many_changes_at_once_give_the_same_catalog_everywhere(pair: Pair) -> None:
    calls = [create(pair[n % 2], f"t{n}", 1, 2) for n in range(30)]
    assert await asyncio.gather(*calls) == [None] * 30
    await pair[0].topics.lock.apply_changes()
    ids = [pair[0].catalog.by_name[f"t{n}"].id for n in range(0, 30, 3)]
    await asyncio.gather(*(pair[n % 2].topics.delete([each]) for n, each in enumerate(ids)))
    for broker in pair:
        await broker.topics.lock.apply_changes()
    assert dict(pair[0].catalog.by_name) == dict(pair[1].catalog.by_name)
    assert len(pair[0].catalog.by_name) == 20
    numbers = [p.number for info in pair[0].catalog.by_id.values() for p in info.partitions]
    assert len(numbers) == len(set(numbers)) == 40


async def test_new_topic_is_found_before_a_client_is_refused(pair: Pair) -> None:
    one, two = pair
    assert await create(one, "fresh", 2) is None
    await two.topics.follower.catch_up()
    assert "fresh" in two.catalog.by_name


async def test_query_that_has_begun_is_not_shared(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    read, go = asyncio.Event(), asyncio.Event()
    original = two.metadata.catalog_version

    async def slow() -> int:
        version = await original()
        read.set()
        await go.wait()
        return version

    monkeypatch.setattr(two.metadata, "commits", lambda: None)
    monkeypatch.setattr(two.metadata, "catalog_version", slow)
    first = asyncio.create_task(two.topics.follower.catch_up())
    await read.wait()  # it has read the version before the change
    assert await create(one, "fresh", 2) is None
    others = [asyncio.create_task(two.topics.follower.catch_up()) for _ in range(3)]
    go.set()
    await asyncio.gather(first, *others)
    assert "fresh" in two.catalog.by_name


@pytest.mark.parametrize(("request_of", "version"), [
    (lambda name: MetadataRequest([MetadataRequestTopic(ZERO_UUID, name)], False), 12),
    (lambda name: DescribeTopicPartitionsRequest([TopicRequest(name)]), 0),
    (lambda name: DescribeConfigsRequest([DescribeConfigsResource(TOPIC_RESOURCE, name, None)]), 4),
    (lambda name: DeleteTopicsRequest(topics=[DeleteTopicState(name)]), 6),
])  # fmt: skip
async def test_clients_find_a_topic_that_another_broker_has_just_created(
    pair: Pair, request_of: Callable[[str], Any], version: int
) -> None:
    one, two = pair
    client = await Client.connect(two.listeners["PLAINTEXT"][1])
    for attempt in range(10):  # before a poll, most of them
        assert await create(one, f"new-{attempt}", 1) is None
        answer = await client.call(request_of(f"new-{attempt}"), version)
        rows = getattr(answer, "topics", None) or getattr(answer, "results", None)
        (row,) = rows or answer.responses
        assert row.error_code == 0
    await client.close()


async def test_moves_of_another_broker_are_listed_and_ended_at_once(pair: Pair) -> None:
    one, two = pair
    assert await create(one, "moved", 1) is None
    number = one.catalog.by_name["moved"].partitions[0].number
    client = await Client.connect(two.listeners["PLAINTEXT"][1])
    for attempt in range(10):  # before a poll, most of them
        target = None if attempt % 2 else 2
        await one.topics.lock.change(
            lambda seen, target=target: one.metadata.plan_moves({number: target}, seen)  # type: ignore[misc]
        )
        answer = await client.call(ListPartitionReassignmentsRequest(5_000, None), 0)
        assert [topic.name for topic in answer.topics] == (["moved"] if target else [])
    await client.close()


async def test_failed_polls_are_reported_once_and_repeated(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    polls = 0

    async def fails() -> int:
        nonlocal polls
        polls += 1
        raise MetadataError("unreachable")

    caplog.set_level(logging.INFO)
    with monkeypatch.context() as patch:
        patch.setattr(two.metadata, "catalog_version", fails)
        patch.setattr(two.metadata, "commits", lambda: None)  # nothing else is written
        await until(lambda: polls > 2)
    assert await create(one, "later", 1) is None
    await until(lambda: "later" in two.catalog.by_name)
    lines = [each for each in caplog.messages if "by other brokers" in each]
    assert [line.startswith("changes by other brokers are read again") for line in lines] == [
        False,
        True,
    ]


async def test_older_copy_of_metadata_is_refused(pair: Pair) -> None:
    one, _ = pair
    one.catalog.note_version(10**6)
    with pytest.raises(MetadataError, match="replaced by an older copy"):
        await one.topics.lock.apply_changes()
    refused = await create(one, "t", 1)
    assert refused is not None
    assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_broker_that_was_started_again_elsewhere_stops_writing(
    pair: Pair, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a copy of its data folder on another machine."""
    one, two = pair
    assert await create(one, "t", 1, 2) is None
    await until(lambda: "t" in two.catalog.by_name)
    held = await one.table.load_partition("t", 0)
    other = SqlMetadata(url)
    await other.open()
    await other.register_broker(1, {"PLAINTEXT": ("elsewhere", 9092)}, None)
    await other.close()
    await until(lambda: one.log.commit_log.failed is not None)
    with pytest.raises(KafkaError) as caught:
        held.append(memoryview(bytearray(build([(b"k", b"v")], timestamp_ms=0))), 0)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    refused = await create(one, "u", 1)
    assert refused is not None
    assert [each for each in caplog.messages if "was started as broker 1" in each]
    await until(lambda: two.catalog.brokers[1].listeners == {"PLAINTEXT": ("elsewhere", 9092)})
    assert await create(two, "v", 2) is None


async def test_restarted_broker_finds_what_others_changed(tmp_path: Path, url: str) -> None:
    async with both(tmp_path, url) as (one, two):
        assert await create(one, "kept", 1, 2) is None
        await until(lambda: "kept" in two.catalog.by_name)
    async with running(tmp_path / "1", metadata=url, node_id="1") as first:
        assert await create(first.broker, "new", 1, 2) is None
        assert await first.broker.topics.delete([first.broker.catalog.by_name["kept"].id]) == {}
    async with running(tmp_path / "2", metadata=url, node_id="2") as second:
        assert set(second.broker.catalog.by_name) == {"new"}
        assert (await second.broker.table.load_partition("new", 1)).next_offset == 0


async def test_coordinators_follow_their_partitions(pair: Pair) -> None:
    """A topic of coordinators that another broker created, and partitions of it that move."""
    one, two = pair
    await one.groups.open()  # creates the topic; partitions go to live brokers in turn
    await until(lambda: "__consumer_offsets" in two.catalog.by_name)
    rows = one.catalog.by_name["__consumer_offsets"].partitions
    for broker in pair:
        mine = {row.index for row in rows if row.leader == broker.node_id}
        await until(lambda: led(broker) == mine)  # noqa: B023
    moved = rows[7]
    source, target = pair if moved.leader == 1 else (two, one)
    seen = source.catalog.stored_version
    await source.metadata.move_partitions([moved.number], target.node_id, seen)
    await until(lambda: 7 in led(target) and 7 not in led(source))
    await until(lambda: coordinator(target, 7).phase is CoordinatorPhase.ACTIVE)
    assert target.catalog.epoch_of(moved.number) == 1
    seen = target.catalog.stored_version
    await target.metadata.move_partitions([moved.number], source.node_id, seen)
    await until(lambda: 7 in led(source) and 7 not in led(target))
    await until(lambda: coordinator(source, 7).phase is CoordinatorPhase.ACTIVE)


def led(broker: Broker) -> set[int]:
    return {each.partition.index for each in broker.groups.list_led()}


def coordinator(broker: Broker, index: int) -> Coordinator:
    (found,) = [each for each in broker.groups.list_led() if each.partition.index == index]
    return found


async def test_restart_of_a_broker_at_its_address_is_followed(pair: Pair, url: str) -> None:
    """A takeover names the epoch of the broker: with an old one it would be refused forever."""
    one, _ = pair
    epochs = []
    for _ in range(2):
        process = SqlMetadata(url)
        try:
            catalog = await process.open()
            await process.register_broker(3, {"PLAINTEXT": ("127.0.0.1", 9092)}, None)
            epochs.append(catalog.brokers[3].epoch)
        finally:
            await process.close()
        await until(lambda: 3 in one.catalog.brokers and one.catalog.brokers[3].epoch == epochs[-1])
    assert epochs[1] == epochs[0] + 1
