"""The cache of remote data: fixed blocks of objects in the memory shared with the store's process.

One for all readers of a tier, keyed by object and block, bounded by that memory to the byte. What
is sent to clients are views of it: a block someone holds a view of stays where it is (a *lease*),
and is free again when the last view is gone, which no one has to say. Slow clients may so hold half
of the cache; beyond that they are given copies, so that others go on. The least recently used go
first. No loop, no clock; kafkawire.tiering.read.loader fills it.
"""

from __future__ import annotations

import ctypes
import weakref
from asyncio import Future
from typing import NamedTuple

from kafkawire.tiering.read.readahead import ReadaheadWindow

BLOCK_BYTES = 1 << 20
"""Bytes of an object that are loaded together, at least: a smaller request costs as much."""
LEASED_SHARE = 0.5
"""Of the blocks, how many may be held by views before readers get copies."""


class Key(NamedTuple):
    """A block of an object: [block * size, (block + 1) * size) of its bytes."""

    object: bytes
    block: int


class CachedBlock:
    """One block. `at`: where it lies in the memory, -1 while it does not; `loading` until it does;
    `users`: reads that wait for it; `ahead`: the reader it was loaded for, until it is read;
    `checked`: positions of the object between which its bytes are known to be sound; `trouble`:
    what has gone wrong with loading it so far."""

    __slots__ = (
        "ahead", "at", "checked", "key", "leases", "length", "loading", "trouble", "users",
    )  # fmt: skip

    def __init__(self, key: Key, length: int, loading: Future[None] | None) -> None:
        self.key = key
        self.length = length
        self.loading = loading
        self.at = -1
        self.users = 0
        self.ahead: ReadaheadWindow | None = None
        self.checked = (0, 0)
        self.trouble: Exception | None = None
        self.leases: dict[int, weakref.ref[object]] = {}


class BlockCache:
    """A cache of object blocks in shared memory. `evicted_unread`: blocks that left though no one
    had read them."""

    __slots__ = ("_blocks", "_free", "_leased", "_limbo", "_memory", "block_bytes",
                 "evicted_unread", "slots")  # fmt: skip

    def __init__(self, memory: memoryview, block_bytes: int = BLOCK_BYTES) -> None:
        self.block_bytes = block_bytes
        self.slots = len(memory) // block_bytes
        if not self.slots:
            raise ValueError(
                f"a cache of {len(memory)} bytes has no room for a block of {block_bytes}"
            )
        self._memory = memory
        self._free = [at * block_bytes for at in reversed(range(self.slots))]
        self._blocks: dict[Key, CachedBlock] = {}  # in the order of last use
        self._leased: set[CachedBlock] = set()
        self._limbo: list[CachedBlock] = []
        self.evicted_unread = 0

    def __len__(self) -> int:
        """How many blocks are there or being loaded."""
        return len(self._blocks)

    @property
    def leased(self) -> int:
        """How many blocks are held by views."""
        return len(self._leased)

    def find(self, key: Key) -> CachedBlock | None:
        """A block that is there, or on its way."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self._blocks[key] = block
        return block

    def __contains__(self, key: Key) -> bool:
        """Whether it is there or on its way, without counting as a use."""
        return key in self._blocks

    def add(self, block: CachedBlock) -> None:
        """One that will be loaded."""
        assert block.key not in self._blocks, "a block is there once"
        self._blocks[block.key] = block

    def room(self, count: int) -> list[int]:
        """Up to so many places for blocks, free or made free; the caller owns them."""
        places: list[int] = []
        while len(places) < count:
            if not self._free and not self._evict():
                break
            places.append(self._free.pop())
        return places

    def give_back(self, places: list[int]) -> None:
        """Blocks without writers."""
        self._free += places

    def remove(self, block: CachedBlock) -> None:
        """Forget a block: it could not be loaded, or is not what it should be."""
        if self._blocks.get(block.key) is block:
            del self._blocks[block.key]
            if block.at >= 0:
                self._limbo.append(block)  # a reader may still use it

    def view(self, block: CachedBlock, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of a block, read-only. It stays in its place as long as a view of it
        is held; past the bound a copy is given."""
        assert block.at >= 0, "the block is there"
        if not block.leases and len(self._leased) >= int(self.slots * LEASED_SHARE):
            return memoryview(bytes(self._memory[block.at + start : block.at + stop]))
        held = (ctypes.c_char * self.block_bytes).from_buffer(self._memory, block.at)
        leases, leased, name = block.leases, self._leased, id(held)

        def gone(_: weakref.ref[object]) -> None:
            # It may be any thread's: each step stands alone, and `leases` is what counts.
            leases.pop(name, None)
            if not leases:
                leased.discard(block)

        leases[name] = weakref.ref(held, gone)
        leased.add(block)
        return memoryview(held).cast("B")[start:stop].toreadonly()

    def copy(self, block: CachedBlock, start: int, stop: int, into: memoryview) -> None:
        """Bytes [start, stop) of a block, copied."""
        into[: stop - start] = self._memory[block.at + start : block.at + stop]

    def _evict(self) -> bool:
        """Make one place free, the least recently used."""
        for block in self._limbo:
            if not block.leases and not block.users:
                self._limbo.remove(block)
                self._free.append(block.at)
                return True
        for block in self._blocks.values():
            if block.loading is None and not block.users and not block.leases:
                del self._blocks[block.key]
                self._free.append(block.at)
                if block.ahead is not None:
                    self.evicted_unread += 1
                    block.ahead.unread()
                return True
        return False
