"""Journals of earlier starts: damage that a start does not see is found before the records are
served.

Covers: kafkawire.log.journal.verify_job.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from kafkawire.codec.errors import DamagedOffsets
from kafkawire.log.io.ports import WorkerError
from kafkawire.log.journal.format import HEAD_BYTES
from kafkawire.log.journal.verification import is_bad
from kafkawire.log.partition.read_plan import HotRead
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch, read_all
from tests.kit.log.recovery import flip_bit, roll, start
from tests.kit.waiting import settle


async def closed(**settings: int) -> World:
    """A log that was closed cleanly: a start reads none of its bytes."""
    world, _ = await start(b"a", b"rotten", b"c", **settings)
    await world.log.close()
    return world


@pytest.mark.parametrize("at", [-HEAD_BYTES + 33, 3, 70])
@pytest.mark.parametrize("hot_bytes", [0, 1 << 20])
async def test_damage_in_an_indexed_journal_is_refused(
    at: int, hot_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In a byte of a frame header, of a base offset, of a record."""
    world = await closed(hot_bytes=hot_bytes)
    flip_bit(world, world.find("t").rows.log_position[1] + at)
    await world.start()
    partition = world.find("t")
    assert [value for _, value in await read_all_until(world, 1)] == [b"a"]
    for _ in range(2):
        with pytest.raises(DamagedOffsets) as refused:
            await read_all(partition, 1)
        assert refused.value.end == 2
    with caplog.at_level(logging.CRITICAL):
        assert await read_all(partition, 2) == [(2, b"c")]
    assert partition.append(batch(b"d"), EPOCH_MS).base_offset == 3
    await world.log.commit_log.wait_until_committed()
    assert await read_all(partition, 2) == [(2, b"c"), (3, b"d")]
    assert isinstance(partition.plan(3, 100, 4, True), HotRead), (
        "records written by this process are sent from memory"
    )


async def read_all_until(world: World, end: int) -> list[tuple[int, bytes | None]]:
    """The records that one Fetch from the beginning returns: up to the damage."""
    from tests.kit.log.logs import values

    plan = world.find("t").plan(0, 1 << 20, 3, True)
    assert not isinstance(plan, HotRead)
    got = values(await world.log.commit_log.read(plan))
    assert len(got) == end
    return got


async def test_undamaged_journal_is_verified_once() -> None:
    world, _ = await start(journal_bytes=4096, hot_bytes=1 << 20, cut_interval_ms=1 << 40)
    await roll(world, 12)
    await world.log.close()
    await world.start()
    jobs: list[str] = []
    run = world.env.worker.run

    async def counted(job: str, arguments: Any, bytes_per_second: int = -1) -> Any:
        jobs.append(job)
        return await run(job, arguments, bytes_per_second)

    world.env.worker.run = counted  # type: ignore[method-assign]
    partition = world.find("t")
    assert not isinstance(partition.plan(0, 1 << 20, 12, True), HotRead)
    for _ in range(3):
        assert len(await read_all(partition)) == 12
    assert len(jobs) == len({journal.number for journal in world.log.journals if journal.end})
    assert isinstance(partition.plan(0, 1 << 20, 12, True), HotRead)


async def test_without_a_worker_journals_are_read_unverified(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await closed()
    await world.start()

    async def broken(job: str, arguments: Any, bytes_per_second: int = -1) -> Any:
        raise WorkerError("it died")

    world.env.worker.run = broken  # type: ignore[method-assign]
    assert len(await read_all(world.find("t"))) == 3
    assert "serving it unverified: it died" in caplog.text


def test_ranges_overlapping_damage() -> None:
    bad = [(10, 20), (40, 50)]
    assert not is_bad([], 0, 100)
    assert not is_bad(bad, 0, 10)
    assert is_bad(bad, 0, 11)
    assert is_bad(bad, 19, 1)
    assert not is_bad(bad, 20, 20)
    assert is_bad(bad, 20, 21)
    assert not is_bad(bad, 50, 5)


async def test_stop_during_verification_is_not_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await closed()
    await world.start()
    begun, ended = asyncio.Event(), asyncio.Event()

    async def run(job: str, arguments: Any, bytes_per_second: int = -1) -> Any:
        begun.set()
        await ended.wait()
        raise WorkerError("the worker process ended with SIGKILL during 'verify'")

    world.env.worker.run = run  # type: ignore[method-assign]
    reading = asyncio.ensure_future(read_all(world.find("t"), 0))
    await begun.wait()
    closing = asyncio.ensure_future(world.log.close())
    await settle()
    ended.set()
    await closing
    await asyncio.gather(reading, return_exceptions=True)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
