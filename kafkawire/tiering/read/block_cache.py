"""The cache of remote data: fixed-size blocks of objects in memory shared with the storage process.

There is one for all readers of a tier, keyed by object and block, and its memory is bounded to the
byte. Clients are sent views of it: a block with a view is pinned (a *lease*) and becomes free when
the last view is garbage-collected. Blocks that all readers have read past are evicted first, the
least recently used of them before others, then those that will be needed last.
"""

from __future__ import annotations

import ctypes
import weakref
from asyncio import Future
from collections import Counter, deque
from collections.abc import Callable
from enum import StrEnum
from itertools import islice
from math import inf
from typing import NamedTuple

from kafkawire.tiering.read.readahead import ReadaheadWindow
from kafkawire.tiering.read.readers import Readers

BLOCK_BYTES = 1 << 20
"""Minimum number of bytes loaded together: a smaller request costs as much."""
LEASED_SHARE = 0.5
"""Share of the blocks that views may hold before readers get copies."""


RANKED_SHARE = 16
"""One in so many blocks is chosen for eviction at a time, so that ranking all of them costs each
eviction little."""
MAX_RANKED = 1024
"""Maximum number of blocks that are ranked at a time: one or two milliseconds of the event loop."""


class EvictionReason(StrEnum):
    """Why a block was evicted: all readers had read past it, another is needed sooner, or it was
    used least recently of those without a known reader."""

    PASSED = "passed"
    NEEDED_LATER = "needed_later"
    UNUSED = "unused"


class BlockKey(NamedTuple):
    """A block of an object: [block * size, (block + 1) * size) of its bytes."""

    object: bytes
    block: int


class CachedBlock:
    """One block. `at`: its position in memory, -1 until it is assigned; `loading` until it is
    loaded; `users`: reads that wait for it; `ahead`: the reader it was read ahead for, until it is
    read; `checked`: the range of the object whose bytes are verified; `trouble`: the failures of
    loading it so far; `used_at`: its last use, in seconds; `offsets`: partition number, first and
    end offset of its batches, None if they are unknown or of several partitions."""

    __slots__ = (
        "ahead", "at", "checked", "key", "leases", "length", "loading", "offsets", "trouble",
        "used_at", "users",
    )  # fmt: skip

    def __init__(self, key: BlockKey, length: int, loading: Future[None] | None) -> None:
        self.key = key
        self.length = length
        self.loading = loading
        self.at = -1
        self.users = 0
        self.ahead: ReadaheadWindow | None = None
        self.checked = (0, 0)
        self.trouble: Exception | None = None
        self.used_at = 0.0
        self.offsets: tuple[int, int, int] | None = None
        self.leases: dict[int, weakref.ref[object]] = {}


class BlockCache:
    """A cache of object blocks in shared memory. `readers` decide what is evicted, in seconds of
    `monotonic`; None: the least recently used. `evicted_unread`: blocks evicted before a read;
    `evicted`: all by reason."""

    __slots__ = ("_blocks", "_free", "_leased", "_limbo", "_memory", "_monotonic", "_ranked",
                 "_readers", "block_bytes", "evicted", "evicted_unread", "slots")  # fmt: skip

    def __init__(
        self,
        memory: memoryview,
        block_bytes: int = BLOCK_BYTES,
        readers: Readers | None = None,
        monotonic: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.block_bytes = block_bytes
        self.slots = len(memory) // block_bytes
        if not self.slots:
            raise ValueError(
                f"a cache of {len(memory)} bytes has no room for a block of {block_bytes}"
            )
        self._memory = memory
        self._free = [at * block_bytes for at in reversed(range(self.slots))]
        self._blocks: dict[BlockKey, CachedBlock] = {}  # in the order of last use
        self._leased: set[CachedBlock] = set()
        self._limbo: list[CachedBlock] = []
        self._readers = readers
        self._monotonic = monotonic
        # The next ones to evict, each with its last use when it was chosen.
        self._ranked: deque[tuple[CachedBlock, float, EvictionReason]] = deque()
        self.evicted_unread = 0
        self.evicted: Counter[EvictionReason] = Counter()

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def used(self) -> int:
        """Return the number of blocks of memory that are not free."""
        return self.slots - len(self._free)

    @property
    def leased(self) -> int:
        return len(self._leased)

    def find(self, key: BlockKey) -> CachedBlock | None:
        block = self._blocks.pop(key, None)
        if block is not None:
            self._blocks[key] = block
            block.used_at = self._monotonic()
        return block

    def __contains__(self, key: BlockKey) -> bool:
        """Return whether a block is loaded or being loaded, without marking it as used."""
        return key in self._blocks

    def add(self, block: CachedBlock) -> None:
        assert block.key not in self._blocks, "a block is there once"
        self._blocks[block.key] = block
        block.used_at = self._monotonic()

    def peek(self, key: BlockKey) -> CachedBlock | None:
        """Return a block that is loaded or being loaded, without marking it as used."""
        return self._blocks.get(key)

    def room(self, count: int) -> list[int]:
        """Return up to `count` memory positions that are free or were freed by eviction; the caller
        owns them."""
        places: list[int] = []
        while len(places) < count:
            if not self._free and not self._evict():
                break
            places.append(self._free.pop())
        return places

    def give_back(self, places: list[int]) -> None:
        """Return positions to the free list once nothing writes to them."""
        self._free += places

    def remove(self, block: CachedBlock) -> None:
        if self._blocks.get(block.key) is block:
            del self._blocks[block.key]
            # A reader may still use its memory, which is free when its last view has gone.
            if block.at >= 0:
                self._limbo.append(block)

    def view(self, block: CachedBlock, start: int, stop: int) -> memoryview:
        """Return bytes [start, stop) of a block, read-only. The block is pinned while a view of it
        exists; past the bound a copy is returned."""
        assert block.at >= 0, "the block is there"
        # A copy past the bound: slow clients must not pin the blocks that others need.
        if not block.leases and len(self._leased) >= int(self.slots * LEASED_SHARE):
            return memoryview(bytes(self._memory[block.at + start : block.at + stop]))
        # A ctypes array, because a memoryview cannot have a weak reference. Views of it keep it
        # alive until the last client has its bytes.
        held = (ctypes.c_char * self.block_bytes).from_buffer(self._memory, block.at)
        leases, leased, name = block.leases, self._leased, id(held)

        def on_collected(_: weakref.ref[object]) -> None:
            # This may run in any thread: each step is independent, and only `leases` is changed.
            leases.pop(name, None)
            if not leases:
                leased.discard(block)

        leases[name] = weakref.ref(held, on_collected)
        leased.add(block)
        return memoryview(held).cast("B")[start:stop].toreadonly()

    def copy(self, block: CachedBlock, start: int, stop: int, into: memoryview) -> None:
        into[: stop - start] = self._memory[block.at + start : block.at + stop]

    def _evict(self) -> bool:
        for block in self._limbo:
            if not block.leases and not block.users:
                self._limbo.remove(block)
                self._free.append(block.at)
                return True
        while self._ranked or self._rank():
            block, used_at, reason = self._ranked.popleft()
            # Used, pinned or removed since it was chosen: others are to be evicted before it.
            if block.used_at != used_at or not self._evictable(block):
                continue
            del self._blocks[block.key]
            self._free.append(block.at)
            self.evicted[reason] += 1
            if block.ahead is not None:
                self.evicted_unread += 1
                block.ahead.unread()
            return True
        return False

    def _evictable(self, block: CachedBlock) -> bool:
        pinned = block.loading is not None or block.users or block.leases
        return not pinned and self._blocks.get(block.key) is block

    def _rank(self) -> bool:
        """Choose the blocks to evict next, and return whether there are any."""
        blocks, now_s = self._blocks.values(), self._monotonic()
        ranks: list[tuple[float, EvictionReason, CachedBlock]] = []
        if self._readers is not None:
            sample = islice(blocks, None, None, -(-len(blocks) // MAX_RANKED) or 1)
            ranks = [(*self._need(each, now_s), each) for each in sample if self._evictable(each)]
            # Stable: the least recently used ones first among those needed equally late.
            ranks.sort(key=lambda rank: (rank[1] is not EvictionReason.PASSED, -rank[0]))
            del ranks[-(-len(ranks) // RANKED_SHARE) :]
        # The least recently used one, if no reader is known or all of the sample is pinned.
        if not ranks:
            found = next(filter(self._evictable, blocks), None)
            ranks = [] if found is None else [(0.0, EvictionReason.UNUSED, found)]
        self._ranked.extend((block, block.used_at, reason) for _, reason, block in ranks)
        return bool(ranks)

    def _need(self, block: CachedBlock, now_s: float) -> tuple[float, EvictionReason]:
        """Return in how many seconds a block will be needed, and the reason if it is evicted."""
        # Without known readers the best estimate is the time since its last use, as in LRU.
        if block.offsets is None or self._readers is None:
            return now_s - block.used_at, EvictionReason.UNUSED
        seconds = self._readers.seconds_until_read(*block.offsets, now_s)
        return (
            (inf, EvictionReason.PASSED)
            if seconds is None
            else (seconds, EvictionReason.NEEDED_LATER)
        )
