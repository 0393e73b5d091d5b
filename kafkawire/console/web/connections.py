"""Connections of uvicorn that end if their client reads nothing, so that what waits for it does not
stay in memory and the functions that send it end."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

UNREAD_S = 20.0
"""How long a client may read nothing while there is more than the system's buffers hold. A page is
64 KiB then, or one message: functions that send wait, so nothing is added."""


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


class HttpConnection(_EndUnread, H11Protocol):
    """A connection of HTTP. h11 bounds the size of headers; httptools does not."""


class SocketConnection(_EndUnread, WebSocketsSansIOProtocol):
    """A WebSocket."""
