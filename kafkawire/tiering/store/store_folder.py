"""A folder of a store as a store: the tier of one broker in a tier that several brokers use.

All folders of a store share its process, memory and limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.objectstore.port import FileRange, Listed, Stored
from kafkawire.tiering.store.port import ObjectPart, ObjectStore


class StoreFolder:
    """An ObjectStore of the keys below `folder` of another one, `whole`. Methods: see the port."""

    def __init__(self, whole: ObjectStore, folder: str) -> None:
        self.whole = whole
        self.prefix = f"{folder}/"
        self.memory = whole.memory

    async def upload(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        return await self.whole.upload(self.prefix + key, path, bytes_per_second)

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored:
        return await self.whole.put(self.prefix + key, data, if_match=if_match, if_absent=if_absent)

    async def put_ranges(self, key: str, head: bytes, ranges: Sequence[FileRange]) -> Stored:
        return await self.whole.put_ranges(self.prefix + key, head, ranges)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        return await self.whole.get(self.prefix + key, start, length)

    async def read(self, key: str, parts: Sequence[ObjectPart]) -> None:
        await self.whole.read(self.prefix + key, parts)

    async def download(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        return await self.whole.download(self.prefix + key, path, bytes_per_second)

    async def copy_from(
        self, source_url: str, key: str, size_bytes: int, source_key: str = ""
    ) -> Stored:
        target = self.prefix + key
        return await self.whole.copy_from(source_url, target, size_bytes, source_key or key)

    async def head(self, key: str) -> Stored:
        return await self.whole.head(self.prefix + key)

    async def delete(self, keys: Sequence[str]) -> int:
        return await self.whole.delete([self.prefix + key for key in keys])

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        last = self.prefix + after if after else ""
        found = await self.whole.list(self.prefix + prefix, last, limit)
        return [each._replace(key=each.key[len(self.prefix) :]) for each in found]

    async def close(self) -> None:
        """Have no effect: the whole store is closed by its owner."""


def whole_store(store: ObjectStore) -> tuple[ObjectStore, str]:
    """Return the store that a store is a folder of, and its key prefix there; else itself."""
    return (store.whole, store.prefix) if isinstance(store, StoreFolder) else (store, "")
