"""`python -m bench.waiting_broker MS COMMAND...`: a broker whose remote tier only waits.

Every read request to the tier, which is a folder, takes this many milliseconds more, spent in a
timer: the figures of bench.micro.cold are then the broker's, and no server uses part of the
machine.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from kafkawire.cli.main import main
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.tiering.store import open as opening
from kafkawire.tiering.store.port import ObjectPart


class WaitingStore:
    """A store whose reads take `wait_s` longer."""

    def __init__(self, store: Any, wait_s: float) -> None:
        self._store = store
        self._wait_s = wait_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Any:
        """Get an object, or a range of it, after the wait."""
        await asyncio.sleep(self._wait_s)
        return await self._store.get(key, start, length)

    async def read(self, key: str, parts: Sequence[ObjectPart]) -> None:
        """Read ranges of an object into memory after the wait."""
        await asyncio.sleep(self._wait_s)
        await self._store.read(key, parts)


def patch(wait_s: float) -> None:
    """Make stores wait from now on."""
    usual = opening.open_store

    def open_store(url: str, config: BrokerConfig) -> Any:
        return WaitingStore(usual(url, config), wait_s)

    vars(opening)["open_store"] = open_store


if __name__ == "__main__":
    patch(int(sys.argv.pop(1)) / 1000)
    main()
