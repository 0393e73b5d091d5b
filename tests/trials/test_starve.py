"""The starve trial in short, and that it notices a client that is not served, and memory."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.trials.context import Context
from tests.trials.kill.world import Topic
from tests.trials.starve.good import Good
from tests.trials.starve.storms import MIB, SPARE_DESCRIPTORS, allowed
from tests.trials.starve.trial import MAX_GROWTH, judge, round_

TOPIC = Topic("t", bytes(16), 1, compacted=False, tiered=False)


def context(folder: Path) -> Context:
    return Context("starve", 1, 0, folder, time.monotonic() + 30, short=True, say=print)


async def test_a_client_that_is_not_served_is_noticed(tmp_path: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    run = context(tmp_path)
    good = Good(run, server.sockets[0].getsockname()[1], TOPIC, TOPIC)
    serving = asyncio.create_task(good.run())
    while not run.findings:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    good.stop.set()
    await serving
    server.close()
    assert "the well-behaved client is not served" in run.findings[0].text
    assert good.served == 0


def test_memory_without_bound_is_noticed(tmp_path: Path) -> None:
    run = context(tmp_path)
    judge(run, "few", MAX_GROWTH, 1)
    judge(run, "many", MAX_GROWTH + 190 * MIB, 5000)
    assert run.findings == []
    judge(run, "hungry", MAX_GROWTH + MIB, 1)
    assert "hungry: the broker's memory grew by 601 MiB" in run.findings[0].text


def test_no_more_sockets_than_the_system_allows() -> None:
    assert allowed(10) == 10
    assert 0 < allowed(1 << 40) < (1 << 40) - SPARE_DESCRIPTORS


@pytest.mark.real
@pytest.mark.slow
async def test_hostile_clients_starve_nobody(tmp_path: Path) -> None:
    run = context(tmp_path)
    await round_(run)
    assert run.findings == []
    assert run.counts["groups joined and committed"] == run.counts["commits of groups verified"]
