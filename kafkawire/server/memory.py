"""Receive memory: one shared arena for small reads, pooled blocks for large frames.

Bytes are received straight into a Block and parsed where they lie; a batch is written to the log
from there. So a block has pins: as long as somebody looks at it (a Produce whose turn has not
been written) it is neither reused nor given back. An idle connection owns no memory at all: a
read happens in the arena, and only an incomplete frame moves to a block of its own.

Pure: no sockets. Used by `server.connection` alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

ARENA_BYTES = 1 << 20
"""A few loop turns' worth of small requests; larger would leave the processor's cache."""

READ_BYTES = 1 << 18
"""What one read of a socket may bring: the kernel's usual receive buffer."""

SMALLEST_BLOCK_BYTES = 1 << 10
KEPT_BYTES_MAX = 64 << 20
"""Free blocks kept for reuse; fresh memory costs a page fault each 4 KiB."""


class Block:
    """A piece of receive memory. `used` is how far it is taken (arena blocks only)."""

    __slots__ = ("memory", "pins", "size", "used", "view")

    def __init__(self, memory: Memory, size: int) -> None:
        self.memory = memory
        self.size = size
        self.view = memoryview(bytearray(size))
        self.pins = 0
        self.used = 0

    def pin(self) -> None:
        """Keep the bytes as they are until `unpin`."""
        self.pins += 1

    def unpin(self) -> None:
        """One looks away; with the last one the block is free."""
        self.pins -= 1
        if self.pins == 0:
            if self is self.memory.arena:
                self.used = 0
            else:
                self.memory.give(self)


class Memory:
    """All receive memory of a process, within `bound_bytes`.

    Past the bound `take` answers None and the connection stops reading until `when_free` calls
    it: what all clients together send cannot outgrow the bound.
    """

    def __init__(self, bound_bytes: int) -> None:
        self.bound_bytes = bound_bytes
        self.taken_bytes = 0
        self._free: dict[int, list[Block]] = {}
        self._free_bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self.arena = Block(self, ARENA_BYTES)

    def next_arena(self) -> Block:
        """Another arena, where this one has no room for a read behind `used`."""
        # The full one is pinned (else `used` were 0); its last unpin gives it back.
        self.taken_bytes += self.arena.size
        block = self._reuse(ARENA_BYTES)
        self.arena = block
        return block

    def _reuse(self, size: int) -> Block:
        free = self._free.get(size)
        if free:
            self._free_bytes -= size
            block = free.pop()
            block.used = 0
            return block
        return Block(self, size)

    def take(self, size: int) -> Block | None:
        """A block of at least `size` bytes, or None where the bound is reached."""
        rounded = max(SMALLEST_BLOCK_BYTES, 1 << (size - 1).bit_length())
        if self.taken_bytes + rounded > self.bound_bytes:
            return None
        self.taken_bytes += rounded
        return self._reuse(rounded)

    def give(self, block: Block) -> None:
        """Take a block back that nobody looks at."""
        assert block.pins == 0
        assert block is not self.arena
        self.taken_bytes -= block.size
        if self._free_bytes + block.size <= KEPT_BYTES_MAX:
            self._free.setdefault(block.size, []).append(block)
            self._free_bytes += block.size
        waiting = self._waiting
        for _ in range(len(waiting)):
            if self.taken_bytes >= self.bound_bytes:
                break
            waiting.popleft()()

    def when_free(self, fn: Callable[[], None]) -> None:
        """Call `fn` when a block came back; first come, first served."""
        self._waiting.append(fn)
