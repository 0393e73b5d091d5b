"""`SegmentCatalog` over a key-value store whose calls block.

They run one after another in a thread, so that a slow store does not hold the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.metadata.completion import run_on_thread
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.kv import layout
from kafkawire.offsets.catalog.kv.storage import KeyValueStorage
from kafkawire.offsets.catalog.kv.store import KeyValueStore, LeaderOf, Writes
from kafkawire.plugins import sentence_of

T = TypeVar("T")


class ThreadedStorage(KeyValueStorage):
    """`SegmentCatalog` over such a store. `where`: names the store in errors."""

    def __init__(
        self,
        store: KeyValueStore,
        where: str,
        node_id: int,
        now_ms: Callable[[], int],
        leader_of: LeaderOf | None = None,
    ) -> None:
        super().__init__(store, node_id, now_ms, leader_of)
        self._where = where
        self._lock = asyncio.Lock()
        self._running = threading.Lock()

    async def _read(self, work: Callable[[], T]) -> T:
        return await self._run(work)

    async def _write(self, method: str, work: Callable[[Writes], T]) -> T:
        def transaction() -> T:
            writes = Writes()
            result = work(writes)
            self._store.write(writes)
            return result

        return await self._run(transaction)

    async def _run(self, call: Callable[[], T]) -> T:
        """Run calls one after another in a thread."""

        def alone() -> T:
            # A cancelled call still runs to its end, but has released the lock of the event loop.
            with self._running:
                return call()

        async with self._lock:
            try:
                return await run_on_thread(alone)
            except NewerFormatError as error:
                raise MetadataError(str(error)) from error
            except FormatError as error:
                raise MetadataError(f"{self._where}: {error}") from error

    async def close(self) -> None:
        await self._run(self._store.close)


class PluggedStore:
    """The KeyValueStore of a plug-in, described by `what`: whatever it raises is a MetadataError.
    Its rows have the layout that this program writes, or it is refused."""

    def __init__(self, store: KeyValueStore, what: str) -> None:
        self._store = store
        self._what = what
        self._checked = False

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check()
        return self._call(lambda: self._store.get(keys))

    def scan(self, low: bytes, high: bytes, limit: int = -1) -> list[tuple[bytes, bytes]]:
        self._check()
        return self._call(lambda: self._store.scan(low, high, limit))

    def floor(self, low: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        self._check()
        return self._call(lambda: self._store.floor(low, key))

    def write(self, writes: Writes) -> None:
        self._check()
        self._call(lambda: self._store.write(writes))

    def close(self) -> None:
        self._call(self._store.close)

    def _check(self) -> None:
        if self._checked:
            return
        (stored,) = self._call(lambda: self._store.get([layout.VERSION_KEY]))
        if stored is None:
            writes = Writes()
            writes.put(layout.VERSION_KEY, layout.FORMAT)
            self._call(lambda: self._store.write(writes))
        elif stored != layout.FORMAT:
            raise MetadataError(
                f"{self._what} has offsets of format {stored!r}, this kafkawire reads "
                f"{layout.FORMAT!r}"
            )
        self._checked = True

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as failure:
            raise MetadataError(f"{self._what} failed: {sentence_of(failure)}") from failure
