"""Exceptions while requests are served: one connection is closed or answered, all others
continue."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from pathlib import Path
from struct import pack
from typing import Any
from unittest.mock import MagicMock

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.budget import IterationBudget
from kafkawire.handlers.produce.pending import PendingProduces, Waiting
from kafkawire.handlers.slices import AnswerTooLarge
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.metric_counters import Counts
from kafkawire.server.host import CLOSED_BURST, Host
from tests.kit import client as clients
from tests.kit.connections import COLD, ECHO, Client, FakeHost, frame
from tests.kit.server import port_of, running


@pytest.mark.parametrize("tags", [b"\x80", b"\xff\xff\xff\xff\xff", b"\x01", b"\x01\x05\x80"])
def test_truncated_header_tags_close_connection(tags: bytes) -> None:
    client = Client()
    head = pack(">hhih", ECHO, 9, 1, 4) + b"test" + tags
    client.feed(pack(">i", len(head)) + head)
    assert len(client.wire.closed) == 1
    assert client.connection.closed


@pytest.mark.parametrize("kept", [False, True])
def test_exception_in_handler_closes_one_connection(
    kept: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host = FakeHost()
    one, other = Client(host), Client(host)

    def broken(*_: object) -> bool:
        raise RuntimeError("a defect")

    if kept:  # the request is started from buffered bytes, by a callback of the loop
        one.feed(frame(COLD, 1, b"") + frame(ECHO, 2, b"x"))
    with monkeypatch.context() as patched:
        patched.setattr(host.echo, "start", broken)
        if kept:
            connection, exchange, _ = host.cold.popleft()
            exchange.answer(b"")
            connection.note_served(exchange)
            host.run()
        else:
            one.feed(frame(ECHO, 1, b"x"))
    assert len(one.wire.closed) == 1
    assert "a defect" in caplog.text
    other.feed(frame(ECHO, 1, b"y"))
    assert other.answers() == [(1, b"y")]
    assert host.memory.taken_bytes == 0


async def test_reasons_of_closed_connections_are_bounded_except_for_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 1000.0
    broker = MagicMock(config=BrokerConfig(), counts=Counts())
    broker.env.clock.monotonic = lambda: now_s
    host = Host(broker)
    caplog.set_level(logging.DEBUG)
    for _ in range(3 * CLOSED_BURST):
        host.log_closed(MagicMock(), "a malformed request")
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO] * CLOSED_BURST + [logging.DEBUG] * 2 * CLOSED_BURST
    now_s += 1.0
    host.log_closed(MagicMock(), "the last one")
    assert caplog.records[-1].levelno == logging.INFO
    assert f"the last one ({2 * CLOSED_BURST} more" in caplog.text


def test_response_is_released_although_other_release_fails() -> None:
    client = Client()
    released: list[int] = []

    def broken() -> None:
        raise RuntimeError("a defect")

    client.connection.pins += [broken, lambda: released.append(1)]
    client.connection.release_all()
    assert released == [1]


def test_exception_in_job_does_not_stop_later_jobs() -> None:
    soon: deque[Any] = deque()
    budget = IterationBudget(soon.append, 10)
    done: list[int] = []

    def broken() -> int:
        raise RuntimeError("a defect")

    def job() -> int:
        done.append(1)
        return 10

    budget.do(job)
    budget.later(broken)
    budget.later(job)
    while soon:
        soon.popleft()()
    assert done == [1, 1]


DISK: Any = object()
"""The sink of a partition with durability=local."""


class Produced(Waiting):
    """A Produce whose response can be built, or cannot."""

    def __init__(self, client: Client, acks: int, broken: bool) -> None:
        super().__init__(client.connection, 1, 7, False)
        self.acks, self.size_bytes, self.broken = acks, 1, broken
        self.sinks = (DISK,) if acks == -1 else ()
        client.connection.exchanges.append(self)

    def respond(self, failure: BaseException | None) -> None:
        if self.broken:
            raise RuntimeError("a defect")
        self.parts = [b"told"]


class Log:
    batch_number = 1

    def __init__(self) -> None:
        self.write: list[Any] = []
        self.commit: list[Any] = []

    def after_write(self, fn: Any, requests: Any = None) -> None:
        self.write.append(fn)

    def call_when_durable(self, sinks: Any, fn: Any) -> None:
        assert sinks == (DISK,)
        self.commit.append(fn)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.interpreted
def test_unencodable_response_closes_one_connection(acks: int) -> None:
    clients = [Client() for _ in range(3)]
    log: Any = Log()
    pending = PendingProduces(log, Counts(), 0, {})
    block = clients[0].host.memory.arena
    for number, client in enumerate(clients):
        pending.add(Produced(client, acks, number == 1), block)
    for fn in [*log.write, *log.commit]:
        fn(None)
    assert [bytes(client.wire.sent) for client in clients] == [b"told", b"", b"told"]
    assert [len(client.wire.closed) for client in clients] == [0, 1, 0]


async def test_error_response_that_is_too_large_closes_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With one line that says so: it is no defect of the broker."""

    async def failing(ctx: Any, request: Any) -> bytes:
        raise KafkaError(ErrorCode.INVALID_REQUEST)

    async def too_large(*_: object) -> list[bytes]:
        raise AnswerTooLarge

    monkeypatch.setattr("kafkawire.handlers.list_groups.list_groups", failing)
    monkeypatch.setattr("kafkawire.server.host.encode_in_slices", too_large)
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as server:
        client = await clients.Client.connect(port_of(server))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.call(ListGroupsRequest(), 4)
        await client.close()
    assert "ListGroups failed and its error response is over 100000000 bytes" in caplog.text
    assert "Traceback" not in caplog.text
