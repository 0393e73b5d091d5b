"""The port to an ordered key-value store, and an in-memory implementation.

The operations of RocksDB (`kv.rocksdb`) that `kv.storage` needs; keys sort by their bytes. Plug-ins
of the group `kafkawire.offset_storages` implement it; `kafkawire.testing.contracts` checks them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError


class Writes:
    """Puts and deletes of one transaction; the last one of a key wins."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes | None] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a key, whether it exists or not."""
        self.changes[key] = None


class KeyValueStore(Protocol):
    """An ordered key-value store. Calls block and must not be concurrent."""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of these keys, in their order."""

    def scan(self, low: bytes, high: bytes, limit: int = -1) -> list[tuple[bytes, bytes]]:
        """Return the pairs with low <= key < high, ascending; at most `limit` unless it is -1."""

    def floor(self, low: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the pair with the greatest key that is >= `low` and <= `key`."""

    def write(self, writes: Writes) -> None:
        """Apply all changes or none; they are durable when this returns."""

    def close(self) -> None:
        """Close the files."""


class OffsetStorePlugin(Protocol):
    """Opens the store of a value of offset.storage: the object and the name of an entry point of
    the group `kafkawire.offset_storages`."""

    def __call__(self, folder: str, node_id: int) -> KeyValueStore:
        """Open the store of a broker. `folder` exists and belongs to this plug-in, also if it
        stores everything elsewhere. Calls run one after another in a thread, and may raise
        anything."""


class MemoryStore:
    """An ordered dict in memory; inserting is linear in the number of keys."""

    __slots__ = ("_keys", "_values")

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._values: dict[bytes, bytes] = {}

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._values.get(key) for key in keys]

    def scan(self, low: bytes, high: bytes, limit: int = -1) -> list[tuple[bytes, bytes]]:
        start, end = bisect_left(self._keys, low), bisect_left(self._keys, high)
        if limit >= 0:
            end = min(end, start + limit)
        return [(key, self._values[key]) for key in self._keys[start:end]]

    def floor(self, low: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        at = bisect_right(self._keys, key) - 1
        if at < 0 or self._keys[at] < low:
            return None
        return self._keys[at], self._values[self._keys[at]]

    def write(self, writes: Writes) -> None:
        new = [k for k, v in writes.changes.items() if v is not None and k not in self._values]
        for key, value in writes.changes.items():
            if value is not None:
                self._values[key] = value
            elif self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]
        self._add(new)

    def _add(self, new: Iterable[bytes]) -> None:
        added = list(new)
        # Sorting once is faster than many insertions.
        if len(added) > 64:
            self._keys.extend(added)
            self._keys.sort()
            return
        for key in added:
            insort(self._keys, key)

    def close(self) -> None:
        """Close the store; its contents are kept."""


T = TypeVar("T")
LeaderOf = Callable[[int], int | None]


class KeyValueBase(ABC):
    """Base of all parts of the key-value storage. Subclasses decide in which thread the work runs.

    The store has no topics, so `leader_of` returns the leader of a partition: a node id, or None if
    the partition does not exist. `now_ms` is the clock of the time columns; no decision uses it.
    """

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

    def _require_leader(self, numbers: Collection[int], node_id: int) -> set[int]:
        led: set[int] = set()
        for number in numbers:
            leader = self._leader_of(number)
            if leader == node_id:
                led.add(number)
            # None: it was deleted, and its rows are left out.
            elif leader is not None:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return led

    def _is_led_elsewhere(self, number: int) -> bool:
        """Return whether another broker leads a partition, whose topic is not deleted."""
        return self._leader_of(number) not in (None, self._node_id)
