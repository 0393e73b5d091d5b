"""Responses with spans of files on a sans-I/O connection: their order, and when they are released.

Covers: kafkawire.server.connection.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from kafkawire.handlers.exchange import Exchange
from kafkawire.log.io.file_span import FileSpan, unpin
from kafkawire.server import connection
from kafkawire.server.receiving import DRAINING
from kafkawire.server.slow import Sweeper
from tests.kit.connections import ECHO, SLOW, Client, FakeHost, frame
from tests.kit.file_answers import FromFile


def connected(files: FromFile) -> Client:
    host = FakeHost()
    host.apis[SLOW].hot = files
    return Client(host)


@pytest.mark.parametrize("seed", range(20))
def test_responses_keep_their_order_and_their_bytes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the client takes of each span at once, and in whatever order they are answered."""
    rng = random.Random(seed)
    monkeypatch.setattr(connection, "FILE_BYTES_AT_ONCE", rng.choice([1, 40_000, 1 << 20]))
    files = FromFile(seed, hold=rng.random() < 0.5)
    client = connected(files)
    expected: dict[int, bytes] = {}
    for number in range(40):
        client.wire.file_bytes = rng.choice([0, 1, 10_000, 1 << 40])
        if rng.random() < 0.5:
            expected[number] = rng.randbytes(rng.randrange(200))
            client.feed(frame(ECHO, number, expected[number]))
        else:
            client.feed(frame(SLOW, number, b""))
        if files.held and rng.random() < 0.7:
            files.answer(files.held.pop(rng.randrange(len(files.held))))
            client.host.run()
        client.host.run()
        assert (client.wire.sending is not None) == bool(client.connection.waits & DRAINING)
        while client.wire.sending is not None and rng.random() < 0.8:
            assert files.released < files.made
            if client.wire.take(rng.choice([1, 5_000, 1 << 20])):
                client.connection.resume_writing()
                client.host.run()
    client.wire.file_bytes = 1 << 40
    while files.held or client.wire.sending is not None:
        if client.wire.sending is not None:
            if client.wire.take(1 << 20):
                client.connection.resume_writing()
        else:
            files.answer(files.held.pop())
        client.host.run()
    assert client.answers() == sorted((expected | files.expected).items())
    assert files.released == files.made > 0
    assert client.connection.is_done()
    assert client.connection.file_spans == 0
    assert client.connection.held_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_everything_is_released_once_if_the_client_disconnects(seed: int) -> None:
    rng = random.Random(seed)
    files = FromFile(seed, hold=True)
    client = connected(files)
    for number in range(10):
        client.feed(frame(SLOW, number, b""))
    client.wire.file_bytes = rng.randrange(60_000)
    for _ in range(rng.randrange(11)):
        files.answer(files.held.pop(0))
        client.host.run()
    if rng.random() < 0.5:
        client.connection.abort("test")
    else:
        client.wire.close(None)  # as the listener does when the socket is lost
        client.connection.release_all()
    for exchange in files.held:  # answered too late
        files.answer(exchange)
    client.host.run()
    assert files.released == files.made


def test_client_that_reads_one_file_after_another_moves() -> None:
    """Each time as much of a file is left: of another one."""
    files = FromFile()
    client = connected(files)
    client.wire.file_bytes = 0
    ours = client.connection
    exchange = Exchange(ours, 1, 1, False)
    ours.exchanges.append(exchange)
    spans = [FileSpan(files.file, [(0, 1000)], files.release, files.release) for _ in range(3)]
    exchange.answer_parts(spans, partial(unpin, spans), len(spans))
    client.host.run()
    assert ours.moves()
    assert not ours.moves()
    for _ in spans[1:]:
        client.wire.take(1000)
        ours.resume_writing()
        assert ours.moves()
        assert not ours.moves()
    client.wire.take(1000)
    ours.resume_writing()
    assert files.released == 3


@pytest.mark.parametrize("idle_ticks", [600, -1])
def test_client_that_reads_a_file_too_slowly_is_disconnected(idle_ticks: int) -> None:
    """Reading a byte a second kept its segment from being deleted. A client that takes one
    file after another in time may take as long as it likes."""
    slow, steady = FromFile(), FromFile()
    clients = [connected(slow), connected(steady)]
    host = clients[0].host
    for client, files in zip(clients, (slow, steady), strict=True):
        client.wire.file_bytes = 0
        client.connection.host = host
        exchange = Exchange(client.connection, 1, 1, False)
        client.connection.exchanges.append(exchange)
        spans = [FileSpan(files.file, [(0, 2000)], files.release, files.release) for _ in range(3)]
        exchange.answer_parts(spans, partial(unpin, spans), len(spans))
        client.connection.flush()
    sweeper = Sweeper(host, [client.connection for client in clients])
    for _ in range(700):
        host.tick += 1
        for client, size in zip(clients, (1, 4), strict=True):
            if client.wire.sending is not None and client.wire.take(size):
                client.connection.resume_writing()
        sweeper.sweep(idle_ticks)
    closed = [bool(client.wire.closed) for client in clients]
    assert closed == [idle_ticks > 0, False]
    assert slow.released == (3 if idle_ticks > 0 else 0)
    if idle_ticks > 0:
        assert host.counts.connections_closed == {"slow_reader": 1}


def test_no_request_starts_while_a_file_is_sent() -> None:
    files = FromFile(4)
    client = connected(files)
    client.wire.file_bytes = 0
    client.feed(frame(SLOW, 1, b""))
    client.feed(frame(ECHO, 2, b"after"))
    assert client.host.echo.seen == []
    client.wire.file_bytes = 1 << 40
    while client.wire.sending is not None:
        if client.wire.take(1 << 20):
            client.connection.resume_writing()
            client.host.run()
    assert client.answers() == [(1, files.expected[1]), (2, b"after")]
