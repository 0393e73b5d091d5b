"""Heartbeats of a broker that reads its log at its start, which may take longer than the lease.

They say to other machines that the broker is being started, so that none of them starts it as well
(kafkawire.broker.liveness.takeover, waiting), and that it does not serve yet. Their failures are
left to the start, which uses the same database.

A start on another machine than the broker's own ends when it is asked to return: it may wait for
followers that are not there, or for a remote tier that cannot be reached from here, while the own
machine, which waits for its end, could serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from kafkawire.broker.liveness.service import INTERVAL_S, Heartbeats
from kafkawire.broker.liveness.takeover import read_returning
from kafkawire.log.io.ports import Env
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.store import BrokerSuperseded, Transactions

logger = logging.getLogger(__name__)

T = TypeVar("T")


class BrokerReturns(Exception):
    """A start ends because the machine of the broker starts it."""


class _Store(Heartbeats, Transactions, Protocol): ...


class StartingHeartbeats:
    """The heartbeats of one start, from `start` to `close`."""

    def __init__(self, env: Env, store: _Store, *, guest: bool) -> None:
        """`guest`: the broker is that of another machine."""
        self._env = env
        self._store = store
        self._guest = guest
        self._node_id = -1
        self._start: asyncio.Task[object] | None = None
        self._returns = False
        self._task: asyncio.Task[None] | None = None

    async def cover(self, start: Awaitable[T]) -> T:
        """Return the result of a start, which calls `start`. Raises BrokerReturns when it was
        cancelled because the broker is asked to return."""
        self._start = asyncio.current_task()
        try:
            return await start
        except asyncio.CancelledError:
            if not self._returns or self._start is None or self._start.uncancel():
                raise
            raise BrokerReturns(
                f"broker {self._node_id} is not started here: its own machine runs again"
            ) from None
        finally:
            await self.close()

    async def start(self, node_id: int, catalog: Catalog) -> None:
        """Store a heartbeat now, and one each second until `close`. Called once the broker is
        registered, because the row is still that of an earlier process. Nothing is stored while no
        other broker is registered."""
        self._node_id = node_id
        if len(catalog.brokers) > 1 and await self._beat(node_id):
            self._task = self._env.spawn(self._run(node_id), "heartbeats of a start")

    async def close(self) -> None:
        """Store no more of them; delete them if the broker returns, so that its machine need not
        wait for the lease. Calling it again does nothing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self._returns:
                with contextlib.suppress(OSError):
                    await self._store.end_heartbeats(self._node_id)

    async def _run(self, node_id: int) -> None:
        await self._env.sleep(INTERVAL_S)
        while await self._beat(node_id):
            await self._env.sleep(INTERVAL_S)

    async def _beat(self, node_id: int) -> bool:
        """Return whether this process is still the last one that was started as this broker, and
        is not asked to end."""
        with contextlib.suppress(OSError):
            try:
                await self._store.beat(node_id, starting=True)
            except BrokerSuperseded as why:
                logger.warning("this start stores no more heartbeats: %s", why)
                return False
            if self._guest and await self._store.transact(
                lambda session: read_returning(session, node_id)
            ):
                self._returns = True
                if self._start is not None:
                    self._start.cancel()
                return False
        return True
