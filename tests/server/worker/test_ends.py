"""Ends of a worker that concern other machines: its broker returns, or is given up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.broker.liveness.takeover import RETURNING
from kafkawire.metadata.catalog import BROKER_RESOURCE, BrokerInfo, Catalog, ConfigChange
from kafkawire.server.run import CLOSE_WITHIN_S, END_WITHIN_S, End, close_for
from kafkawire.server.worker.ends import GIVE_UP_S, watch_return, watch_storage
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


HOSTS = {1: "node-1", 2: "node-2", 3: "node-2"}
"""The machines of brokers: 3 is another worker of the one that is watched, 2."""
FAILS_S = 5.0
"""When a failure begins."""


def ends(alive: list[int], *failing: str, recovers_s: float = 1e9) -> list[tuple[float, str]]:
    """Watch a broker while something fails; return when it was to end within 100 s, and why."""
    loop, found = simloop.SimLoop(), list[tuple[float, str]]()

    def for_s(what: str) -> Callable[[], float]:
        return lambda: (
            loop.now - FAILS_S if what in failing and FAILS_S < loop.now < recovers_s else 0.0
        )

    commit_log = SimpleNamespace(
        object_sink=SimpleNamespace(waiting_s=for_s("tier")),
        follower_sink=SimpleNamespace(waiting_s=for_s("commits")),
        busy_s=for_s("disk"),
        broken=False,
        failed=None,
    )
    replication = SimpleNamespace(cut_off_s=for_s("network"))
    log = SimpleNamespace(commit_log=commit_log, replication=replication)
    broker = broker_of(loop, log=log, liveness=SimpleNamespace(may_lead=lambda: alive))
    for node, host in HOSTS.items():
        broker.catalog.brokers[node] = BrokerInfo(node, {"CLIENT": (host, 9092)}, None)

    async def run() -> None:
        watch_storage(broker, lambda why: found.append((loop.now, why)))
        await broker.env.sleep(FAILS_S)
        if "fsync" in failing:
            commit_log.broken, commit_log.failed = True, "fsync failed"
        await broker.env.sleep(100 - FAILS_S)

    simloop.run(loop, run())
    return found


def test_broker_is_given_up_if_only_it_cannot_store() -> None:
    ((at, reason),) = ends([1, 2], "tier")
    assert f"could not store log objects for {GIVE_UP_S:g} s" in reason
    assert FAILS_S + GIVE_UP_S <= at <= FAILS_S + GIVE_UP_S + 1


@pytest.mark.parametrize("failing", ["tier", "fsync", "network"])
def test_broker_without_others_is_not_given_up(failing: str) -> None:
    assert ends([2], failing) == []


@pytest.mark.parametrize("failing", ["tier", "network"])
def test_short_failure_is_waited_for(failing: str) -> None:
    assert ends([1, 2], failing, recovers_s=FAILS_S + GIVE_UP_S - 1) == []


def test_broker_whose_disk_has_failed_is_given_up_at_once() -> None:
    ((at, reason),) = ends([1, 2], "fsync")
    assert "broker 2 can write nothing (fsync failed)" in reason
    assert FAILS_S <= at <= FAILS_S + 1


def test_broker_whose_disk_does_not_answer_is_given_up() -> None:
    ((_, reason),) = ends([1, 2], "commits", "disk")
    assert "has waited for its disk" in reason
    assert ends([1, 2], "disk") == []  # nothing waits for followers
    assert ends([1, 2], "commits") == []  # as with followers that do not run: a start needs them


def test_broker_that_reaches_no_machine_of_a_follower_is_given_up() -> None:
    ((_, reason),) = ends([1, 2], "commits", "network")
    assert "could not reach the machine of any follower" in reason
    assert len(ends([1, 2, 3], "network")) == 1


def test_broker_is_not_given_up_if_only_its_own_machine_is_left() -> None:
    assert ends([2, 3], "network") == []


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


def test_other_ends_have_a_longer_limit() -> None:
    assert closed("", 1000) == (CLOSE_WITHIN_S, [0])
    assert closed("", CLOSE_WITHIN_S - 1) == (CLOSE_WITHIN_S - 1, [])
    assert closed("no storage", 3) == (3, [])


def test_only_a_stop_by_a_signal_hands_partitions_over() -> None:
    """A broker that goes back to its machine keeps them; one without a disk cannot cut them."""
    for stop, hands_over in (
        (End.stop, True),
        (End.hand_back, False),
        (lambda end: end.give_up("no disk"), False),
        (lambda end: end.stop_superseded("it was started elsewhere"), False),
    ):
        stopped = asyncio.Event()
        end = End(stopped)
        stop(end)
        assert (stopped.is_set(), end.hands_over) == (True, hands_over)


def test_broker_that_removed_itself_ends_without_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its heartbeats find that it is not registered, before or after that."""
    for order in ("stop_removed stop_superseded give_up", "stop_superseded stop_removed"):
        stop = asyncio.Event()
        end = End(stop)
        for name in order.split():
            getattr(end, name)(name)
        assert stop.is_set()
        assert end.code() == 0
        assert capsys.readouterr().err == "kafkawire: stop_removed\n"
