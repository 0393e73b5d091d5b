"""Encrypts the responses of one connection, never further than its client reads.

Buffers and spans of files are encrypted in pieces, each written to the socket before the next is
encrypted. A span is read a piece at a time, so that its bytes stay in the processor's cache and no
response is in memory as a whole: on the event loop while the file is in the page cache, otherwise
by a thread of the pool "send".
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import TYPE_CHECKING

from kafkawire.codec.types import Buffer
from kafkawire.log.io.file_span import FileSpan
from kafkawire.server.tls.records import RECORD_BYTES

if TYPE_CHECKING:
    from kafkawire.server.connection import Connection
    from kafkawire.server.host import Host

PIECE_BYTES = 128 << 10
"""Bytes encrypted and written in one call, and what a client that does not read costs. With an
eighth of it the CPU time of a megabyte is a sixth higher, with multiples of it it is the same."""
ENCRYPT_BYTES = 1 << 20
"""Bytes encrypted in an event-loop iteration for one connection: half a millisecond."""
THREAD_BYTES = 256 << 10
"""Bytes of a file that a thread reads at once; they are in memory until they are encrypted."""


class TlsSender:
    """The responses of an established connection. `outgoing` is where `shaken` writes; it is
    shared by all connections and empty between their calls."""

    __slots__ = (
        "_at", "_blocked", "_connection", "_host", "_outgoing", "_plain", "_plain_bytes",
        "_reading", "_scheduled", "_shaken", "_span", "_transport",
    )  # fmt: skip

    def __init__(
        self,
        shaken: ssl.SSLObject,
        outgoing: ssl.MemoryBIO,
        transport: asyncio.Transport,
        connection: Connection,
        host: Host,
    ) -> None:
        self._shaken = shaken
        self._outgoing = outgoing
        self._transport = transport
        self._connection = connection
        self._host = host
        self._plain: deque[memoryview] = deque()
        self._plain_bytes = 0
        self._span: FileSpan | None = None  # follows `_plain`
        self._at = 0  # how much of it is read
        self._reading = False  # a thread reads it
        self._scheduled = False  # `_continue` is
        self._blocked = False  # the socket takes no more

    def unsent_bytes(self) -> int:
        """Bytes that are not encrypted yet."""
        return self._plain_bytes + (len(self._span) - self._at if self._span is not None else 0)

    def write(self, parts: list[Buffer]) -> None:
        """Encrypt and send these buffers; the rest when the client has read. Hot."""
        size = sum(map(len, parts))
        if size <= RECORD_BYTES and not self._plain:
            self._send(parts[0] if len(parts) == 1 else b"".join(parts))
            return
        self._plain += [memoryview(part).cast("B") for part in parts if len(part)]
        self._plain_bytes += size
        if not (self._blocked or self._scheduled):
            self._encrypt()
            if self._plain:
                self._connection.pause_writing()

    def send_file(self, span: FileSpan) -> bool:
        """Send a span of a file; see `server.ports.Wire`."""
        assert not self.unsent_bytes(), "responses would overtake each other"
        span.pin()
        self._span, self._at = span, 0
        self._encrypt()
        return not self.unsent_bytes()

    def pause(self) -> None:
        """Encrypt nothing more: the socket is full."""
        self._blocked = True

    def resume(self) -> None:
        """Continue: the socket has taken all that was encrypted."""
        self._blocked = False
        if not (self._scheduled or self._reading):
            self._continue()

    def cancel(self) -> None:
        """Discard everything: the socket is closed. A span that a thread reads is released when it
        has."""
        self._plain.clear()
        self._plain_bytes = 0
        if not self._reading:
            self._end_span()

    def _continue(self) -> None:
        self._scheduled = False
        self._encrypt()
        if not (self.unsent_bytes() or self._blocked or self._connection.closed):
            self._connection.resume_writing()

    def _encrypt(self) -> None:
        """Encrypt and send until the client must read first, a thread reads the file, or others
        are due."""
        room = ENCRYPT_BYTES
        while not (self._blocked or self._transport.is_closing()):
            if room <= 0 and self.unsent_bytes():
                self._scheduled = True
                self._host.call_soon(self._continue)
                return
            piece = self._next_plain() if self._plain else self._next_of_file()
            if piece is None:
                return
            self._send(piece)
            room -= len(piece)

    def _send(self, piece: Buffer) -> None:
        try:
            self._shaken.write(piece)
        except ssl.SSLError as failure:
            self._outgoing.read()
            self._connection.abort(f"TLS: a response cannot be encrypted: {failure.reason}")
        else:
            self._transport.write(self._outgoing.read())

    def _next_plain(self) -> Buffer:
        """Take the next piece: a view of one part, or several small ones joined."""
        plain = self._plain
        first = plain.popleft()
        if len(first) > PIECE_BYTES:
            plain.appendleft(first[PIECE_BYTES:])
            piece: Buffer = first[:PIECE_BYTES]
        elif len(first) >= RECORD_BYTES or not plain:
            piece = first
        else:
            piece = joined = bytearray(first)
            while plain and len(joined) < RECORD_BYTES:
                first = plain.popleft()
                room = RECORD_BYTES - len(joined)
                joined += first[:room]
                if len(first) > room:
                    plain.appendleft(first[room:])
        self._plain_bytes -= len(piece)
        return piece

    def _next_of_file(self) -> Buffer | None:
        """Read the next piece of the span; None if there is none, or a thread has to read it."""
        span, at = self._span, self._at
        if span is None or self._reading:
            return None
        if not span.is_cached(at, PIECE_BYTES):
            self._reading = True
            offload = self._host.broker.env.offload
            offload.submit("send", span.read, at, THREAD_BYTES).add_done_callback(self._was_read)
            return None
        try:
            piece = span.read(at, PIECE_BYTES)
        except OSError as failure:
            self._fail(failure)
            return None
        self._take_of_file(span, len(piece))
        return piece

    def _was_read(self, reading: asyncio.Future[bytes]) -> None:
        self._reading = False
        span = self._span
        if span is None or self._connection.closed or reading.cancelled():
            self._end_span()
            return
        failure = reading.exception()
        if failure is not None:
            self._fail(failure)
            return
        data = reading.result()
        self._plain.append(memoryview(data))
        self._plain_bytes += len(data)
        self._take_of_file(span, len(data))
        if not self._blocked:
            self._continue()

    def _take_of_file(self, span: FileSpan, count: int) -> None:
        self._at += count
        if self._at == len(span):
            self._end_span()

    def _end_span(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.unpin()

    def _fail(self, failure: BaseException) -> None:
        """Close the connection: its response cannot be completed."""
        self._end_span()
        self._connection.abort(f"a response cannot be sent from its file: {failure}")
