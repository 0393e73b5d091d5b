"""TLS between sockets and connections, with a client in memory."""

from __future__ import annotations

import ssl
from struct import pack

import pytest

from kafkawire.server.tls.handshakes import HANDSHAKE_TIMEOUT_S
from kafkawire.server.tls.sender import ENCRYPT_BYTES, PIECE_BYTES
from kafkawire.server.tls_wire import HANDSHAKE_BYTES_MAX
from tests.kit.connections import COLD, ECHO, SLOW, FakeHost, frame
from tests.kit.tls import FakeTls, TlsClient, certificates, client_context


def established() -> TlsClient:
    client = TlsClient()
    client.shake()
    return client


def echo(correlation: int, body: bytes) -> bytes:
    return pack(">ii", 4 + len(body), correlation) + body


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_and_responses_are_encrypted(version: ssl.TLSVersion) -> None:
    context = client_context()
    context.minimum_version = context.maximum_version = version
    client = TlsClient(context)
    client.shake()
    client.feed(client.encrypted(frame(ECHO, 7, b"hello")))
    assert b"hello" not in client.transport.sent
    assert client.received() == echo(7, b"hello")
    assert client.object.version() == version.name.replace("_", ".")


def test_every_split_of_the_bytes_of_a_client() -> None:
    for step in (1, 2, 3, 5, 7, 100, 515, 516, 517, 518):
        client = TlsClient()
        client.shake(step)
        client.feed(client.encrypted(frame(ECHO, 1, b"one") + frame(ECHO, 2, b"two")), step)
        assert client.received() == echo(1, b"one") + echo(2, b"two"), step


def test_each_cut_of_two_records() -> None:
    client = established()
    for cut in range(60):
        data = client.encrypted(frame(ECHO, cut, b"a")) + client.encrypted(frame(ECHO, -1, b"b"))
        client.feed(data[:cut])
        client.feed(data[cut:])
        assert client.received() == echo(cut, b"a") + echo(-1, b"b")


def test_requests_in_the_same_bytes_as_the_end_of_the_handshake() -> None:
    client = TlsClient()
    with pytest.raises(ssl.SSLWantReadError):
        client.object.do_handshake()
    client.feed(client._outgoing.read())
    client._receive()
    client.object.do_handshake()
    finished = client._outgoing.read()
    client.feed(finished + client.encrypted(frame(ECHO, 1, b"early")))
    assert client.received() == echo(1, b"early")


@pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 16_385, 100_000, 3_000_000])
def test_large_requests_and_responses(size: int) -> None:
    client = established()
    body = bytes(size) + b"end"
    client.feed(client.encrypted(frame(ECHO, 1, body)), 100_000)
    assert client.received() == echo(1, body)


def test_small_parts_share_records() -> None:
    client = established()
    parts = [b"%05d" % number for number in range(5000)]
    client.protocol.write(list(parts))
    assert len(client.transport.sent) < 25_000 + 40 * 2
    assert client.received() == b"".join(parts)


def test_a_long_response_is_encrypted_in_steps() -> None:
    client = established()
    client.protocol.write([b"head", memoryview(bytes(3 * ENCRYPT_BYTES)), b"tail"])
    assert client.protocol.unsent_bytes() >= 2 * ENCRYPT_BYTES - PIECE_BYTES
    assert client.connection.waits  # no further request starts, and the bytes stay pinned
    assert len(client.host.soon) == 1
    client.host.run()
    assert client.protocol.unsent_bytes() == 0
    assert not client.connection.waits
    assert client.received() == b"head" + bytes(3 * ENCRYPT_BYTES) + b"tail"


def test_a_client_that_does_not_read_costs_one_write() -> None:
    client = established()
    client.transport.room = 1000
    client.protocol.write([memoryview(bytes(2 * ENCRYPT_BYTES))])
    client.host.run()
    assert len(client.transport.buffered) <= PIECE_BYTES + 1000
    assert client.connection.waits
    received = bytearray()
    while client.protocol.unsent_bytes():
        client.transport.give_room(100_000)
        client.host.run()
        received += client.received()
    assert received == bytes(2 * ENCRYPT_BYTES)
    assert not client.connection.waits


def test_what_a_paused_connection_received_is_kept_and_counted() -> None:
    client = established()
    held = client.host.slow
    requests = [frame(SLOW, number, bytes(100_000)) for number in range(90)]
    client.feed(client.encrypted(b"".join(requests)), 1 << 17)
    assert not client.transport.reading
    assert client.host.memory.taken_bytes > 0
    rest = client.unread
    while len(held.seen) < len(requests):
        while held.held:
            held.write()
        client.host.run()
        if rest and client.transport.reading:
            client.unread = b""
            client.feed(rest, 1 << 17)
            rest = client.unread
    while held.held:
        held.write()
    client.host.run()
    assert client.protocol._kept is None
    assert client.received() == b"".join(echo(number, b"ok") for number in range(90))


def test_a_closed_connection_releases_what_it_kept() -> None:
    client = established()
    before = client.host.memory.taken_bytes
    requests = b"".join(frame(SLOW, number, bytes(100_000)) for number in range(90))
    client.feed(client.encrypted(requests), 1 << 17)
    assert client.protocol._kept is not None
    client.connection.abort("test")
    client.protocol.connection_lost(None)
    while client.host.slow.held:
        client.host.slow.held.popleft()[1].unpin()
    assert client.host.memory.taken_bytes == before


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"QUIT", "does not speak TLS, which this listener requires: set security.protocol=SSL"),
        (frame(ECHO, 1, b"plain"), "does not speak TLS"),
        (b"\x16\x03\x01\xff\xff" + bytes(10), "a TLS record of 65535 bytes"),
        (b"\x16\x03\x01\x00\x05" + b"abcde", "handshake failed"),
        (b"\x16\x03\x01\x00\x00" * 5000, "TLS handshake"),
        (b"\x16\x00\x00\x00\x04abcd", "handshake failed"),
    ],
)
def test_garbage_closes_with_a_reason(data: bytes, reason: str) -> None:
    for step in (1, 1 << 20):
        client = TlsClient()
        client.feed(data, step)
        assert client.transport.closed
        (line,) = client.log
        assert reason in line


def test_nothing_is_decoded_before_the_handshake_is_finished() -> None:
    client = TlsClient()
    client.feed(b"\x16\x03\x01\x40\x00" + bytes(100))
    assert client.protocol._object is None, "OpenSSL's memory is taken for a whole record only"
    client.feed(frame(ECHO, 1, b"x"))
    assert client.host.echo.seen == []


def test_a_handshake_of_too_many_bytes_is_refused() -> None:
    client = TlsClient()
    with pytest.raises(ssl.SSLWantReadError):
        client.object.do_handshake()
    client.feed(client._outgoing.read())
    client.feed((b"\x17\x03\x03\x40\x00" + bytes(1 << 14)) * (HANDSHAKE_BYTES_MAX >> 14))
    assert client.transport.closed


def test_a_handshake_has_a_time_limit() -> None:
    client = TlsClient()
    (late,) = client.timers
    late()
    assert client.transport.closed
    assert client.log == [f"the TLS handshake was not finished in {HANDSHAKE_TIMEOUT_S:g} s"]


def test_a_changed_byte_closes_the_connection() -> None:
    client = established()
    data = bytearray(client.encrypted(frame(ECHO, 1, b"x")))
    data[-1] ^= 1
    client.feed(bytes(data))
    assert client.transport.closed
    assert client.host.echo.seen == []
    assert "TLS: " in client.log[0]


def test_both_sides_say_that_they_close() -> None:
    client = established()
    client.connection.finish()
    assert client.received() == b""
    assert client.ended
    client = established()
    with pytest.raises(ssl.SSLWantReadError):
        client.object.unwrap()
    client.feed(client._outgoing.read())
    assert client.transport.closed
    assert client.log == []


def test_old_versions_and_weak_suites_are_refused() -> None:
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    for suites in ("AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-SHA256", "DHE-RSA-AES128-GCM-SHA256"):
        context.set_ciphers(suites)
        with pytest.raises(ssl.SSLError):
            TlsClient(context).shake()


@pytest.mark.parametrize("auth", ["none", "requested", "required"])
def test_a_certificate_of_a_client_gives_it_a_principal(auth: str) -> None:
    both = certificates() / "client-both.pem"
    both.write_bytes(
        b"".join((certificates() / f"client.{kind}").read_bytes() for kind in ("pem", "key"))
    )
    host = FakeHost()
    client = TlsClient(client_context(both), host, FakeTls(host, auth, "alice"))
    client.shake()
    name = "ANONYMOUS" if auth == "none" else "alice"
    assert tuple(client.connection.principal) == ("User", name)


def test_a_client_without_certificate() -> None:
    host = FakeHost()
    client = TlsClient(None, host, FakeTls(host, "requested"))
    client.shake()
    assert str(client.connection.principal) == "User:ANONYMOUS"
    host = FakeHost()
    client = TlsClient(None, host, FakeTls(host, "required"))
    client.shake()  # with TLS 1.3 the client has finished before the broker refuses
    assert client.transport.closed
    assert "peer did not return a certificate" in client.log[0]
    assert client.counts.log_ins == {("TLS", "failed"): 1}


def test_other_requests_are_served_while_one_is() -> None:
    client = established()
    client.feed(client.encrypted(frame(COLD, 1, b"x")))
    assert len(client.host.cold) == 1


def test_a_client_that_left_before_its_first_step_takes_no_place() -> None:
    client = TlsClient()
    with pytest.raises(ssl.SSLWantReadError):
        client.object.do_handshake()
    hello = client._outgoing.read()
    room = client.protocol.get_buffer(-1)
    room[: len(hello)] = hello
    client.protocol.buffer_updated(len(hello))  # waits for its step
    client.connection.closed = True
    client.protocol.connection_lost(None)
    client.host.run()
    assert client.tls.handshakes._started == {}
