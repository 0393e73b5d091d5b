"""The bytes of one connection on their way in: into the arena, or a block of its own. Sans I/O.

A read happens in the arena that all connections share; only an incomplete request moves to a block
of its own, which grows with what has come. The base of `server.connection`, which parses.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from kafkawire.server.memory import READ_BYTES, Block

if TYPE_CHECKING:
    from kafkawire.codec.types import Buffer
    from kafkawire.server.ports import Host, Wire

KEPT_BYTES_MAX = 1 << 16
"""Bytes kept of a client that sends while it has to wait; then its socket is not read."""

_LENGTH = Struct(">i")


class Receiver:
    """The receiving half of a connection. `waits`: why no request may start, 0 if one may."""

    __slots__ = (
        "closed", "filled", "host", "kept", "memory", "out", "reading", "receiving", "start_at",
        "tick", "waits", "wire",
    )  # fmt: skip

    def __init__(self, host: Host, wire: Wire) -> None:
        self.host = host
        self.memory = host.memory
        self.wire = wire
        self.closed = False
        self.tick = host.tick
        self.waits = 0
        self.out: list[Buffer] = []
        self.receiving = False  # `received` flushes at its end
        self.reading = True
        self.kept: Block | None = None  # bytes [start_at, filled) that are not parsed yet
        self.start_at = 0
        self.filled = 0

    def _parse(self, block: Block, pos: int, end: int) -> int:
        """Start the requests in [pos, end); the position of the first that was not started."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send what is ready."""
        raise NotImplementedError

    def get_buffer(self, _hint: int) -> memoryview:
        """Where the next bytes go."""
        kept = self.kept
        if kept is not None:
            return kept.view[self.filled : self._wanted(kept)]
        arena = self.memory.arena
        if not arena.used:
            return arena.view
        if arena.size - arena.used < READ_BYTES:
            arena = self.memory.next_arena()
        return arena.view[arena.used :]

    def _wanted(self, kept: Block) -> int:
        """Up to where to read: the end of a large frame, so that the next one starts afresh."""
        have = self.filled - self.start_at
        if have >= 4:
            (size,) = _LENGTH.unpack_from(kept.view, self.start_at)
            stop = self.start_at + 4 + int(size)
            if self.filled < stop <= kept.size:
                return stop
        return kept.size

    def received(self, count: int) -> None:
        """`count` bytes have come into what `get_buffer` gave."""
        self.tick = self.host.tick
        self.host.counts.received_bytes += count
        self.receiving = True
        kept = self.kept
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
            self._go_on()
        self.receiving = False
        if self.out:
            self.flush()

    def _go_on(self) -> None:
        """Parse what is kept, as far as it goes."""
        kept = self.kept
        if kept is None or self.closed:
            return
        pos = self._parse(kept, self.start_at, self.filled)
        if self.closed:
            return
        self.start_at = pos
        if pos == self.filled:
            self._drop_kept()
        elif kept.pins:
            rest = kept.view[pos : self.filled]
            self.kept = None
            self._keep(rest)
        elif self.filled == kept.size:
            self._grow(kept)
        if not self.reading and not self.waits:
            self._read(True)

    def _drop_kept(self) -> None:
        kept = self.kept
        self.kept = None
        self.start_at = self.filled = 0
        if kept is not None and not kept.pins:
            self.memory.give(kept)

    def _keep(self, rest: memoryview) -> None:
        """Move unparsed bytes to a block of their own, sized for the frame they begin."""
        have = len(rest)
        room = max(have + 1, have * 2)
        if have >= 4:
            size = _LENGTH.unpack_from(rest)[0] + 4
            # Never more than a few times what has really come: a length is only a claim.
            room = max(have + 1, min(size, max(have * 4, 1 << 16)))
        block = self.memory.take(room)
        if block is None:
            self._wait_for_memory(bytes(rest))
            return
        block.view[:have] = rest
        self.kept, self.start_at, self.filled = block, 0, have

    def _grow(self, kept: Block) -> None:
        """The kept block is full: a larger one, or no reading until what is kept has gone."""
        have = self.filled - self.start_at
        if self.waits and have >= KEPT_BYTES_MAX:
            self._read(False)
            return
        rest = kept.view[self.start_at : self.filled]
        self.kept = None
        self._keep(rest)
        if not kept.pins:
            self.memory.give(kept)

    def _wait_for_memory(self, rest: bytes) -> None:
        self._read(False)

        def again() -> None:
            if not self.closed:
                self._keep(memoryview(rest))
                if self.kept is not None:
                    self._read(True)
                    self._go_on()

        self.memory.when_free(again)

    def _read(self, on: bool) -> None:
        if self.reading != on:
            self.reading = on
            if on:
                self.wire.resume_reading()
            else:
                self.wire.pause_reading()
