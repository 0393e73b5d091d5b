"""The sans-I/O connection: framing, order of answers, when requests may start.

Covers: kafkawire.server.ports, kafkawire.server.receiving.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from kafkawire.security.principals import Principal
from kafkawire.server import connection
from kafkawire.server.memory import MANY_BYTES
from tests.kit.connections import COLD, ECHO, SLOW, Client, FakeHost, Hot, frame


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 1 << 20])
def test_requests_are_same_for_any_split_of_stream(step: int) -> None:
    client = Client()
    bodies = [b"x" * n for n in (0, 1, 5, 100, 3000)]
    client.feed(b"".join(frame(ECHO, n, body) for n, body in enumerate(bodies)), step)
    assert client.host.echo.seen == bodies
    assert client.answers() == list(enumerate(bodies))
    assert client.connection.client_id == "test"


def test_client_is_anonymous_until_it_is_authenticated() -> None:
    connected = Client().connection
    assert str(connected.principal) == "User:ANONYMOUS"
    connected.set_principal(Principal("User", "alice"))
    assert str(connected.principal) == "User:alice"


def test_host_is_called_when_many_bytes_are_in_use() -> None:
    host = FakeHost()
    body = b"x" * (MANY_BYTES // 8)
    for number in range(20):  # echoed at once, so nothing stays in use
        Client(host).feed(frame(ECHO, number, body))
    assert host.much == 0
    for number in range(8):
        Client(host).feed(frame(SLOW, number, body))
    assert host.much == 1


def test_memory_of_large_frames_is_released() -> None:
    client = Client()
    big = random.Random(1).randbytes(3 << 20)
    client.feed(frame(ECHO, 1, big) + frame(ECHO, 2, b"after"), 100_000)
    assert client.host.echo.seen == [big, b"after"]
    assert client.host.memory.taken_bytes == 0


def test_end_of_parked_request_does_not_release_next_one() -> None:
    client = Client()
    client.feed(frame(COLD, 1, b"join"))
    _, parked, _ = client.host.cold.popleft()
    client.connection.note_served(parked)
    client.host.run()
    client.feed(frame(COLD, 2, b"commit") + frame(ECHO, 3, b"after"))
    parked.answer(b"joined")
    client.connection.note_served(parked)
    client.host.run()
    assert client.host.echo.seen == []  # request 2 is still being applied


def test_responses_are_sent_in_request_order() -> None:
    client = Client()
    client.feed(frame(COLD, 1, b"a"))
    client.connection.note_served(client.host.cold[0][1])
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


def test_no_request_starts_while_cold_request_is_served() -> None:
    client = Client()
    client.feed(frame(COLD, 1, b"a") + frame(ECHO, 2, b"b"))
    assert client.host.echo.seen == []
    _, exchange, _ = client.host.cold.popleft()
    exchange.answer(b"done")
    client.connection.note_served(exchange)
    client.host.run()
    assert client.host.echo.seen == [b"b"]
    assert [n for n, _ in client.answers()] == [1, 2]


def test_only_produce_starts_before_previous_produce_is_written() -> None:
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


def test_refused_start_is_retried_on_resume() -> None:
    client = Client()
    client.host.slow.ready = False
    client.feed(frame(SLOW, 1, b"p1"))
    assert client.host.slow.seen == []
    client.host.slow.ready = True
    client.connection.resume()
    client.host.run()
    assert client.host.slow.seen == [b"p1"]


def test_pinned_bytes_are_not_overwritten() -> None:
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


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client whose requests are sampled, except for those of COLD."""
    monkeypatch.setattr(connection, "SAMPLED", frozenset({ECHO, SLOW}))
    monkeypatch.setattr(connection, "PRODUCE", -1)
    return Client()


def latencies(client: Client) -> dict[int, list[float]]:
    """[number, sum of seconds] by API."""
    found = client.host.counts.latency
    return {key: [sum(each.counts), each.total] for key, each in found.items()}


def test_latency_lasts_until_the_response_is_sent(sampled: Client) -> None:
    client, host = sampled, sampled.host
    client.feed(frame(SLOW, 1, b"a") + frame(SLOW, 2, b"b"))
    client.connection.sample(0.0, 0.0)
    assert client.connection.sampled is not None
    host.now_s = 2.0
    client.connection.exchanges[1].answer(b"second")  # waits for the first
    host.run()
    assert latencies(client) == {}
    host.now_s = 3.0
    client.connection.exchanges[0].answer(b"first")
    host.run()
    assert latencies(client) == {SLOW: [1, 3.0]}
    assert client.connection.sampled is None


def test_latency_of_request_that_is_answered_at_once(sampled: Client) -> None:
    sampled.feed(frame(ECHO, 1, b"a"))
    sampled.connection.sample(1.0, 1.5)
    assert latencies(sampled) == {ECHO: [1, 0.5]}
    sampled.feed(frame(ECHO, 2, b"incomplete")[:-1])
    sampled.connection.sample(2.0, 9.0)
    assert latencies(sampled) == {ECHO: [1, 0.5]}, "nothing was answered"
    sampled.feed(frame(ECHO, 2, b"incomplete")[-1:])
    sampled.feed(frame(COLD, 3, b"measured by the host"))
    sampled.connection.sample(3.0, 4.0)
    assert latencies(sampled) == {ECHO: [1, 0.5]}
