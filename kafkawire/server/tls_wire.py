"""A client's socket with TLS: decrypts into the receive memory, encrypts responses.

Bytes are received into a buffer that all TLS connections share, and given to OpenSSL record by
record, so that a connection keeps at most one incomplete record. What a connection does not read
now (its requests wait) moves to a block of the receive memory, which is counted. Responses are cut
into full records by `tls.sender`. OpenSSL writes into a BIO that all connections share, too: it is
emptied after each call that may write, before another connection can be served.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkawire.log.io.file_span import FileSpan
from kafkawire.security.tls.mapping import RuleError, SubjectError
from kafkawire.server.connection import other_protocol
from kafkawire.server.listener import ClientProtocol, discard
from kafkawire.server.tls.handshakes import HANDSHAKE_TIMEOUT_S
from kafkawire.server.tls.records import HANDSHAKE, Records, TlsRecordError
from kafkawire.server.tls.sender import TlsSender

if TYPE_CHECKING:
    from kafkawire.server.host import Host
    from kafkawire.server.listeners.limits import ListenerLimits
    from kafkawire.server.listeners.logins import ListenerLogins
    from kafkawire.server.memory import Block
    from kafkawire.server.tls.listeners import Tls

HANDSHAKE_BYTES_MAX = 64 << 10
"""Maximum bytes of a client before its handshake is finished; chains of certificates have 10 KiB,
and the first requests may follow at once."""
NO_TLS = (
    "its client does not speak TLS, which this listener requires: set security.protocol=SSL or "
    "SASL_SSL for the client, or connect it to a listener without TLS"
)
READ_AT_HANDSHAKE_BYTES = 16 << 10


class TlsProtocol(ClientProtocol):
    """A socket with TLS and its Connection."""

    def __init__(
        self,
        tls: Tls,
        host: Host,
        listener: str,
        logins: ListenerLogins | None = None,
        limits: ListenerLimits | None = None,
        *,
        asks_clients: bool = True,
    ) -> None:
        """`asks_clients`: for a certificate, if `ssl.client.auth` says so."""
        super().__init__(host, listener, logins, limits=limits)
        self._tls = tls
        self._asks_clients = asks_clients
        self._logs_in = logins is not None  # its principal is not that of its certificate
        self._incoming: ssl.MemoryBIO | None = None
        self._outgoing = tls.outgoing
        self._object: ssl.SSLObject | None = None
        self._established = False
        self._early: bytearray | None = bytearray()  # before the first step
        self._handshake_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._records = Records()
        self._paused = False  # the connection does not read
        self._drain = True  # data is in OpenSSL, such as what followed the handshake
        self._kept: Block | None = None  # received bytes [_kept_at, _kept_end) of a paused one
        self._kept_at = self._kept_end = 0
        self._sending: TlsSender | None = None  # from the first step of the handshake on
        self._receive = self._measure_reads(self._take_received)

    def _bind(self) -> None:
        """Keep the callbacks of this class; the Connection's have no encryption."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection; it has a time limit for the handshake."""
        super().connection_made(transport)
        if not self.connection.closed:
            self.write = discard  # nothing may leave before the handshake is finished
            later = self.host.broker.env.call_later
            self._deadline = later(HANDSHAKE_TIMEOUT_S, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release its resources."""
        super().connection_lost(exc)
        self._end_handshake()
        self._release_kept()
        self._object = self._incoming = self._sending = None
        self._early = None

    def _end_handshake(self) -> None:
        self._tls.handshakes.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        self.connection.abort(f"the TLS handshake was not finished in {HANDSHAKE_TIMEOUT_S:g} s")

    def give_way(self) -> None:
        """Close the connection in its handshake; see `tls.handshakes`."""
        self.connection.abort("its client does not continue the TLS handshake, and others wait")

    # Receiving

    def get_buffer(self, _hint: int) -> memoryview:
        """Return the shared buffer; its bytes are used before another socket is read."""
        if self._established:
            return self._tls.buffer
        return self._tls.buffer[:READ_AT_HANDSHAKE_BYTES]

    def buffer_updated(self, count: int) -> None:
        """Decrypt what was received, and start requests."""
        if self._established:
            self._receive(count)
        else:
            self._shake(self._tls.buffer[:count])

    def _take_received(self, count: int) -> None:
        """Decrypt what was kept, or received just now."""
        kept = self._kept
        if kept is None:
            self._take(self._tls.buffer, 0, count)
            return
        self._kept_at = self._take(kept.view, self._kept_at, self._kept_end)
        if self._kept_at == self._kept_end:
            self._release_kept()

    def _shake(self, data: memoryview) -> None:
        """Collect bytes of the handshake; a whole record is processed when others have been."""
        if self.connection.closed:
            return
        self._handshake_bytes += len(data)
        try:
            if self._handshake_bytes == len(data) and data[0] != HANDSHAKE:
                raise TlsRecordError(other_protocol(data) or NO_TLS)
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                raise TlsRecordError(f"the TLS handshake has over {HANDSHAKE_BYTES_MAX} bytes")
            complete = self._records.skip(data)
        except TlsRecordError as wrong:
            self.connection.abort(str(wrong))
            return
        if self._early is not None:
            self._early += data
        elif self._incoming is not None:
            self._incoming.write(data)
        if complete:
            super().pause_reading()
            self._tls.handshakes.enqueue(self)

    def step(self) -> None:
        """Do a step of the handshake."""
        if self.connection.closed or self.transport is None:
            self._tls.handshakes.remove(self)  # closed while it waited for its step
            return
        shaking, incoming = self._object, self._incoming
        if shaking is None or incoming is None:
            incoming = self._incoming = ssl.MemoryBIO()
            shaking = self._tls.context(self._asks_clients).wrap_bio(
                incoming, self._outgoing, server_side=True
            )
            self._object = shaking
            self._sending = TlsSender(
                shaking, self._outgoing, self.transport, self.connection, self.host
            )
            self.connection.encrypted = True
            incoming.write(self._early or b"")
            self._early = None
        try:
            try:
                shaking.do_handshake()
            finally:
                self._send_control()
        except ssl.SSLWantReadError:
            super().resume_reading()
        except ssl.SSLError as error:
            self._refuse(f"the TLS handshake failed: {reason_of(error)}")
        else:
            self._finish_handshake(shaking)

    def _refuse(self, reason: str) -> None:
        """Close the connection of a client that TLS does not accept, and record it."""
        connection = self.connection
        self.host.broker.counts.logged_in("TLS", "failed")
        self.host.broker.security.audit.authentication_failed(
            connection.client_host, connection.listener, "TLS", reason
        )
        connection.abort(reason)

    def _finish_handshake(self, shaken: ssl.SSLObject) -> None:
        self._end_handshake()
        certificate = shaken.getpeercert(True)
        if certificate is not None and not self._logs_in:
            try:
                self.connection.set_principal(self._tls.certificates.principal_of(certificate))
            except (SubjectError, RuleError) as wrong:
                self._refuse(f"the certificate of its client has no principal: {wrong}")
                return
        self._established = True
        if self._sending is not None:
            self.write = self._sending.write
        super().resume_reading()
        self._receive(0)  # requests that arrived with the handshake

    def _take(self, data: memoryview, at: int, end: int) -> int:
        """Decrypt [at, end), and keep what the connection does not read now. Hot."""
        try:
            at = self._decrypt(data, at, end)
        except (ssl.SSLError, TlsRecordError) as error:
            self._send_control()
            self.connection.abort(f"TLS: {reason_of(error)}")
            return end
        if at < end and self._kept is None and not self.connection.closed:
            rest = end - at
            block = self.host.memory.reserve(self, rest, rest, force=True)  # received already
            if block is not None:
                block.view[:rest] = data[at:end]
                self._kept, self._kept_at, self._kept_end = block, 0, rest
        return at

    def _decrypt(self, data: memoryview, at: int, end: int) -> int:  # noqa: C901 (hot: no calls)
        """Pass the data of [at, end) to the connection; return where it stopped reading. Hot."""
        opened, incoming, connection = self._object, self._incoming, self.connection
        if opened is None or incoming is None or connection.closed:
            return end
        records, read, outgoing = self._records, opened.read, self._outgoing
        drain, self._drain = self._drain, False
        room = connection.get_buffer(-1)
        filled, ended = 0, False
        while drain or at < end:
            if not drain:
                stop = records.piece(data, at, end)
                incoming.write(data[at:stop])
                at = stop
                if records.incomplete:
                    continue
            try:
                count = int(read(len(room) - filled, room[filled:]))
            except ssl.SSLWantReadError:
                drain = False  # all is read, or the record has no data: a change of keys
                if outgoing.pending:  # the answer to it; before another connection writes
                    self._send_control()
                continue
            if outgoing.pending:
                self._send_control()
            if not count:
                ended = True  # the client will send nothing more
                break
            filled += count
            if filled == len(room):
                connection.buffer_updated(filled)
                filled = 0
                if connection.closed:
                    return end
                drain = drain or opened.pending() > 0
                if self._paused:
                    self._drain = drain
                    return at
                room = connection.get_buffer(-1)
        if filled:
            connection.buffer_updated(filled)
        if ended:
            connection.finish()
        return at

    def pause_reading(self) -> None:
        """Stop reading; what was received already is kept."""
        self._paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Start reading again, after what was received already."""
        self._paused = False
        if self._kept is None and not self._drain:
            super().resume_reading()
        else:
            self.host.call_soon(self._continue)

    def _continue(self) -> None:
        """Decrypt what was received before the connection stopped reading."""
        if self._paused or self.connection.closed:
            return
        self._receive(0)
        if not self._paused:
            super().resume_reading()

    def _release_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self.host.memory.give(kept)

    # Sending

    def unsent_bytes(self) -> int:
        """Bytes that are not encrypted yet, and those that the kernel has not accepted."""
        waiting = 0 if self._sending is None else self._sending.unsent_bytes()
        return waiting + super().unsent_bytes()

    def send_file(self, span: FileSpan) -> bool:
        """Encrypt and send a span of a file; see `server.ports.Wire`."""
        return True if self._sending is None else self._sending.send_file(span)

    def _cancel_sender(self) -> None:
        super()._cancel_sender()
        if self._sending is not None:
            self._sending.cancel()

    def pause_writing(self) -> None:
        """The socket takes no more: encrypt nothing more."""
        if self._sending is not None:
            self._sending.pause()
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """The socket has taken all that was encrypted: continue."""
        if self._sending is None:
            self.connection.resume_writing()
        else:
            self._sending.resume()

    def _send_control(self) -> None:
        """Send what OpenSSL has written by itself: the handshake, alerts, changes of keys."""
        data = self._outgoing.read()
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self, reason: str | None) -> None:
        """Close the socket, after a note to the client that nothing more will be sent."""
        if self._established and self._object is not None and not self.unsent_bytes():
            with suppress(ssl.SSLError):  # it does not wait for the client's note
                self._object.unwrap()
            self._send_control()
        super().close(reason)


def reason_of(error: Exception) -> str:
    """Return what OpenSSL says of a failure, without its source line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error)
