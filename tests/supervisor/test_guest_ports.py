"""Ports of brokers of other machines that run here.

Covers: kafkawire.supervisor.guests.
"""

from __future__ import annotations

import asyncio

from kafkawire.broker.options import WorkerRole
from kafkawire.supervisor.guests import Guests
from kafkawire.supervisor.plan import WorkerPlan
from kafkawire.supervisor.worker import SupervisedWorker
from tests.kit.waiting import until


class EndlessWorker(SupervisedWorker):
    """A worker without a process, which runs until it is stopped."""

    def __init__(self, plan: WorkerPlan) -> None:
        super().__init__(plan, [], lambda _plan, _control: _never(), lambda _worker: None)
        self.ended = asyncio.Event()

    async def run(self) -> int:
        await self.ended.wait()
        return 0

    def stop(self) -> None:
        self.ended.set()


def _never() -> WorkerRole:
    raise AssertionError("no process is started")


class Machine:
    """Has workers without processes."""

    def host(self, plan: WorkerPlan) -> SupervisedWorker:
        return EndlessWorker(plan)

    def release(self, worker: SupervisedWorker) -> None:
        pass


def ports_of(guests: Guests) -> dict[int, tuple[int, ...]]:
    return {node: worker.plan.ports for node, worker in guests.workers.items()}


async def test_ports_are_free_ones_by_default() -> None:
    guests = Guests(Machine(), frozenset({1}), 2, monitored=True)
    guests.start({2: 7, 3: 1})
    assert ports_of(guests) == {2: (0, 0), 3: (0, 0)}
    await asyncio.gather(*guests.stop())


async def test_brokers_have_different_ports_and_return_them() -> None:
    ports = [(9193, 9293), (9194, 9294)]
    guests = Guests(Machine(), frozenset({1}), 2, monitored=False, ports=ports)
    guests.start({2: 7, 3: 1, 4: 2})  # the last one finds no port
    assert ports_of(guests) == {2: (9193, 9293), 3: (9194, 9294)}
    second = guests.workers[2]
    second.stop()
    await until(lambda: 2 not in guests.workers)
    guests.start({4: 2})
    assert ports_of(guests) == {3: (9194, 9294), 4: (9193, 9293)}
    await asyncio.gather(*guests.stop())
