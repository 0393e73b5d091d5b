"""Responses with spans of files over TLS: order, bytes, reads by threads, clients that read slowly.

Covers: kafkawire.server.tls.sender.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from kafkawire.log.io.file_span import FileSpan
from kafkawire.server.tls import sender
from tests.kit.connections import ECHO, SLOW, FakeHost, frame
from tests.kit.file_answers import FromFile
from tests.kit.memfs import MemFile
from tests.kit.tls import FakeTls, TlsClient


class HeldOffload:
    """Calls that threads do when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def submit(self, pool: str, fn: Any, *args: Any) -> Future[Any]:
        assert pool == "send"
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args))
            except OSError as failure:
                future.set_exception(failure)

        self.calls.append(run)
        return future


def connected(
    files: FromFile, tls: FakeTls | None = None, host: FakeHost | None = None
) -> TlsClient:
    if host is None:
        host = FakeHost()
        host.apis[SLOW].hot = files
    client = TlsClient(host=host, tls=tls)
    host_of_tests: Any = host
    host_of_tests.broker.env.offload = HeldOffload()
    client.shake()
    return client


def work(client: TlsClient) -> bool:
    """Run what is due on the event loop and in threads; False if nothing was."""
    host: Any = client.host
    calls: list[Callable[[], None]] = host.broker.env.offload.calls
    due = bool(calls or client.host.soon)
    while calls:
        calls.pop(0)()
    client.host.run()
    return due


def responses(data: bytes | bytearray) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        found.append((int.from_bytes(data[at + 4 : at + 8]), bytes(data[at + 8 : at + 4 + size])))
        at += 4 + size
    return found


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "PIECE_BYTES", 7_000)
    monkeypatch.setattr(sender, "ENCRYPT_BYTES", 20_000)
    monkeypatch.setattr(sender, "THREAD_BYTES", 15_000)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_and_order_of_two_clients(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in the page cache, and however the clients read. What OpenSSL writes for one
    never reaches the other."""
    rng = random.Random(seed)
    share = rng.choice([0.0, 0.5, 1.0])
    monkeypatch.setattr(MemFile, "is_cached", lambda *_: rng.random() < share)
    files = FromFile(seed)
    first = connected(files)
    second = connected(files, first.tls, first.host)
    expected: dict[TlsClient, list[int]] = {first: [], second: []}
    got = {first: bytearray(), second: bytearray()}
    echoed: dict[int, bytes] = {}
    for number in range(60):
        client = rng.choice([first, second])
        client.transport.room = rng.choice([0, 1, 10_000, 1 << 40])
        if rng.random() < 0.3:
            echoed[number] = rng.randbytes(rng.choice([5, 30_000]))
            request = frame(ECHO, number, echoed[number])
        else:
            request = frame(SLOW, number, b"")
        expected[client].append(number)
        client.unread += client.encrypted(request)
        data, client.unread = client.unread, b""
        client.feed(data)
        if rng.random() < 0.5:
            work(client)
        got[client] += client.received()
    for client in (first, second):
        while True:
            client.transport.give_room(1 << 40)
            busy = work(client)
            data, client.unread = client.unread, b""
            client.feed(data)
            got[client] += client.received()
            if not (busy or client.unread or client.protocol.unsent_bytes()):
                break
        bodies = echoed | files.expected
        assert responses(got[client]) == [(number, bodies[number]) for number in expected[client]]
        assert client.connection.is_done()
    assert files.made == files.released > 0
    assert not first.tls.outgoing.pending


READ = FileSpan.read


def read_pinned(span: FileSpan, start: int, length: int) -> bytes:
    assert span._pins > 0, "its file may be closed"
    return READ(span, start, length)


@pytest.mark.parametrize("seed", range(20))
def test_spans_are_released_once_if_the_client_disconnects(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that a thread is reading, when it has."""
    rng = random.Random(seed)
    monkeypatch.setattr(MemFile, "is_cached", lambda *_: rng.random() < 0.5)
    monkeypatch.setattr(FileSpan, "read", read_pinned)
    files = FromFile(seed)
    client = connected(files)
    client.transport.room = rng.randrange(60_000)
    for number in range(5):
        client.feed(client.encrypted(frame(SLOW, number, b"")))
    if rng.random() < 0.5:
        client.connection.abort("test")
    client.protocol.connection_lost(None)
    while work(client):
        pass
    assert files.made == files.released > 0


@pytest.mark.parametrize("cached", [True, False])
def test_a_file_that_cannot_be_read_closes_the_connection(
    cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(5, "input/output error")

    files = FromFile(2)
    client = connected(files)
    monkeypatch.setattr(MemFile, "is_cached", lambda *_: cached)
    monkeypatch.setattr(MemFile, "pread", fail)
    for number in range(5):
        client.feed(client.encrypted(frame(SLOW, number, b"")))
    while work(client):
        pass
    assert client.transport.closed
    assert "cannot be sent from its file" in client.log[-1]
    client.protocol.connection_lost(None)
    assert files.released >= files.made > 0  # `failed` of these spans counts, too


def test_a_client_that_does_not_read_costs_one_piece() -> None:
    files = FromFile(0)
    client = connected(files)
    client.transport.room = 0
    for number in range(5):
        client.feed(client.encrypted(frame(SLOW, number, b"")))
    while work(client):
        pass
    assert 0 < len(client.transport.buffered) <= sender.PIECE_BYTES + 1_000
    assert files.released < files.made


def test_what_openssl_writes_at_a_failure_is_not_left_for_others() -> None:
    """A response of a connection whose TLS has been shut down."""
    client = connected(FromFile(1))
    opened: Any = client.protocol._object
    with pytest.raises(ssl.SSLWantReadError):
        opened.unwrap()
    client.protocol.write([b"late"])
    assert not client.tls.outgoing.pending
    assert "cannot be encrypted" in client.log[-1]
