"""Connections of uvicorn that end if their client reads nothing, so that what waits for it does not
stay in memory and the functions that send it end."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

UNREAD_S = 20.0
"""How long a client may read nothing while there is more than the system's buffers hold. A page is
64 KiB then, or one message: functions that send wait, so nothing is added."""


MAX_HEAD_BYTES = 64 << 10
"""Request line and headers: h11 has the same bound."""


class _EndUnread(asyncio.Protocol):
    """Aborts the connection if the buffer of what is sent has not become smaller in UNREAD_S."""

    transport: Any
    _unread: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self, before: int) -> None:
        loop = asyncio.get_running_loop()
        self._unread = loop.call_later(UNREAD_S, self._check, before)

    def _check(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        else:
            self._watch(left)

    def _stop_watching(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class HttpConnection(_EndUnread, HttpToolsProtocol):
    """A connection of HTTP, with a bound of what comes before a body: httptools has none."""

    _in_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Parse what a client has sent; end the connection after MAX_HEAD_BYTES without a body."""
        super().data_received(data)
        if not self._in_head:
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers have more than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Answer a request, whose body may follow."""
        self._in_head = False
        super().on_headers_complete()


class SocketConnection(_EndUnread, WebSocketsSansIOProtocol):
    """A WebSocket."""
