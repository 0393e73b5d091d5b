"""Writes write batches to the journals: here, or in the writer thread while writes are slow."""

from __future__ import annotations

import asyncio

from kafkawire.codec.counts import Histogram
from kafkawire.log.io.callbacks import Callback
from kafkawire.log.io.ports import Env
from kafkawire.log.journal.write_batch import Write, write_all


class JournalWriter:
    """One write batch is written at a time. `slow`: the next one is written in the thread, since
    the last took more than `slow_s`; `flying`: one is being written there; `seconds`: the durations
    of the writes."""

    __slots__ = ("_env", "_idle", "_since", "flying", "seconds", "slow", "slow_s")

    def __init__(self, env: Env, slow_s: float) -> None:
        self._env = env
        self._since = 0.0
        self._idle: asyncio.Future[None] | None = None
        self.slow_s = slow_s
        self.slow = False
        self.flying = False
        self.seconds = Histogram()

    def write(self, writes: list[Write], landed: Callback) -> bool:
        """Do the writes here and return True; or return False, and call `landed` when the thread
        has done them. Raises OSError."""
        monotonic = self._env.clock.monotonic
        if not self.slow:
            self._took(write_all(writes, monotonic))
            return True
        future = self._env.offload.submit("write", write_all, writes, monotonic)
        self.flying = True
        self._since = monotonic()

        def done(_: object) -> None:
            failure = asyncio.CancelledError() if future.cancelled() else future.exception()
            if failure is None:
                # The whole backlog was in this write: if it was fast, the disk has caught up.
                self._took(future.result())
            landed(failure)

        future.add_done_callback(done)
        return False

    def ended(self) -> None:
        """Note that what the thread has written is applied: the next one may be written."""
        self.flying = False
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    async def idle(self) -> None:
        """Return when no write is in flight: only then may its journal be closed."""
        while self.flying:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def busy_s(self) -> float:
        """Return how many seconds the write in the thread has been running; 0: none is."""
        return self._env.clock.monotonic() - self._since if self.flying else 0.0

    def _took(self, seconds: float) -> None:
        self.slow = seconds > self.slow_s
        self.seconds.add(seconds)
