"""The sans-I/O connection: framing, order of answers, when requests may start, bounds."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from struct import pack, unpack_from
from typing import Any

import pytest

from kafkawire.codec.counts import Counts
from kafkawire.codec.types import Buffer
from kafkawire.handlers.exchange import Exchange, Pinned
from kafkawire.server.connection import WAITING_MAX, Connection
from kafkawire.server.memory import Memory

ECHO, SLOW, COLD = 0, 1, 3  # keys: a hot one that answers at once, one that waits, a cold one


class Hot:
    """A hot handler that notes what it got; `hold` keeps exchanges unanswered."""

    def __init__(self, *, hold: bool = False) -> None:
        self.hold = hold
        self.ready = True
        self.seen: list[bytes] = []
        self.held: deque[tuple[Exchange, Pinned, int]] = deque()

    def start(
        self,
        peer: Any,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool:
        if not self.ready:
            return False
        exchange = Exchange(peer, version, correlation_id, version >= 9)
        peer.exchanges.append(exchange)
        self.seen.append(bytes(buf[pos:end]))
        if self.hold:
            block.pin()
            exchange.peer.applying(end - pos)
            self.held.append((exchange, block, end - pos))
        else:
            exchange.answer(bytes(buf[pos:end]))
        return True

    def write(self) -> None:
        """The turn was written: answer the oldest."""
        exchange, block, size = self.held.popleft()
        block.unpin()
        exchange.peer.applied(size)
        exchange.answer(b"ok")

    def close(self) -> None:
        pass


class FakeApi:
    def __init__(self, key: int, hot: Hot | None, *, produce: bool = False) -> None:
        self.key, self.name, self.hot = key, f"api{key}", hot
        self.min_version, self.max_version = 0, 9
        self.flexible_from, self.flexible_answer = 9, True
        self.may_follow_produce = produce


class FakeHost:
    def __init__(self, bound: int = 64 << 20) -> None:
        self.memory = Memory(bound)
        self.echo, self.slow = Hot(), Hot(hold=True)
        self.apis: dict[int, Any] = {
            ECHO: FakeApi(ECHO, self.echo),
            SLOW: FakeApi(SLOW, self.slow, produce=True),
            COLD: FakeApi(COLD, None),
        }
        self.frame_bytes_max = 8 << 20
        self.applying_bytes_max = 4 << 20
        self.tick = 0
        self.counts = Counts()
        self.soon: deque[Callable[[], None]] = deque()
        self.cold: deque[tuple[Connection, Exchange, bytes]] = deque()

    def serve(self, connection: Connection, exchange: Exchange, api: Any, body: Buffer) -> None:
        self.cold.append((connection, exchange, bytes(body)))

    def unsupported(self, exchange: Exchange, key: int, version: int) -> bool:
        if key == 18:
            exchange.answer(b"35")
        return key == 18

    def flush_soon(self, connection: Connection) -> None:
        self.soon.append(connection.flush)

    def flush_all(self) -> None:
        pass

    def call_soon(self, fn: Callable[[], None]) -> None:
        self.soon.append(fn)

    def run(self) -> None:
        while self.soon:
            self.soon.popleft()()


class FakeWire:
    def __init__(self) -> None:
        self.sent = bytearray()
        self.writes = 0
        self.reading = True
        self.closed: list[str | None] = []

    def write(self, parts: list[Buffer]) -> None:
        self.writes += 1
        for part in parts:
            self.sent += part

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self, reason: str | None) -> None:
        self.closed.append(reason)


class Client:
    """A connection with its fakes; `feed` gives it bytes as a socket would."""

    def __init__(self, host: FakeHost | None = None) -> None:
        self.host = host or FakeHost()
        self.wire = FakeWire()
        self.connection = Connection(self.host, self.wire, "127.0.0.1", "PLAINTEXT")

    def feed(self, data: bytes, step: int = 1 << 30) -> None:
        at = 0
        while at < len(data) and not self.wire.closed and self.wire.reading:
            room = self.connection.get_buffer(-1)
            count = min(len(room), step, len(data) - at)
            assert count > 0
            room[:count] = data[at : at + count]
            at += count
            self.connection.received(count)
            self.host.run()

    def answers(self) -> list[tuple[int, bytes]]:
        """(correlation id, body) of each answer sent so far."""
        found, pos = [], 0
        while pos < len(self.wire.sent):
            size, correlation = unpack_from(">ii", self.wire.sent, pos)
            found.append((correlation, bytes(self.wire.sent[pos + 8 : pos + 4 + size])))
            pos += 4 + size
        return found


def frame(key: int, correlation: int, body: bytes, version: int = 1) -> bytes:
    head = pack(">hhih", key, version, correlation, 4) + b"test"
    if version >= 9:
        head += b"\0"
    return pack(">i", len(head) + len(body)) + head + body


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 1 << 20])
def test_any_cut_of_the_stream_gives_the_same_requests(step: int) -> None:
    client = Client()
    bodies = [b"x" * n for n in (0, 1, 5, 100, 3000)]
    client.feed(b"".join(frame(ECHO, n, body) for n, body in enumerate(bodies)), step)
    assert client.host.echo.seen == bodies
    assert client.answers() == list(enumerate(bodies))
    assert client.connection.client_id == "test"


def test_large_frames_arrive_whole_and_their_memory_comes_back() -> None:
    client = Client()
    big = random.Random(1).randbytes(3 << 20)
    client.feed(frame(ECHO, 1, big) + frame(ECHO, 2, b"after"), 100_000)
    assert client.host.echo.seen == [big, b"after"]
    assert client.host.memory.taken_bytes == 0


def test_a_parked_request_that_ends_does_not_free_the_one_after_it() -> None:
    client = Client()
    client.feed(frame(COLD, 1, b"join"))
    _, parked, _ = client.host.cold.popleft()
    client.connection.served(parked)
    client.host.run()
    client.feed(frame(COLD, 2, b"commit") + frame(ECHO, 3, b"after"))
    parked.answer(b"joined")
    client.connection.served(parked)
    client.host.run()
    assert client.host.echo.seen == []  # request 2 is still being applied


def test_answers_leave_in_request_order() -> None:
    client = Client()
    client.feed(frame(COLD, 1, b"a"))
    client.connection.served(client.host.cold[0][1])
    client.host.run()
    client.feed(frame(COLD, 2, b"b"))
    (_, first, _), (_, second, _) = client.host.cold
    second.answer(b"second")
    client.host.run()
    assert client.answers() == []
    first.answer(b"first")
    client.host.run()
    assert client.answers() == [(1, b"first"), (2, b"second")]
    assert client.wire.writes == 1


def test_nothing_starts_while_a_cold_request_is_served() -> None:
    client = Client()
    client.feed(frame(COLD, 1, b"a") + frame(ECHO, 2, b"b"))
    assert client.host.echo.seen == []
    _, exchange, _ = client.host.cold.popleft()
    exchange.answer(b"done")
    client.connection.served(exchange)
    client.host.run()
    assert client.host.echo.seen == [b"b"]
    assert [n for n, _ in client.answers()] == [1, 2]


def test_only_a_produce_may_start_before_the_produce_ahead_is_written() -> None:
    client = Client()
    client.feed(frame(SLOW, 1, b"p1") + frame(SLOW, 2, b"p2") + frame(ECHO, 3, b"look"))
    assert client.host.slow.seen == [b"p1", b"p2"]
    assert client.host.echo.seen == []
    client.host.slow.write()
    client.host.run()
    assert client.host.echo.seen == []
    client.host.slow.write()
    client.host.run()
    assert client.host.echo.seen == [b"look"]
    assert [n for n, _ in client.answers()] == [1, 2, 3]


def test_a_refused_start_is_tried_again_on_resume() -> None:
    client = Client()
    client.host.slow.ready = False
    client.feed(frame(SLOW, 1, b"p1"))
    assert client.host.slow.seen == []
    client.host.slow.ready = True
    client.connection.resume()
    client.host.run()
    assert client.host.slow.seen == [b"p1"]


def test_pinned_bytes_stay_as_they_are_while_others_receive() -> None:
    host = FakeHost()
    one, other = Client(host), Client(host)
    kept: list[memoryview] = []
    host.slow.start = _remember(host.slow, kept)  # type: ignore[method-assign]
    one.feed(frame(SLOW, 1, b"p" * 1000))
    for n in range(5000):
        other.feed(frame(ECHO, n, b"e" * 1000))
    assert bytes(kept[0]) == b"p" * 1000
    host.slow.write()
    assert host.memory.arena.pins == 0


def _remember(hot: Hot, kept: list[memoryview]) -> Callable[..., bool]:
    start = hot.start

    def wrapped(*given: Any) -> bool:
        kept.append(given[4][given[5] : given[6]])
        return start(*given)

    return wrapped


def test_a_slow_reader_is_paused_and_goes_on() -> None:
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


class Row(Exchange):
    """Stands for several requests, as those of `Rows`."""

    def __init__(self, peer: Any, count: int, size: int) -> None:
        super().__init__(peer, 1, 0, False)
        self.more = count - 1
        self.size = size


class Rows:
    """Takes whole frames of 100 bytes, eight at a time, and never answers by itself."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rows: deque[Row] = deque()
        self.taken = 0

    def start(self, block: Pinned, buf: memoryview, pos: int, end: int) -> int:
        count = 0
        while count < 8 and end - pos >= 100 * (count + 1) and buf[pos + 100 * count + 5] == SLOW:
            count += 1
        if count:
            row = Row(self.connection, count, count * 100)
            self.connection.exchanges.append(row)
            self.connection.more += row.more
            self.connection.applying(row.size)
            self.rows.append(row)
            self.taken += count
            pos += count * 100
        return pos

    def write(self) -> None:
        row = self.rows.popleft()
        row.parts = [b"a" * (row.more + 1)]
        self.connection.applied(row.size)
        self.connection.flush()


def repeating(applying_bytes_max: int = 4 << 20) -> tuple[Client, Rows]:
    client = Client()
    client.host.applying_bytes_max = applying_bytes_max
    rows = client.connection.repeat = Rows(client.connection)
    return client, rows


SLOW_100 = frame(SLOW, 1, b"x" * (100 - len(frame(SLOW, 1, b""))))


def test_requests_taken_in_rows_count_one_by_one() -> None:
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


def test_bytes_taken_in_rows_are_bounded_until_they_are_written() -> None:
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


def test_what_is_no_repetition_waits_for_the_rows_before_it() -> None:
    client, rows = repeating()
    client.feed(SLOW_100 * 3 + frame(ECHO, 2, b"look") + SLOW_100)
    assert rows.taken == 3
    assert client.host.echo.seen == []
    rows.write()
    client.host.run()
    assert client.host.echo.seen == [b"look"]
    assert rows.taken == 4


def test_memory_of_all_clients_is_bounded_and_waits_its_turn() -> None:
    host = FakeHost(bound=1 << 20)
    clients = [Client(host) for _ in range(8)]
    data = [frame(ECHO, n, bytes([n]) * 400_000) for n in range(8)]
    for n, client in enumerate(clients):  # each sends half
        client.feed(data[n][:300_000], 50_000)
    assert host.memory.taken_bytes <= 1 << 20
    assert any(not client.wire.reading for client in clients)


@pytest.mark.parametrize("size", [-1, 0, 9, (8 << 20) + 1, 0x7FFFFFFF])
def test_a_frame_size_out_of_bounds_ends_the_connection(size: int) -> None:
    client = Client()
    client.feed(pack(">i", size) + b"x" * 100)
    assert client.wire.closed == [f"a frame of {size} bytes"]
    assert client.connection.closed


def test_a_claimed_length_takes_no_memory_before_the_bytes_come() -> None:
    client = Client()
    client.feed(pack(">i", 8 << 20) + b"x" * 10)
    assert client.host.memory.taken_bytes <= 1 << 16


def test_unknown_versions_are_kafkas_business() -> None:
    client = Client()
    client.feed(frame(18, 1, b"", version=50))
    assert client.answers() == [(1, b"35")]
    client.feed(frame(77, 2, b""))
    assert client.wire.closed == ["API 77 version 1 is not served"]


def test_a_lost_connection_lets_go_of_its_pins() -> None:
    client = Client()
    client.feed(frame(COLD, 1, b""))
    _, exchange, _ = client.host.cold.popleft()
    released: list[int] = []
    client.connection.pause_writing()
    exchange.answer_parts([b"views"], lambda: released.append(1))
    client.host.run()
    assert released == []
    client.connection.lost()
    assert released == [1]


@pytest.mark.parametrize("seed", range(200))
def test_garbage_ends_the_connection_or_waits_for_more(seed: int) -> None:
    rng = random.Random(seed)
    client = Client()
    data = bytearray(b"".join(frame(rng.choice((ECHO, COLD)), n, b"x" * n, 9) for n in range(9)))
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    client.feed(bytes(data), rng.choice((1, 5, 1000)))
    client.connection.lost()
    assert client.host.memory.taken_bytes == 0
