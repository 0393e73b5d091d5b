"""The kill trial in short, and tests that it detects records lost by a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from tests.trials.context import Context
from tests.trials.kill.producers import NO_TOPIC_PAUSE_S, Producer
from tests.trials.kill.trial import Round, round_
from tests.trials.kill.world import World
from tests.trials.link import Link

pytestmark = [pytest.mark.real, pytest.mark.slow]


def context(folder: Path, seed: int) -> Context:
    """A short round that prints its findings as they are reported."""
    return Context("kill", seed, 0, folder, time.monotonic() + 20, short=True, say=print)


@pytest.mark.parametrize("seed", [2, 3])
async def test_short_kill_trial_passes(tmp_path: Path, seed: int) -> None:
    run = context(tmp_path, seed)
    await round_(run)
    assert run.findings == []
    assert run.counts["records read back"]  # how many depends on how busy the machine is
    assert run.counts["kills of the broker"] >= 3


def forget_newest_records(data: Path) -> None:
    """Write zeros over the second half of the data in the newest journals."""
    for journal in sorted(data.glob("brokers/*/journals/*.journal"))[-2:]:
        content = bytearray(journal.read_bytes())
        used = len(content.rstrip(b"\0"))
        content[used // 2 : used] = bytes(used - used // 2)
        journal.write_bytes(content)


async def test_lost_records_are_reported(tmp_path: Path) -> None:
    run = context(tmp_path, 4)
    attempt = Round(run, forget_newest_records)
    await attempt.run()
    texts = " ".join(finding.text for finding in run.findings)
    assert "lost" in texts or "high watermark is" in texts or "is refused" in texts, texts


@pytest.mark.parametrize("killed", [True, False])
async def test_connection_closed_by_killed_broker_is_not_reported(
    tmp_path: Path, killed: bool
) -> None:
    """A client may sleep while the broker is killed and started again."""
    run = context(tmp_path, 5)

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listening = await asyncio.start_server(end, "127.0.0.1", 0)
    world = World(run, listening.sockets[0].getsockname()[1])
    world.serving.set()

    async def life(client: Link) -> None:
        world.over = True
        if killed:
            world.ends()
            world.serving.set()  # the next life of the broker
        await client.reader.readexactly(4)

    await world.keep("sleeper", life)
    assert len(run.findings) == (0 if killed else 1)
    listening.close()
    await listening.wait_closed()


async def test_connection_accepted_by_next_broker_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the next broker is verified no client may write. A full accept queue delays a
    connection by a second, long enough for a kill and a start."""
    run = context(tmp_path, 6)
    world = World(run, 0)
    world.serving.set()
    connections = 0

    @asynccontextmanager
    async def accepted_by_next(port: int, name: str) -> AsyncIterator[Link]:
        nonlocal connections
        connections += 1
        if connections == 1:
            world.ends()
            world.serving.set()
        yield cast("Link", None)

    used = []

    async def life(client: Link) -> None:
        used.append(connections)
        world.over = True

    monkeypatch.setattr("tests.trials.kill.world.link", accepted_by_next)
    await world.keep("late", life)
    assert used == [2]
    assert run.findings == []


async def test_producer_without_topics_keeps_its_connection(tmp_path: Path) -> None:
    run = context(tmp_path, 7)
    connections: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    world = World(run, listening.sockets[0].getsockname()[1])
    world.serving.set()
    producing = asyncio.create_task(Producer(world, "p", idempotent=False, acks=1).run())
    await asyncio.wait([producing], timeout=10 * NO_TOPIC_PAUSE_S)
    world.over = True
    await producing
    assert len(connections) == 1
    connections[0].close()
    listening.close()
    await listening.wait_closed()
