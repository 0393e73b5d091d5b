"""Memory that clients hold: of responses they do not read, of requests they do not complete."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import pytest

from kafkawire.broker.answer_memory import LEAST_BYTES, AnswerMemory
from kafkawire.handlers.exchange import Exchange, HeldAnswerMemory
from kafkawire.server.memory import MEDIUM_BYTES, SMALL_BYTES
from kafkawire.server.slow import STALLED_TICKS, UNUSED_TICKS, WINDOW_TICKS, Sweeper
from tests.kit.connections import COLD, ECHO, Client, FakeHost, frame

MIB = 1 << 20


def sweep(host: Any, sweeper: Sweeper, ticks: int = 1, idle_ticks: float = 600) -> None:
    for _ in range(ticks):
        host.tick += 1
        sweeper.sweep(idle_ticks)
        host.memory.favour()
        host.run()


# -- answers


def answer(client: Client, size: int) -> None:
    """Answer its oldest cold request with so many bytes."""
    connection, exchange, _ = client.host.cold.popleft()
    assert connection is client.connection
    exchange.answer_parts([bytes(size)])
    connection.note_served(exchange)
    client.host.run()


def test_pins_of_responses_that_follow_a_slow_one_stay_until_they_are_written() -> None:
    """A response that came while the socket was full was once released when the socket had room
    again, before it was written: its journal could be recycled under it."""
    client = Client()
    ours = client.connection
    write = client.wire.write

    def fill(parts: Any) -> None:
        write(parts)
        ours.pause_writing()

    client.wire.write = fill  # type: ignore[method-assign]
    released: list[int] = []
    for number in (1, 2):
        exchange = Exchange(ours, 1, number, False)
        ours.exchanges.append(exchange)
        exchange.answer_parts([b"x" * 10], partial(released.append, number))
        client.host.run()
    assert released == []
    ours.resume_writing()  # the second is written, and the socket is full again
    assert 2 not in released
    ours.resume_writing()
    assert released == [1, 2]


def test_response_is_counted_until_sent() -> None:
    client = Client()
    answers = client.host.answers
    client.feed(frame(COLD, 1, b""))
    client.connection.pause_writing()
    answer(client, 5 * MIB)
    assert answers.held_bytes == client.connection.held_bytes == 5 * MIB
    client.connection.resume_writing()
    assert answers.held_bytes == client.connection.held_bytes == 0
    client.feed(frame(COLD, 2, b""))
    answer(client, 5 * MIB)
    assert answers.held_bytes == 0  # the kernel took it


def test_responses_after_parked_one_are_bounded_by_bytes() -> None:
    client = Client()
    client.feed(frame(COLD, 0, b""))
    connection, parked, _ = client.host.cold.popleft()
    connection.note_served(parked)  # it waits, and those after it go on
    client.host.run()
    for n in range(20):
        client.feed(frame(COLD, n + 1, b""))
    started = 0
    while client.host.cold:
        answer(client, MIB)
        started += 1
    assert started == 5  # 4 MiB are the bound of FakeHost
    assert client.host.answers.held_bytes == 5 * MIB
    parked.answer(b"at last")
    client.host.run()
    while client.host.cold:
        answer(client, MIB)
        started += 1
    assert started == 20
    assert client.host.answers.held_bytes == 0
    assert [number for number, _ in client.answers()] == list(range(21))


@pytest.mark.parametrize("gone", ["paused", "parked", "before"])
def test_lost_connection_releases_memory_of_responses(gone: str) -> None:
    client = Client()
    if gone == "parked":
        client.feed(frame(COLD, 0, b""))
        connection, parked, _ = client.host.cold.popleft()
        connection.note_served(parked)
        client.host.run()
    client.feed(frame(COLD, 1, b""))
    if gone == "paused":
        client.connection.pause_writing()
    if gone == "before":
        client.connection.release_all()
    answer(client, MIB)
    client.connection.release_all()
    assert client.host.answers.held_bytes == 0
    assert client.connection.held_bytes == 0


def test_response_memory_is_shared_and_granted_in_order() -> None:
    soon: list[Any] = []
    memory = AnswerMemory(64 * MIB, soon.append)
    got = [memory.reserve(55 * MIB) for _ in range(20)]
    assert got[0] == 14 * MIB  # a quarter of what is free without the reserve of small reads
    assert got == sorted(got, reverse=True)
    assert memory.held_bytes <= 64 * MIB
    while memory.reserve(55 * MIB):
        pass
    assert memory.reserve(MIB) >= LEAST_BYTES  # small reads have their reserve
    order: list[tuple[str, int]] = []
    memory.when_free(55 * MIB, lambda size: order.append(("large", size)))
    memory.when_free(2 * MIB, lambda size: order.append(("next", size)))
    assert memory.short
    memory.release(40 * MIB)
    while soon:
        soon.pop(0)()
    assert [name for name, _ in order] == ["large", "next"]
    assert not memory.waiting


def stalled_client(host: FakeHost, size: int) -> Client:
    """A client whose response of `size` bytes is not accepted by the kernel."""
    client = Client(host)
    client.connection.pause_writing()
    client.wire.unsent = size
    host.answers.add_bytes(size)
    client.connection.pins.append(HeldAnswerMemory(client.connection, size))
    return client


def test_stalled_readers_are_closed_while_others_wait() -> None:
    host = FakeHost()
    never, slow, quick = (stalled_client(host, 10 * MIB) for _ in range(3))
    clients = [never, slow, quick]
    sweeper = Sweeper(host, [each.connection for each in clients])

    def tick() -> None:
        slow.wire.unsent -= 10_000
        quick.wire.unsent -= 300_000
        sweep(host, sweeper)

    for _ in range(3 * WINDOW_TICKS):
        tick()
    assert not any(each.wire.closed for each in clients)  # no client waits
    granted: list[int] = []
    host.answers.when_free(MIB * 100, granted.append)
    for _ in range(2 * WINDOW_TICKS):
        tick()
    assert [len(each.wire.closed) for each in clients] == [1, 1, 0]
    assert "10485760 bytes of responses" in str(never.wire.closed[0])
    assert host.counts.connections_closed == {"slow_reader": 2}
    assert host.answers.held_bytes == 10 * MIB + sum(granted)
    assert granted


def test_idle_connections_are_closed_except_while_reading_responses() -> None:
    host = FakeHost()
    idle, collection = Client(host), stalled_client(host, 10 * MIB)
    never = stalled_client(host, 10 * MIB)
    sweeper = Sweeper(host, [each.connection for each in (idle, collection, never)])
    for _ in range(700):
        collection.wire.unsent -= 100
        sweep(host, sweeper)
    assert [len(each.wire.closed) for each in (idle, collection, never)] == [1, 0, 1]
    assert host.counts.connections_closed == {"idle": 2}


def test_negative_idle_time_disables_closing() -> None:
    host = FakeHost()
    idle = Client(host)
    sweeper = Sweeper(host, [idle.connection])
    sweep(host, sweeper, 1000, -0.001)
    assert not idle.wire.closed


# -- requests


@lru_cache(1)
def large_frame(size: int) -> bytes:
    return frame(ECHO, 1, bytes(size))


class Sender(Client):
    """A client that sends one large request, piece by piece."""

    def __init__(self, host: FakeHost, size: int, sent: int) -> None:
        super().__init__(host)
        host.apis[ECHO].may_follow_produce = True  # as a Produce, which may be large
        self.size = size
        self.data = large_frame(size)
        self.at = 0
        self.send(sent)

    def send(self, count: int = 64 << 10) -> int:
        sent = self.feed(self.data[self.at : self.at + count], 64 << 10)
        self.at += sent
        return sent

    @property
    def served(self) -> bool:
        return self.answers() == [(1, bytes(self.size))]


def test_small_requests_are_served_while_large_ones_are_incomplete() -> None:
    host = FakeHost(bound=32 * MIB)
    host.frame_bytes_max = 100 * MIB
    hostile = [Sender(host, 50 * MIB, 3 * MIB) for _ in range(100)]
    assert any(not each.wire.reading for each in hostile)
    # A read of each that was refused is more than the bound, and counted.
    assert host.memory.taken_bytes <= 32 * MIB + len(hostile) * (64 << 10)
    for size in (30, 1000, SMALL_BYTES // 2):
        client = Client(host)
        data = frame(ECHO, 1, bytes(size))
        client.feed(data[:20])
        client.feed(data[20:])
        assert client.answers() == [(1, bytes(size))]


def test_stalled_senders_are_closed_while_others_wait() -> None:
    host = FakeHost(bound=20 * MIB)
    host.frame_bytes_max = 100 * MIB
    first = [Sender(host, 20 * MIB, 3 * MIB) for _ in range(3)]
    sweeper = Sweeper(host, [each.connection for each in first])
    assert not host.memory.waiting
    sweep(host, sweeper, 3 * WINDOW_TICKS)
    assert not any(each.wire.closed for each in first)  # no client waits
    favoured = Sender(host, 5 * MIB, MIB)
    sweep(host, sweeper)
    assert host.memory.favoured is favoured.connection  # it may exceed the bound, and does not send
    late = Sender(host, 5 * MIB, MIB)
    clients = [*first, favoured, late]
    sweeper = Sweeper(host, [each.connection for each in clients])
    for _ in range(3 * WINDOW_TICKS):
        while late.send():
            pass
        sweep(host, sweeper)
    assert late.served
    assert [len(each.wire.closed) for each in clients] == [1, 1, 1, 1, 0]
    assert host.counts.connections_closed == {"slow_sender": 4}
    assert host.memory.taken_bytes == 0


def test_large_requests_competing_for_memory_are_received_one_by_one() -> None:
    """Each has half of the memory that another needs: one at a time may exceed the bound."""
    host = FakeHost(bound=8 * MIB)
    host.frame_bytes_max = 100 * MIB
    clients = [Sender(host, 6 * MIB, MIB) for _ in range(6)]
    sweeper = Sweeper(host, [each.connection for each in clients])
    largest = 0
    for _ in range(1000):
        for client in clients:
            client.send(MIB)
            largest = max(largest, host.memory.taken_bytes)
        if all(each.wire.sent for each in clients):
            break
        sweep(host, sweeper)
    assert all(each.served for each in clients)
    assert largest <= 8 * MIB + 7 * MIB + 6 * MIB
    assert host.memory.taken_bytes == 0
    assert not host.memory.waiting
    assert host.memory.favoured is None


@pytest.mark.slow
@pytest.mark.parametrize("size", [MEDIUM_BYTES - 100, MEDIUM_BYTES * 2, 5 * MIB, 40 * MIB])
def test_request_memory_grows_with_received_bytes(size: int) -> None:
    host = FakeHost(bound=256 * MIB)
    host.frame_bytes_max = 100 * MIB
    client = Sender(host, size, 64 << 10)
    while client.send():
        assert host.memory.taken_bytes <= max(8 * client.at, MIB)
        assert host.memory.taken_bytes <= client.at + 4 * MIB
    assert client.served
    assert host.memory.taken_bytes == 0


def test_request_without_further_bytes_is_dropped() -> None:
    host = FakeHost()
    client = Sender(host, 2 * MIB, 100_000)
    waiting = Client(host)
    waiting.feed(frame(COLD, 1, b"") + frame(COLD, 2, b"")[:20])  # caused by the broker
    sweeper = Sweeper(host, [client.connection, waiting.connection])
    sweep(host, sweeper, STALLED_TICKS - 10)
    client.send()
    sweep(host, sweeper, STALLED_TICKS - 10)
    assert not client.wire.closed
    sweep(host, sweeper, 30)
    assert client.wire.closed
    assert not waiting.wire.closed
    assert host.counts.connections_closed == {"stalled": 1}


def test_connection_without_request_is_closed_for_new_one() -> None:
    host = FakeHost()
    unused, used = Client(host), Client(host)
    used.feed(frame(ECHO, 1, b""))
    sweeper = Sweeper(host, [used.connection, unused.connection])
    host.tick += UNUSED_TICKS - 1
    assert not sweeper.make_room()
    host.tick += 1
    assert sweeper.make_room()
    assert not sweeper.make_room()  # one a second
    assert (len(used.wire.closed), len(unused.wire.closed)) == (0, 1)
