"""Requests to object storage with a waiting reader: retried, hedged, rate-limited, counted.

Shared by kafkawire.tiering.read.loader, which fills the cache, and
kafkawire.tiering.read.cold_reader, which reads indexes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.manifest.keys import segment_key
from kafkawire.objectstore.backoff import wait_s
from kafkawire.objectstore.errors import StoreError
from kafkawire.tiering.read.hedging import Hedge
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

GIVE_UP_S = 30.0
"""Time after which a load has failed; clients retry and get its error."""
MAX_RETRY_S = 5.0
"""Delay between two attempts, short because readers wait."""
SAID_AFTER = 3
"""Failed attempts until waiting reads get the error; one or two are normal."""
SIZE_ASKED_AFTER = 2
"""Failed attempts until the length of the object is checked."""
BEYOND_THE_END = "InvalidRange"
"""S3's code for a range that begins after the object's end (416)."""
WARNED_EVERY_S = 10.0
"""Minimum time between two log lines while the storage is down."""


class WrongSize(StoreError):
    """The object is not as long as its row requires."""

    retryable = False


class Object(NamedTuple):
    """An object to read: its uuid, its length, which equals its segment's, and the folder of its
    tier in the store, with a slash at its end."""

    uuid: bytes
    size_bytes: int
    folder: str = ""

    @property
    def key(self) -> str:
        return self.folder + segment_key(self.uuid)


@dataclass(slots=True)
class ColdCounts:
    """Counters of reads from the remote tier since the start. `hits`: blocks that were loaded
    already; `late`: reads answered empty because data was not loaded in time; `gone`: missing
    objects; `damaged`: damaged blocks."""

    hits: int = 0
    misses: int = 0
    requests: int = 0
    bytes_read: int = 0
    hedged: int = 0
    hedges_won: int = 0
    failed: int = 0
    late: int = 0
    gone: int = 0
    damaged: int = 0


async def within(waited: asyncio.Future[Any], seconds: float | None) -> bool:
    """Wait for a future without cancelling it; return whether it is done."""
    if not waited.done() and (seconds is None or seconds > 0):
        await asyncio.wait({waited}, timeout=seconds)
    return waited.done()


class Requests:
    """Requests for object bytes, with retries, hedging and pacing. One for each tier read from."""

    def __init__(
        self, env: Env, store: ObjectStore, config: BrokerConfig, counts: ColdCounts
    ) -> None:
        self._env = env
        self.store = store
        self._config = config
        self.counts = counts
        self._hedge = Hedge()
        self._paid_until = 0.0
        self._warned_at = -WARNED_EVERY_S

    @property
    def behind(self) -> bool:
        """Return whether the rate limit delays requests."""
        return self._paid_until > self._env.clock.monotonic()

    async def persist(
        self,
        target: Object,
        attempt: Callable[[], Awaitable[T]],
        failing: Callable[[StoreError], None],
    ) -> T:
        """Repeat a request until it succeeds, cannot succeed, or GIVE_UP_S have passed. Raises the
        last StoreError. `failing` is called when it has failed for a while."""
        failures, began = 0, self._env.clock.monotonic()
        while True:
            try:
                return await attempt()
            except StoreError as failure:
                failures += 1
                self.counts.failed += 1
                self._warn(target, failure)
                # Of a truncated object every response ends early, and no retry helps.
                short = failures == SIZE_ASKED_AFTER or failure.code == BEYOND_THE_END
                if short:
                    await self._check_size(target)
                if not failure.retryable or self._env.clock.monotonic() - began > GIVE_UP_S:
                    raise
                if failures >= SAID_AFTER:
                    failing(failure)
            at_most_s = min(MAX_RETRY_S, self._config.tier_retry_max_ms / 1000)
            await self._env.sleep(wait_s(failures, at_most_s, self._env.random.random()))

    async def run_hedged(
        self,
        size_bytes: int,
        start: Callable[[], Awaitable[T]],
        again: Callable[[], Callable[[], Awaitable[T]] | None],
    ) -> T:
        """Return the result of a request, or of a second one if the first takes longer than nearly
        all others and `again` provides one. Both run to their end."""
        env, hedge = self._env, self._hedge
        size_class = (size_bytes >> 20).bit_length()
        began = env.clock.monotonic()
        first = self._request(size_bytes, start)
        after = hedge.hedge_delay(size_class, self._config.tier_hedge_percentile)
        pending = {first}
        slow = after is not None and not await within(first, after) and hedge.use_allowance()
        if slow and (second := again()) is not None:
            self.counts.hedged += 1
            pending.add(self._request(size_bytes, second))
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            # The other one runs to its end, and may write into its blocks until then.
            for task in done:
                if task.exception() is None:
                    self.counts.hedges_won += task is not first
                    hedge.add_duration(size_class, env.clock.monotonic() - began)
                    return task.result()
            if not pending:
                return first.result() if first in done else done.pop().result()

    async def pay(self, size_bytes: int) -> None:
        rate = self._config.remote_log_manager_fetch_max_bytes_per_second
        now = self._env.clock.monotonic()
        due = max(now, self._paid_until)
        # Booked before the wait, so that concurrent requests queue instead of starting together.
        self._paid_until = due + size_bytes / rate
        if due > now:
            await self._env.sleep(due - now)

    def _request(self, size_bytes: int, request: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        async def run() -> T:
            return await request()

        self.counts.requests += 1
        self.counts.bytes_read += size_bytes
        task = self._env.spawn(run(), "cold read")
        task.add_done_callback(_scan_part)
        return task

    async def _check_size(self, target: Object) -> None:
        """Check the object's length: if every response ends early, the object was truncated."""
        try:
            stored = await self.store.head(target.key)
        except StoreError as failure:
            if failure.retryable:
                return
            raise
        if stored.size_bytes != target.size_bytes:
            text = f"{target.key} has {stored.size_bytes} bytes and should have {target.size_bytes}"
            raise WrongSize("WrongSize", text)

    def _warn(self, target: Object, failure: StoreError) -> None:
        now = self._env.clock.monotonic()
        if now - self._warned_at >= WARNED_EVERY_S:
            self._warned_at = now
            logger.warning("reading %s from the remote tier failed: %s", target.key, failure)


def _scan_part(task: asyncio.Task[Any]) -> None:
    # Retrieved, so that asyncio does not log the failure of a request whose result is not used.
    if not task.cancelled():
        task.exception()
