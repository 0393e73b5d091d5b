"""Brokers of other machines: when they are started here, when not, and their end."""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import pytest

from kafkawire.server.listeners.addresses import AddressError
from kafkawire.supervisor.guests import MAX_GUESTS, MAX_RETRY_S, RETRY_S, Guests
from kafkawire.supervisor.plan import WorkerPlan
from kafkawire.supervisor.worker import SupervisedWorker
from tests.kit.waiting import settle


class Worker:
    """A worker that runs until a test ends it with an exit code."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan
        self.started = asyncio.Event()
        self.stopped = self.removed = False
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        return await self.code

    def stop(self) -> None:
        self.stopped = True
        self.code.set_result(0)


class Host:
    """A supervisor; `fails`: addresses cannot be bound."""

    def __init__(self) -> None:
        self.hosted: list[Worker] = []
        self.released: list[int] = []
        self.fails = False
        self.now_s = 0.0
        self.guests = Guests(self, frozenset({1, 2}), 2, monitored=True, clock=lambda: self.now_s)

    def host(self, plan: WorkerPlan) -> SupervisedWorker:
        if self.fails:
            raise AddressError("no address")
        self.hosted.append(Worker(plan))
        return cast("SupervisedWorker", self.hosted[-1])

    def release(self, worker: SupervisedWorker) -> None:
        self.released.append(worker.plan.node_id)


async def test_absent_broker_is_started_once_with_ports_of_its_own() -> None:
    host = Host()
    host.guests.start({1: 4, 2: 4, 3: 7})
    host.guests.start({3: 7})
    (worker,) = host.hosted
    assert worker.plan == WorkerPlan(3, (0, 0), 0, drain=False, after=7)
    assert list(host.guests.workers) == [3]


async def test_broker_that_was_given_back_is_started_again_at_once() -> None:
    host = Host()
    host.guests.start({3: 7})
    host.hosted[0].started.set()
    host.hosted[0].code.set_result(0)
    await settle()
    assert (host.released, dict(host.guests.workers)) == ([3], {})
    host.guests.start({3: 9})
    assert host.hosted[1].plan.after == 9


async def test_start_that_fails_is_repeated_after_delays_that_double(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host()
    delay_s = RETRY_S
    for starts in range(1, 9):
        host.guests.start({3: 7})
        assert len(host.hosted) == starts
        host.hosted[-1].code.set_result(2)
        await settle()
        assert f"again in {delay_s:g} s" in caplog.messages[-1]
        host.now_s += delay_s - 1
        host.guests.start({3: 7})
        assert len(host.hosted) == starts
        host.now_s += 1
        delay_s = min(2 * delay_s, MAX_RETRY_S)


async def test_addresses_that_cannot_be_bound_delay_only_this_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host()
    host.fails = True
    host.guests.start({3: 7})
    assert "cannot take over broker 3, which is not alive: no address" in caplog.text
    host.fails = False
    host.guests.start({3: 7, 4: 1})
    assert [each.plan.node_id for each in host.hosted] == [4]
    host.now_s += RETRY_S
    host.guests.start({3: 7})
    assert sorted(host.guests.workers) == [3, 4]


async def test_number_of_guests_is_bounded() -> None:
    host = Host()
    host.guests.start(dict.fromkeys(range(10, 30), 1))
    assert list(host.guests.workers) == list(range(10, 10 + MAX_GUESTS))


async def test_stop_ends_all_and_starts_no_more(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    host.guests.start({3: 7, 4: 1})
    with caplog.at_level(logging.WARNING):
        runs = host.guests.stop()
        await asyncio.gather(*runs)
    assert [each.stopped for each in host.hosted] == [True, True]
    host.guests.start({5: 1})
    assert len(host.hosted) == 2
    assert "could not be taken over" not in caplog.text


async def test_broker_that_was_removed_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    host.guests.start({3: 7})
    (worker,) = host.hosted
    worker.started.set()
    worker.removed = True
    worker.code.set_result(0)
    await settle()
    assert (host.released, dict(host.guests.workers)) == ([3], {})
    assert "broker 3 was removed from the cluster and has ended here" in caplog.text
