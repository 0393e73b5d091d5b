"""Guarantees given to consumers of a simulated broker, those consumers, and the state of a
shard."""

from __future__ import annotations

import random
from typing import Any

from kafkawire.groups.shard import Shard
from tests.kit.groups.script import frozen
from tests.kit.log.logs import settings
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryDatabase

Key = tuple[str, str, int]
GROUPS = ("g", "h")


class Consumer:
    """A client that outlives brokers. Static ones use their name as instance id."""

    def __init__(self, name: str, group: str, static: bool, version: int) -> None:
        self.name = name
        self.group = group
        self.instance = name if static else None
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.positions: dict[int, int] = {}
        self.leads = False


class Model:
    """The guarantees given to clients so far."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.database = MemoryDatabase(seed)
        self.fs = MemFileSystem(self.rng)
        self.config = settings(
            journal_bytes=self.rng.choice((1 << 14, 1 << 18)),
            flush=self.rng.choice(("commit", "commit", "os")),
            group_initial_rebalance_delay_ms=self.rng.choice((0, 500)),
            offsets_retention_check_interval_ms=2000,
        )
        self.acked: dict[Key, int] = {}
        self.seen: dict[Key, int] = {}
        self.owners: dict[tuple[str, int, int], str] = {}
        self.commits = 0
        self.trace: list[Any] = []
        self.consumers = [
            Consumer(f"{group}{n}", group, static=n % 3 == 2, version=self.rng.choice((3, 5, 9)))
            for group in GROUPS
            for n in range(self.rng.randrange(2, 5))
        ]
        for consumer in self.consumers:
            if consumer.instance is not None:
                consumer.version = self.rng.choice((5, 9))

    def forget(self) -> None:
        """Drop the guarantees of the last second: under flush=os a power failure may lose it."""
        self.acked.clear()
        self.seen.clear()
        self.owners.clear()

    def end_group(self, group: str) -> None:
        """Note that an empty group was removed: the next one of its name begins at generation 1."""
        self.owners = {key: name for key, name in self.owners.items() if key[0] != group}

    def acknowledge(self, key: Key, offset: int) -> None:
        assert offset >= self.acked.get(key, -1)
        self.acked[key] = offset
        self.commits += 1

    def read(self, key: Key, offset: int, floor: int) -> None:
        """A group's offset was read; `floor` had been guaranteed before the request."""
        assert offset >= floor, f"{key} decreased from {floor} to {offset}"
        self.seen[key] = max(offset, self.seen.get(key, -1))

    def floor(self, key: Key) -> int:
        return max(self.acked.get(key, -1), self.seen.get(key, -1))

    def assign(self, consumer: Consumer, partitions: list[int]) -> None:
        for partition in partitions:
            key = consumer.group, consumer.generation, partition
            owner = self.owners.setdefault(key, consumer.name)
            assert owner == consumer.name, f"{key} is assigned to both {owner} and {consumer.name}"


def known(shard: Shard) -> dict[str, Any]:
    """Everything durable that a shard knows."""
    groups = {}
    for group_id, group in shard.groups.items():
        facts = frozen(group)
        facts.pop("group_id")
        facts["unsynced"] = facts["pending"] = facts["window"] = None
        facts["members"] = {
            m.id: (m.instance_id, m.client_id, m.session_timeout_ms, m.assignment)
            for m in group.members.values()
        }
        facts["spoken"] = {name: count for name, count in facts["spoken"].items() if count}
        groups[group_id] = facts
    offsets = {
        group_id: {topic: dict(partitions) for topic, partitions in topics.items()}
        for group_id, topics in shard.offsets.by_group.items()
    }
    pending = list(shard.offsets.pending.records())
    return {"groups": groups, "offsets": offsets, "pending": pending}
