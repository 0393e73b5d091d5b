"""Receive memory: a shared arena for small reads, and blocks for requests that arrive in pieces.

Bytes are received directly into a Block and parsed in place; a batch is written to the log from
there. So blocks are pinned: while in use (a Produce whose write batch is not written yet) a block
is neither reused nor released. An idle connection owns no memory: reads use the arena, and only an
incomplete frame is moved to a block of its own.

Blocks up to 4 MiB are pooled and counted completely. A larger request gets one block of its size,
which is counted as it fills: the system allocates pages when they are touched, and no large data is
copied. Pure: no sockets. Used by `server.connection`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

ARENA_BYTES = 1 << 20
"""Small requests of a few event-loop iterations; a larger arena would exceed the processor's
cache."""

MANY_BYTES: Final = 1 << 15
"""Bytes in use in the arena from which on there may be many small requests."""

READ_BYTES: Final = 1 << 18
"""Maximum bytes of one socket read: the kernel's usual receive buffer."""
SHORT_READ_BYTES: Final = 1 << 14
"""The same while others wait for memory, because data of an incomplete request must be kept."""

SMALLEST_BLOCK_BYTES = 1 << 10
POOLED_BYTES_MAX = 4 << 20
"""Maximum size of a pooled block; typical Produces have a MiB or two."""
STEP_BYTES = 1 << 20
"""A larger block is counted in steps of this size."""
KEPT_BYTES_MAX = 64 << 20
"""Maximum bytes of free blocks kept for reuse; new memory costs a page fault per 4 KiB."""

SMALL_BYTES, MEDIUM_BYTES = 64 << 10, 2 << 20
"""Requests up to the first size may use all of the memory, and an eighth is reserved for them;
those up to the second size may use seven eighths, larger ones three quarters. So large requests
that do not arrive never block small ones."""


Waiting = dict[object, tuple[int, int, Callable[[], None]]]
"""Waiting connections, with the size of their request, the bytes they need, and the callback."""


class Block:
    """A piece of receive memory. `used`: the end of its used part (arena blocks only); `charged`:
    the bytes that are counted, and so may be filled."""

    __slots__ = ("charged", "memory", "pins", "size", "small", "used", "view")

    def __init__(self, memory: Memory, view: memoryview, charged: int) -> None:
        self.memory = memory
        self.size = len(view)
        self.charged = charged
        self.small = False  # counted in the share of small requests
        self.view = view
        self.pins = 0
        self.used = 0

    def pin(self) -> None:
        """Keep the bytes unchanged until `unpin`."""
        self.pins += 1

    def unpin(self) -> None:
        """Remove one pin; with the last one the block becomes free."""
        self.pins -= 1
        if self.pins == 0:
            if self is self.memory.arena:
                self.used = 0
            else:
                self.memory.give(self)


class Memory:
    """All receive memory of a process, at most `bound_bytes`.

    At the bound `reserve` and `extend` fail, and the connection stops reading until `when_free`
    calls it; so all clients together cannot exceed the bound. `force` takes memory for data that is
    already received. `waiting`: number of waiting connections. `favoured`: a connection that may
    exceed the bound for one request; otherwise connections that each have half of a request could
    deadlock. `untouched` allocates memory that takes no pages before it is written.
    """

    def __init__(
        self, bound_bytes: int, untouched: Callable[[int], memoryview] | None = None
    ) -> None:
        self.bound_bytes = bound_bytes
        self._untouched = untouched or _allocate_zeroed
        self.taken_bytes = 0
        self.favoured: object = None
        self._small_bytes = 0
        self._free: dict[int, list[Block]] = {}
        self._free_bytes = 0
        self._waiting: tuple[Waiting, Waiting, Waiting] = ({}, {}, {})  # small, medium, large
        self.waiting = 0
        self._waking = False
        self.arena = Block(self, self._untouched(ARENA_BYTES), ARENA_BYTES)

    def next_arena(self) -> Block:
        """Return another arena if this one has no room for a read after `used`."""
        # The full one is pinned (otherwise `used` would be 0); its last unpin releases it.
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
        return Block(self, _allocate_zeroed(size), size)

    def _has_room(self, owner: object, whole: int, more: int) -> bool:
        bound = self.bound_bytes
        if whole > MEDIUM_BYTES:
            bound -= bound // 4
        elif whole > SMALL_BYTES:
            bound -= bound // 8
        elif self._small_bytes + more <= bound // 8:
            return True
        return self.taken_bytes + more <= bound or owner is self.favoured

    def reserve(self, owner: object, size: int, whole: int, *, force: bool = False) -> Block | None:
        """Return a block of at least `size` bytes for a request of `whole`, or None at the bound.
        One that is too large for the pool is counted as it is extended."""
        if size > POOLED_BYTES_MAX:
            if not force and not self._has_room(owner, whole, STEP_BYTES):
                return None
            return Block(self, self._untouched(size), 0)
        rounded = _round_up(size)
        if not force and not self._has_room(owner, whole, rounded):
            return None
        self.taken_bytes += rounded
        block = self._reuse(rounded)
        block.small = whole <= SMALL_BYTES and not force
        if block.small:
            self._small_bytes += rounded
        return block

    def extend(self, owner: object, block: Block, least: int = 0) -> bool:
        """Count more of a large block, at least up to `least`, depending on free memory; return
        False if there is no room."""
        step = min(max(STEP_BYTES, least - block.charged), block.size - block.charged)
        if not least and not self._has_room(owner, block.size, step):
            return False
        block.charged += step
        self.taken_bytes += step
        return True

    def give(self, block: Block) -> None:
        """Release a block that is not in use."""
        assert block.pins == 0
        assert block is not self.arena
        self.taken_bytes -= block.charged
        if block.small:
            block.small = False
            self._small_bytes -= block.size
        if block.size <= POOLED_BYTES_MAX and self._free_bytes + block.size <= KEPT_BYTES_MAX:
            self._free.setdefault(block.size, []).append(block)
            self._free_bytes += block.size
        if self.waiting and not self._waking:
            self._wake()

    def when_free(self, owner: object, size: int, whole: int, fn: Callable[[], None]) -> None:
        """Call `fn` when these bytes may be taken; first come, first served per size class."""
        more = _round_up(size) if size <= POOLED_BYTES_MAX else STEP_BYTES
        self._waiting[_class_of(whole)][owner] = whole, more, fn
        self._count()

    def stop_waiting(self, owner: object) -> None:
        """Stop waiting: the connection was closed, or its request received."""
        if self.waiting:
            for waiting in self._waiting:
                waiting.pop(owner, None)
            self._count()
        if owner is self.favoured:
            self.favoured = None

    def favour(self) -> None:
        """Let one of the smallest waiting requests exceed the bound, unless another one may
        already."""
        if self.favoured is not None:
            return
        for waiting in self._waiting:
            if waiting:
                owner = self.favoured = next(iter(waiting))
                _, _, fn = waiting.pop(owner)
                self._count()
                fn()
                return

    def _wake(self) -> None:
        """Call waiting connections for which there is room."""
        self._waking = True
        try:
            for waiting in self._waiting:
                while waiting:
                    owner, (whole, more, fn) = next(iter(waiting.items()))
                    if not self._has_room(owner, whole, more):
                        break
                    del waiting[owner]
                    fn()
        finally:
            self._waking = False
            self._count()

    def _count(self) -> None:
        self.waiting = sum(map(len, self._waiting))


def _allocate_zeroed(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _round_up(size: int) -> int:
    """Return the size of a pooled block with room for these bytes."""
    return max(SMALLEST_BLOCK_BYTES, 1 << (size - 1).bit_length())


def _class_of(whole: int) -> int:
    return (whole > SMALL_BYTES) + (whole > MEDIUM_BYTES)
