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
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.storage.memory import MemoryRows, MemoryStorage


@dataclass
class MemoryDatabase:
    """The durable state. `seed` determines the ids, so that a run can be repeated."""

    seed: int = 0
    catalog: Catalog | None = None
    next_partition: int = 1
    next_producer_id: int = 0
    deleted_partitions: set[int] = field(default_factory=set)
    offsets: MemoryRows = field(default_factory=MemoryRows)

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
    """`Metadata` over a MemoryDatabase. `pause` is awaited before and after each commit;
    `fault(method)` may return an exception to raise instead of committing. After `crash` no call of
    this object commits any more."""

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
        return self._served

    async def register_broker(
        self, node_id: int, listeners: Mapping[str, tuple[str, int]], rack: str | None
    ) -> None:
        def commit() -> None:
            self._stored.add_broker(BrokerInfo(node_id, dict(listeners), rack))

        await self._write("register_broker", lambda: commit)
        self._served.add_broker(BrokerInfo(node_id, dict(listeners), rack))
        self._node_id = node_id

    async def create_topics(self, topics: list[NewTopic]) -> list[TopicInfo]:
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
                made.append(copy.deepcopy(info))

        await self._write("create_topics", check)
        return made

    async def delete_topics(self, ids: list[bytes]) -> None:
        def check() -> Callable[[], None]:
            if any(topic_id not in self._stored.by_id for topic_id in ids):
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            return commit

        def commit() -> None:
            for topic_id in set(ids):
                for partition in self._stored.remove_topic(topic_id).partitions:
                    self._database.deleted_partitions.add(partition.number)

        await self._write("delete_topics", check)

    async def create_partitions(
        self, topic_id: bytes, new_total: int, leaders: list[int] | None = None
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

        await self._write("create_partitions", check)
        return added

    async def alter_configs(self, changes: list[ConfigChange]) -> None:
        def check() -> Callable[[], None]:
            for change in changes:
                topic = change.resource_type == TOPIC_RESOURCE
                if topic and change.name not in self._stored.by_name:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return commit

        def commit() -> None:
            for change in changes:
                self._stored.apply_config(change)

        await self._write("alter_configs", check)

    async def finalize_features(self, levels: Mapping[str, int]) -> int:
        epochs: list[int] = []

        def commit() -> None:
            epochs.append(self._stored.features.epoch + 1)
            self._stored.finalize_features(levels, epochs[0])

        await self._write("finalize_features", lambda: commit)
        return epochs[0]

    async def lease_producer_ids(self, count: int) -> int:
        leased: list[int] = []

        def commit() -> None:
            leased.append(self._database.next_producer_id)
            self._database.next_producer_id += count

        await self._write("lease_producer_ids", lambda: commit)
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
        await self._write(
            "raise_leader_epochs", lambda: lambda: self._stored.raise_leader_epochs(node_id)
        )
        self._served.raise_leader_epochs(node_id)

    async def close(self) -> None:
        async with self._lock:
            self._open = False

    async def _write(self, method: str, check: Callable[[], Callable[[], None]]) -> None:
        async with self._lock:
            self._must_be_open()
            await self._pause()
            failure = self._fault(method)
            if failure is not None:
                raise failure
            self._must_be_open()
            check()()  # one step: other processes change the same database in pauses
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
