"""The heartbeats of a broker, in virtual time: what it stores, reports and tells the catalog."""

from __future__ import annotations

import asyncio
import random

import pytest

from kafkawire.broker.liveness.service import MAX_DECIDE_S, Liveness
from kafkawire.metadata.catalog import (
    BROKER_RESOURCE,
    DECOMMISSIONING,
    BrokerInfo,
    Catalog,
    ConfigChange,
    NewTopic,
)
from kafkawire.metadata.directory import local_group
from kafkawire.metadata.rows import new_topic
from kafkawire.metadata.store import BrokerSuperseded, MetadataError
from tests.kit import simloop
from tests.kit.env import sim_env
from tests.kit.memfs import MemFileSystem

LEASE_MS = 5000


class Table:
    """The rows of heartbeats in memory; `fails`: SQL cannot be reached."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.fails = False
        self.calls = 0

    async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
        self.calls += 1
        if self.fails:
            raise MetadataError("gone")
        before = self.rows.get(node_id, 0)
        self.rows[node_id] = min(before, 0) - 1 if starting else max(before, 0) + 1
        return dict(self.rows)

    async def end_heartbeats(self, node_id: int) -> None:
        self.calls += 1
        if self.fails:
            raise MetadataError("gone")
        self.rows.pop(node_id, None)


class Process:
    """One broker's catalog and heartbeats."""

    def __init__(self, loop: simloop.SimLoop, table: Table, node_id: int, *others: int) -> None:
        self.catalog = Catalog("cluster")
        for node in (node_id, *others):
            self.register(node)
        env = sim_env(loop, random.Random(node_id), MemFileSystem())
        self.liveness = Liveness(env, table, self.catalog, node_id, LEASE_MS)
        self.liveness.start()

    def register(self, node_id: int) -> None:
        self.catalog.add_broker(BrokerInfo(node_id, {}, None))

    @property
    def silent(self) -> set[int]:
        return set(self.catalog.silent)

    def die(self) -> None:
        """End as SIGKILL does."""
        task = self.liveness._task
        assert task is not None
        task.cancel()


async def _single(loop: simloop.SimLoop) -> None:
    table = Table()
    one = Process(loop, table, 1)
    await asyncio.sleep(100)
    assert (table.calls, one.liveness.may_lead()) == (0, [1])
    two = Process(loop, table, 2, 1)
    one.register(2)
    await asyncio.sleep(3)
    assert set(table.rows) == {1, 2}
    for process in (one, two):
        assert (process.silent, process.liveness.may_lead()) == (set(), [1, 2])
    await two.liveness.close()
    await two.liveness.close()
    await asyncio.sleep(1.5)
    assert (one.silent, one.liveness.may_lead(), set(table.rows)) == ({2}, [1], {1})
    await one.liveness.close()
    assert table.rows == {}
    again = Process(loop, table, 1)
    await again.liveness.close()
    assert table.rows == {}


def test_single_broker_stores_nothing_and_a_second_one_begins_heartbeats() -> None:
    loop = simloop.SimLoop()
    simloop.run(loop, _single(loop))


async def _killed(loop: simloop.SimLoop) -> None:
    table = Table()
    one, two = Process(loop, table, 1, 2), Process(loop, table, 2, 1)
    await asyncio.sleep(10)
    version = one.catalog.version
    await asyncio.sleep(10)
    assert one.catalog.version == version, "answers stay valid while nothing changes"
    two.die()
    await asyncio.sleep(4)
    assert one.silent == set()
    await asyncio.sleep(3)
    assert (one.silent, one.liveness.may_lead()) == ({2}, [1])
    assert one.catalog.version == version + 1
    Process(loop, table, 2, 1)
    await asyncio.sleep(2)
    assert (one.silent, one.liveness.may_lead()) == (set(), [1, 2])


def test_killed_broker_is_silent_after_the_lease_and_back_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = simloop.SimLoop()
    with caplog.at_level("INFO"):
        simloop.run(loop, _killed(loop))
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "broker 2 has stored no heartbeat for 5000 ms",
        "broker 2 is back",
    ]


async def _outage(loop: simloop.SimLoop) -> None:
    table = Table()
    one, two = Process(loop, table, 1, 2, 3), Process(loop, table, 2, 1, 3)
    await asyncio.sleep(10)
    assert one.silent == two.silent == {3}
    table.fails = True
    await asyncio.sleep(300)
    assert one.silent == two.silent == {3}
    table.fails = False
    for _ in range(20):
        await asyncio.sleep(1)
        assert one.silent == two.silent == {3}
    table.fails = True
    await one.liveness.close()


def test_outage_of_sql_makes_no_broker_silent(caplog: pytest.LogCaptureFixture) -> None:
    loop = simloop.SimLoop()
    with caplog.at_level("INFO"):
        simloop.run(loop, _outage(loop))
    said = [record.getMessage() for record in caplog.records]
    assert sum(each.startswith("cannot store the heartbeat") for each in said) == 2
    assert sum(each == "heartbeats are stored again" for each in said) == 2
    assert sum(each.startswith("cannot delete the heartbeat") for each in said) == 1


async def _decided(loop: simloop.SimLoop) -> None:
    table = Table()
    one = Process(loop, table, 1)
    await one.liveness.wait_until_decided()
    assert loop.now == 0.0
    one.register(2)
    two = Process(loop, table, 2, 1)
    for process in (one, two):
        await process.liveness.wait_until_decided()
        assert process.liveness.may_lead() == [1, 2]
    assert 1.0 <= loop.now < MAX_DECIDE_S
    one.register(3)  # it is not there
    begun = loop.now
    await one.liveness.wait_until_decided()
    assert MAX_DECIDE_S <= loop.now - begun < LEASE_MS / 1000
    await asyncio.sleep(LEASE_MS / 1000)
    begun = loop.now
    await one.liveness.wait_until_decided()
    assert (loop.now, one.liveness.may_lead()) == (begun, [1, 2])
    for process in (one, two):
        process.die()


def test_new_topics_wait_until_brokers_are_known_to_beat_or_to_be_silent() -> None:
    loop = simloop.SimLoop()
    simloop.run(loop, _decided(loop))


class LockedTable(Table):
    """SQLite: each second heartbeat finds the database locked, for as long as it waits."""

    async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
        if self.calls % 2:
            self.calls += 1
            await asyncio.sleep(1.0)
            raise MetadataError("database is locked")
        return await super().beat(node_id, starting)


def test_heartbeat_that_finds_the_database_locked_is_repeated_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, table = simloop.SimLoop(), LockedTable()

    async def main() -> None:
        process = Process(loop, table, 1, 2)
        await asyncio.sleep(21)
        process.die()

    simloop.run(loop, main())
    assert table.rows[1] >= 10
    assert "cannot store the heartbeat" not in caplog.text


async def _running(loop: simloop.SimLoop) -> None:
    table = Table()
    one, two = Process(loop, table, 1, 2), Process(loop, table, 2, 1)
    await asyncio.sleep(10)
    two.die()
    await asyncio.sleep(8)
    assert (one.silent, one.liveness.may_lead()) == ({2}, [1])
    version = one.catalog.version
    one.liveness.running({1, 2})
    assert (one.silent, one.liveness.may_lead()) == (set(), [1, 2])
    assert one.catalog.version == version + 1
    one.liveness.running({1, 2})
    assert one.catalog.version == version + 1
    await asyncio.sleep(8)
    assert one.silent == {2}, "it did not run"


def test_broker_that_is_known_to_run_is_alive_at_once() -> None:
    loop = simloop.SimLoop()
    simloop.run(loop, _running(loop))


async def _superseded(loop: simloop.SimLoop) -> None:
    class Guarded(Table):
        async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
            self.calls += 1
            raise BrokerSuperseded(node_id, 7)

    table = Guarded()
    one = Process(loop, table, 1, 2)
    whys: list[str] = []
    one.liveness.when_superseded(whys.append)
    one.liveness.when_superseded(whys.append)
    await asyncio.sleep(0.5)
    assert len(whys) == 2
    assert "started as broker 1, in epoch 7" in whys[0]
    assert one.silent == set()
    await one.liveness.close()


def test_broker_that_was_started_elsewhere_is_reported() -> None:
    loop = simloop.SimLoop()
    simloop.run(loop, _superseded(loop))


async def _handed_over(loop: simloop.SimLoop) -> None:
    table = Table()
    one = Process(loop, table, 1, 2, 3)
    two, three = Process(loop, table, 2, 1, 3), Process(loop, table, 3, 1, 2)
    one.catalog.set_groups([local_group(node) for node in (1, 2, 3)])
    one.catalog.add_topic(new_topic(NewTopic("t", [1, 3]), b"i" * 16, 1))
    reports: list[dict[int, int]] = []
    one.liveness.when_absent(reports.append)
    await asyncio.sleep(10)
    for stopped in (two, three):
        await stopped.liveness.close()
    await asyncio.sleep(30)
    assert one.silent == {2, 3}
    assert {node for each in reports for node in each} == {3}
    table.rows[2] = 1  # it was killed after its next start
    await asyncio.sleep(20)
    assert {node for each in reports for node in each} == {2, 3}
    await one.liveness.close()


def test_broker_that_has_handed_over_what_it_led_is_not_absent() -> None:
    loop = simloop.SimLoop()
    simloop.run(loop, _handed_over(loop))


async def _decommissioned(loop: simloop.SimLoop) -> None:
    table = Table()
    one, two = Process(loop, table, 1, 2), Process(loop, table, 2, 1)
    one.catalog.set_groups([local_group(node) for node in (1, 2)])
    one.catalog.apply_config(ConfigChange(BROKER_RESOURCE, "2", DECOMMISSIONING, "true"))
    reports: list[dict[int, int]] = []
    one.liveness.when_absent(reports.append)
    await asyncio.sleep(10)
    await two.liveness.close()
    await asyncio.sleep(30)
    assert {node for each in reports for node in each} == {2}
    await one.liveness.close()


def test_decommissioned_broker_that_leads_nothing_is_taken_over() -> None:
    """Only a process of it deletes what it has stored."""
    loop = simloop.SimLoop()
    simloop.run(loop, _decommissioned(loop))


async def _absent(loop: simloop.SimLoop) -> None:
    table = Table()
    one, two = Process(loop, table, 1, 2), Process(loop, table, 2, 1)
    reports: list[dict[int, int]] = []
    one.liveness.when_absent(reports.append)
    await asyncio.sleep(30)
    assert reports == []
    two.die()
    await asyncio.sleep(LEASE_MS / 1000 + 2)
    assert {tuple(each.items()) for each in reports} == {((2, one.catalog.brokers[2].epoch),)}
    table.fails = True
    await asyncio.sleep(3)
    known = len(reports)
    await asyncio.sleep(30)
    assert len(reports) == known
    await one.liveness.close()


def test_silent_broker_is_reported_as_absent_while_sql_answers() -> None:
    loop = simloop.SimLoop()
    simloop.run(loop, _absent(loop))
