"""Polls the metadata for changes of other brokers.

The catalog's version in SQL is read every POLL_S, or every ALONE_POLL_S while no other broker is
registered; in an SQLite file only if there were changes. When it has risen the changes are read. A
poll that fails is repeated: requests are served with the catalog in memory meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.broker.following.lock import CatalogLock
from kafkawire.log.io.shared_load import SharedLoad
from kafkawire.metadata.store import MetadataError

if TYPE_CHECKING:
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.store import Metadata

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""So that a change is seen everywhere within 300 ms."""
ALONE_POLL_S = 1.0
"""When the only registered broker notices another one."""


class CatalogFollower:
    """Follows the catalog from `start` to `close`. `polled` is called after each poll."""

    def __init__(
        self,
        env: Env,
        catalog: Catalog,
        metadata: Metadata,
        lock: CatalogLock,
        polled: Callable[[], None] = lambda: None,
    ) -> None:
        self._polled = polled
        self._env = env
        self._catalog = catalog
        self._metadata = metadata
        self._lock = lock
        self._running: asyncio.Task[None] | None = None
        self._catching_up = SharedLoad(env, "catch up with the catalog", self._poll)
        self._failing = False
        self._commits: int | None = None

    def start(self) -> None:
        """Start to poll in the background."""
        self._running = self._env.spawn(self._run(), "follow the catalog")

    async def close(self) -> None:
        """Stop polling."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._catching_up.close()

    async def catch_up(self) -> None:
        """Apply what other brokers changed until now, before a client gets an error for something
        that the catalog does not have. Without another registered broker, or if the metadata cannot
        be read, the catalog stays as it is."""
        if len(self._catalog.brokers) > 1:
            await self._catching_up.again()

    async def _run(self) -> None:
        while True:
            await self._env.sleep(POLL_S if len(self._catalog.brokers) > 1 else ALONE_POLL_S)
            await self._poll()
            self._polled()

    async def _poll(self) -> None:
        commits = self._metadata.commits()
        if commits is not None and commits == self._commits:
            return  # none since the last poll that succeeded
        try:
            if await self._metadata.catalog_version() != self._catalog.stored_version:
                await self._lock.follow()
        except MetadataError as failure:
            if not self._failing:
                logger.error(
                    "changes of topics and brokers by other brokers cannot be read, this broker "
                    "serves what it knows until that succeeds: %s", failure,
                )  # fmt: skip
            self._failing = True
        except Exception:
            if not self._failing:
                logger.exception("applying changes by other brokers failed, it is repeated")
            self._failing = True
        else:
            if self._failing:
                logger.info("changes by other brokers are read again")
            self._failing = False
            self._commits = commits
