"""Receives the bytes of one connection into the arena or into a block of its own. Sans I/O.

Reads use the arena that all connections share; only an incomplete request is moved to a block of
its own, which grows with the received bytes. The base of `server.connection`, which parses.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kafkawire.server.memory import (
    MANY_BYTES,
    POOLED_BYTES_MAX,
    READ_BYTES,
    SHORT_READ_BYTES,
    Block,
)
from kafkawire.server.ports import ReceivingHost

if TYPE_CHECKING:
    from kafkawire.codec.types import Part
    from kafkawire.server.ports import Wire

KEPT_BYTES_MAX = 1 << 16
"""Maximum bytes kept of a client that must wait; beyond it its socket is not read."""

HELD: Final = 1
DRAINING: Final = 2
BUSY: Final = 4
FULL: Final = 8
CLOSED: Final = 16
STOPPING: Final = 32
THROTTLED: Final = 64
"""Reasons why no request may start, as bits of `waits`: a request could not start; the
client has not read its responses; a cold request is being served; too many bytes in flight; the
socket is closed; the broker is stopping; the client is over a quota."""

_LENGTH: Final = Struct(">i")

HostT = TypeVar("HostT", bound=ReceivingHost)


class Receiver(Generic[HostT]):
    """The receiving part of a connection. `waits`: why no request may start, 0 if one may."""

    __slots__ = (
        "closed", "filled", "host", "kept", "kept_total", "memory", "out", "reading", "receiving",
        "start_at", "tick", "waits", "wants_memory", "wire",
    )  # fmt: skip

    def __init__(self, host: HostT, wire: Wire) -> None:
        self.host = host
        self.memory = host.memory
        self.wire = wire
        self.closed = False
        self.tick = host.tick
        self.waits = 0
        self.out: list[Part] = []
        self.receiving = False  # the caller of what answers flushes when that returns
        self.reading = True
        self.kept: Block | None = None  # bytes [start_at, filled) that are not parsed yet
        self.start_at = 0
        self.filled = 0
        self.kept_total = 0  # received bytes of incomplete requests
        self.wants_memory = False  # not read until there is some

    def _parse(self, block: Block, pos: int, end: int) -> int:
        """Start the requests in [pos, end); return the position of the first that was not
        started."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send responses that are ready."""
        raise NotImplementedError

    def get_buffer(self, _hint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        kept = self.kept
        if kept is not None:
            return kept.view[self.filled : self._find_read_limit(kept)]
        memory = self.memory
        arena = memory.arena
        if arena.used and arena.size - arena.used < READ_BYTES:
            arena = memory.next_arena()
        if memory.waiting:
            return arena.view[arena.used : arena.used + SHORT_READ_BYTES]
        return arena.view[arena.used :] if arena.used else arena.view

    def _find_read_limit(self, kept: Block) -> int:
        """Return the limit of the next read: the end of a large frame, so that the next frame
        begins in the arena."""
        have = self.filled - self.start_at
        if have >= 4:
            (size,) = _LENGTH.unpack_from(kept.view, self.start_at)
            stop = self.start_at + 4 + int(size)
            if self.filled < stop <= kept.charged:
                return stop
        return kept.charged

    def buffer_updated(self, count: int) -> None:
        """`count` bytes were received into the result of `get_buffer`."""
        self.tick = self.host.tick
        self.host.counts.received_bytes += count
        self.receiving = True
        kept = self.kept
        end = 0
        if kept is None:
            arena = self.memory.arena
            start = arena.used
            end = start + count
            pos = self._parse(arena, start, end)
            if arena.pins:
                arena.used = end
            if pos < end and not self.closed:
                self._keep(arena.view[pos:end])
        else:
            self.filled += count
            self.kept_total += count
            self._go_on()
        self.receiving = False
        if self.out:
            self.flush()
        if end > MANY_BYTES:
            self.host.received_much()

    def is_receiving(self) -> bool:
        """Return whether a request is incomplete because of the client."""
        return self.kept is not None and self.reading and not self.waits

    def _go_on(self) -> None:
        """Parse the kept bytes as far as possible; read again unless there is a reason to wait."""
        if self.kept is not None and not self.closed:
            self._parse_kept(self.kept)
        if not (self.closed or self.reading or self.waits or self.wants_memory):
            self._read(True)

    def _parse_kept(self, kept: Block) -> None:
        pos = self._parse(kept, self.start_at, self.filled)
        if self.closed:
            return
        if pos != self.start_at and self.memory.favoured is self:
            self.memory.stop_waiting(self)
        self.start_at = pos
        if pos == self.filled:
            self._drop_kept()
        elif kept.pins:
            rest = kept.view[pos : self.filled]
            self.kept = None
            self._keep(rest)
        elif self.filled == kept.charged:
            self._grow(kept)

    def _drop_kept(self) -> None:
        kept = self.kept
        self.kept = None
        self.start_at = self.filled = 0
        if self.wants_memory or self.memory.favoured is self:
            self.wants_memory = False
            self.memory.stop_waiting(self)
        if kept is not None and not kept.pins:
            self.memory.give(kept)

    def _keep(self, rest: memoryview) -> None:
        """Move unparsed bytes to a block of their own, sized for their frame."""
        have = len(rest)
        room, whole = _room_for(rest)
        block = self.memory.reserve(self, room, whole)
        short = block is None
        if block is None:  # received bytes must be stored; no more are read
            block = self.memory.reserve(self, have + 1, whole, force=True)
            assert block is not None
        if block.charged < have:
            self.memory.extend(self, block, have)
        block.view[:have] = rest
        self.kept, self.start_at, self.filled = block, 0, have
        self.kept_total += have
        if short:
            self._wait_for_memory(room, whole)
        elif have == block.charged:
            self._grow(block)

    def _grow(self, kept: Block) -> None:
        """The kept block is full: extend it, or stop reading until there is room or it was
        parsed."""
        have = self.filled - self.start_at
        if self.waits and have >= KEPT_BYTES_MAX:
            self._read(False)
            return
        if kept.charged < kept.size:
            if not self.memory.extend(self, kept):
                self._wait_for_memory(kept.size, kept.size)
            return
        rest = kept.view[self.start_at : self.filled]
        room, whole = _room_for(rest)
        block = self.memory.reserve(self, room, whole)
        if block is None:
            self._wait_for_memory(room, whole)
            return
        if block.charged < have + 1:
            self.memory.extend(self, block, have + 1)
        block.view[:have] = rest
        self.kept, self.start_at, self.filled = block, 0, have
        if not kept.pins:
            self.memory.give(kept)

    def _wait_for_memory(self, size: int, whole: int) -> None:
        self.wants_memory = True
        self._read(False)
        self.memory.when_free(self, size, whole, self._memory_came)

    def _memory_came(self) -> None:
        kept = self.kept
        self.wants_memory = False
        if self.closed or kept is None:
            return
        if self.filled == kept.charged:
            self._grow(kept)
        if not (self.waits or self.wants_memory):
            self._read(True)

    def _read(self, on: bool) -> None:
        if self.reading != on:
            self.reading = on
            if on:
                self.wire.resume_reading()
            else:
                self.wire.pause_reading()


def _room_for(rest: memoryview) -> tuple[int, int]:
    """Return the block size for the frame that `rest` begins, and the frame's size."""
    have = len(rest)
    if have < 4:
        return 2 * have, have
    whole = int(_LENGTH.unpack_from(rest)[0]) + 4
    # At most a few times the received bytes, because a length is only a claim. A large one gets its
    # whole size, which is counted as it fills.
    room = max(have + 1, min(whole, max(have * 4, 1 << 16)))
    return room if room <= POOLED_BYTES_MAX else max(have + 1, whole), whole
