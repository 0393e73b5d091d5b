"""Ends of a worker that concern other machines: its broker returns, or is given up."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.broker.liveness.waiting import RETURNING
from kafkawire.metadata.catalog import BROKER_RESOURCE, Catalog, ConfigChange
from kafkawire.server.run import END_WITHIN_S, End, close_for
from kafkawire.server.worker.giving_up import GIVE_UP_S, watch_storage
from kafkawire.server.worker.returning import watch_return
from tests.kit import simloop
from tests.kit.env import sim_env
from tests.kit.memfs import MemFileSystem


def broker_of(loop: simloop.SimLoop, **parts: Any) -> Any:
    env = sim_env(loop, random.Random(1), MemFileSystem())
    return SimpleNamespace(env=env, node_id=2, catalog=Catalog("c"), **parts)


def test_broker_ends_when_its_machine_asks_for_it() -> None:
    loop, ended = simloop.SimLoop(), list[float]()
    broker = broker_of(loop)

    async def run() -> None:
        watch_return(broker, lambda: ended.append(loop.now))
        await broker.env.sleep(10)
        assert ended == []
        broker.catalog.apply_config(ConfigChange(BROKER_RESOURCE, "2", RETURNING, "true"))
        await broker.env.sleep(2)

    simloop.run(loop, run())
    (at,) = ended
    assert 10 <= at <= 11


def storage_fails(alive: list[int], recovers_s: float = 1e9) -> list[str]:
    """Have the storage fail from 5 s on; return the reasons of the end within 100 s."""
    loop, reasons = simloop.SimLoop(), list[str]()

    def waiting_s() -> float:
        return loop.now - 5 if 5 < loop.now < recovers_s else 0.0

    objects = SimpleNamespace(waiting_s=waiting_s)
    quiet = SimpleNamespace(waiting_s=lambda: 0.0)
    log = SimpleNamespace(commit_log=SimpleNamespace(objects=objects, replicas=quiet))
    broker = broker_of(loop, log=log, liveness=SimpleNamespace(may_lead=lambda: alive))

    async def run() -> None:
        watch_storage(broker, reasons.append)
        await broker.env.sleep(100)

    simloop.run(loop, run())
    return reasons


def test_broker_is_given_up_if_only_it_cannot_store() -> None:
    (reason,) = storage_fails([1, 2])
    assert f"could not store log objects for {GIVE_UP_S:g} s" in reason


def test_broker_without_others_waits_for_the_storage() -> None:
    assert storage_fails([2]) == []


def test_short_failure_of_the_storage_is_waited_for() -> None:
    assert storage_fails([1, 2], recovers_s=5 + GIVE_UP_S - 1) == []


def closed(reason: str, closing_s: float) -> tuple[float, list[int]]:
    """Close a server that takes this long; return when that ended, and the exit codes of a process
    that left before."""
    loop, left = simloop.SimLoop(), list[int]()
    broker = broker_of(loop)
    server: Any = SimpleNamespace(broker=broker, close=lambda: broker.env.sleep(closing_s))

    async def run() -> float:
        end = End(asyncio.Event())
        if reason:
            end.give_up(reason)
        await close_for(end, server, left.append)
        return loop.now

    return simloop.run(loop, run()), left


def test_end_without_a_storage_has_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert closed("no storage", 1000) == (END_WITHIN_S, [1])
    assert "kafkawire: no storage" in capsys.readouterr().err


def test_other_ends_are_waited_for() -> None:
    assert closed("", 1000) == (1000, [])
    assert closed("no storage", 3) == (3, [])
