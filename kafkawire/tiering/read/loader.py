"""Loads blocks of objects into the cache: shared, in runs, retried, hedged, rate-limited.

A load belongs to no caller: if all waiting callers give up, it continues, and the next one finds
the block loaded or loading.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.objectstore.errors import StoreError
from kafkawire.tiering.read.block_cache import BlockCache, BlockKey, CachedBlock
from kafkawire.tiering.read.readahead import ReadaheadWindow
from kafkawire.tiering.read.requests import Object, Requests, within
from kafkawire.tiering.store.port import ObjectPart

RUN_BLOCKS = 8
"""Maximum number of blocks of one request; all become available when the last is loaded."""


class Loads:
    """The loads into the cache that are in progress. One per tier that is read."""

    def __init__(
        self, env: Env, requests: Requests, cache: BlockCache, config: BrokerConfig
    ) -> None:
        self._env = env
        self._requests = requests
        self.cache = cache
        self._config = config
        self._waiting: deque[asyncio.Future[None]] = deque()  # waiting for free memory
        self._ahead = 0  # loads in progress without a waiting caller

    def seconds_until(self, deadline: float | None) -> float | None:
        """Return the seconds until a moment of the monotonic clock; None: no limit."""
        return None if deadline is None else deadline - self._env.clock.monotonic()

    def want(
        self,
        target: Object,
        numbers: Iterable[int],
        window: ReadaheadWindow | None = None,
        run_blocks: int = 2,
    ) -> None:
        """Start to load the missing ones of these blocks, in order, as far as there is room, in
        requests of about `run_blocks`. `window`: they are read ahead for it and yield to urgent
        loads."""
        cache = self.cache
        missing = [n for n in numbers if cache.find(BlockKey(target.uuid, n)) is None]
        for run in runs(missing, run_blocks):
            if window is not None and not self._may_read_ahead():
                return
            places = cache.room(len(run))
            if places:
                self._begin(target, run[: len(places)], places, window)
            if len(places) < len(run):
                return

    async def get(self, target: Object, number: int, deadline: float | None) -> CachedBlock | None:
        """Return a loaded block; None if it is not loaded in time. It cannot be evicted before the
        caller's next await. Raises the error of a failed load."""
        counts, waited = self._requests.counts, False
        while True:
            block = self.cache.find(BlockKey(target.uuid, number))
            if block is None:
                places = self.cache.room(1)
                if not places:
                    if not await self._room(deadline):
                        return None
                    continue
                block = self._begin(target, [number], places, None)
            loading = block.loading
            if loading is None:
                counts.hits += not waited
                return block
            counts.misses += not waited
            waited = True
            # Counted, so that it is not evicted between the end of the load and this task's next
            # step.
            block.users += 1
            try:
                done = await within(loading, self.seconds_until(deadline))
                if done:
                    loading.result()
            finally:
                block.users -= 1
                self._wake()
            if not done:
                if block.trouble is not None:
                    raise block.trouble
                return None

    def evict_blocks(self, target: Object, numbers: Iterable[int]) -> None:
        """Discard these damaged blocks; a reader that needs them loads them again."""
        for number in numbers:
            block = self.cache.find(BlockKey(target.uuid, number))
            if block is not None and block.loading is None:
                self.cache.remove(block)

    def _may_read_ahead(self) -> bool:
        """Return whether read-ahead may start another request."""
        # Half of the store's threads are reserved for loads that a reader waits for.
        half = max(1, self._config.tier_read_threads // 2)
        return self._ahead < half and not self._requests.behind

    def _begin(
        self,
        target: Object,
        numbers: Sequence[int],
        places: list[int],
        window: ReadaheadWindow | None,
    ) -> CachedBlock:
        loading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        blocks, size = [], self.cache.block_bytes
        for number in numbers:
            length = min(size, target.size_bytes - number * size)
            block = CachedBlock(BlockKey(target.uuid, number), length, loading)
            block.ahead = window
            self.cache.add(block)
            blocks.append(block)
        self._env.spawn(self._load(target, blocks, places, loading, window), "cold load")
        return blocks[0]

    async def _load(
        self,
        target: Object,
        blocks: list[CachedBlock],
        places: list[int],
        loading: asyncio.Future[None],
        window: ReadaheadWindow | None,
    ) -> None:
        ahead = window is not None
        self._ahead += ahead
        failure: Exception | None = StoreError("Closed", "the broker is closing")
        try:
            attempt = partial(self._attempt, target, blocks, places)
            places = await self._requests.persist(target, attempt, partial(_notify, blocks))
            failure = None
        except Exception as caught:
            failure = caught
            self.cache.give_back(places)
        finally:
            self._ahead -= ahead
            if failure is None:
                for block, place in zip(blocks, places, strict=True):
                    block.at, block.loading = place, None
                loading.set_result(None)
            else:
                for block in blocks:
                    self.cache.remove(block)
                loading.set_exception(failure)
                # Retrieved here: without a waiting caller asyncio would log it as never retrieved.
                loading.exception()
            self._wake()

    async def _attempt(
        self, target: Object, blocks: list[CachedBlock], places: list[int]
    ) -> list[int]:
        """Send one request for all blocks, or a second, hedged one; return the positions that hold
        them."""
        size = sum(block.length for block in blocks)
        tried: list[tuple[list[int], asyncio.Event]] = []
        await self._requests.pay(size)

        async def read(into: list[int], over: asyncio.Event) -> list[int]:
            start = blocks[0].key.block * self.cache.block_bytes
            parts = []
            for block, at in zip(blocks, into, strict=True):
                parts.append(ObjectPart(start, block.length, at))
                start += block.length
            try:
                await self._requests.store.read(target.key, parts)
            finally:
                over.set()
            return into

        def request(into: list[int]) -> Callable[[], Awaitable[list[int]]]:
            over = asyncio.Event()
            tried.append((into, over))
            return partial(read, into, over)

        def again() -> Callable[[], Awaitable[list[int]]] | None:
            more = self.cache.room(len(blocks))
            if len(more) < len(blocks):
                self.cache.give_back(more)
                return None
            return request(more)

        won: list[int] | None = None
        try:
            won = await self._requests.run_hedged(size, request(places), again)
            return won
        finally:
            # The slower request may still write there. With none that won, `places` are used by the
            # next attempt.
            for into, over in tried:
                if into is not (won or places):
                    self._free_after(into, over)

    def _free_after(self, places: list[int], over: asyncio.Event) -> None:
        async def free() -> None:
            await over.wait()
            self.cache.give_back(places)
            self._wake()

        self._env.spawn(free(), "cold places")

    async def _room(self, deadline: float | None) -> bool:
        """Wait until memory has become free; return whether it did in time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await within(waiter, self.seconds_until(deadline))
        finally:
            if not waiter.done():
                self._waiting.remove(waiter)

    def _wake(self) -> None:
        while self._waiting:
            self._waiting.popleft().set_result(None)


def _notify(blocks: Sequence[CachedBlock], failure: StoreError) -> None:
    for block in blocks:
        block.trouble = failure


def runs(numbers: Sequence[int], run_blocks: int) -> Iterator[list[int]]:
    """Group contiguous blocks into runs of equal size, about `run_blocks` each."""
    start = 0
    while start < len(numbers):
        stop = start + 1
        while stop < len(numbers) and numbers[stop] == numbers[stop - 1] + 1:
            stop += 1
        count = max(1, round((stop - start) / run_blocks), -(-(stop - start) // RUN_BLOCKS))
        for part in range(count):
            first, last = (start + (stop - start) * n // count for n in (part, part + 1))
            if first < last:
                yield list(numbers[first:last])
        start = stop
