"""Sockets: accepts connections, with one `Connection` each.

The protocol is an asyncio.BufferedProtocol, so bytes are received directly into the receive memory.
The write buffer's limits are 0: either the kernel has taken everything, or the client is slow and
no further request of it is started until it has read (`pause_writing`). Spans of files go around
the transport, when its buffer is empty (`server.file_sender`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import pack
from typing import TYPE_CHECKING, cast

from kafkawire.codec.types import Buffer
from kafkawire.log.io.file_span import FileSpan
from kafkawire.server.connection import Connection, MeasuredReads
from kafkawire.server.file_sender import FileSender
from kafkawire.server.listeners.addresses import AddressError, cannot_bind

if TYPE_CHECKING:
    from kafkawire.broker.options import Listener
    from kafkawire.server.host import Host
    from kafkawire.server.listeners.limits import ListenerLimits
    from kafkawire.server.listeners.logins import ListenerLogins
    from kafkawire.server.monitored import MonitoredServer
    from kafkawire.server.ports import Wire
    from kafkawire.server.tls.listeners import Tls

UNSENT_BYTES_MAX = 64 << 10
"""Maximum of a client's unsent response bytes in the kernel (bytes in flight are not counted): a
client that does not read would otherwise use up to tcp_wmem, usually 4 MiB, of uncounted memory.

A long queue also costs CPU time: what cannot be sent at once is sent later by timers. With 256 KiB
a megabyte read by 4 or 16 consumers cost 1.5 to 1.9 times as much. A socket is writable again when
half of it has left, so the smaller it is the more often a client on a slow network is served."""
_RESET = pack("ii", 1, 0)  # struct linger: on, zero seconds
_TCP_OPTIONS = {
    # A dead peer is detected in 7 minutes, whatever it waits for; with the kernel's defaults in two
    # hours.
    "TCP_KEEPIDLE": 300,
    "TCP_KEEPINTVL": 30,
    "TCP_KEEPCNT": 4,
    "TCP_NOTSENT_LOWAT": UNSENT_BYTES_MAX,
}


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def discard(_: object) -> None:
    """Discard bytes written while there is no socket."""


class ClientProtocol(asyncio.BufferedProtocol):
    """A socket and its Connection; the Connection's methods are the callbacks."""

    def __init__(
        self,
        host: Host,
        listener: str,
        logins: ListenerLogins | None = None,
        allowed: Sequence[Network] = (),
        limits: ListenerLimits | None = None,
    ) -> None:
        """`logins`: those of a listener with SASL. `allowed`: networks that may connect, empty: all
        of them. `limits`: those that the listener has of its own."""
        self._allowed = allowed
        self._limits = limits
        self.host = host
        self.connection = _connection(host, self, listener, logins)
        self._bind()
        self.transport: asyncio.Transport | None = None
        self.write: Callable[[list[Buffer]], None] = discard  # of connection.Wire
        self._sender: FileSender | None = None

    def _bind(self) -> None:
        """Make the Connection's methods the callbacks; once, because they run for each read."""
        received = self._measure_reads(self.connection.buffer_updated)
        for name, method in (
            ("get_buffer", self.connection.get_buffer),
            ("buffer_updated", received),
            ("pause_writing", self.connection.pause_writing),
            ("resume_writing", self.connection.resume_writing),
        ):
            setattr(self, name, method)

    def _measure_reads(self, receive: Callable[[int], None]) -> Callable[[int], None]:
        """Return `receive` with its time measured, for the watchdog and for quotas."""
        watchdog = self.host.watchdog
        if watchdog is None:
            return receive
        return MeasuredReads(self.connection, receive, watchdog, self._last_request).buffer_updated

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it if there are too many."""
        self.transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        host, port = peer[:2] if isinstance(peer, tuple) else ("local", 0)
        self.connection.set_client_host(str(host), int(port))
        if not (self._is_allowed(peer) and self._admit()):
            self.close(None)  # logged where it was refused
            self.connection.refuse_connection()
            return
        self.host.connections.add(self.connection)
        # The kernel takes what it can immediately; the transport buffers the rest.
        self.write = self.transport.writelines
        self.transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            _set_options(sock)
        self.host.arrivals.delay(self.connection)
        if self._limits is not None and (delay_ms := self._limits.delay_ms()):
            self.connection.throttle(delay_ms)

    def _admit(self) -> bool:
        """Return whether this connection is within all limits, and count it then."""
        host, connection = self.host, self.connection
        if not (host.admit() and host.arrivals.admit(connection.client_host)):
            return False
        limits = self._limits
        if limits is None or limits.admit():
            if connection.admit():
                return True
            if limits is not None:
                limits.note_closed()
        host.arrivals.note_closed(connection.client_host)
        return False

    def _is_allowed(self, peer: object) -> bool:
        """Return whether a client without encryption and log-in may connect from its address."""
        allowed = self._allowed
        if not allowed or not isinstance(peer, tuple):
            return True
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_loopback or any(address in network for network in allowed):
            return True
        self.host.log_closed(self.connection, "its address is not in plaintext.allowed.addresses")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Release its resources."""
        self._cancel_sender()
        if self.connection in self.host.connections:
            self.host.connections.remove(self.connection)
            self.host.arrivals.note_closed(self.connection.client_host)
            if self._limits is not None:
                self._limits.note_closed()
        self.connection.release_all()
        self.transport = None
        self.write = discard

    def eof_received(self) -> bool:
        """Close the connection when the client has closed its side, as in Kafka."""
        return False

    def _last_request(self) -> str:
        return self.host.last_request(self.connection)

    def pause_reading(self) -> None:
        """Stop reading; the kernel buffers the client's data."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Start reading again."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def unsent_bytes(self) -> int:
        """Bytes written that the kernel has not accepted yet, or of a file that is being sent."""
        if self._sender is not None:
            return self._sender.unsent_bytes
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def send_file(self, span: FileSpan) -> bool:
        """Send a span of a file; see `server.ports.Wire`."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True  # `connection_lost` follows
        assert not transport.get_write_buffer_size(), "responses would overtake each other"
        sender = FileSender(self.host.broker.env.offload, span, self._file_sent)
        try:
            if sender.send_now(transport.get_extra_info("socket").fileno()):
                return True
        except OSError as failure:
            self._file_sent(failure)
            return True
        self._sender = sender
        return False

    def _file_sent(self, failure: OSError | None) -> None:
        """A span has left, or cannot be sent: then its response cannot be completed."""
        self._sender = None
        if failure is None:
            self.connection.resume_writing()
        elif isinstance(failure, ConnectionError | TimeoutError):
            self.connection.finish()  # the client has disconnected
        else:
            self.connection.abort(f"a response cannot be sent from its file: {failure}")

    def _cancel_sender(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None

    def close(self, reason: str | None) -> None:
        """Close the socket; a reason is logged."""
        connection = self.connection
        if reason is not None:
            self.host.log_closed(connection, reason)
        if self.transport is not None:
            sock = self.transport.get_extra_info("socket")
            if sock is not None and self.unsent_bytes():
                # Its responses are cut off anyway; otherwise the kernel would retry for minutes to
                # send data to a client that does not read.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._cancel_sender()
            self.transport.abort()


def _set_options(sock: socket.socket) -> None:
    """Set the socket options of a client connection: NODELAY and KEEPALIVE as in Kafka, and
    limits."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            with suppress(OSError):  # not supported by the kernel: its defaults apply
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


async def listen_for_monitors(
    server: MonitoredServer, address: str, port: int, tls: Tls | None
) -> asyncio.Server:
    """Serve /metrics and /health on one address, encrypted if there is `tls`. Raises AddressError
    if it cannot be bound, or the file of tokens not used."""
    from kafkawire.server.http_pages import CONNECTIONS_MAX

    protocol = await monitor_protocol(server, tls)
    return await _open("metrics.listener", protocol, address, port, CONNECTIONS_MAX)


async def monitor_protocol(
    server: MonitoredServer, tls: Tls | None
) -> Callable[[], asyncio.Protocol]:
    """Return what makes the protocol of a monitor's connection. Raises AddressError if the file of
    tokens cannot be used."""
    # most brokers do without
    from kafkawire.server.http_pages import PageProtocol, open_tokens
    from kafkawire.server.tls.stream import TlsStream

    try:
        tokens = await open_tokens(server.broker.env, server.broker.config)
    except ValueError as wrong:
        raise AddressError(f"metrics.token.file: {wrong}") from None
    open_ones: dict[PageProtocol, None] = {}

    def protocol() -> asyncio.Protocol:
        page = PageProtocol(server, open_ones, tokens)
        return page if tls is None else TlsStream(tls, page)

    return protocol


def networks_of(texts: str) -> list[Network]:
    """Return the networks of plaintext.allowed.addresses. Raises AddressError."""
    try:
        return [
            ipaddress.ip_network(text.strip(), strict=False)
            for text in texts.split(",")
            if text.strip()
        ]
    except ValueError as wrong:
        raise AddressError(f"plaintext.allowed.addresses={texts}: {wrong}") from None


async def listen(
    listener: Listener, protocol: Callable[[], ClientProtocol], backlog: int
) -> asyncio.Server:
    """Accept connections of one listener, each with a new `protocol`. Raises AddressError if it
    cannot be bound."""
    return await _open("listen", protocol, listener.host, listener.port, backlog)


def _connection(host: Host, wire: Wire, listener: str, logins: ListenerLogins | None) -> Connection:
    if logins is None:
        return Connection(host, wire, "", listener)
    from kafkawire.server.sasl_connection import SaslConnection  # most brokers do without

    return SaslConnection(host, wire, "", listener, logins)


async def _open(
    option: str,
    factory: Callable[[], asyncio.BaseProtocol],
    address: str,
    port: int,
    backlog: int,
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(factory, address or None, port, backlog=backlog)
    except OSError as error:
        raise cannot_bind(option, address, port, error) from error
