"""Sends a span of a file over a client's socket, without reading it into memory.

The kernel copies from the page cache. What is in there is sent on the event loop, a step at a time,
whenever the socket has room: a hand-over to a thread would cost as much as the step. What is not
would stop the loop for as long as the disk takes, so a thread of the pool "send" sends it; it never
waits for the client. The socket is used through a duplicate of its descriptor: the event loop's
transport has its own, may close it at any time, and the number may then be another client's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from kafkawire.log.io.file_span import FileSpan
from kafkawire.log.io.ports import Offload

STEP_BYTES = 1 << 20
"""Bytes sent in one call on the event loop: a quarter of a millisecond."""

BEGIN_BYTES = 2 << 20
"""Bytes sent at once by `send_now`, as much as a usual response has."""

THREAD_BYTES = 4 << 20
"""Bytes sent by one call of a thread, so that spans of many clients take turns."""


class FileSender:
    """Sends one span. `ended` is called once, on the event loop, unless `send_now` has sent all or
    `cancel` was called: with the error of the socket or the disk, or None."""

    __slots__ = ("_cancelled", "_ended", "_fd", "_in_thread", "_loop", "_offload", "_sent", "_span")

    def __init__(
        self, offload: Offload, span: FileSpan, ended: Callable[[OSError | None], None]
    ) -> None:
        self._offload = offload
        self._span = span
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._fd = -1  # the duplicate
        self._sent = 0
        self._in_thread = False
        self._cancelled = False

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not accepted yet."""
        return len(self._span) - self._sent

    def send_now(self, socket_fd: int) -> bool:
        """Send what the socket takes now; return whether that was all. Raises OSError."""
        try:
            while self._sent < BEGIN_BYTES and self._is_cached():
                has_room = self._send(socket_fd)
                if not self.unsent_bytes:
                    return True
                if not has_room:
                    break
        except BlockingIOError:
            pass
        self._fd = os.dup(socket_fd)
        self._span.pin()
        self._loop.add_writer(self._fd, self._writable)
        return False

    def cancel(self) -> None:
        """Stop: the socket is being closed. The span is released when no thread uses it."""
        self._cancelled = True
        if self._fd >= 0 and not self._in_thread:
            self._close()

    def _is_cached(self) -> bool:
        return self._span.is_cached(self._sent, STEP_BYTES)

    def _send(self, socket_fd: int) -> bool:
        """Send a step; return False if the socket took less than that: it is full, and the next
        call would only report that."""
        sent = self._span.send(socket_fd, self._sent, STEP_BYTES)
        self._sent += sent
        return sent == STEP_BYTES

    def _writable(self) -> None:
        """The socket has room: send a step, or have a thread send."""
        if not self._is_cached():
            self._loop.remove_writer(self._fd)
            self._in_thread = True
            sending = self._offload.submit("send", self._send_in_thread)
            sending.add_done_callback(self._back_from_thread)
            return
        try:
            self._send(self._fd)
        except BlockingIOError:
            return
        except OSError as failure:
            self._end(failure)
            return
        if not self.unsent_bytes:
            self._end(None)

    def _send_in_thread(self) -> None:
        until = min(self._sent + THREAD_BYTES, len(self._span))
        try:
            while self._sent < until and not self._cancelled and self._send(self._fd):
                pass
        except BlockingIOError:
            return

    def _back_from_thread(self, sending: asyncio.Future[None]) -> None:
        self._in_thread = False
        if self._cancelled or sending.cancelled():
            self._close()
            return
        failure = sending.exception()
        if failure is None and self.unsent_bytes:
            self._loop.add_writer(self._fd, self._writable)
        elif failure is None or isinstance(failure, OSError):
            self._end(failure)
        else:
            self._end(OSError(f"sending a file failed: {failure!r}"))

    def _end(self, failure: OSError | None) -> None:
        self._close()
        self._ended(failure)

    def _close(self) -> None:
        self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._span.unpin()
