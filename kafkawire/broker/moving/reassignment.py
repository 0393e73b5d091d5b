"""Changes of planned moves that clients ask for (KIP-455, ReplicationControlManager).

New replicas are one broker, which is to lead the partition. With durability=replicated they may be
those that everything of this broker has. The present leader moves the partition later (mover.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.broker.moving.plan import durability_of, is_draining, other_replicas, refusal
from kafkawire.codec.configs.durability_rules import REPLICATED
from kafkawire.codec.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafkawire.broker.change_log import ChangeLog
    from kafkawire.broker.following.lock import CatalogLock
    from kafkawire.broker.parts import BrokerParts

AT_ONCE = 1000
"""Partitions of one transaction."""


class Wish(NamedTuple):
    """The new replicas of a partition; None cancels its move."""

    topic: str
    partition: int
    replicas: Sequence[int] | None


class Reassignment:
    """Stores planned moves. `changed` is called after each change; `check_replicas` refuses lists
    of replicas as for new topics (kafkawire.broker.new_topics)."""

    def __init__(
        self,
        broker: BrokerParts,
        lock: CatalogLock,
        log: ChangeLog,
        check_replicas: Callable[[Sequence[int], Collection[int], int | None], None],
        changed: Callable[[], None],
    ) -> None:
        self._check_replicas = check_replicas
        self._broker = broker
        self._lock = lock
        self._log = log
        self._changed = changed

    async def alter(self, wishes: Sequence[Wish], sender: str) -> list[KafkaError | None]:
        """Store what is possible; return an error or None for each, in order. Raises
        MetadataError."""
        results: list[KafkaError | None] = []
        for start in range(0, len(wishes), AT_ONCE):
            part = wishes[start : start + AT_ONCE]
            results += await self._lock.change(
                lambda seen, part=part: self._alter(part, sender, seen)  # type: ignore[misc]
            )
        self._changed()
        return results

    async def _alter(
        self, wishes: Sequence[Wish], sender: str, seen: int
    ) -> list[KafkaError | None]:
        catalog = self._broker.catalog
        results: list[KafkaError | None] = []
        targets: dict[int, int | None] = {}
        for wish in wishes:
            try:
                number, target = self._plan(wish)
                if target != catalog.moves.get(number):
                    targets[number] = target
                results.append(None)
            except KafkaError as error:
                results.append(error)
            await self._broker.env.slices.give_way()
        await self._broker.metadata.plan_moves(targets, seen)
        catalog.set_moves(targets)
        for number, target in targets.items():
            self._log.report_reassignment(catalog.name_of(number), target, sender)
            await self._broker.env.slices.give_way()
        return results

    def _plan(self, wish: Wish) -> tuple[int, int | None]:
        """Return the number of a partition and its target. Raises KafkaError."""
        catalog = self._broker.catalog
        partition = catalog.by_name.partition_of(wish.topic, wish.partition)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        if wish.replicas is None:
            if partition.number not in catalog.moves:
                raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
            return partition.number, None
        replicated = durability_of(catalog, partition.number) == REPLICATED
        self._check_replicas(wish.replicas, catalog.brokers, None if replicated else 1)
        target = wish.replicas[0]
        fault = refusal(catalog, partition.leader, target, partition.number)
        if fault is None and target != partition.leader and is_draining(catalog, target):
            fault = f"Broker {target} hands over its own partitions: it is drained, or stops."
        if fault is None and replicated:
            fault = other_replicas(catalog, wish.replicas)
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
        return partition.number, None if target == partition.leader else target
