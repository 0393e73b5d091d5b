"""Bounds of a connection: unread responses, requests in flight, memory, sizes of frames."""

from __future__ import annotations

import random
from collections import deque
from struct import pack

import pytest

from kafkawire.handlers.exchange import Exchange, Pinned
from kafkawire.server.connection import WAITING_MAX, Connection
from tests.kit.connections import COLD, ECHO, SLOW, Client, FakeHost, frame


def test_slow_reader_is_paused_and_resumed() -> None:
    client = Client()
    client.connection.pause_writing()
    for n in range(200):
        client.feed(frame(ECHO, n, b"x" * 1000))
    assert client.host.echo.seen == []
    assert not client.wire.reading
    client.connection.resume_writing()
    client.host.run()
    assert client.wire.reading
    assert len(client.host.echo.seen) >= 60


def test_paused_client_is_read_again_after_a_request_that_ends_its_bytes() -> None:
    """No bytes are left that would be parsed when the last, cold request has been served."""
    whole = frame(ECHO, 0, b"x" * 1000)
    probe = Client()
    probe.connection.pause_writing()
    taken = probe.feed(whole * 200, step=1000)
    last = frame(COLD, 2, b"")
    count, rest = divmod(taken - len(last), len(whole))
    rest += len(whole)  # enough for a frame
    padding = frame(ECHO, 1, b"x" * (rest - len(frame(ECHO, 1, b""))))
    client = Client()
    client.connection.pause_writing()
    stream = whole * (count - 1) + padding + last + whole
    assert client.feed(stream, step=1000) == taken < len(stream)
    assert not client.wire.reading
    client.connection.resume_writing()
    client.host.run()
    ((connection, exchange, _),) = client.host.cold
    exchange.answer(b"ok")
    connection.note_served(exchange)
    client.host.run()
    assert client.wire.reading


def test_unanswered_requests_are_bounded() -> None:
    client = Client()
    for n in range(WAITING_MAX + 50):
        client.feed(frame(SLOW, n, b"x"))
    assert len(client.host.slow.seen) == WAITING_MAX
    while client.host.slow.held:
        client.host.slow.write()
        client.host.run()
    assert [n for n, _ in client.answers()] == list(range(WAITING_MAX + 50))


def test_produced_bytes_in_flight_are_bounded() -> None:
    client = Client()
    for n in range(20):
        client.feed(frame(SLOW, n, b"x" * (1 << 20)))
    assert 4 <= len(client.host.slow.seen) <= 6
    while client.host.slow.held:
        client.host.slow.write()
        client.host.run()
    assert client.host.memory.taken_bytes <= 2 << 20


class Rows:
    """Handles whole frames of 100 bytes, eight at a time, and never responds by itself."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rows: deque[tuple[Exchange, int]] = deque()  # with the bytes of their requests
        self.taken = 0

    def start(self, block: Pinned, buf: memoryview, pos: int, end: int) -> int:
        count = 0
        while count < 8 and end - pos >= 100 * (count + 1) and buf[pos + 100 * count + 5] == SLOW:
            count += 1
        if count:
            row = Exchange(self.connection, 1, 0, False)  # stands for several requests
            row.more = count - 1
            self.connection.exchanges.append(row)
            self.connection.more += row.more
            self.connection.note_applying(count * 100)
            self.rows.append((row, count * 100))
            self.taken += count
            pos += count * 100
        return pos

    def write(self) -> None:
        row, size = self.rows.popleft()
        row.parts = [b"a" * (row.more + 1)]
        self.connection.note_applied(size)
        self.connection.flush()


def repeating(applying_bytes_max: int = 4 << 20) -> tuple[Client, Rows]:
    client = Client()
    client.host.applying_bytes_max = applying_bytes_max
    rows = client.connection.repeat = Rows(client.connection)
    return client, rows


SLOW_100 = frame(SLOW, 1, b"x" * (100 - len(frame(SLOW, 1, b""))))


def test_requests_in_rows_are_counted_individually() -> None:
    client, rows = repeating()
    for _ in range(WAITING_MAX + 60):
        client.feed(SLOW_100)
    client.feed(SLOW_100 * 100)
    assert rows.taken == WAITING_MAX
    while rows.rows:
        rows.write()
        client.host.run()
        assert client.connection.more + len(client.connection.exchanges) < WAITING_MAX + 8
    assert rows.taken == WAITING_MAX + 160
    assert bytes(client.wire.sent) == b"a" * rows.taken
    assert (client.connection.more, client.connection.applying_bytes) == (0, 0)


def test_bytes_of_unwritten_rows_are_bounded() -> None:
    client, rows = repeating(applying_bytes_max=2000)
    client.feed(SLOW_100 * 100)
    assert rows.taken == 24  # the row that exceeds the bound is the last
    rows.write()
    client.host.run()
    assert rows.taken == 32  # 1,600 bytes were left: room for one more row
    while rows.rows:
        rows.write()
        client.host.run()
    assert rows.taken == 100


def test_other_request_waits_for_rows_before_it() -> None:
    client, rows = repeating()
    client.feed(SLOW_100 * 3 + frame(ECHO, 2, b"look") + SLOW_100)
    assert rows.taken == 3
    assert client.host.echo.seen == []
    rows.write()
    client.host.run()
    assert client.host.echo.seen == [b"look"]
    assert rows.taken == 4


def test_request_memory_of_all_clients_is_bounded() -> None:
    host = FakeHost(bound=1 << 20)
    clients = [Client(host) for _ in range(8)]
    data = [frame(ECHO, n, bytes([n]) * 400_000) for n in range(8)]
    for n, client in enumerate(clients):  # each sends half
        client.feed(data[n][:300_000], 50_000)
    # Received bytes are in memory, and counted: one read of each client at most.
    assert host.memory.taken_bytes <= (1 << 20) + len(clients) * (64 << 10)
    assert any(not client.wire.reading for client in clients)


@pytest.mark.parametrize("size", [-1, 0, 9, (8 << 20) + 1, 0x7FFFFFFF])
def test_frame_size_out_of_bounds_closes_connection(size: int) -> None:
    client = Client()
    client.feed(pack(">i", size) + b"x" * 100)
    assert client.wire.closed == [f"a frame of {size} bytes"]
    assert client.connection.closed


def test_announced_length_reserves_no_memory() -> None:
    client = Client()
    client.feed(pack(">i", 8 << 20) + b"x" * 10)
    assert client.host.memory.taken_bytes <= 1 << 16


def test_unknown_versions_are_passed_to_unsupported_handler() -> None:
    client = Client()
    client.feed(frame(18, 1, b"", version=50))
    assert client.answers() == [(1, b"35")]
    client.feed(frame(77, 2, b""))
    assert client.wire.closed == ["API 77 version 1 is not served"]


def test_lost_connection_releases_its_pins() -> None:
    client = Client()
    client.feed(frame(COLD, 1, b""))
    _, exchange, _ = client.host.cold.popleft()
    released: list[int] = []
    client.connection.pause_writing()
    exchange.answer_parts([b"views"], lambda: released.append(1))
    client.host.run()
    assert released == []
    client.connection.release_all()
    assert released == [1]


@pytest.mark.parametrize("seed", range(200))
def test_garbage_closes_connection_or_waits_for_more_bytes(seed: int) -> None:
    rng = random.Random(seed)
    client = Client()
    data = bytearray(b"".join(frame(rng.choice((ECHO, COLD)), n, b"x" * n, 9) for n in range(9)))
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    client.feed(bytes(data), rng.choice((1, 5, 1000)))
    client.connection.release_all()
    assert client.host.memory.taken_bytes == 0
