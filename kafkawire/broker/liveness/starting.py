"""Heartbeats of a broker that reads its log at its start, which may take longer than the lease.

They say to other machines that the broker is being started, so that none of them starts it as well
(kafkawire.broker.liveness.absence, waiting), and that it does not serve yet. Their failures are
left to the start, which uses the same database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from kafkawire.broker.liveness.service import INTERVAL_S, Heartbeats
from kafkawire.log.io.ports import Env
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.store import BrokerSuperseded

logger = logging.getLogger(__name__)


class StartingHeartbeats:
    """The heartbeats of one start, from `begin` to `close`."""

    def __init__(self, env: Env, store: Heartbeats) -> None:
        self._env = env
        self._store = store
        self._task: asyncio.Task[None] | None = None

    async def begin(self, node_id: int, catalog: Catalog) -> None:
        """Store a heartbeat now, and one each second until `close`. Called once the broker is
        registered, because the row is still that of an earlier process. Nothing is stored while no
        other broker is registered."""
        if len(catalog.brokers) > 1 and await self._beat(node_id):
            self._task = self._env.spawn(self._run(node_id), "heartbeats of a start")

    async def close(self) -> None:
        """Store no more of them. Calling it again does nothing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, node_id: int) -> None:
        await self._env.sleep(INTERVAL_S)
        while await self._beat(node_id):
            await self._env.sleep(INTERVAL_S)

    async def _beat(self, node_id: int) -> bool:
        """Return whether this process is still the last one that was started as this broker."""
        with contextlib.suppress(OSError):
            try:
                await self._store.beat(node_id, starting=True)
            except BrokerSuperseded as why:
                logger.warning("this start stores no more heartbeats: %s", why)
                return False
        return True
