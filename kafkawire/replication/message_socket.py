"""A blocking socket of messages: receives what is there at once, sends whole messages."""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator

from kafkawire.replication.messages import Message
from kafkawire.replication.wire import WireDecoder, encode, encode_bytes

RECEIVED_BYTES = 1 << 20
"""Bytes that are received at once: messages in them are made durable with one fsync. As much as one
message has, so a connection uses at most twice this."""
FIRST_BYTES = 4096
"""The same before a connection is trusted: HELLO and what may follow it at once."""
LINGER_S = 1.0
LINGER_BYTES = 8 << 20
"""How long, and how many bytes, a refused connection is read."""


class MessageSocket:
    """One connection: `receive`, then iterate over `messages`. Methods raise OSError, TimeoutError
    after the time limits, and WireError."""

    def __init__(
        self,
        connection: socket.socket,
        clock: Callable[[], float],
        accepted: Iterable[type[Message]],
    ) -> None:
        self._socket = connection
        self._clock = clock
        self._buffer = bytearray(FIRST_BYTES)
        self._decoder = WireDecoder(accepted)
        self._idle_s = math.inf
        self._idle_since = 0.0
        self._has_messages = True
        self._timeout_s: float | None = None

    def trust(self, accepted: Iterable[type[Message]], idle_s: float) -> None:
        """Accept other messages, which may be large. `idle_s`: time limit for each to be complete
        after the one before it, and for sending one."""
        self._buffer = bytearray(RECEIVED_BYTES)
        self._decoder.accept(accepted)
        self._idle_s = idle_s
        self._wait_at_most(idle_s)

    def receive(self) -> bool:
        """Wait for bytes; return False at the end of the connection."""
        now = self._clock()
        if self._has_messages:
            self._idle_since, self._has_messages = now, False
        elif now - self._idle_since > self._idle_s:
            raise TimeoutError(f"no complete message within {self._idle_s:g} s")
        received = self._socket.recv_into(self._buffer)
        if received and isinstance(self._socket, ssl.SSLSocket):
            received += self._receive_more(received)
        self._decoder.feed(memoryview(self._buffer)[:received])
        return received > 0

    def messages(self) -> Iterator[Message]:
        """Return the complete messages that were received. All of them must be used before the next
        `receive`, which overwrites their bytes."""
        while (message := self._decoder.next()) is not None:
            self._has_messages = True
            yield message

    def first(self, within_s: float) -> Message:
        """Return the first message. Raises TimeoutError if it is not complete within a time."""
        deadline = self._clock() + within_s
        while (message := self._decoder.next()) is None:
            left = deadline - self._clock()
            if left <= 0:
                raise TimeoutError(f"no complete message within {within_s:g} s")
            self._wait_at_most(left)
            if not self.receive():
                raise ConnectionError("the connection ended before its first message")
        return message

    def send(self, message: Message) -> None:
        self._socket.sendall(encode(message))

    def send_bytes(self, position: int, data: bytes) -> None:
        for part in encode_bytes(position, data):
            self._socket.sendall(part)

    def _wait_at_most(self, seconds: float) -> None:
        self._timeout_s = seconds
        self._socket.settimeout(seconds)

    def _receive_more(self, received: int) -> int:
        """Receive what else has arrived, and return how many bytes that is."""
        # TLS returns at most one record of 16 KiB at a time, each of which would be synced by
        # itself.
        free, start = memoryview(self._buffer)[received:], received
        self._socket.setblocking(False)
        try:
            while free and (more := self._socket.recv_into(free)):
                free, received = free[more:], received + more
        except ssl.SSLWantReadError:
            pass
        finally:
            self._socket.settimeout(self._timeout_s)
        return received - start

    def refuse(self, reason: Message) -> None:
        """Send the reason why the connection is closed, and give the other end time to read it."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(LINGER_S)
            self.send(reason)
            # Then read what the other end has sent: a close with unread bytes resets the
            # connection, which would discard the reason on its way.
            shut_down(self._socket, socket.SHUT_WR)
            deadline, left = self._clock() + LINGER_S, LINGER_BYTES
            while left > 0 and self._clock() < deadline:
                received = self._socket.recv_into(self._buffer)
                if not received:
                    break
                left -= received


def shut_down(connection: socket.socket, how: int) -> None:
    """Shut a connection down, also one with TLS: a thread that reads from it gets its end. Raises
    OSError if it is closed."""
    # That of TCP: the method of SSLSocket forgets the TLS object that the thread is using.
    socket.socket.shutdown(connection, how)
