"""Requests that wait until the transaction of an id is complete: its markers are written.

A producer may begin its next transaction as soon as the outcome of the last one is durable, shortly
before that one is complete. Waiting for the completion is faster than asking again at an interval.
Owned by kafkawire.transactions.coordinator.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.log.io.ports import Env


class CompletionWaiters:
    """The waiting requests by transactional id. Each connection has at most one."""

    __slots__ = ("_by_id", "_env")

    def __init__(self, env: Env) -> None:
        self._env = env
        self._by_id: dict[str, list[asyncio.Future[None]]] = {}

    async def wait(self, transactional_id: str, timeout_s: float) -> None:
        """Return when `wake` is called for the id, or after `timeout_s` seconds."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._by_id.setdefault(transactional_id, [])
        waiting.append(done)
        timer = self._env.call_later(timeout_s, _settle, done)
        try:
            await done
        finally:
            timer.cancel()
            waiting.remove(done)
            if not waiting and self._by_id.get(transactional_id) is waiting:
                del self._by_id[transactional_id]

    def wake(self, transactional_id: str) -> None:
        """Continue the requests that wait for an id."""
        for done in self._by_id.get(transactional_id, ()):
            _settle(done)

    def wake_all(self) -> None:
        """Continue all requests: the coordinator is unloaded."""
        for transactional_id in self._by_id:
            self.wake(transactional_id)


def _settle(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
