"""A start with the copy of a follower, when copies or the own disk fail.

Covers: kafkawire.broker.followers.install.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from kafkawire.broker.followers.install import CopySearch, NoCopy
from kafkawire.log.io.ports import LogError
from kafkawire.log.journal.file import POSITION_BITS, journal_name
from kafkawire.metadata.session import Session
from kafkawire.offsets.catalog import replica_sets
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import FOLDER, batch
from tests.kit.simloop import run
from tests.kit.sinks.follower_lives import ReplicatedLife, ReplicatedWorld
from tests.kit.sinks.follower_network import FOLDER as REPLICAS
from tests.kit.sinks.follower_network import SimFollower
from tests.kit.tier.world import CLUSTER_NODE
from tests.kit.waiting import until

ACKNOWLEDGED = 2
"""Records; the longest copy has one more."""


def make_world() -> ReplicatedWorld:
    """Return a world whose broker has two followers, on the second and third machine."""
    world = ReplicatedWorld(seed=1, machines=4)
    world.config.replica_group_size, world.config.min_insync_replicas = 3, 2
    return world


async def write_and_die(world: ReplicatedWorld) -> None:
    """Write records to a topic: the last one only the first follower has received."""
    life = ReplicatedLife(world, world.sites[0])
    await life.start()
    (partition,) = await life.create("t", 1, durability="replicated")

    def are_both_in_sync() -> bool:
        stored = world.stored_set()
        return stored is not None and len(stored.in_sync) == 2

    await until(are_both_in_sync)
    await until(lambda: partition.sink.refusal is None)
    for _ in range(ACKNOWLEDGED):
        partition.append(batch(bytes(20_000)), EPOCH_MS)
        await partition.log.wait_until_committed()
    await asyncio.sleep(1)  # so that followers know what is committed
    longest, other = (world.sites[at].follower for at in (1, 2))
    life.network.silent_until[other.replica_id] = world.loop.now + 1000
    partition.append(batch(b"longer"), EPOCH_MS)
    assert life.replication is not None
    in_sync = life.replication.in_sync
    assert in_sync is not None
    log = partition.log
    await until(lambda: partition.next_offset == ACKNOWLEDGED + 1)
    await until(lambda: in_sync.followers[longest.replica_id].end == log.written)
    life.die("power")
    await life.bury()
    assert end_of(longest) > end_of(other)


def end_of(follower: SimFollower) -> int:
    """Return where the copy of the first process of the broker ends."""
    assert follower.copies is not None
    return follower.copies.listing(1).end


async def start(world: ReplicatedWorld) -> ReplicatedLife:
    """Start the broker on a machine without a copy."""
    life = ReplicatedLife(world, world.sites[3])
    async with asyncio.timeout(60):
        await life.start()
    return life


async def end_offset(life: ReplicatedLife) -> int:
    (partition,) = await life.partitions()
    assert partition.high_watermark == partition.next_offset
    await life.close()
    await life.bury()
    return partition.high_watermark


def fail_reads(patch: pytest.MonkeyPatch, follower: SimFollower, how: str) -> None:
    """Have the disk of a follower fail, or return too few bytes."""

    def read(fd: int, length: int, position: int) -> bytes:
        if how == "error":
            raise OSError(errno.EIO, "Input/output error")
        return b""

    patch.setattr(follower.files, "read", read)


@pytest.mark.parametrize("how", ["error", "short"])
def test_another_copy_is_used_if_the_longest_cannot_be_read(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()

    async def main() -> None:
        await write_and_die(world)
        fail_reads(monkeypatch, world.sites[1].follower, how)
        assert await end_offset(await start(world)) == ACKNOWLEDGED

    run(world.loop, main())
    assert "of the follower at machine-2:9099, which was in sync, cannot be used" in caplog.text


def test_longest_copy_is_used() -> None:
    world = make_world()

    async def main() -> None:
        await write_and_die(world)
        assert await end_offset(await start(world)) == ACKNOWLEDGED + 1

    run(world.loop, main())


def test_copy_that_has_lost_files_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()

    async def main() -> None:
        await write_and_die(world)
        longest, other = (world.sites[at].follower for at in (1, 2))
        last = end_of(other) >> POSITION_BITS
        other.end("kill", restart_s=1)
        del other.files.file(f"{REPLICAS}/1/1/{journal_name(last)}").data[100:]
        await until(lambda: other.copies is not None)
        with monkeypatch.context() as patch:
            fail_reads(patch, longest, "error")
            life = ReplicatedLife(world, world.sites[3])
            starting = asyncio.ensure_future(life.start())
            await asyncio.sleep(60)
            assert not starting.done()
        async with asyncio.timeout(60):
            await starting
        assert await end_offset(life) == ACKNOWLEDGED + 1

    run(world.loop, main())
    assert "which was in sync, cannot be used: it ends at byte 100 of journal" in caplog.text


def test_start_ends_if_the_own_disk_is_full() -> None:
    world = make_world()

    async def main() -> None:
        await write_and_die(world)
        disk = world.sites[3].disk
        disk.faults.room_bytes = 10_000
        with pytest.raises(LogError, match="cannot be written"):
            await start(world)
        assert not disk.listdir(f"{FOLDER}/journals")
        world.lives[-1].die("kill")
        await world.lives[-1].bury()
        disk.faults.room_bytes = None
        assert await end_offset(await start(world)) == ACKNOWLEDGED + 1

    run(world.loop, main())


def search(life: ReplicatedLife) -> CopySearch:
    metadata: Any = life.metadata
    return CopySearch(life.env, metadata, life.network, life.catalog.cluster_id, CLUSTER_NODE)


def test_copy_is_found_while_a_follower_that_was_in_sync_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If it has the log: one whose disk was replaced is another follower."""
    world = make_world()

    async def main() -> None:
        await write_and_die(world)
        life = ReplicatedLife(world, world.sites[3])
        life.catalog = await life.metadata.open()
        found = search(life)
        assert await found.finds(lost=False)
        for at in (1, 2):
            world.sites[at].follower.end("kill", restart_s=1000)
        assert not await found.finds(lost=False)
        assert not await found.finds(lost=True)  # they may return
        waiting = asyncio.ensure_future(found.wait(1))
        await asyncio.sleep(30)
        assert not waiting.done()
        await found.wait(0)  # the broker has another epoch: this start ends when it registers
        await asyncio.sleep(1000)
        await waiting
        assert await found.finds(lost=False)

    run(world.loop, main())
    assert len([each for each in caplog.messages if "waits for a follower" in each]) == 1


def test_no_copy_is_found_if_no_follower_was_in_sync() -> None:
    world = make_world()

    async def main() -> None:
        await write_and_die(world)
        life = ReplicatedLife(world, world.sites[3])
        life.catalog = await life.metadata.open()
        stored = world.stored_set()
        assert stored is not None
        version, epoch = stored.version, stored.broker_epoch
        node = CLUSTER_NODE

        def clear(session: Session) -> bool:
            return replica_sets.store(session, node, epoch, [], version, EPOCH_MS)

        assert await life.metadata.transact(clear)
        assert not await search(life).finds(lost=False)  # a process elsewhere has everything
        assert await search(life).finds(lost=True)  # the start is refused with a sentence

    run(world.loop, main())


def test_start_that_gets_no_copy_ends_where_others_take_over() -> None:
    world = make_world()
    world.config.cluster_takeover_enable = True

    async def main() -> None:
        await write_and_die(world)
        for at in (1, 2):
            world.sites[at].follower.end("kill", restart_s=1000)
        with pytest.raises(NoCopy, match="no follower gives a copy of the log of broker"):
            await start(world)

    run(world.loop, main())
