"""The cache of remote data: fixed-size blocks of objects in memory shared with the storage process.

There is one for all readers of a tier, keyed by object and block, and its memory is bounded to the
byte. Clients are sent views of it: a block with a view is pinned (a *lease*) and becomes free when
the last view is garbage-collected. The least recently used blocks are evicted first.
"""

from __future__ import annotations

import ctypes
import weakref
from asyncio import Future
from typing import NamedTuple

from kafkawire.tiering.read.readahead import ReadaheadWindow

BLOCK_BYTES = 1 << 20
"""Minimum number of bytes loaded together: a smaller request costs as much."""
LEASED_SHARE = 0.5
"""Share of the blocks that views may hold before readers get copies."""


class BlockKey(NamedTuple):
    """A block of an object: [block * size, (block + 1) * size) of its bytes."""

    object: bytes
    block: int


class CachedBlock:
    """One block. `at`: its position in memory, -1 until it is assigned; `loading` until it is
    loaded; `users`: reads that wait for it; `ahead`: the reader it was read ahead for, until it is
    read; `checked`: the range of the object whose bytes are verified; `trouble`: the failures of
    loading it so far."""

    __slots__ = (
        "ahead", "at", "checked", "key", "leases", "length", "loading", "trouble", "users",
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
        self.leases: dict[int, weakref.ref[object]] = {}


class BlockCache:
    """A cache of object blocks in shared memory. `evicted_unread`: blocks evicted before a read."""

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
        self._blocks: dict[BlockKey, CachedBlock] = {}  # in the order of last use
        self._leased: set[CachedBlock] = set()
        self._limbo: list[CachedBlock] = []
        self.evicted_unread = 0

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def leased(self) -> int:
        return len(self._leased)

    def find(self, key: BlockKey) -> CachedBlock | None:
        block = self._blocks.pop(key, None)
        if block is not None:
            self._blocks[key] = block
        return block

    def __contains__(self, key: BlockKey) -> bool:
        """Return whether a block is loaded or being loaded, without marking it as used."""
        return key in self._blocks

    def add(self, block: CachedBlock) -> None:
        assert block.key not in self._blocks, "a block is there once"
        self._blocks[block.key] = block

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
        for block in self._blocks.values():
            if block.loading is None and not block.users and not block.leases:
                del self._blocks[block.key]
                self._free.append(block.at)
                if block.ahead is not None:
                    self.evicted_unread += 1
                    block.ahead.unread()
                return True
        return False
