"""Prepared answers, kept as bytes until the catalog changes.

A cluster of thousands of clients asks for the same Metadata again and again; what differs is
only version, listener and flags. An answer is made once per such key and catalog version, by one
request while the others that want the same wait for it. Used by the Metadata handler; knows
nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING

from kafkawire.codec.types import Buffer

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.metadata.catalog import Catalog


class AnswerCache:
    """Answers by key, all of one catalog version; at most `metadata.cache.bytes` of them."""

    __slots__ = ("_answers", "_catalog", "_config", "_making", "_size_bytes", "_version")

    def __init__(self, catalog: Catalog, config: BrokerConfig) -> None:
        self._catalog = catalog
        self._config = config
        self._answers: dict[Hashable, list[Buffer]] = {}
        self._size_bytes = 0
        self._version = catalog.version
        # One at a time: making ten different answers at once would only make each later and
        # hold ten times the memory.
        self._making = asyncio.Lock()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[list[Buffer]]]) -> list[Buffer]:
        """The answer under `key`, made if there is none. It is never older than this call:
        a client that has seen a change answered finds it in here."""
        found = self._current().get(key)
        if found is not None:
            return found
        async with self._making:
            found = self._current().get(key)
            if found is not None:
                return found
            version = self._catalog.version
            answer = await make()
            if version == self._catalog.version:
                self._keep(key, answer)
            return answer

    def _current(self) -> dict[Hashable, list[Buffer]]:
        if self._version != self._catalog.version:
            self._version = self._catalog.version
            self._answers.clear()
            self._size_bytes = 0
        return self._answers

    def _keep(self, key: Hashable, answer: list[Buffer]) -> None:
        size_bytes = sum(map(len, answer))
        if self._size_bytes + size_bytes > self._config.metadata_cache_bytes:
            return  # clients in use speak a handful of versions: the first ones are the common ones
        self._current()[key] = answer
        self._size_bytes += size_bytes
