"""Base of all parts of the key-value storage: the store, the node id, partition leaders.

Subclasses decide in which thread the work runs (`_read`, `_write`). The store has no topics, so
`leader_of` returns the leader of a partition: a node id, or None if the partition does not exist.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.offsets.catalog.kv.store import KeyValueStore, Writes

T = TypeVar("T")
LeaderOf = Callable[[int], int | None]


class KeyValueBase(ABC):
    """Rows and keys of the storage. `now_ms` is the clock of the time columns; no decision uses
    it."""

    def __init__(
        self,
        store: KeyValueStore,
        node_id: int,
        now_ms: Callable[[], int],
        leader_of: LeaderOf | None = None,
    ) -> None:
        self._store = store
        self._node_id = node_id
        self._now_ms = now_ms
        self._leader_of: LeaderOf = leader_of or (lambda number: node_id)

    @abstractmethod
    async def _read(self, work: Callable[[], T]) -> T:
        """Run `work`, which reads the store."""

    @abstractmethod
    async def _write(self, method: str, work: Callable[[Writes], T]) -> T:
        """Run `work`, which fills the changes, and write them."""

    def _led(self, numbers: Collection[int], node_id: int) -> set[int]:
        led: set[int] = set()
        for number in numbers:
            leader = self._leader_of(number)
            if leader == node_id:
                led.add(number)
            elif leader is not None:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return led

    def _is_led_elsewhere(self, number: int) -> bool:
        """Return whether another broker leads a partition, whose topic is not deleted."""
        return self._leader_of(number) not in (None, self._node_id)
