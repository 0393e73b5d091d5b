"""The port to an ordered key-value store, and an in-memory implementation.

The operations of RocksDB (`kv.rocksdb`) that `kv.storage` needs; keys sort by their bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Protocol


class Writes:
    """Puts and deletes of one transaction; the last one of a key wins."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: dict[bytes, bytes | None] = {}

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value."""
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
        if len(added) > 64:  # sorting once is faster than many insertions
            self._keys.extend(added)
            self._keys.sort()
            return
        for key in added:
            insort(self._keys, key)

    def close(self) -> None:
        """Close the store; its contents are kept."""
