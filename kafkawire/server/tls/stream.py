"""TLS for a small protocol of asyncio, such as that of the metrics page.

asyncio's own TLS would do handshakes outside of the queue that all TLS sockets share, and would
connect the protocol only after the handshake, so that nothing would limit their number. It is
meant for little data: what is written is encrypted at once.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from kafkawire.server.tls.listeners import Tls

logger = logging.getLogger(__name__)

MAX_RECEIVED = 64 << 10
"""Bytes of a client, its handshake included: chains of certificates have 10 KiB."""
READ_BYTES = 16 << 10


class TlsStream(asyncio.Protocol):
    """Decrypts for `inner`, which writes through it. `inner` is connected before the handshake, so
    that its limits of connections and time include it."""

    def __init__(self, tls: Tls, inner: asyncio.Protocol) -> None:
        self._tls = tls
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object: ssl.SSLObject | None = None
        self._established = False
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect `inner`."""
        self._transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(_Encrypting(self))

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything."""
        self._transport = self._object = None
        self._tls.handshakes.remove(self)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Continue the handshake when others had their step, or decrypt."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._received += len(data)
        if self._received > MAX_RECEIVED:
            transport.abort()
            return
        self._incoming.write(data)
        if self._established:
            self._decrypt()
        else:
            transport.pause_reading()
            self._tls.handshakes.enqueue(self)

    def step(self) -> None:
        """Do a step of the handshake; see `tls.handshakes`."""
        transport = self._transport
        if transport is None or transport.is_closing():
            self._tls.handshakes.remove(self)
            return
        if self._object is None:
            self._object = self._tls.context(asks_clients=False).wrap_bio(
                self._incoming, self._outgoing, server_side=True
            )
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            transport.resume_reading()
        except ssl.SSLError as error:
            logger.debug("closing a connection: the TLS handshake failed: %s", error.reason)
            self._send()
            transport.close()
        else:
            self._established = True
            self._tls.handshakes.remove(self)
            self._send()
            transport.resume_reading()
            self._decrypt()

    def give_way(self) -> None:
        """Close the connection in its handshake; see `tls.handshakes`."""
        self.abort()

    def _decrypt(self) -> None:
        opened, transport = self._object, self._transport
        while opened is not None and transport is not None and not transport.is_closing():
            try:
                data = opened.read(READ_BYTES)
            except ssl.SSLWantReadError:
                self._send()
                return
            except ssl.SSLError:
                data = b""
            if not data:
                transport.close()
                return
            self._inner.data_received(data)

    def _send(self) -> None:
        data = self._outgoing.read()
        if data and self._transport is not None:
            self._transport.write(data)

    # As the transport of `inner`

    def write(self, data: Any) -> None:
        """Encrypt and send; nothing before the handshake."""
        if self._object is None or not self._established:
            return
        view, at = memoryview(data), 0
        while at < len(view):
            at += self._object.write(view[at:])
        self._send()

    def close(self) -> None:
        """Close the connection when everything is sent, after a note that it ends."""
        if self._object is not None and self._established:
            with suppress(ssl.SSLError):  # it does not wait for the client's note
                self._object.unwrap()
            self._send()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def extra_info(self, name: str, default: Any) -> Any:
        """Return what the socket's transport has by this name."""
        return default if self._transport is None else self._transport.get_extra_info(name, default)


class _Encrypting(asyncio.Transport):
    """The transport that the inner protocol sees."""

    def __init__(self, stream: TlsStream) -> None:
        super().__init__()
        self._stream = stream

    def write(self, data: Any) -> None:
        self._stream.write(data)

    def close(self) -> None:
        self._stream.close()

    def abort(self) -> None:
        self._stream.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._stream.extra_info(name, default)
