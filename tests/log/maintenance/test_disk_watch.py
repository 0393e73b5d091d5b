"""A full and a busy disk: who is warned, what is refused, and the end of that state."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.log.maintenance.disk_watch import DiskWatch
from tests.kit.env import EPOCH_MS, InlineOffload, SettableClock
from tests.kit.log.logs import World, batch
from tests.kit.waiting import ticks

GIB = 1 << 30


class Disk:
    """A log whose disk has 1 TiB, with the given free space."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(busy_disk_ms=1000, **settings)
        self.relieved: list[float] = []

    async def start(self) -> DiskWatch:
        self.log = await self.world.start()
        return DiskWatch(self.log.commit_log, self.world.folder, self.relieve)

    async def relieve(self) -> None:
        self.relieved.append(0.0)

    def free(self, size_bytes: int) -> None:
        self.world.fs.faults.room_bytes = size_bytes


async def test_filling_disk_warns_once_then_frees_then_refuses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    watch = await disk.start()
    commit_log = disk.log.commit_log
    caplog.set_level(logging.WARNING)
    disk.free(500 * GIB)
    await watch.measure()
    assert not caplog.records
    disk.free(150 * GIB)
    await watch.measure()
    await watch.measure()
    assert [record.message for record in caplog.records] == [
        f"the disk of {disk.world.folder} is 85 % full, 153600 MiB are free"
    ]
    assert not disk.relieved
    disk.free(100 * GIB)
    await watch.measure()
    assert len(disk.relieved) == 1
    disk.free(20 * GIB)  # 98 %, but much
    await watch.measure()
    assert commit_log.refusal is None
    disk.free(15 * GIB)
    await watch.measure()
    assert commit_log.refusal is not None
    assert commit_log.refusal.message == f"98 % of the disk of {disk.world.folder} is used"
    assert commit_log.refusal.code is ErrorCode.POLICY_VIOLATION  # KAFKA_STORAGE_ERROR is retried
    assert commit_log.full
    disk.free(500 * GIB)
    await watch.measure()
    assert commit_log.refusal is None
    assert not commit_log.full


async def test_disk_without_room_for_a_journal_refuses_with_an_error_that_clients_report() -> None:
    disk = Disk(disk_refuse_percent=100)
    watch = await disk.start()
    (partition,) = await disk.world.topic("t")
    commit_log = disk.log.commit_log
    disk.free(50 << 20)
    await watch.measure()
    assert commit_log.refusal is None
    disk.free(0)
    partition.append(batch(b"lost"), EPOCH_MS)
    await ticks()
    assert commit_log.failing
    disk.free(50 << 20)
    await watch.measure()
    assert commit_log.refusal is not None
    assert commit_log.refusal.code is ErrorCode.POLICY_VIOLATION
    assert "are free, too few for another journal" in str(commit_log.refusal.message)
    disk.free(500 * GIB)
    await watch.measure()
    assert commit_log.refusal is None


async def test_busy_disk_releases_waiting_produces() -> None:
    disk = Disk()
    watch = await disk.start()
    (partition,) = await disk.world.topic("t")
    commit_log, env = disk.log.commit_log, disk.world.env
    assert isinstance(env.offload, InlineOffload)
    assert isinstance(env.clock, SettableClock)
    env.offload.hold("commit")
    partition.append(batch(b"one"), EPOCH_MS)
    committed = asyncio.ensure_future(commit_log.wait_until_committed())
    for _ in range(5):
        await asyncio.sleep(0)
    env.clock.ms += 1000
    watch.check()
    assert commit_log.refusal is None, "not longer than busy.disk.ms"
    woken: list[int] = []
    commit_log.full = True
    commit_log.when_room(lambda: woken.append(1))
    env.clock.ms += 1
    watch.check()
    assert commit_log.refusal is not None
    busy = "the disk is busy: a write has been on its way for 1.0 s"
    assert commit_log.refusal.message == busy
    await asyncio.sleep(0)
    assert woken, "it is notified now, not when there is space"
    env.offload.release("commit")
    await committed
    watch.check()
    assert commit_log.refusal is None
    assert not commit_log.full
