"""Metadata in memory for the simulation, which keeps exactly what was committed.

`MemoryDatabase` is the state that survives a crash; `MemoryMetadata` is one process's access to it.
A write pauses (where a crash or a fault may happen), then checks and changes everything at once:
that moment is the commit. tests/metadata/test_contract.py checks it and SQL against the same
contract.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import uuid_text
from kafkawire.metadata import rows
from kafkawire.metadata.catalog import (
    TOPIC_RESOURCE,
    BrokerInfo,
    Catalog,
    ConfigChange,
    NewTopic,
    PartitionInfo,
    TopicInfo,
)
from kafkawire.metadata.changes import (
    CatalogChanges,
    ChangedTopic,
    Cursor,
    PartitionPlace,
)
from kafkawire.metadata.directory import local_group
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import BrokerSuperseded, CatalogChanged, MetadataError
from kafkawire.offsets.storage.memory import MemoryRows, MemoryStorage
from tests.kit.memory_tables import MemoryTables

T = TypeVar("T")


@dataclass
class MemoryDatabase:
    """The durable state. `seed` determines the ids, so that a run can be repeated."""

    seed: int = 0
    catalog: Catalog | None = None
    next_partition: int = 1
    next_producer_id: int = 0
    deleted_partitions: set[int] = field(default_factory=set)
    offsets: MemoryRows = field(default_factory=MemoryRows)
    version: int = 0
    topic_versions: dict[bytes, int] = field(default_factory=dict)
    deleted_names: dict[bytes, str] = field(default_factory=dict)
    versions: dict[object, int] = field(default_factory=dict)  # of groups, brokers and settings
    heartbeats: dict[int, int] = field(default_factory=dict)
    tables: MemoryTables = field(default_factory=MemoryTables)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def partitions(self) -> dict[int, PartitionInfo]:
        """The partitions of living topics, by number."""
        assert self.catalog is not None
        return {p.number: p for info in self.catalog.by_id.values() for p in info.partitions}

    def leader_of(self, number: int) -> int | None:
        """The node that leads a partition; None if the partition does not exist (any more)."""
        partition = self.partitions().get(number)
        return None if partition is None else partition.leader


async def _yield() -> None:
    await asyncio.sleep(0)


class MemoryMetadata:
    """`SqlStore` over a MemoryDatabase; `transact` has the tables of `MemoryTables`. `pause` is
    awaited before and after each commit; `fault(method)` may return an exception to raise instead
    of committing. After `crash` no call of this object commits any more."""

    def __init__(
        self,
        database: MemoryDatabase,
        pause: Callable[[], Awaitable[None]] = _yield,
        fault: Callable[[str], Exception | None] = lambda method: None,
    ) -> None:
        self._database = database
        self._pause = pause
        self._fault = fault
        self._lock = asyncio.Lock()
        self._open = False
        self._node_id: int | None = None
        self._served = Catalog("")
        self._storages: list[MemoryStorage] = []
        self._registered: set[int] = set()

    def crash(self) -> None:
        """End the process: what has not been committed never will be."""
        self._open = False
        for storage in self._storages:
            storage.crash()

    name = "the metadata in memory"

    def absent(self) -> bool:
        return False

    async def open(self) -> Catalog:
        self._open = True
        await self._pause()
        stored = self._database.catalog
        if stored is None:
            name = uuid_text(self._database.random.randbytes(16))
            stored = self._database.catalog = Catalog(name)
        self._served = copy.deepcopy(stored)
        self._served.note_version(self._database.version)
        return self._served

    async def reload(self) -> Catalog:
        return await self.open()

    async def register_broker(
        self,
        node_id: int,
        listeners: Mapping[str, tuple[str, int]],
        rack: str | None,
        folder: str | None = None,
        after: int | None = None,
    ) -> None:
        info = BrokerInfo(node_id, dict(listeners), rack, folder=folder)
        if node_id in self._registered and self._served.brokers.get(node_id) == info:
            self._node_id = node_id
            return
        new = node_id not in self._registered
        if not new:
            after = self._served.brokers[node_id].epoch

        def check() -> Callable[[], None]:
            before = self._stored.brokers.get(node_id)
            if after is not None and (before is None or before.epoch != after):
                raise BrokerSuperseded(node_id, 0 if before is None else before.epoch)
            info.epoch = self._database.version + 1 if before is None else before.epoch + new
            return commit

        def commit() -> None:
            self._stored.add_broker(copy.deepcopy(info))
            self._touch_group(node_id)
            self._database.versions["broker", node_id] = self._database.version
            self._registered.add(node_id)

        await self._write("register_broker", check)
        self._served.add_broker(info)
        group = self._stored.group(node_id)
        assert group is not None
        self._served.set_groups([group])
        self._node_id = node_id

    async def remove_broker(self, node_id: int, seen: int, own_epoch: int | None = None) -> None:
        def check() -> Callable[[], None]:
            if node_id not in self._stored.brokers:
                raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED)
            epoch = self._stored.brokers[node_id].epoch
            if own_epoch not in (None, epoch):
                raise BrokerSuperseded(node_id, epoch)
            led = [p for p in self._database.partitions().values() if p.leader == node_id]
            if led:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker leads {len(led)} partitions")
            return commit

        def commit() -> None:
            self._stored.remove_broker(node_id)
            self._stored.broker_overrides.pop(str(node_id), None)
            self._database.versions["settings"] = self._database.version
            self._database.heartbeats.pop(node_id, None)

        await self._write("remove_broker", check, seen)
        self._registered.discard(node_id)

    async def create_topics(
        self, topics: list[NewTopic], seen: int | None = None
    ) -> list[TopicInfo]:
        made: list[TopicInfo] = []

        def check() -> Callable[[], None]:
            names = [topic.name for topic in topics]
            if len(set(names)) < len(names) or any(n in self._stored.by_name for n in names):
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS)
            return commit

        def commit() -> None:
            for topic in topics:
                first = self._numbers(len(topic.leaders))
                info = rows.new_topic(topic, self._database.random.randbytes(16), first)
                self._stored.add_topic(info)
                self._touch(info.id)
                for leader in topic.leaders:
                    self._touch_group(leader)
                made.append(copy.deepcopy(info))

        await self._write("create_topics", check, seen)
        return made

    async def delete_topics(self, ids: list[bytes], seen: int | None = None) -> None:
        def check() -> Callable[[], None]:
            if any(topic_id not in self._stored.by_id for topic_id in ids):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            return commit

        def commit() -> None:
            for topic_id in set(ids):
                removed = self._stored.remove_topic(topic_id)
                self._touch(topic_id)
                self._database.deleted_names[topic_id] = removed.name
                for partition in removed.partitions:
                    self._database.deleted_partitions.add(partition.number)

        await self._write("delete_topics", check, seen)

    async def create_partitions(
        self,
        topic_id: bytes,
        new_total: int,
        leaders: list[int] | None = None,
        seen: int | None = None,
    ) -> list[PartitionInfo]:
        added: list[PartitionInfo] = []

        def check() -> Callable[[], None]:
            if topic_id not in self._stored.by_id:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            if new_total <= len(self._stored.by_id[topic_id].partitions):
                raise KafkaError(ErrorCode.INVALID_PARTITIONS)
            return commit

        def commit() -> None:
            total = len(self._stored.by_id[topic_id].partitions)
            chosen = leaders or [self._node()] * (new_total - total)
            added.extend(rows.new_partitions(chosen, self._numbers(len(chosen)), total))
            self._stored.add_partitions(topic_id, copy.deepcopy(added))
            self._touch(topic_id)
            for leader in chosen:
                self._touch_group(leader)

        await self._write("create_partitions", check, seen)
        return added

    async def alter_configs(self, changes: list[ConfigChange], seen: int | None = None) -> None:
        def check() -> Callable[[], None]:
            for change in changes:
                topic = change.resource_type == TOPIC_RESOURCE
                if topic and change.name not in self._stored.by_name:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return commit

        def commit() -> None:
            for change in changes:
                self._stored.apply_config(change)
                if change.resource_type == TOPIC_RESOURCE:
                    self._touch(self._stored.by_name[change.name].id)
                else:
                    self._database.versions["settings"] = self._database.version

        await self._write("alter_configs", check, seen)

    async def finalize_features(self, levels: Mapping[str, int], seen: int | None = None) -> int:
        epochs: list[int] = []

        def commit() -> None:
            epochs.append(self._database.version)
            self._stored.finalize_features(levels, epochs[0])
            for name in levels:
                self._database.versions["feature", name] = epochs[0]

        await self._write("finalize_features", lambda: commit, seen)
        return epochs[0]

    async def lease_producer_ids(self, count: int) -> int:
        leased: list[int] = []

        def commit() -> None:
            leased.append(self._database.next_producer_id)
            self._database.next_producer_id += count

        await self._write("lease_producer_ids", lambda: commit, of_catalog=False)
        return leased[0]

    async def known_partitions(self, numbers: Iterable[int]) -> set[int]:
        await self._pause()
        known = self._database.partitions().keys() | self._database.deleted_partitions
        return known & set(numbers)

    async def bump_leader_epochs(self, numbers: list[int]) -> dict[int, int]:
        epochs: dict[int, int] = {}

        def check() -> Callable[[], None]:
            self._check_leads(numbers, self._node())
            return commit

        def commit() -> None:
            mine = self._database.partitions()
            epochs.update({n: mine[n].leader_epoch + 1 for n in numbers if n in mine})
            self._stored.set_leader_epochs(epochs)
            for number in epochs:
                self._touch_topic_of(number)

        await self._write("bump_leader_epochs", check)
        self._served.set_leader_epochs(epochs)
        return epochs

    def storage(self, now_ms: Callable[[], int], node_id: int = 1) -> MemoryStorage:
        """The offsets of the same database, with the same pauses and faults."""
        made = MemoryStorage(
            self._database.offsets,
            node_id,
            now_ms,
            self._database.leader_of,
            pause=self._pause,
            fault=self._fault,
        )
        self._storages.append(made)
        return made

    async def raise_leader_epochs(self) -> None:
        node_id = self._node()

        def commit() -> None:
            self._stored.raise_leader_epochs(node_id)
            self._touch_group(node_id)

        await self._write("raise_leader_epochs", lambda: commit)
        self._served.raise_leader_epochs(node_id)

    async def move_partitions(
        self, numbers: list[int], leader: int, seen: int, then: Mapping[int, int] | None = None
    ) -> None:
        def commit() -> None:
            stored, known = self._stored, self._database.partitions()
            if stored.group(leader) is None:
                stored.set_groups([local_group(leader)])
                self._touch_group(leader)
            group = stored.group(leader)
            assert group is not None
            for number in set(numbers):
                if number in known and known[number].leader != leader:
                    base = known[number].leader_epoch + 1 - group.epoch
                    stored.move_partition(number, leader, base)
                    self._touch_topic_of(number)
                stored.set_moves({number: (then or {}).get(number)})

        await self._write("move_partitions", lambda: commit, seen, applied=False)

    async def plan_moves(self, targets: Mapping[int, int | None], seen: int) -> None:
        def commit() -> None:
            self._stored.set_moves(targets)
            for number in targets:
                self._touch_topic_of(number)

        await self._write("plan_moves", lambda: commit, seen)

    async def transact(self, work: Callable[[Session], T]) -> T:
        done: list[T] = []

        def commit() -> None:
            epochs = {info.node_id: info.epoch for info in self._stored.brokers.values()}
            done.append(self._database.tables.run(work, epochs, self._database.version))

        await self._write("transact", lambda: commit, of_catalog=False)
        return done[0]

    def commits(self) -> int | None:
        return None

    async def catalog_version(self) -> int:
        self._must_be_open()
        return self._database.version

    async def changes_since(self, version: int, after: Cursor | None = None) -> CatalogChanges:
        self._must_be_open()
        await self._pause()
        database, stored = self._database, self._stored
        changes = CatalogChanges(database.version)

        def newer(*key: object) -> bool:
            return database.versions.get(key if len(key) > 1 else key[0], 0) > version

        changes.groups = [group for group in stored.groups() if newer("group", group.id)]
        changes.brokers = [
            copy.deepcopy(each) for each in stored.brokers.values() if newer("broker", each.node_id)
        ]
        if database.version > version:
            changes.registered = frozenset(stored.brokers)
        if newer("settings"):
            changes.broker_settings = copy.deepcopy(stored.broker_overrides)
            changes.group_settings = copy.deepcopy(stored.group_overrides)
            changes.client_metrics = copy.deepcopy(stored.client_metrics)
        changes.features = [
            (key[1], stored.features.level(key[1]), at)
            for key, at in database.versions.items()
            if isinstance(key, tuple) and key[0] == "feature" and at > version
        ]
        touched = sorted((at, i) for i, at in database.topic_versions.items() if at > version)
        changes.topics = [self._changed(topic_id) for _, topic_id in touched]
        return changes

    def _changed(self, topic_id: bytes) -> ChangedTopic:
        info = self._stored.by_id.get(topic_id)
        if info is None:
            name = self._database.deleted_names[topic_id]
            return ChangedTopic(topic_id, name, False, 0, deleted=True)
        places = []
        for row in info.partitions:
            group = self._stored.group(row.leader)
            assert group is not None
            base = row.leader_epoch - group.epoch
            target = self._stored.moves.get(row.number)
            places.append(PartitionPlace(row.number, row.index, group.id, base, target))
        return ChangedTopic(
            topic_id, info.name, info.internal, info.created_ms, False, places, dict(info.configs)
        )

    def _touch(self, topic_id: bytes) -> None:
        self._database.topic_versions[topic_id] = self._database.version

    def _touch_topic_of(self, number: int) -> None:
        location = self._stored.locate(number)
        if location is not None:
            self._touch(location.topic_id)

    def _touch_group(self, leader: int) -> None:
        if self._stored.group(leader) is None:
            self._stored.set_groups([local_group(leader)])
        self._database.versions["group", leader] = self._database.version

    async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
        rows = self._database.heartbeats

        def commit() -> None:
            before = rows.get(node_id, 0)
            rows[node_id] = min(before, 0) - 1 if starting else max(before, 0) + 1

        def work() -> Callable[[], None]:
            if not self._is_newest(node_id):
                stored = self._stored.brokers.get(node_id)
                raise BrokerSuperseded(node_id, 0 if stored is None else stored.epoch)
            return commit

        await self._write("beat", work, of_catalog=False)
        return dict(rows)

    async def end_heartbeats(self, node_id: int) -> None:
        rows = self._database.heartbeats

        def commit() -> None:
            if self._is_newest(node_id):
                rows.pop(node_id, None)

        await self._write("end_heartbeats", lambda: commit, of_catalog=False)

    def _is_newest(self, node_id: int) -> bool:
        """Whether no other process was started as a broker that this one has registered."""
        if node_id not in self._registered:
            return True
        stored = self._stored.brokers.get(node_id)
        return stored is not None and self._served.brokers[node_id].epoch == stored.epoch

    async def close(self) -> None:
        async with self._lock:
            self._open = False

    async def _write(
        self,
        method: str,
        check: Callable[[], Callable[[], None]],
        seen: int | None = None,
        of_catalog: bool = True,
        applied: bool = True,
    ) -> None:
        async with self._lock:
            self._must_be_open()
            await self._pause()
            failure = self._fault(method)
            if failure is not None:
                raise failure
            self._must_be_open()
            database = self._database
            if seen is not None and database.version != seen:
                raise CatalogChanged(database.version)
            commit = check()
            database.version += of_catalog
            commit()  # one step: other processes change the same database in pauses
            if of_catalog and applied:
                self._served.note_stored(database.version)
        await self._pause()

    def _must_be_open(self) -> None:
        if not self._open:
            raise MetadataError("the metadata in memory is closed")

    def _check_leads(self, numbers: list[int], node_id: int) -> None:
        known = self._database.partitions()
        for number in numbers:
            if number in self._database.deleted_partitions:
                continue
            if number not in known or known[number].leader != node_id:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _numbers(self, count: int) -> int:
        first = self._database.next_partition
        self._database.next_partition += count
        return first

    def _node(self) -> int:
        if self._node_id is None:
            raise MetadataError("partitions are written before this broker is registered")
        return self._node_id

    @property
    def _stored(self) -> Catalog:
        assert self._database.catalog is not None
        return self._database.catalog
