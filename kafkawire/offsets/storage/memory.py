"""`SegmentCatalog` in memory, for tests, the simulation and temporary brokers.

`MemoryRows` survives a simulated crash; `MemoryStorage` is one process's access to it. In a real
broker the rows are lost with the process: its segments are not found after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.kv.storage import KeyValueStorage
from kafkawire.offsets.catalog.kv.store import LeaderOf, MemoryStore, Writes

T = TypeVar("T")


class MemoryRows(MemoryStore):
    """The durable rows. Pass the same object to the next process."""

    __slots__ = ()


async def _at_once() -> None:
    return None


class MemoryStorage(KeyValueStorage):
    """`SegmentCatalog` over MemoryRows.

    `pause` is awaited before and after each commit and before each read; `fault(method)` may return
    an exception to raise instead of committing. After `crash` no call commits or reads.
    """

    def __init__(
        self,
        rows: MemoryRows,
        node_id: int,
        now_ms: Callable[[], int],
        leader_of: LeaderOf | None = None,
        *,
        pause: Callable[[], Awaitable[None]] = _at_once,
        fault: Callable[[str], Exception | None] = lambda method: None,
    ) -> None:
        super().__init__(rows, node_id, now_ms, leader_of)
        self._pause = pause
        self._fault = fault
        self._lock = asyncio.Lock()
        self._open = True

    def crash(self) -> None:
        """Simulate the end of the process: open calls will not commit."""
        self._open = False

    async def close(self) -> None:
        async with self._lock:
            self._open = False

    async def _read(self, work: Callable[[], T]) -> T:
        await self._pause()
        self._must_be_open()
        return work()

    async def _write(self, method: str, work: Callable[[Writes], T]) -> T:
        async with self._lock:
            self._must_be_open()
            await self._pause()
            failure = self._fault(method)
            if failure is not None:
                raise failure
            # The process may have ended during the pause. From here on without an await: checks and
            # commit are one step.
            self._must_be_open()
            writes = Writes()
            result = work(writes)
            self._store.write(writes)
        await self._pause()
        return result

    def _must_be_open(self) -> None:
        if not self._open:
            raise MetadataError("the offset storage in memory is closed")
