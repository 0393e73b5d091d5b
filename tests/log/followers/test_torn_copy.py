"""A start with a copy of which a power failure has kept later bytes and lost earlier ones.

Covers: kafkawire.log.append.follower_sink, kafkawire.log.append.commit_log.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import batch
from tests.kit.simloop import run
from tests.kit.sinks.follower_lives import ReplicatedLife, ReplicatedWorld
from tests.kit.sinks.follower_network import BUFFERED_BYTES, SimFollower
from tests.kit.waiting import until
from tests.replication.memory_files import SECTOR_BYTES, Crashed

LOST, KEPT = b"x" * 4 * SECTOR_BYTES, b"y" * 100


def lose_a_sector(patch: pytest.MonkeyPatch, follower: SimFollower) -> None:
    """Simulate a power failure during the sync of KEPT: a sector of LOST, which was written before,
    does not reach the disk."""
    files = follower.files
    real = files.sync

    def sync(fd: int, path: str) -> None:
        file = files.opened[fd]
        if KEPT not in file.data:
            real(fd, path)
            return
        start = -(-file.data.index(LOST) // SECTOR_BYTES) * SECTOR_BYTES
        file.data[start : start + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        file.durable[:] = file.data
        file.changes.clear()
        patch.undo()
        raise Crashed

    patch.setattr(files, "sync", sync)


def is_durable(log: CommitLog, partition: Partition, end: int) -> bool:
    """Return whether records before an offset are on the own disk."""
    return partition.next_offset == end and log.disk_sink.committed == log.written


async def write_while_silent(life: ReplicatedLife, partition: Partition, to: SimFollower) -> None:
    """Write LOST, and KEPT once that is durable here; the follower receives both at once."""
    to.silent_until = life.loop.now + 5
    for value in (bytes(2 * BUFFERED_BYTES), LOST, KEPT):  # the first one fills the connection
        end = partition.next_offset + 1
        partition.append(batch(value), EPOCH_MS)
        await until(partial(is_durable, life.log.commit_log, partition, end))


def test_records_that_were_not_acknowledged_are_no_damage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ReplicatedWorld(seed=1, machines=3)
    world.config.replica_group_size = world.config.min_insync_replicas = 2
    follower = world.sites[1].follower

    async def main() -> None:
        first = ReplicatedLife(world, world.sites[0])
        await first.start()
        (partition,) = await first.create("t", 1, durability="replicated")
        await until(lambda: partition.sink.refusal is None)
        partition.append(batch(b"one"), EPOCH_MS)
        await partition.log.wait_until_committed()
        lose_a_sector(monkeypatch, follower)
        await write_while_silent(first, partition, follower)
        await until(lambda: follower.copies is None, "the power failure")
        acknowledged = partition.high_watermark
        assert acknowledged < partition.next_offset
        first.die("power")
        await first.bury()
        second = ReplicatedLife(world, world.sites[2])
        async with asyncio.timeout(60):
            await second.start()
        (partition,) = await second.partitions()
        assert partition.next_offset == partition.high_watermark == acknowledged
        assert not second.log.commit_log.losses
        await second.close()
        await second.bury()

    run(world.loop, main())
    assert not [each for each in caplog.records if each.levelname == "CRITICAL"]
