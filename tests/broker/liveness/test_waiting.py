"""Waiting for a broker that runs on another machine, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kafkawire.broker.liveness.takeover import (
    RETURNING,
    end_returning,
    is_returning,
    wait_until_ended,
)
from kafkawire.metadata.catalog import BROKER_RESOURCE, Catalog, ConfigChange
from kafkawire.metadata.store import MetadataError
from tests.kit import simloop
from tests.kit.env import sim_env
from tests.kit.log.logs import settings
from tests.kit.memfs import MemFileSystem

EPOCH = 7


class Elsewhere:
    """SQL with the row of a broker that runs on another machine: `beats` until `ends_s`, or without
    an end until it is asked to return."""

    def __init__(self, loop: simloop.SimLoop, ends_s: float | None, *, beats: bool = True) -> None:
        self._loop = loop
        self.ends_s = ends_s
        self._beats = beats
        self.asked: list[tuple[float, str | None]] = []
        self.fails_until_s = 0.0
        self.restarted_s: float | None = None
        self.stops_starting_s = 0.0

    async def transact(self, work: Callable[[Any], Any]) -> tuple[int, int | None]:
        now = self._loop.now
        if 3 < now < self.fails_until_s:
            raise MetadataError("gone")
        if self.restarted_s is not None and now >= self.restarted_s:
            return EPOCH + 1, -1 - int(min(now, self.stops_starting_s))  # it reads its log
        if self.ends_s is not None and now >= self.ends_s:
            return EPOCH, None
        return EPOCH, int(now) if self._beats else 1

    async def alter_configs(self, changes: list[ConfigChange]) -> None:
        (change,) = changes
        assert (change.resource_type, change.name, change.key) == (BROKER_RESOURCE, "2", RETURNING)
        self.asked.append((self._loop.now, change.value))
        self.ends_s = self._loop.now + 1


async def no_step() -> None:
    return


class Found:
    """A copy that is there."""

    async def finds(self, *, lost: bool) -> bool:
        return True


def waited(
    ends_s: float | None, *, beats: bool = True, fails_until_s: float = 0.0
) -> tuple[float, int, list[tuple[float, str | None]]]:
    """Return when the wait has ended, the epoch, and when the broker was asked to return."""
    loop = simloop.SimLoop()
    sql: Any = Elsewhere(loop, ends_s, beats=beats)
    sql.fails_until_s = fails_until_s
    config = settings(node_id=2, lease_ms=5000, cluster_return_delay_ms=30_000)
    env = sim_env(loop, random.Random(1), MemFileSystem())

    async def wait() -> tuple[float, int, list[tuple[float, str | None]]]:
        epoch = await wait_until_ended(env, sql, config, no_step, Found())
        return loop.now, epoch, sql.asked

    return simloop.run(loop, wait())


def test_broker_without_heartbeat_is_started_at_once() -> None:
    assert waited(0.0) == (0.0, EPOCH, [])


def test_broker_whose_heartbeat_does_not_rise_is_started_after_the_lease() -> None:
    now_s, epoch, asked = waited(None, beats=False)
    assert (5 <= now_s <= 6, epoch, asked) == (True, EPOCH, [])


def test_broker_that_ends_elsewhere_is_started() -> None:
    now_s, _, asked = waited(12.0)
    assert (12 <= now_s <= 13, asked) == (True, [])


def test_broker_that_runs_elsewhere_is_asked_to_return() -> None:
    now_s, _, ((asked_s, value),) = waited(None)
    assert (30 <= asked_s <= 31, value) == (True, "true")
    assert now_s <= asked_s + 2


def test_sql_that_fails_meanwhile_is_no_sign_of_an_end() -> None:
    now_s, _, _ = waited(None, fails_until_s=20.0)
    assert now_s > 20


def test_start_elsewhere_is_waited_for() -> None:
    """It reads its log, which may take longer than the lease, and dies meanwhile."""
    loop = simloop.SimLoop()
    sql: Any = Elsewhere(loop, None)
    sql.restarted_s, sql.stops_starting_s = 10.0, 50.0
    config = settings(node_id=2, lease_ms=5000, cluster_return_delay_ms=600_000)
    env = sim_env(loop, random.Random(1), MemFileSystem())
    assert simloop.run(loop, wait_until_ended(env, sql, config, no_step, Found())) == EPOCH + 1
    assert 55 <= loop.now <= 57


async def test_setting_is_removed_when_the_broker_is_back() -> None:
    catalog = Catalog("c")
    changes: list[ConfigChange] = []

    class Sql:
        async def alter_configs(self, some: list[ConfigChange]) -> None:
            changes.extend(some)

    sql: Any = Sql()
    await end_returning(sql, catalog, 2)
    assert (changes, is_returning(catalog, 2)) == ([], False)
    catalog.apply_config(ConfigChange(BROKER_RESOURCE, "2", RETURNING, "true"))
    assert (is_returning(catalog, 2), is_returning(catalog, 1)) == (True, False)
    await end_returning(sql, catalog, 2)
    assert changes == [ConfigChange(BROKER_RESOURCE, "2", RETURNING, None)]
