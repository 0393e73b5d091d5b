"""Certificates for tests, and a client of a TlsProtocol without sockets."""

from __future__ import annotations

import asyncio
import datetime
import functools
import ssl
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kafkawire.cli.certs import Issued, issue, write
from kafkawire.metric_counters import Counts
from kafkawire.security.tls.contexts import TlsSettings, load
from kafkawire.server.tls.handshakes import Handshakes
from kafkawire.server.tls_wire import TlsProtocol
from tests.kit.connections import FakeHost


@functools.cache
def certificates() -> Path:
    """Return a folder with what `kafkawire certs make` writes; made once in a process."""
    folder = tempfile.mkdtemp(prefix="kafkawire-certs-")
    write(Path(folder), ["broker.test"], "alice", 2)
    return Path(folder)


def authority() -> Issued:
    from kafkawire.cli.certs import _authority

    return _authority(certificates(), 2)


def save(folder: Path, issued: Issued) -> Path:
    """Write certificate and key to one file."""
    path = folder / "both.pem"
    path.write_bytes(issued.certificate_pem() + issued.key_pem())
    return path


def expired_server(folder: Path) -> Path:
    """Return a file with a server certificate that expired yesterday."""
    ends = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    return save(folder, issue("localhost", authority(), 1, ["localhost"], ends=ends))


def client_named(folder: Path, *attributes: tuple[x509.ObjectIdentifier, str]) -> Path:
    """Return a file with a client certificate of this subject."""
    subject = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
    return save(folder, issue("", authority(), 1, subject=subject))


COMMON_NAME = NameOID.COMMON_NAME


def settings(client_auth: str = "none", **given: Any) -> TlsSettings:
    """Settings with the files of `certificates`."""
    made = certificates()
    values: dict[str, Any] = {
        "keystore": f"{made}/server.pem", "key": f"{made}/server.key",
        "truststore": f"{made}/ca.pem", "client_auth": client_auth,
        "protocols": ("TLSv1.2", "TLSv1.3"),
    }  # fmt: skip
    return TlsSettings(**{**values, **given})


def client_context(certificate: Path | None = None) -> ssl.SSLContext:
    """A context of a client that trusts the authority of the tests."""
    context = ssl.create_default_context(cafile=f"{certificates()}/ca.pem")
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


class FakeTls:
    """Stands for server.tls.listeners.Tls; its steps of handshakes run with the host's others."""

    def __init__(self, host: FakeHost, client_auth: str = "none", name: str = "someone") -> None:
        self.contexts = load(settings(client_auth))
        self.certificates = SimpleNamespace(principal_of=lambda certificate: ("User", name))
        self.handshakes = Handshakes(lambda: host.now_s, host.call_soon, lambda *_: None)
        self.outgoing = ssl.MemoryBIO()
        self.buffer = memoryview(bytearray(1 << 18))

    def context(self, asks_clients: bool) -> ssl.SSLContext:
        return self.contexts.asking if asks_clients else self.contexts.silent


class FakeTransport(asyncio.Transport):
    """A socket whose client takes `room` more bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.sent = bytearray()
        self.buffered = bytearray()
        self.room = 1 << 60
        self.writes = 0
        self.reading = True
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.9", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        self.writes += 1
        before = len(self.buffered)
        self.buffered += b"".join(list_of_data)
        self.take()
        if self.buffered and not before:
            self.protocol.pause_writing()

    def write(self, data: Any) -> None:
        self.writelines([data])

    def take(self) -> None:
        """The client reads as much as it has room for."""
        count = min(self.room, len(self.buffered))
        self.sent += self.buffered[:count]
        del self.buffered[:count]
        self.room -= count

    def give_room(self, count: int) -> None:
        """The client reads `count` more bytes."""
        waited = bool(self.buffered)
        self.room += count
        self.take()
        if waited and not self.buffered:
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.buffered)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


class TlsClient:
    """A client of a TlsProtocol, in memory. `ended`: the broker has said that it closes."""

    def __init__(
        self,
        context: ssl.SSLContext | None = None,
        host: FakeHost | None = None,
        tls: FakeTls | None = None,
    ) -> None:
        self.host = host or FakeHost()
        self.tls = tls or FakeTls(self.host)
        self.log: list[str] = []
        self.timers: deque[Callable[[], None]] = deque()
        self.counts = Counts()
        self._complete_host()
        any_host: Any = self.host
        any_tls: Any = self.tls
        self.protocol = TlsProtocol(any_tls, any_host, "TLS")
        self.connection = self.protocol.connection
        self.transport = FakeTransport()
        self.transport.protocol = self.protocol
        self.protocol.connection_made(self.transport)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = (context or client_context()).wrap_bio(
            self._incoming, self._outgoing, server_hostname="localhost"
        )
        self.ended = False

    def _complete_host(self) -> None:
        """Add what a ClientProtocol uses of the host."""
        host: Any = self.host
        host.watchdog = None
        host.connections = set()
        host.admit = lambda: True
        host.arrivals = SimpleNamespace(
            admit=lambda _: True, delay=lambda _: None, note_closed=lambda _: None
        )
        host.log_closed = lambda connection, reason: self.log.append(reason)
        audit = SimpleNamespace(authentication_failed=lambda *_, **__: None)
        host.broker = SimpleNamespace(
            env=SimpleNamespace(call_later=self._call_later),
            counts=self.counts,
            security=SimpleNamespace(audit=audit),
        )

    def _call_later(self, _delay_s: float, fn: Callable[[], None]) -> SimpleNamespace:
        self.timers.append(fn)
        return SimpleNamespace(cancel=lambda: None)

    def feed(self, data: bytes, step: int = 1 << 30) -> None:
        """Pass bytes as the socket would, up to `step` at a time, while it is read."""
        at = 0
        while at < len(data) and not self.transport.closed:
            if not self.transport.reading:
                self.host.run()
                if not self.transport.reading:
                    self.unread = data[at:]
                    return
            room = self.protocol.get_buffer(-1)
            count = min(len(room), step, len(data) - at)
            room[:count] = data[at : at + count]
            at += count
            self.protocol.buffer_updated(count)
        self.host.run()

    unread = b""

    def shake(self, step: int = 1 << 30) -> None:
        """Do the handshake. ssl.SSLError if the broker refuses it."""
        for _ in range(9):
            try:
                self.object.do_handshake()
            except ssl.SSLWantReadError:
                pass
            else:
                self.feed(self._outgoing.read(), step)
                return
            self.feed(self._outgoing.read(), step)
            self._receive()
        raise AssertionError("the handshake does not end")

    def _receive(self) -> None:
        self._incoming.write(bytes(self.transport.sent))
        self.transport.sent.clear()

    def encrypted(self, data: bytes) -> bytes:
        """Return the bytes of a client that sends this."""
        at = 0
        while at < len(data):
            at += self.object.write(data[at:])
        return self._outgoing.read()

    def received(self) -> bytes:
        """Return what the broker has sent so far, decrypted."""
        self._receive()
        found = bytearray()
        while True:
            try:
                piece = self.object.read(1 << 16)
            except ssl.SSLWantReadError:
                return bytes(found)
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.ended = True
                return bytes(found)
            found += piece


def empty_subjects() -> dict[str, bytes]:
    """DER certificates without a subject, by their alternative names."""
    key = ec.generate_private_key(ec.SECP256R1())
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    named = x509.SubjectAlternativeName([x509.DNSName("client")])
    kinds: dict[str, list[tuple[x509.ExtensionType, bool]]] = {
        "critical": [(named, True)],
        "not critical": [(named, False)],
        "critical but empty": [(x509.SubjectAlternativeName([]), True)],
        "none": [],
    }
    made = {}
    for kind, extensions in kinds.items():
        builder = x509.CertificateBuilder(
            issuer_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")]),
            subject_name=x509.Name([]),
            public_key=key.public_key(),
            serial_number=1,
            not_valid_before=at,
            not_valid_after=at.replace(year=2126),
        ).add_extension(x509.BasicConstraints(False, None), critical=True)
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        made[kind] = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
    return made
