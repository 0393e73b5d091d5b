"""Changes of several processes to one catalog, in random order.

Covers: kafkawire.broker.following.lock, kafkawire.broker.following.applier.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.broker.following.applier import CatalogApplier, Moves
from kafkawire.broker.following.lock import ATTEMPTS, CatalogLock
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.slices import Slices
from kafkawire.metadata.catalog import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    Catalog,
    ConfigChange,
    NewTopic,
    TopicInfo,
)
from kafkawire.metadata.changes import CatalogChanges
from kafkawire.metadata.directory import LeadGroup
from kafkawire.metadata.store import CatalogChanged, MetadataError
from tests.kit.memory_metadata import MemoryDatabase, MemoryMetadata

NODES = (1, 2, 3)
NAMES = ("a", "b", "c", "d", "e")


class Node:
    """A process: its metadata, its catalog, and what it was notified of."""

    def __init__(self, database: MemoryDatabase, node_id: int, rng: random.Random) -> None:
        self.node_id = node_id
        self.rng = rng
        self.metadata = MemoryMetadata(database, pause=self._pause)
        self.led: set[int] = set()
        self.written: dict[str, int] = {}
        self.settings: list[str] = []

    async def _pause(self) -> None:
        for _ in range(self.rng.randrange(3)):
            await asyncio.sleep(0)

    async def open(self) -> None:
        self.catalog: Catalog = await self.metadata.open()
        await self.metadata.register_broker(self.node_id, {}, None)
        log = SimpleNamespace(add_topics=self._write, alter_topic=lambda info: self._write([info]))
        broker: Any = SimpleNamespace(
            catalog=self.catalog, node_id=self.node_id, log=log,
            env=SimpleNamespace(
                slices=Slices(lambda: 0.0),
                clock=SimpleNamespace(monotonic=lambda: 0.0),
                hooks=None,
            ),
        )  # fmt: skip
        applier = CatalogApplier(broker, self._drop, self._settings_changed, self._moved)
        self.lock = CatalogLock(self.catalog, self.metadata, applier.apply)

    def _write(self, infos: Iterable[TopicInfo]) -> None:
        for info in infos:
            self.written[info.name] = self.written.get(info.name, 0) + 1

    def _leads(self) -> list[int]:
        return [
            p.number
            for info in self.catalog.by_id.values()
            for p in info.partitions
            if p.leader == self.node_id
        ]

    def _drop(self, topic: TopicInfo) -> None:
        self.catalog.remove_topic(topic.id)
        self.led -= {p.number for p in topic.partitions}

    async def _settings_changed(self, names: Iterable[str]) -> None:
        self.settings += names

    async def _moved(self, moves: Moves) -> None:
        assert self.led >= set(moves.lost), (self.led, moves)
        self.led -= set(moves.lost)
        self.led |= set(moves.gained)

    async def step(self) -> None:
        """Make a random change."""
        rng = self.rng
        name = rng.choice(NAMES)

        async def change(seen: int) -> None:
            info = self.catalog.by_name.get(name)
            kind = rng.randrange(6)
            if info is None:
                leaders = rng.choices(NODES, k=rng.randint(1, 3))
                made = await self.metadata.create_topics([NewTopic(name, leaders)], seen)
                for each in made:
                    self.catalog.add_topic(each)
                self.led |= set(self._leads()) & {p.number for p in made[0].partitions}
            elif kind == 0:
                await self.metadata.delete_topics([info.id], seen)
                self._drop(info)
            elif kind == 1:
                total = len(info.partitions) + 1
                added = await self.metadata.create_partitions(
                    info.id, total, [rng.choice(NODES)], seen
                )
                self.catalog.add_partitions(info.id, added)
                self.led |= set(self._leads()) & {p.number for p in added}
            elif kind == 2:
                value = rng.choice(["1", "2", None])
                setting = ConfigChange(TOPIC_RESOURCE, name, "k", value)
                await self.metadata.alter_configs([setting], seen)
                self.catalog.apply_config(setting)
            elif kind == 3:
                value = rng.choice(["1", "2", None])
                setting = ConfigChange(BROKER_RESOURCE, str(rng.choice(NODES)), "k", value)
                await self.metadata.alter_configs([setting], seen)
                self.catalog.apply_config(setting)
            else:
                numbers = [p.number for p in info.partitions if rng.random() < 0.5]
                await self.metadata.move_partitions(numbers, rng.choice(NODES), seen)

        await self.lock.change(change)
        if rng.random() < 0.3:
            await self.lock.apply_changes()


async def run(seed: int, steps: int = 40) -> None:
    rng = random.Random(seed)
    database = MemoryDatabase(seed)
    nodes = [Node(database, node_id, rng) for node_id in NODES]
    for node in nodes:
        await node.open()

    async def work(node: Node) -> None:
        for _ in range(steps):
            await node.step()

    await asyncio.gather(*map(work, nodes))
    stored = database.catalog
    assert stored is not None
    for node in nodes:
        await node.lock.apply_changes()
        assert node.catalog.stored_version == database.version
        assert dict(node.catalog.by_id) == dict(stored.by_id), seed
        assert dict(node.catalog.by_name) == dict(stored.by_name)
        overrides = {name: own for name, own in node.catalog.broker_overrides.items() if own}
        assert overrides == {name: own for name, own in stored.broker_overrides.items() if own}
        assert node.catalog.brokers == stored.brokers
        assert node.led == set(node._leads()), seed


@pytest.mark.parametrize("seed", range(40))
async def test_all_catalogs_become_that_in_sql(seed: int) -> None:
    await run(seed)


async def test_change_is_given_up_after_many_conflicts() -> None:
    database = MemoryDatabase()
    node = Node(database, 1, random.Random(1))
    await node.open()
    planned = 0

    async def conflicts(seen: int) -> None:
        nonlocal planned
        planned += 1
        raise CatalogChanged(seen + 1)

    with pytest.raises(MetadataError, match=f"each of {ATTEMPTS} attempts"):
        await node.lock.change(conflicts)
    assert planned == ATTEMPTS


async def test_errors_of_a_change_are_not_repeated() -> None:
    node = Node(MemoryDatabase(), 1, random.Random(1))
    await node.open()

    async def fails(seen: int) -> None:
        raise KafkaError(ErrorCode.INVALID_REQUEST)

    with pytest.raises(KafkaError):
        await node.lock.change(fails)


@pytest.mark.parametrize(("led", "moves"), [
    ([(2, 1)], ([1], [])),
    ([(2, 1), (1, 2)], ([1], [1])),
    ([(1, 0)], None),
])  # fmt: skip
async def test_group_that_was_led_elsewhere_meanwhile_is_lost_and_gained(
    led: list[tuple[int, int]], moves: tuple[list[int], list[int]] | None
) -> None:
    """One poll may see a leader and its successor at once; the old leader's state is outdated even
    if it leads again."""
    node = Node(MemoryDatabase(), 1, random.Random(0))
    await node.open()
    made = await node.metadata.create_topics([NewTopic("t", [1])], node.catalog.stored_version)
    node.catalog.add_topic(made[0])
    (number,) = node._leads()
    seen: list[tuple[list[int], list[int]]] = []

    async def moved(found: Moves) -> None:
        seen.append((found.lost, found.gained))

    env = SimpleNamespace(hooks=None)
    broker: Any = SimpleNamespace(catalog=node.catalog, node_id=1, env=env)
    applier = CatalogApplier(broker, node._drop, node._settings_changed, moved)
    before = node.catalog.group(1)
    assert before is not None
    leader, epoch = led[-1]
    group = LeadGroup(1, leader, before.epoch + epoch)
    await applier.apply(CatalogChanges(9, groups=[group]))
    assert number == 1
    assert seen == ([moves] if moves else [])
    assert node.catalog.group(1) == group
