"""The contract of `Metadata`, checked for every store: SQLite, PostgreSQL, the simulation's
memory.

Covers: kafkawire.metadata.changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata import changes, statements
from kafkawire.metadata.catalog import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    BrokerInfo,
    Catalog,
    ConfigChange,
    NewTopic,
    TopicInfo,
)
from kafkawire.metadata.changes import CatalogChanges, ChangedTopic, PartitionPlace
from kafkawire.metadata.directory import LeadGroup
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import BrokerSuperseded, CatalogChanged, Metadata, MetadataError
from kafkawire.security.versions import ACLS, increment_version
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata
from tests.kit.postgres import new_database

HERE = {"PLAIN": ("localhost", 9092), "INSIDE": ("broker", 29092)}
LONG_NAME = "a group id that is longer than a topic id " * 20


@pytest.fixture(
    params=[
        "sqlite",
        "memory",
        pytest.param("postgres", marks=pytest.mark.real),
    ]
)
async def process(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], Metadata]]:
    """Start stores that share the durable state of a test, one per process."""
    made: list[Metadata] = []
    if request.param == "memory":
        durable = MemoryDatabase()
        new: Callable[[], Metadata] = lambda: MemoryMetadata(durable)  # noqa: E731
    else:
        url = f"sqlite:///{tmp_path}/new/metadata.db"
        if request.param == "postgres":
            url = await new_database(request.getfixturevalue("postgres_url"))
        new = lambda: SqlMetadata(url)  # noqa: E731

    def start() -> Metadata:
        made.append(new())
        return made[-1]

    yield start
    for store in made:
        await store.close()


class Node:
    """An open store, and its catalog."""

    def __init__(self, store: Metadata, catalog: Catalog) -> None:
        self.store = store
        self.catalog = catalog

    async def create(self, *topics: NewTopic) -> list[TopicInfo]:
        made = await self.store.create_topics(list(topics))
        for info in made:
            self.catalog.add_topic(info)
        return made


async def opened(process: Callable[[], Metadata], node_id: int = 1) -> Node:
    store = process()
    catalog = await store.open()
    await store.register_broker(node_id, HERE, None)
    return Node(store, catalog)


async def stored(process: Callable[[], Metadata]) -> Catalog:
    """The state that a process started now would find."""
    store = process()
    catalog = await store.open()
    await store.close()
    return catalog


async def refused(code: ErrorCode, call: object) -> None:
    with pytest.raises(KafkaError) as caught:
        await call  # type: ignore[misc]
    assert caught.value.code is code


async def test_new_database_has_only_cluster_id(
    process: Callable[[], Metadata],
) -> None:
    catalog = await stored(process)
    assert len(catalog.cluster_id) == 22
    assert (len(catalog.by_name), len(catalog.by_id), len(catalog.brokers)) == (0, 0, 0)
    assert (await stored(process)).cluster_id == catalog.cluster_id


async def test_registered_brokers_are_stored(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    version = node.catalog.version
    await node.store.register_broker(2, {"X": ("h", 1)}, "rack-b")
    expected = {1: BrokerInfo(1, HERE, None), 2: BrokerInfo(2, {"X": ("h", 1)}, "rack-b")}
    assert node.catalog.brokers == expected
    assert node.catalog.version > version
    await node.store.register_broker(2, {"X": ("h", 2)}, None)
    assert (await stored(process)).brokers[2] == BrokerInfo(2, {"X": ("h", 2)}, None)


async def test_each_start_of_a_broker_has_the_next_epoch(
    process: Callable[[], Metadata],
) -> None:
    for epoch in (1, 2, 3):
        node = await opened(process)
        assert node.catalog.brokers[1].epoch == epoch
        await node.store.register_broker(1, {"P": ("h", epoch)}, None)
        await node.store.register_broker(1, {"P": ("h", epoch)}, None)
        assert node.catalog.brokers[1].epoch == epoch
        assert (await stored(process)).brokers[1].epoch == epoch
        found = (await node.store.changes_since(0)).brokers
        assert [info.epoch for info in found] == [epoch]


async def test_broker_starts_only_after_the_expected_epoch(
    process: Callable[[], Metadata],
) -> None:
    first = (await opened(process)).store  # epoch 1
    one, two = process(), process()
    await one.open()
    await two.open()
    with pytest.raises(BrokerSuperseded, match="broker 5 is not registered"):
        await one.register_broker(5, HERE, None, after=1)
    await one.register_broker(1, HERE, None, after=1)
    with pytest.raises(BrokerSuperseded, match="started as broker 1, in epoch 2"):
        await two.register_broker(1, {}, None, after=1)
    with pytest.raises(BrokerSuperseded):  # its address is not that of the broker any more
        await first.register_broker(1, {"P": ("h", 7)}, None)
    await one.register_broker(1, {"P": ("h", 8)}, None, after=1)
    found = (await stored(process)).brokers
    assert list(found) == [1]
    assert (found[1].epoch, found[1].listeners) == (2, {"P": ("h", 8)})


async def test_one_of_two_starts_at_once_succeeds(process: Callable[[], Metadata]) -> None:
    await opened(process)  # epoch 1
    one, two = process(), process()
    await one.open()
    await two.open()
    starts = [each.register_broker(1, HERE, None, after=1) for each in (one, two)]
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    refused = [each for each in outcomes if each is not None]
    assert [type(each) for each in refused] == [BrokerSuperseded]
    assert (await stored(process)).brokers[1].epoch == 2


async def test_created_topics_are_stored_as_returned(
    process: Callable[[], Metadata],
) -> None:
    node = await opened(process)
    first, second = await node.create(
        NewTopic("a", [1, 2, 1], {"retention.ms": "5"}), NewTopic("__b", [1], internal=True)
    )
    assert [(p.index, p.leader, p.leader_epoch) for p in first.partitions] == [
        (0, 1, 0),
        (1, 2, 0),
        (2, 1, 0),
    ]
    assert (first.internal, second.internal) == (False, True)
    assert len(first.id) == len(second.id) == 16
    found = await stored(process)
    assert found.by_name == {"a": first, "__b": second}
    assert found.by_id == {first.id: first, second.id: second}
    assert found.version > 0


async def test_existing_name_creates_no_topic_of_request(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    (old,) = await node.create(NewTopic("a", [1]))
    both = [NewTopic("new", [1]), NewTopic("a", [1])]
    await refused(ErrorCode.TOPIC_ALREADY_EXISTS, node.store.create_topics(both))
    twice = [NewTopic("new", [1]), NewTopic("new", [1])]
    await refused(ErrorCode.TOPIC_ALREADY_EXISTS, node.store.create_topics(twice))
    assert (await stored(process)).by_name == {"a": old}
    assert await node.store.create_topics([]) == []


async def test_recreated_topic_is_a_new_one(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    seen_ids: set[bytes] = set()
    seen_numbers: set[int] = set()
    for _ in range(3):
        (info,) = await node.create(NewTopic("a", [1, 1], {"retention.ms": "5"}))
        assert info.id not in seen_ids
        assert not seen_numbers & {p.number for p in info.partitions}
        seen_ids.add(info.id)
        seen_numbers |= {p.number for p in info.partitions}
        await node.store.delete_topics([info.id])
        node.catalog.remove_topic(info.id)
        assert (await stored(process)).by_name == {}
        node = await opened(process)
    assert len(seen_numbers) == 6
    (info,) = await node.create(NewTopic("a", [1]))
    assert (await stored(process)).by_name["a"].configs == {}


async def test_topics_are_deleted_atomically(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    a, b = await node.create(NewTopic("a", [1]), NewTopic("b", [1]))
    await refused(ErrorCode.UNKNOWN_TOPIC_ID, node.store.delete_topics([a.id, bytes(16)]))
    assert set((await stored(process)).by_name) == {"a", "b"}
    await node.store.delete_topics([a.id, b.id])
    assert (await stored(process)).by_name == {}
    await refused(ErrorCode.UNKNOWN_TOPIC_ID, node.store.delete_topics([a.id]))


async def test_partitions_are_added_after_existing_ones(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    a, b = await node.create(NewTopic("a", [1]), NewTopic("b", [1]))
    added = await node.store.create_partitions(a.id, 3)
    assert [(p.index, p.leader) for p in added] == [(1, 1), (2, 1)]
    more = await node.store.create_partitions(a.id, 4, [7])
    assert [(p.index, p.leader) for p in more] == [(3, 7)]
    numbers = [p.number for p in [*a.partitions, *b.partitions, *added, *more]]
    assert len(set(numbers)) == 5
    for total in (4, 1):
        await refused(ErrorCode.INVALID_PARTITIONS, node.store.create_partitions(a.id, total))
    await refused(ErrorCode.UNKNOWN_TOPIC_ID, node.store.create_partitions(bytes(16), 9))
    found = (await stored(process)).by_name["a"].partitions
    assert found == [*a.partitions, *added, *more]


async def test_settings_are_stored_by_topic_and_broker(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    await node.create(NewTopic("a", [1], {"retention.ms": "5"}), NewTopic("b", [1]))
    await node.store.alter_configs(
        [
            ConfigChange(TOPIC_RESOURCE, "a", "retention.ms", "6"),
            ConfigChange(TOPIC_RESOURCE, "a", "segment.ms", "7"),
            ConfigChange(TOPIC_RESOURCE, "b", "retention.ms", "8"),
            ConfigChange(BROKER_RESOURCE, "1", "max.connections", "9"),
            ConfigChange(BROKER_RESOURCE, ALL_BROKERS, "max.connections", "10"),
            ConfigChange(GROUP_RESOURCE, "1", "consumer.session.timeout.ms", "11"),
            ConfigChange(GROUP_RESOURCE, LONG_NAME, "consumer.session.timeout.ms", "12"),
            ConfigChange(CLIENT_METRICS_RESOURCE, "1", "metrics", "*"),
            ConfigChange(CLIENT_METRICS_RESOURCE, LONG_NAME, "interval.ms", "13"),
        ]
    )
    found = await stored(process)
    assert found.by_name["a"].configs == {"retention.ms": "6", "segment.ms": "7"}
    assert found.by_name["b"].configs == {"retention.ms": "8"}
    assert found.broker_configs(1) == {"max.connections": "9"}
    assert found.broker_configs(2) == {"max.connections": "10"}
    assert found.group_overrides == {
        "1": {"consumer.session.timeout.ms": "11"},
        LONG_NAME: {"consumer.session.timeout.ms": "12"},
    }
    assert found.client_metrics == {"1": {"metrics": "*"}, LONG_NAME: {"interval.ms": "13"}}
    await node.store.alter_configs(
        [
            ConfigChange(TOPIC_RESOURCE, "a", "segment.ms", None),
            ConfigChange(TOPIC_RESOURCE, "b", "segment.ms", None),
            ConfigChange(TOPIC_RESOURCE, "b", "segment.ms", "1"),
            ConfigChange(BROKER_RESOURCE, "1", "max.connections", "9"),
            ConfigChange(BROKER_RESOURCE, "1", "max.connections", None),
            ConfigChange(GROUP_RESOURCE, "1", "consumer.session.timeout.ms", None),
        ]
    )
    found = await stored(process)
    assert found.by_name["a"].configs == {"retention.ms": "6"}
    assert found.by_name["b"].configs == {"retention.ms": "8", "segment.ms": "1"}
    assert list(found.group_overrides) == [LONG_NAME]
    assert found.broker_configs(1) == {"max.connections": "10"}


async def test_settings_change_atomically(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    await node.create(NewTopic("a", [1]))
    changes = [
        ConfigChange(TOPIC_RESOURCE, "a", "retention.ms", "6"),
        ConfigChange(TOPIC_RESOURCE, "gone", "retention.ms", "6"),
    ]
    call = node.store.alter_configs(changes)
    await refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, call)
    assert (await stored(process)).by_name["a"].configs == {}


async def test_producer_id_blocks_are_leased_once(process: Callable[[], Metadata]) -> None:
    one, other = await opened(process), await opened(process, 2)
    taken: set[int] = set()
    for node in (one, other, one, await opened(process)):
        first = await node.store.lease_producer_ids(1000)
        block = set(range(first, first + 1000))
        assert first >= 0
        assert not taken & block
        taken |= block


async def test_levels_of_features_are_stored_with_a_rising_epoch(
    process: Callable[[], Metadata],
) -> None:
    node = await opened(process)
    assert (await stored(process)).features.list_finalized() == [
        ("transaction.version", 2),
        ("group.version", 1),
        ("share.version", 2),
        ("streams.version", 1),
    ]
    epochs = [0]
    for level in (1, 0, 0, 2):
        epochs.append(await node.store.finalize_features({"transaction.version": level}))
        found = (await stored(process)).features
        assert (found.level("transaction.version"), found.epoch) == (level, epochs[-1])
        await node.create(NewTopic(f"topic-{len(epochs)}", [1]))
    assert epochs == sorted(set(epochs))


async def test_leader_epochs_rise_for_led_partitions_only(
    process: Callable[[], Metadata],
) -> None:
    node = await opened(process)
    (a,) = await node.create(NewTopic("a", [1, 1, 2]))
    mine, also_mine, other = (p.number for p in a.partitions)
    assert await node.store.bump_leader_epochs([mine]) == {mine: 1}
    assert await node.store.bump_leader_epochs([mine, also_mine]) == {mine: 2, also_mine: 1}
    assert [p.leader_epoch for p in node.catalog.by_name["a"].partitions] == [2, 1, 0]
    for wrong in ([mine, other], [also_mine, 10**6]):
        await refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, node.store.bump_leader_epochs(wrong))
    found = (await stored(process)).by_name["a"].partitions
    assert [p.leader_epoch for p in found] == [2, 1, 0]
    assert await node.store.bump_leader_epochs([]) == {}


async def test_all_leader_epochs_of_a_broker_rise_at_once(
    process: Callable[[], Metadata],
) -> None:
    node = await opened(process)
    a, b = await node.create(NewTopic("a", [1, 1, 2]), NewTopic("b", [1]))
    await node.store.bump_leader_epochs([a.partitions[0].number])
    before = node.catalog.version
    await node.store.raise_leader_epochs()
    assert node.catalog.version > before
    for catalog in (node.catalog, await stored(process)):
        epochs = [[p.leader_epoch for p in catalog.by_name[n].partitions] for n in ("a", "b")]
        assert epochs == [[2, 1, 0], [1]]
    assert b.partitions[0].leader_epoch == 0  # a snapshot stays what it was


async def test_more_rows_than_fit_into_one_statement(
    process: Callable[[], Metadata], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "IN_LIMIT", 7)
    count = 20
    node = await opened(process)
    made = await node.create(
        *(NewTopic(f"t{i}", [1] * 2, {"retention.ms": str(i)}) for i in range(count))
    )
    numbers = [p.number for info in made for p in info.partitions]
    assert len(set(numbers)) == 2 * count
    assert set((await node.store.bump_leader_epochs(numbers)).values()) == {1}
    assert (await stored(process)).by_name["t9"].configs == {"retention.ms": "9"}
    reset = [ConfigChange(TOPIC_RESOURCE, info.name, "retention.ms", None) for info in made]
    await node.store.alter_configs(reset)
    await node.store.delete_topics([info.id for info in made])
    assert (await stored(process)).by_id == {}


async def test_concurrent_calls_are_serialised(process: Callable[[], Metadata]) -> None:
    nodes = [await opened(process, 1), await opened(process, 2)]
    calls = [nodes[i % 2].store.create_topics([NewTopic(f"t{i}", [1, 1])]) for i in range(10)]
    same = [node.store.create_topics([NewTopic("same", [1])]) for node in nodes]
    made = await asyncio.gather(*calls)
    won = await asyncio.gather(*same, return_exceptions=True)
    assert sum(isinstance(each, KafkaError) for each in won) == 1
    numbers = [p.number for topics in made for info in topics for p in info.partitions]
    assert len(set(numbers)) == 20
    assert len((await stored(process)).by_name) == 11


async def test_store_is_usable_after_cancelled_call(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    for steps in range(12):
        call = asyncio.ensure_future(node.store.create_topics([NewTopic(f"t{steps}", [1])]))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    (info,) = await node.store.create_topics([NewTopic("after", [1])])
    assert (await stored(process)).by_name["after"] == info


async def test_closed_store_raises(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    await node.store.close()
    await node.store.close()
    with pytest.raises(MetadataError, match="closed"):
        await node.store.lease_producer_ids(1)


async def test_creating_partitions_requires_registered_broker(
    process: Callable[[], Metadata],
) -> None:
    node = await opened(process)
    (a,) = await node.create(NewTopic("a", [1]))
    store = process()
    await store.open()
    with pytest.raises(MetadataError, match="registered"):
        await store.bump_leader_epochs([a.partitions[0].number])


async def test_change_that_was_planned_with_older_catalog_is_refused(
    process: Callable[[], Metadata],
) -> None:
    one, other = await opened(process, 1), await opened(process, 2)
    one.catalog.note_version((await one.store.changes_since(0)).version)
    seen = one.catalog.stored_version
    (info,) = await one.store.create_topics([NewTopic("a", [1])], seen)
    assert one.catalog.stored_version == seen + 1
    for call in (
        other.store.create_topics([NewTopic("b", [1])], seen),
        other.store.delete_topics([info.id], seen),
        other.store.create_partitions(info.id, 2, [1], seen),
        other.store.alter_configs([ConfigChange(TOPIC_RESOURCE, "a", "k", "v")], seen),
        other.store.finalize_features({"transaction.version": 1}, seen),
        other.store.move_partitions([info.partitions[0].number], 2, seen),
        other.store.plan_moves({info.partitions[0].number: 2}, seen),
        other.store.remove_broker(3, seen),
    ):
        with pytest.raises(CatalogChanged) as caught:
            await call
        assert caught.value.version == seen + 1
    assert (await stored(process)).by_name == {"a": info}
    assert (await other.store.changes_since(0)).version == seen + 1


async def test_changes_by_any_process_are_counted(process: Callable[[], Metadata]) -> None:
    one, other = await opened(process, 1), await opened(process, 2)
    for writer, name in ((one, "a"), (other, "b"), (one, "c")):
        before = other.store.commits()
        if before is None:
            return  # not with this database
        assert other.store.commits() == before
        await writer.store.create_topics([NewTopic(name, [1])])
        assert other.store.commits() not in (before, None)


async def test_heartbeats_are_no_changes(process: Callable[[], Metadata]) -> None:
    one, other = await opened(process, 1), await opened(process, 2)
    before = other.store.commits()
    for store in (one.store, other.store):
        await store.beat(1)
        await store.lease_producer_ids(1)
    assert other.store.commits() == before


async def test_changes_of_security_are_counted(process: Callable[[], Metadata]) -> None:
    one, other = await opened(process, 1), await opened(process, 2)
    before = other.store.commits()
    if before is not None and isinstance(one.store, SqlMetadata):
        await one.store.transact(lambda session: increment_version(session, ACLS))
        assert other.store.commits() != before


async def test_every_change_of_catalog_is_found_by_other_processes(
    process: Callable[[], Metadata],
) -> None:
    node, other = await opened(process, 1), await opened(process, 2)
    start = (await other.store.changes_since(0)).version
    assert await other.store.changes_since(start) == CatalogChanges(start)
    a, b = await node.create(NewTopic("a", [1, 2], {"k": "v"}, internal=True), NewTopic("b", [2]))
    found = await other.store.changes_since(start)
    assert found.version == start + 1
    places = [PartitionPlace(p.number, p.index, p.leader, 0) for p in a.partitions]
    created = found.topics[0].created_ms
    assert [topic for topic in found.topics if topic.name == "a"] == [
        ChangedTopic(a.id, "a", True, created, False, places, {"k": "v"})
    ]
    assert (found.brokers, found.broker_settings, found.features) == ([], None, [])

    version = found.version
    await node.store.alter_configs([ConfigChange(BROKER_RESOURCE, "1", "x", "y")])
    await node.store.finalize_features({"transaction.version": 1})
    await node.store.register_broker(3, HERE, "rack")
    found = await other.store.changes_since(version)
    assert found.version == version + 3
    assert found.broker_settings == {"1": {"x": "y"}}
    assert found.features == [("transaction.version", 1, version + 2)]
    assert found.brokers == [BrokerInfo(3, HERE, "rack")]
    assert [group.id for group in found.groups] == [3]
    assert found.topics == []

    version = found.version
    await node.store.register_broker(1, HERE, None)  # nothing has changed
    await node.store.alter_configs([ConfigChange(TOPIC_RESOURCE, "a", "k", None)])
    await node.store.delete_topics([b.id])
    found = await other.store.changes_since(version)
    assert (found.broker_settings, found.features, found.brokers) == (None, [], [])
    assert [(t.name, t.deleted, t.configs) for t in found.topics] == [
        ("a", False, {}),
        ("b", True, {}),
    ]


async def test_raised_leader_epochs_are_found_by_other_processes(
    process: Callable[[], Metadata],
) -> None:
    node, other = await opened(process, 1), await opened(process, 2)
    (a,) = await node.create(NewTopic("a", [1, 1, 2]))
    version = (await other.store.changes_since(0)).version
    await node.store.bump_leader_epochs([a.partitions[0].number])
    found = await other.store.changes_since(version)
    assert [place.base for topic in found.topics for place in topic.partitions] == [1, 0, 0]
    await node.store.raise_leader_epochs()
    found = await other.store.changes_since(found.version)
    assert found.groups == [LeadGroup(1, 1, 1)]
    assert found.topics == []


async def test_moved_partition_has_next_leader_epoch(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    (a,) = await node.create(NewTopic("a", [1, 1, 2]))
    await node.store.raise_leader_epochs()
    first, second, third = (p.number for p in a.partitions)
    seen = node.catalog.stored_version
    await node.store.move_partitions([first, third], 2, seen)
    assert node.catalog.stored_version == seen  # `changes_since` must return the move
    moved = await stored(process)
    found = [(p.leader, p.leader_epoch) for p in moved.by_name["a"].partitions]
    assert found == [(2, 2), (1, 1), (2, 0)]  # the third was there
    await node.store.move_partitions([first, second], 1, seen + 1)
    found = [(p.leader, p.leader_epoch) for p in (await stored(process)).by_name["a"].partitions]
    assert found == [(1, 3), (1, 1), (2, 0)]
    changed = (await node.store.changes_since(seen)).topics
    assert [[place.group for place in topic.partitions] for topic in changed] == [[1, 1, 2]]
    await node.store.create_partitions(a.id, 4, [1])  # it begins in epoch 0
    found = [(p.leader, p.leader_epoch) for p in (await stored(process)).by_name["a"].partitions]
    assert found == [(1, 3), (1, 1), (2, 0), (1, 0)]


async def test_planned_moves_are_stored_until_they_end(process: Callable[[], Metadata]) -> None:
    node, other = await opened(process), await opened(process)
    (a, b) = await node.create(NewTopic("a", [1, 1, 1]), NewTopic("b", [1]))
    first, second, third = (p.number for p in a.partitions)
    (of_b,) = (p.number for p in b.partitions)
    node.catalog.note_version((await node.store.changes_since(0)).version)
    seen = node.catalog.stored_version
    await node.store.plan_moves({first: 2, second: 2, of_b: 3}, seen)
    assert node.catalog.stored_version == seen + 1
    assert (await stored(process)).moves == {first: 2, second: 2, of_b: 3}
    found = await other.store.changes_since(seen)
    targets = {p.number: p.target for topic in found.topics for p in topic.partitions}
    assert targets == {first: 2, second: 2, third: None, of_b: 3}
    await node.store.plan_moves({first: 3, second: None}, seen + 1)
    assert (await stored(process)).moves == {first: 3, of_b: 3}
    await node.store.move_partitions([first], 3, seen + 2)
    assert (await stored(process)).moves == {of_b: 3}
    await node.store.move_partitions([first, of_b], 2, seen + 3, {first: 3})
    moved = await stored(process)
    assert (moved.leader_of(first), moved.leader_of(of_b), moved.moves) == (2, 2, {first: 3})
    await node.store.delete_topics([a.id, b.id])
    assert (await stored(process)).moves == {}


async def test_folder_of_a_broker_is_stored(process: Callable[[], Metadata]) -> None:
    node = await opened(process)
    seen = node.catalog.stored_version
    await node.store.register_broker(7, {}, None, "here")
    assert (await stored(process)).brokers[7].folder == "here"
    assert [each.folder for each in (await node.store.changes_since(seen)).brokers] == ["here"]
    await node.store.register_broker(7, {}, None, "there")
    assert node.catalog.brokers[7].folder == "there"


@pytest.mark.parametrize("limits", [(2, 100), (100, 4), (1, 1)])
async def test_many_changed_topics_come_in_parts(
    process: Callable[[], Metadata], monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int]
) -> None:
    monkeypatch.setattr(changes, "TOPICS_AT_ONCE", limits[0])
    monkeypatch.setattr(changes, "PARTITIONS_AT_ONCE", limits[1])
    node = await opened(process)
    version = node.catalog.stored_version
    made = await node.create(*(NewTopic(f"t{i}", [1] * (1 + i % 3)) for i in range(7)))
    await node.store.delete_topics([made[3].id])
    found: list[ChangedTopic] = []
    after = None
    while True:
        part = await node.store.changes_since(version, after)
        found += part.topics
        after = part.more
        if after is None:
            break
    assert [t.name for t in found if t.deleted] == ["t3"]
    assert found[-1].deleted
    sizes = {t.name: len(t.partitions) for t in found if not t.deleted}
    assert sizes == {f"t{i}": 1 + i % 3 for i in range(7) if i != 3}
