"""Receive memory: one shared arena for small reads, blocks for requests that come in pieces.

Bytes are received straight into a Block and parsed where they lie; a batch is written to the log
from there. So a block has pins: as long as it is in use (a Produce whose write batch has not
been written) it is neither reused nor given back. An idle connection owns no memory at all: a
read happens in the arena, and only an incomplete frame moves to a block of its own.

Blocks up to 4 MiB are pooled and counted whole. A larger request gets one block of its whole size,
which is counted as it fills: the system gives memory to pages that are touched, and nothing large
is ever copied. Pure: no sockets. Used by `server.connection` alone.
"""

from __future__ import annotations

from collections.abc import Callable

ARENA_BYTES = 1 << 20
"""Small requests of a few event-loop iterations; larger would leave the processor's cache."""

READ_BYTES = 1 << 18
"""Most bytes of one socket read: the kernel's usual receive buffer."""
SHORT_READ_BYTES = 1 << 14
"""... while others wait for memory: what is read of an incomplete request has to be kept."""

SMALLEST_BLOCK_BYTES = 1 << 10
POOLED_BYTES_MAX = 4 << 20
"""The largest block that is kept for reuse: Produces of usual settings are a MiB or two."""
STEP_BYTES = 1 << 20
"""A larger block is counted by so many bytes at a time."""
KEPT_BYTES_MAX = 64 << 20
"""Free blocks kept for reuse; fresh memory costs a page fault each 4 KiB."""

SMALL_BYTES, MEDIUM_BYTES = 64 << 10, 2 << 20
"""Requests up to the first may use all of the memory, and an eighth of it whatever others take;
those up to the second seven eighths, larger ones three quarters: large ones that do not arrive
never keep small ones from being received."""


Waiting = dict[object, tuple[int, int, Callable[[], None]]]
"""Connections, with the size of their request, how much of it they want, and what to call."""


class Block:
    """A piece of receive memory. `used` is how far it is taken (arena blocks only), `charged` how
    much of it is counted, and so may be filled."""

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
        """Keep the bytes as they are until `unpin`."""
        self.pins += 1

    def unpin(self) -> None:
        """Remove one pin; with the last one the block is free."""
        self.pins -= 1
        if self.pins == 0:
            if self is self.memory.arena:
                self.used = 0
            else:
                self.memory.give(self)


class Memory:
    """All receive memory of a process, within `bound_bytes`.

    Past the bound `take` and `extend` refuse and the connection stops reading until `when_free`
    calls it: what all clients together send cannot outgrow the bound. What has been received
    already is taken with `force`. `waiting`: how many connections wait. `favoured` is a connection
    that may exceed the bound with one request: else those that have half of theirs could wait for
    each other for ever. `untouched` gives memory that takes none before it is written to.
    """

    def __init__(
        self, bound_bytes: int, untouched: Callable[[int], memoryview] | None = None
    ) -> None:
        self.bound_bytes = bound_bytes
        self._untouched = untouched or _zeroed
        self.taken_bytes = 0
        self.favoured: object = None
        self._small_bytes = 0
        self._free: dict[int, list[Block]] = {}
        self._free_bytes = 0
        self._waiting: tuple[Waiting, Waiting, Waiting] = ({}, {}, {})  # small, medium, large
        self.waiting = 0
        self._waking = False
        self.arena = Block(self, _zeroed(ARENA_BYTES), ARENA_BYTES)

    def next_arena(self) -> Block:
        """Another arena, where this one has no room for a read after `used`."""
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
        return Block(self, _zeroed(size), size)

    def _has_room(self, owner: object, whole: int, more: int) -> bool:
        bound = self.bound_bytes
        if whole > MEDIUM_BYTES:
            bound -= bound // 4
        elif whole > SMALL_BYTES:
            bound -= bound // 8
        elif self._small_bytes + more <= bound // 8:
            return True
        return self.taken_bytes + more <= bound or owner is self.favoured

    def take(self, owner: object, size: int, whole: int, *, force: bool = False) -> Block | None:
        """A block of at least `size` bytes for a request of `whole`, or None where the bound is
        reached. One that is too large for the pool is counted as far as it is extended."""
        if size > POOLED_BYTES_MAX:
            if not force and not self._has_room(owner, whole, STEP_BYTES):
                return None
            return Block(self, self._untouched(size), 0)
        rounded = _rounded(size)
        if not force and not self._has_room(owner, whole, rounded):
            return None
        self.taken_bytes += rounded
        block = self._reuse(rounded)
        block.small = whole <= SMALL_BYTES and not force
        if block.small:
            self._small_bytes += rounded
        return block

    def extend(self, owner: object, block: Block, least: int = 0) -> bool:
        """Count more of a large block, at least up to `least`, whatever is free; False: no room."""
        step = min(max(STEP_BYTES, least - block.charged), block.size - block.charged)
        if not least and not self._has_room(owner, block.size, step):
            return False
        block.charged += step
        self.taken_bytes += step
        return True

    def give(self, block: Block) -> None:
        """Take back a block that is not in use."""
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
        """Call `fn` when so much may be taken; first come, first served among those of a size."""
        more = _rounded(size) if size <= POOLED_BYTES_MAX else STEP_BYTES
        self._waiting[_class_of(whole)][owner] = whole, more, fn
        self._count()

    def forget(self, owner: object) -> None:
        """A connection has gone, or its request has been received."""
        if self.waiting:
            for waiting in self._waiting:
                waiting.pop(owner, None)
            self._count()
        if owner is self.favoured:
            self.favoured = None

    def favour(self) -> None:
        """Let one request that waits exceed the bound, of the smallest; unless another one may."""
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
        """Call those for whom there is room."""
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


def _zeroed(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _rounded(size: int) -> int:
    """The size of a pooled block that has room for so much."""
    return max(SMALLEST_BLOCK_BYTES, 1 << (size - 1).bit_length())


def _class_of(whole: int) -> int:
    return (whole > SMALL_BYTES) + (whole > MEDIUM_BYTES)
