"""The work in one event-loop iteration: many concurrent fetches must not delay all other clients.

Not measured but counted: how much is sent between two iterations, in which the loop serves every
other connection.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from kafkawire.codec.compile import decode, encode
from kafkawire.codec.types import Buffer
from kafkawire.handlers.budget import IterationBudget
from kafkawire.handlers.fetch.context import BATCH_BYTES
from kafkawire.handlers.fetch.handler import Fetch
from kafkawire.handlers.fetch.request import ATTEMPT_BYTES
from kafkawire.log.io.file_span import FileSpan
from kafkawire.messages.fetch import FetchRequest, FetchResponse
from kafkawire.messages.produce import ProduceRequest
from kafkawire.server.connection import Connection
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.server import port_of, running

VALUE_BYTES = 250_000
ANSWER_BYTES = 4 * VALUE_BYTES
KEYS = {ProduceRequest: (0, 9), FetchRequest: (1, 11)}


class Caller:
    """A client without a socket, which keeps what the broker sends."""

    def __init__(self, server: Server) -> None:
        self.connection = Connection(server.host, self, "127.0.0.1", "PLAINTEXT")
        self.sent: list[bytes] = []

    def write(self, parts: list[Buffer]) -> None:
        self.sent.append(b"".join(parts))

    def send_file(self, span: FileSpan) -> bool:
        self.sent.append(span.read(0, len(span)))
        return True

    def unsent_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None:
        raise AssertionError("nothing is sent that fast")

    def resume_reading(self) -> None:
        raise AssertionError("it was never paused")

    def close(self, reason: str | None) -> None:
        assert reason is None, reason

    def ask(self, request: FetchRequest | ProduceRequest) -> None:
        key, version = KEYS[type(request)]
        head = pack(">hhih", key, version, 7, -1) + b"\0" * (version == 9)
        frame = head + encode(request, version)
        frame = pack(">i", len(frame)) + frame
        self.connection.get_buffer(-1)[: len(frame)] = frame
        self.connection.buffer_updated(len(frame))

    @property
    def sent_bytes(self) -> int:
        return sum(map(len, self.sent))

    def records(self) -> bytes:
        answer = b"".join(self.sent)
        assert len(answer) == 4 + int.from_bytes(answer[:4], "big")
        found = decode(FetchResponse, 11, answer[8:]).responses[0].partitions[0]
        assert found.error_code == 0
        assert not isinstance(found.records, list)
        return bytes(found.records or b"")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    more = {"flush": "os", "journal_bytes": str(64 << 20)}
    async with running(tmp_path / "data", **more) as started:
        yield started


async def fill(server: Server) -> bytes:
    """Fill topics t and u; return the size of one response's worth of t."""
    client = await Client.connect(port_of(server))
    await make(client, "t")
    await make(client, "u")
    stored = batch(b"x" * VALUE_BYTES)
    for _ in range(5):
        await client.call(produce("t", stored), 9)
    answer = await client.call(fetch("t", 0), 11)
    await client.close()
    records = bytes(answer.responses[0].partitions[0].records)
    assert len(records) > ANSWER_BYTES
    return records


async def iterations_until(done: Callable[[], bool], scan: Callable[[], object]) -> int:
    for iteration in range(1000):
        if done():
            return iteration
        await asyncio.sleep(0)
        scan()
    raise AssertionError("it never came true")


async def test_bytes_sent_per_loop_iteration_are_bounded(server: Server) -> None:
    wanted = await fill(server)
    readers = [Caller(server) for _ in range(40)]
    for reader in readers:
        reader.ask(fetch("t", 0))
    other = Caller(server)
    other.ask(produce("u", batch(b"small"), acks=1))
    seen = [sum(reader.sent_bytes for reader in readers)]
    ahead: list[int] = []

    def scan() -> None:
        seen.append(sum(reader.sent_bytes for reader in readers))
        if other.sent and not ahead:
            ahead.append(sum(not reader.sent for reader in readers))

    assert await iterations_until(lambda: all(reader.sent for reader in readers), scan) > 5
    per_iteration = [now - before for before, now in zip([0, *seen], seen, strict=False)]
    assert max(per_iteration) <= BATCH_BYTES + len(wanted) + 1000
    assert ahead[0] > 20  # it was answered while most other clients still waited
    assert [reader.records() for reader in readers] == [wanted] * 40


async def test_woken_fetch_is_answered_in_the_iteration_after_the_write(server: Server) -> None:
    await fill(server)
    reader = Caller(server)
    reader.ask(fetch("u", 0, wait_ms=2**31 - 1))
    handler: Any = server.host.apis[1].hot
    await iterations_until(lambda: len(handler.context.parked) == 1, lambda: None)
    Caller(server).ask(produce("u", batch(b"news"), acks=1))
    assert await iterations_until(lambda: bool(reader.sent), lambda: None) == 2
    assert reader.records()


def test_small_jobs_schedule_nothing_until_half_the_budget_is_used() -> None:
    soon: list[Callable[[], None]] = []
    budget = IterationBudget(soon.append, 100)
    done: list[int] = []

    def job() -> int:
        done.append(len(done))
        return 10

    for _ in range(4):
        budget.do(job)
    assert (len(done), soon) == (4, [])
    for _ in range(11):
        budget.do(job)
    assert (len(done), len(soon)) == (10, 1)  # the others wait for the next iteration
    soon.pop()()
    assert (len(done), soon) == (15, [])
    for _ in range(6):
        budget.do(job)
    assert (len(done), len(soon)) == (20, 1)


async def test_append_wakes_bounded_number_of_fetches_per_iteration(server: Server) -> None:
    await fill(server)
    readers = [Caller(server) for _ in range(500)]
    for reader in readers:
        reader.ask(fetch("u", 0, wait_ms=2**31 - 1))
    handler: Any = server.host.apis[1].hot
    assert isinstance(handler, Fetch)
    await iterations_until(lambda: len(handler.context.parked) == len(readers), lambda: None)
    Caller(server).ask(produce("u", batch(b"news"), acks=1))
    seen = [0]

    def scan() -> None:
        seen.append(sum(bool(reader.sent) for reader in readers))

    await iterations_until(lambda: not handler.context.parked and seen[-1] == len(readers), scan)
    per_iteration = [now - before for before, now in itertools.pairwise(seen)]
    assert max(per_iteration) <= BATCH_BYTES // ATTEMPT_BYTES
    assert all(reader.records() for reader in readers)


async def test_fetch_of_disconnected_client_is_not_served(server: Server) -> None:
    await fill(server)
    readers = [Caller(server) for _ in range(10)]
    for reader in readers:
        reader.ask(fetch("t", 0))
    readers[-1].connection.release_all()
    await iterations_until(lambda: all(reader.sent for reader in readers[:-1]), lambda: None)
    assert not readers[-1].sent
    assert {journal.pins for journal in server.broker.log.journals} == {0}


async def test_queued_fetches_are_answered_on_close(server: Server) -> None:
    wanted = await fill(server)
    readers = [Caller(server) for _ in range(10)]
    for reader in readers:
        reader.ask(fetch("t", 0))
    await server.close()
    assert [reader.records() for reader in readers] == [wanted] * 10


def test_budget_keeps_order_and_is_exceeded_by_one_job_at_most() -> None:
    soon: list[Callable[[], None]] = []
    done: list[int] = []
    budget = IterationBudget(soon.append, 10)

    def job(number: int, cost: int) -> Callable[[], int]:
        def run() -> int:
            done.append(number)
            return cost

        return run

    budget.later(job(0, 1))
    for number in range(1, 6):
        budget.do(job(number, 6))
    assert done == []  # a new job does not overtake waiting ones
    soon.pop()()
    assert done == [0, 1, 2]
    soon.pop()()
    assert done == [0, 1, 2, 3, 4]
    budget.do(job(6, 1))
    assert len(soon) == 1
    soon.pop()()
    assert done == [0, 1, 2, 3, 4, 5, 6]
    assert soon == []  # without jobs it does not schedule another iteration
    budget.do(job(7, 1))
    assert done[-1] == 7
    budget.later(job(8, 99))
    budget.finish()
    assert done[-1] == 8
