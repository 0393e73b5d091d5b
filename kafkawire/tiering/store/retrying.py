"""Requests of a restore or scrub, with retries and limited concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from kafkawire.log.io.ports import Env
from kafkawire.objectstore.backoff import Attempts, retry_async
from kafkawire.objectstore.errors import ConditionFailed
from kafkawire.objectstore.port import Listed, Stored, list_pages
from kafkawire.objectstore.retrying import ATTEMPTS
from kafkawire.progress import Progress
from kafkawire.tiering.store.port import ObjectStore

T = TypeVar("T")
R = TypeVar("R")

MAX_WAIT_S = 5.0
"""With ATTEMPTS about 15 seconds in total: a person waits and may repeat the command."""
AT_ONCE = 8
"""Concurrent requests: half of the reading threads of a store."""


class RetryingCalls:
    """Requests with retries for restore and scrub. Raises StoreError after the last attempt."""

    __slots__ = ("_env", "_store")

    def __init__(self, env: Env, store: ObjectStore) -> None:
        self._env = env
        self._store = store

    async def download(self, key: str, path: str, bytes_per_second: int) -> None:
        """Download an object to a local file; rate -1: unlimited."""
        await self.retry(lambda: self._store.download(key, path, bytes_per_second))

    async def retry(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until it succeeds; return its result."""
        attempts = Attempts(self._env.random.random, MAX_WAIT_S, ATTEMPTS)
        return await retry_async(request, attempts, self._env.sleep)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        return await self.retry(lambda: self._store.get(key, start, length))

    async def head(self, key: str) -> Stored:
        return await self.retry(lambda: self._store.head(key))

    async def whole(self, key: str) -> bytes:
        return (await self.get(key))[0]

    async def put_new(self, key: str, data: bytes) -> None:
        """Store an object, unless there is one."""
        # An earlier attempt may have stored it, although its response was lost.
        with suppress(ConditionFailed):
            await self.retry(lambda: self._store.put(key, data, if_absent=True))

    async def first_key(self, prefix: str, after: str) -> str | None:
        """Return the first key above `after` below a prefix; None if there is none."""
        found = await self._list(prefix, after, 1)
        return found[0].key if found else None

    def pages(self, prefix: str) -> AsyncIterator[list[Listed]]:
        """Yield all objects below a prefix, by key, one page at a time."""
        return list_pages(self._list, prefix)

    async def _list(self, prefix: str, after: str, limit: int) -> list[Listed]:
        return await self.retry(lambda: self._store.list(prefix, after, limit))


async def side_by_side(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], what: str, progress: Progress
) -> list[R]:
    """Apply `work` to each item, AT_ONCE concurrently; results in order."""
    done: list[R] = []
    for at in range(0, len(items), AT_ONCE):
        progress(what, at, len(items))
        done += await asyncio.gather(*map(work, items[at : at + AT_ONCE]))
    progress(what, len(items), len(items))
    return done
