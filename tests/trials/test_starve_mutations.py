"""The starve trial must fail on brokers with deliberate defects: one test for each of its
checks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.answer_memory import AnswerMemory
from kafkawire.metric_counters import Counts
from kafkawire.server.connection import Connection
from kafkawire.server.host import Host
from kafkawire.server.listener import ClientProtocol
from kafkawire.server.slow import Sweeper
from tests.kit.ports import free_port
from tests.trials.context import Context
from tests.trials.kill.world import Topic
from tests.trials.starve import groups, limit, storms, trial
from tests.trials.starve.good import Good
from tests.trials.starve.limit import AtLimit
from tests.trials.starve.storms import MIB, Storm
from tests.trials.starve.trial import Round
from tests.trials.victims import in_process

pytestmark = pytest.mark.slow

OPEN = 6
NEVER_READERS = Storm("never-readers", 30, storms.never_readers)
HALF_OPEN = Storm("half-open connections", 60, storms.half_open)
SETTINGS = {"hot_bytes": str(MIB), "inflight_answer_bytes": str(8 * MIB)}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context("starve", 1, 0, tmp_path, time.monotonic() + 30, short=True)


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MAX_GROWTH", 70 * MIB)
    monkeypatch.setattr("kafkawire.server.slow.UNUSED_TICKS", 1)


def texts(context: Context) -> str:
    return "\n".join(finding.text for finding in context.findings)


# -- storms


async def storm(context: Context, kind: Storm) -> str:
    """The findings of the trial in a storm of this kind."""
    async with in_process(context.folder / "data", **SETTINGS) as victim:
        round_ = Round(context, victim)
        await round_.fill()
        good = Good(context, victim.port, round_.new, round_.old)
        serving = asyncio.create_task(good.run())
        await round_.storm(kind, kind.most, good)
        good.stop.set()
        await serving
    return texts(context)


@pytest.mark.parametrize("kind", [NEVER_READERS, HALF_OPEN], ids=lambda kind: kind.name)
async def test_sound_broker_in_storm_has_no_findings(context: Context, kind: Storm) -> None:
    assert await storm(context, kind) == ""


async def test_unbounded_response_memory_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grant(self: AnswerMemory, wanted_bytes: int) -> int:
        self.add_bytes(wanted_bytes)
        return wanted_bytes

    monkeypatch.setattr(AnswerMemory, "reserve", grant)
    assert "30 never-readers: the broker's memory grew by" in await storm(context, NEVER_READERS)


async def test_waiting_for_clients_that_do_not_read_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SETTLED_WITHIN_S", 3.0)
    monkeypatch.setattr(Connection, "pause_writing", lambda self: time.sleep(0.5))
    assert "exchanges were not served in 3 s" in await storm(context, NEVER_READERS)


async def test_connections_left_open_after_clients_leave_are_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SETTLED_WITHIN_S", 3.0)
    monkeypatch.setattr(ClientProtocol, "eof_received", lambda self: True)
    found = await storm(context, HALF_OPEN)
    assert "after half-open connections: " in found
    assert " descriptors, " in found


async def test_fill_records_at_other_offsets_are_reported(context: Context) -> None:
    async with in_process(context.folder / "data", **SETTINGS) as victim:
        await Round(context, victim).fill()
        assert texts(context) == ""
        await Round(context, victim).fill()
    again = f"record 0 of the old topic is at offset {trial.SHORT_OLD_RECORDS}"
    assert again in texts(context)


# -- groups


async def group_topic(context: Context, victim: Any) -> Topic:
    round_ = Round(context, victim)
    await round_.fill()
    return round_.old


async def test_refused_groups_are_reported(context: Context) -> None:
    settings = {"group_max_session_timeout_ms": "10000"}
    async with in_process(context.folder / "data", **settings) as victim:
        topic = await group_topic(context, victim)
        await groups.storm(context, victim.port, topic, 1)
    assert "group group-0: refused with 26" in texts(context)


async def test_lost_commits_are_reported(context: Context) -> None:
    async with in_process(context.folder / "data") as victim:
        topic = await group_topic(context, victim)
        acked = await groups.storm(context, victim.port, topic, 2)
        await groups.verify(context, victim.port, topic, acked)
        assert texts(context) == ""
        await groups.verify(context, victim.port, topic, {"group-2": 3, "group-1": 9})
    assert "group group-2: committed offset -1, 3 was acked" in texts(context)
    assert "group group-1: committed offset 2, 9 was acked" in texts(context)


# -- max.connections


@asynccontextmanager
async def at_limit(context: Context) -> AsyncIterator[AtLimit]:
    """Run the checks of `max.connections` against a broker in this process."""
    monitor = free_port()
    settings = {"max_connections": str(OPEN), "metrics_listener": f"127.0.0.1:{monitor}"}
    async with in_process(context.folder / "data", **settings) as victim:
        yield AtLimit(context, victim, monitor, OPEN)


async def found_at_limit(context: Context) -> str:
    async with at_limit(context) as check:
        await check.run()
    return texts(context)


async def test_sound_broker_at_connection_limit_has_no_findings(context: Context) -> None:
    assert await found_at_limit(context) == ""
    assert context.counts["connections taken at max.connections"] == limit.LEAVING


async def test_accepting_more_connections_than_allowed_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit, "CLOSED_WITHIN_S", 1.0)
    monkeypatch.setattr(Host, "admit", lambda self: True)
    assert "15 of 15 connections beyond max.connections=6 were" in await found_at_limit(context)


async def test_closing_oldest_connection_at_limit_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def admit(self: Host) -> bool:
        if len(self.connections) >= OPEN:
            next(iter(self.connections)).abort("other clients want to connect")
        return True

    monkeypatch.setattr(limit, "CLOSED_WITHIN_S", 1.0)
    monkeypatch.setattr(limit, "TAKEN_WITHIN_S", 3.0)
    monkeypatch.setattr(Host, "admit", admit)
    assert "at max.connections an open connection is not served" in await found_at_limit(context)


async def test_missing_log_line_at_connection_limit_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "_report_refused", lambda self: None)
    words = "the log has no warning about connections beyond max.connections"
    assert await found_at_limit(context) == words


async def test_missing_metric_of_refused_connections_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Uncounted(Counts):
        connections_refused = property(lambda self: 0, lambda self, count: None)

    monkeypatch.setattr("kafkawire.broker.broker.Counts", Uncounted)
    words = "kafkawire_connections_refused_total is 0, 15 were refused"
    assert await found_at_limit(context) == words


async def test_wrong_connection_count_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit, "metric", counted_wrong(limit.metric))
    assert "kafkawire_connections is 7, 6 are open" in await found_at_limit(context)


def counted_wrong(metric: Any) -> Any:
    """Return every connection plus one more."""

    async def more(port: int, name: str) -> float:
        found: float = await metric(port, name)
        return found + 1 if name == "kafkawire_connections" else found

    return more


async def test_refusing_connections_after_limit_was_left_is_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit = Host.admit
    full: list[bool] = []

    def admit_until_full(self: Host) -> bool:
        if full or not admit(self):
            full.append(True)
        return not full

    monkeypatch.setattr(limit, "TAKEN_WITHIN_S", 3.0)
    monkeypatch.setattr(Host, "admit", admit_until_full)
    found = await found_at_limit(context)
    assert "after others have left no new connection is served in 3 s" in found


async def test_idle_connections_are_closed_for_new_ones(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_limit(context) as check:
        await check.unused_give_way()
        assert texts(context) == ""
    monkeypatch.setattr(limit, "TAKEN_WITHIN_S", 3.0)
    monkeypatch.setattr(Sweeper, "make_room", lambda self: False)
    async with at_limit(context) as check:
        await check.unused_give_way()
    assert "while all connections are without a request no new" in texts(context)
