"""A client's socket with TLS: decrypts into the receive memory, encrypts responses.

Bytes are received into a buffer that all TLS connections share, and given to OpenSSL record by
record, so that a connection keeps at most one incomplete record. What a connection does not read
now (its requests wait) moves to a block of the receive memory, which is counted. Responses are cut
into full records, their small parts joined; a long one is encrypted in steps, and never further
than the client reads.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkawire.codec.types import Buffer
from kafkawire.security.tls.mapping import RuleError
from kafkawire.security.tls.names import SubjectError
from kafkawire.server.listener import ClientProtocol
from kafkawire.server.tls.handshakes import HANDSHAKE_TIMEOUT_S
from kafkawire.server.tls.records import HANDSHAKE, RECORD_BYTES, Records, TlsRecordError

if TYPE_CHECKING:
    from kafkawire.server.host import Host
    from kafkawire.server.listeners.limits import ListenerLimits
    from kafkawire.server.listeners.logins import ListenerLogins
    from kafkawire.server.memory import Block
    from kafkawire.server.tls.listeners import Tls

HANDSHAKE_BYTES_MAX = 64 << 10
"""Maximum bytes of a client before its handshake is finished; chains of certificates have 10 KiB,
and the first requests may follow at once."""
READ_AT_HANDSHAKE_BYTES = 16 << 10
ENCRYPT_BYTES = 1 << 20
"""Bytes encrypted in an event-loop iteration for one connection: half a millisecond."""
WRITE_BYTES = 256 << 10
"""Bytes encrypted before the socket is written: what a client that does not read costs."""
RECORDS_AT_ONCE = 2
"""Records encrypted before the outgoing BIO is emptied, which keeps the memory for them: 44 KB. One
is a fifth slower, four are no faster."""


class TlsProtocol(ClientProtocol):
    """A socket with TLS and its Connection."""

    sends_files = False  # they have to be encrypted

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
        self._outgoing = ssl.MemoryBIO()
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
        self._plain: deque[memoryview] = deque()  # to be encrypted
        self._plain_bytes = 0
        self._blocked = False  # the client has not read what is encrypted
        self._scheduled = False  # `_encrypt_more` is

    def _bind(self) -> None:
        """Keep the callbacks of this class; the Connection's have no encryption."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection; it has a time limit for the handshake."""
        super().connection_made(transport)
        if not self.connection.closed:
            self.write = self._write
            later = self.host.broker.env.call_later
            self._deadline = later(HANDSHAKE_TIMEOUT_S, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release its resources."""
        super().connection_lost(exc)
        self._end_handshake()
        self._release_kept()
        self._plain.clear()
        self._plain_bytes = 0
        self._object = self._incoming = None
        self._early = None

    def _end_handshake(self) -> None:
        self._tls.handshakes.forget(self)
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
        watchdog = self.host.watchdog
        if not self._established:
            self._shake(self._tls.buffer[:count])
        elif watchdog is None:
            self._take(self._tls.buffer, 0, count)
        else:
            connection = self.connection
            begun = watchdog.begin()
            self._take(self._tls.buffer, 0, count)
            now = watchdog.end(begun, self._last_request)
            if connection.sampled_tick != connection.tick:
                connection.sample(begun, now)

    def _shake(self, data: memoryview) -> None:
        """Collect bytes of the handshake; a whole record is processed when others have been."""
        if self.connection.closed:
            return
        self._handshake_bytes += len(data)
        try:
            if self._handshake_bytes == len(data) and data[0] != HANDSHAKE:
                raise TlsRecordError("its client does not speak TLS")
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
            self._tls.handshakes.forget(self)  # closed while it waited for its step
            return
        shaking, incoming = self._object, self._incoming
        if shaking is None or incoming is None:
            incoming = self._incoming = ssl.MemoryBIO()
            shaking = self._tls.context(self._asks_clients).wrap_bio(
                incoming, self._outgoing, server_side=True
            )
            self._object = shaking
            incoming.write(self._early or b"")
            self._early = None
        try:
            shaking.do_handshake()
        except ssl.SSLWantReadError:
            self._send_control()
            super().resume_reading()
        except ssl.SSLError as error:
            self._send_control()
            self._refuse(f"the TLS handshake failed: {reason_of(error)}")
        else:
            self._send_control()
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
                self.connection.authenticated(self._tls.certificates.principal_of(certificate))
            except (SubjectError, RuleError) as wrong:
                self._refuse(f"the certificate of its client has no principal: {wrong}")
                return
        self._established = True
        super().resume_reading()
        self._take(self._tls.buffer, 0, 0)  # requests that arrived with the handshake

    def _take(self, data: memoryview, at: int, end: int) -> int:
        """Decrypt [at, end), and keep what the connection does not read now. Hot."""
        try:
            at = self._decrypt(data, at, end)
        except (ssl.SSLError, TlsRecordError) as error:
            self._send_control()
            self.connection.abort(f"TLS: {reason_of(error)}")
            return end
        if self._outgoing.pending:
            self._send_control()
        if at < end and self._kept is None and not self.connection.closed:
            rest = end - at
            block = self.host.memory.take(self, rest, rest, force=True)  # received already
            if block is not None:
                block.view[:rest] = data[at:end]
                self._kept, self._kept_at, self._kept_end = block, 0, rest
        return at

    def _decrypt(self, data: memoryview, at: int, end: int) -> int:  # noqa: C901 (hot: no calls)
        """Pass the data of [at, end) to the connection; return where it stopped reading. Hot."""
        opened, incoming, connection = self._object, self._incoming, self.connection
        if opened is None or incoming is None or connection.closed:
            return end
        records, read = self._records, opened.read
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
                continue
            if not count:
                ended = True  # the client will send nothing more
                break
            filled += count
            if filled == len(room):
                connection.received(filled)
                filled = 0
                if connection.closed:
                    return end
                drain = drain or opened.pending() > 0
                if self._paused:
                    self._drain = drain
                    return at
                room = connection.get_buffer(-1)
        if filled:
            connection.received(filled)
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
        kept = self._kept
        if self._paused or self.connection.closed:
            return
        if kept is None:
            self._take(self._tls.buffer, 0, 0)
        else:
            self._kept_at = self._take(kept.view, self._kept_at, self._kept_end)
            if self._kept_at == self._kept_end:
                self._release_kept()
        if not self._paused:
            super().resume_reading()

    def _release_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self.host.memory.give(kept)

    # Sending

    def unsent_bytes(self) -> int:
        """Bytes that are not encrypted yet, and those that the kernel has not accepted."""
        return self._plain_bytes + super().unsent_bytes()

    def _write(self, parts: list[Buffer]) -> None:
        """Encrypt and send these buffers. Hot."""
        shaken, transport = self._object, self.transport
        if shaken is None or transport is None:
            return
        size = sum(map(len, parts))
        if size <= RECORD_BYTES and not self._plain:
            shaken.write(parts[0] if len(parts) == 1 else b"".join(parts))
            transport.write(self._outgoing.read())
            return
        self._plain += [memoryview(part).cast("B") for part in parts if len(part)]
        self._plain_bytes += size
        if not (self._blocked or self._scheduled):
            self._encrypt()
            if self._plain:
                self.connection.pause_writing()

    def _encrypt(self) -> None:
        """Encrypt and send until the client must read first, at most ENCRYPT_BYTES at once."""
        shaken, transport, outgoing = self._object, self.transport, self._outgoing
        until = self._plain_bytes - ENCRYPT_BYTES
        while self._plain and not self._blocked:
            if shaken is None or transport is None or transport.is_closing():
                return
            if self._plain_bytes <= until:
                self._scheduled = True  # others first
                self.host.call_soon(self._encrypt_more)
                return
            encrypted: list[bytes] = []
            pause = self._plain_bytes - WRITE_BYTES
            while self._plain and self._plain_bytes > pause:
                for _ in range(RECORDS_AT_ONCE):
                    if self._plain:
                        shaken.write(self._next_record())
                encrypted.append(outgoing.read())
            transport.writelines(encrypted)

    def _encrypt_more(self) -> None:
        self._scheduled = False
        self._encrypt()
        if not (self._plain or self._blocked or self.connection.closed):
            self.connection.resume_writing()

    def _next_record(self) -> Buffer:
        """Take the data of the next record: a view of one part, or several small ones joined."""
        plain = self._plain
        first = plain[0]
        if len(first) > RECORD_BYTES:
            plain[0] = first[RECORD_BYTES:]
            self._plain_bytes -= RECORD_BYTES
            return first[:RECORD_BYTES]
        if len(first) == RECORD_BYTES or len(plain) == 1:
            self._plain_bytes -= len(first)
            return plain.popleft()
        joined = bytearray()
        while plain and len(joined) < RECORD_BYTES:
            first = plain.popleft()
            room = RECORD_BYTES - len(joined)
            joined += first[:room]
            if len(first) > room:
                plain.appendleft(first[room:])
        self._plain_bytes -= len(joined)
        return joined

    def pause_writing(self) -> None:
        """The socket takes no more: encrypt nothing more."""
        self._blocked = True
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        """The socket has taken all that was encrypted: continue."""
        self._blocked = False
        if not self._scheduled:
            self._encrypt_more()

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
