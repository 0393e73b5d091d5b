"""Loading blocks of objects into the cache: joined, in runs, tried again, hedged, paced.

A load belongs to no one: who waits for it may give up, and the next who comes finds the block there
or still on its way. Places in memory are given back only when the request that writes to them is
over, a caller that has lost interest meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.objectstore.errors import StoreError
from kafkawire.tiering.read.block_cache import BlockCache, CachedBlock, Key
from kafkawire.tiering.read.readahead import ReadaheadWindow
from kafkawire.tiering.read.requests import Object, Requests, within
from kafkawire.tiering.store.port import Part

RUN_BLOCKS = 8
"""Blocks of one request at most, which all come when the last of them does."""


class Loads:
    """The loads of blocks into the cache that are in progress. One for each tier that is read."""

    def __init__(
        self, env: Env, requests: Requests, cache: BlockCache, config: BrokerConfig
    ) -> None:
        self._env = env
        self._requests = requests
        self.cache = cache
        self._config = config
        self._waiting: deque[asyncio.Future[None]] = deque()  # for room
        self._ahead = 0  # loads under way that no one waits for

    def left(self, deadline: float | None) -> float | None:
        """Seconds until a moment of the monotonic clock; None: no end."""
        return None if deadline is None else deadline - self._env.clock.monotonic()

    def want(
        self,
        target: Object,
        numbers: Iterable[int],
        window: ReadaheadWindow | None = None,
        run_blocks: int = 2,
    ) -> None:
        """Begin to load what is missing of these blocks, in order, as far as there is room now, in
        requests of about `run_blocks`. `window`: they are read ahead for it, which waits for all
        that is urgent."""
        cache = self.cache
        missing = [n for n in numbers if cache.find(Key(target.uuid, n)) is None]
        for run in runs(missing, run_blocks):
            if window is not None and not self._may_read_ahead():
                return
            places = cache.room(len(run))
            if places:
                self._begin(target, run[: len(places)], places, window)
            if len(places) < len(run):
                return

    async def get(self, target: Object, number: int, deadline: float | None) -> CachedBlock | None:
        """A block, loaded; None if it is not there in time. Until the next await no one takes it
        from its place. Raises what loading it has failed with."""
        counts, waited = self._requests.counts, False
        while True:
            block = self.cache.find(Key(target.uuid, number))
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
            block.users += 1
            try:
                done = await within(loading, self.left(deadline))
                if done:
                    loading.result()
            finally:
                block.users -= 1
                self._wake()
            if not done:
                if block.trouble is not None:
                    raise block.trouble
                return None

    def forget(self, target: Object, numbers: Iterable[int]) -> None:
        """These blocks are not what they should be: a reader that needs them loads them again."""
        for number in numbers:
            block = self.cache.find(Key(target.uuid, number))
            if block is not None and block.loading is None:
                self.cache.remove(block)

    def _may_read_ahead(self) -> bool:
        """Half of the store's threads are left to what someone waits for."""
        half = max(1, self._config.tier_read_threads // 2)
        return self._ahead < half and not self._requests.behind

    def _begin(
        self,
        target: Object,
        numbers: Sequence[int],
        places: list[int],
        window: ReadaheadWindow | None,
    ) -> CachedBlock:
        """Start one request for a run of blocks; the first of them."""
        loading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        blocks, size = [], self.cache.block_bytes
        for number in numbers:
            length = min(size, target.size_bytes - number * size)
            block = CachedBlock(Key(target.uuid, number), length, loading)
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
                loading.exception()  # no one may be waiting any more
            self._wake()

    async def _attempt(
        self, target: Object, blocks: list[CachedBlock], places: list[int]
    ) -> list[int]:
        """One request for all blocks, or two: the places that hold them now."""
        size = sum(block.length for block in blocks)
        tried: list[tuple[list[int], asyncio.Event]] = []
        await self._requests.pay(size)

        async def read(into: list[int], over: asyncio.Event) -> list[int]:
            start = blocks[0].key.block * self.cache.block_bytes
            parts = []
            for block, at in zip(blocks, into, strict=True):
                parts.append(Part(start, block.length, at))
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
            won = await self._requests.hedged(size, request(places), again)
            return won
        finally:
            for into, over in tried:
                if into is not (won or places):
                    self._free_after(into, over)

    def _free_after(self, places: list[int], over: asyncio.Event) -> None:
        """Give places back when the request that writes to them is over."""

        async def free() -> None:
            await over.wait()
            self.cache.give_back(places)
            self._wake()

        self._env.spawn(free(), "cold places")

    async def _room(self, deadline: float | None) -> bool:
        """Wait until something has become free; whether it has, in time."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await within(turn, self.left(deadline))
        finally:
            if not turn.done():
                self._waiting.remove(turn)

    def _wake(self) -> None:
        while self._waiting:
            self._waiting.popleft().set_result(None)


def _notify(blocks: Sequence[CachedBlock], failure: StoreError) -> None:
    for block in blocks:
        block.trouble = failure


def runs(numbers: Sequence[int], run_blocks: int) -> Iterator[list[int]]:
    """Contiguous ones together, in parts that are as large as each other and about `run_blocks`."""
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
