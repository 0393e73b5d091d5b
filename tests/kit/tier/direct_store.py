"""A blocking provider as an ObjectStore of this process: its calls run in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.file_ranges import put_ranges
from kafkawire.objectstore.port import FileRange, Listed, Provider, Stored
from kafkawire.tiering.store.port import ObjectPart


class DirectStore:
    """An ObjectStore that has the provider's own guarantees, with nothing in between."""

    def __init__(self, provider: Provider, memory_bytes: int) -> None:
        self.provider = provider
        self.memory = memoryview(bytearray(memory_bytes))

    async def upload(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        return await asyncio.to_thread(self.provider.upload, key, path, bytes_per_second, Call())

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored:
        return await asyncio.to_thread(self.provider.put, key, data, if_match, if_absent, Call())

    async def put_ranges(self, key: str, head: bytes, ranges: Sequence[FileRange]) -> Stored:
        return await asyncio.to_thread(put_ranges, self.provider, key, head, ranges, Call())

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        return await asyncio.to_thread(self.provider.get, key, start, length, Call())

    async def read(self, key: str, parts: Sequence[ObjectPart]) -> None:
        views = [self.memory[part.at : part.at + part.length] for part in parts]
        await asyncio.to_thread(self.provider.read, key, parts[0].start, views, Call())

    async def download(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        return await asyncio.to_thread(self.provider.download, key, path, bytes_per_second, Call())

    async def copy_from(
        self, source_url: str, key: str, size_bytes: int, source_key: str = ""
    ) -> Stored:
        from kafkawire.tiering.store.process_main import copy_object

        return await asyncio.to_thread(
            copy_object, self.provider, source_url, source_key or key, key, size_bytes, Call()
        )

    async def head(self, key: str) -> Stored:
        return await asyncio.to_thread(self.provider.head, key, Call())

    async def delete(self, keys: Sequence[str]) -> int:
        return await asyncio.to_thread(self.provider.delete, keys, Call()) if keys else 0

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        return await asyncio.to_thread(self.provider.list, prefix, after, limit, Call())

    async def close(self) -> None:
        return None
