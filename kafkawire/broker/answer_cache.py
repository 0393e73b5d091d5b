"""A cache of encoded responses, valid until the catalog changes.

Thousands of clients request the same Metadata repeatedly; only version, listener and flags differ.
A response is encoded once per such key and catalog version, by one request while others for the
same key wait. Used by the Metadata handler; the cache does not interpret the bytes.
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
    """Responses by key, all of one catalog version; at most `metadata.cache.bytes` of them."""

    __slots__ = ("_answers", "_catalog", "_config", "_making", "_size_bytes", "_version")

    def __init__(self, catalog: Catalog, config: BrokerConfig) -> None:
        self._catalog = catalog
        self._config = config
        self._answers: dict[Hashable, list[Buffer]] = {}
        self._size_bytes = 0
        self._version = catalog.version
        # One at a time: encoding ten responses concurrently would delay each of them and take ten
        # times the memory.
        self._making = asyncio.Lock()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[list[Buffer]]]) -> list[Buffer]:
        """Return the response under `key`, encoding it if absent. It is never older than this call,
        so a client finds a change in it that was acknowledged before."""
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
            return  # few versions are in use: the first ones requested are the common ones
        self._current()[key] = answer
        self._size_bytes += size_bytes
