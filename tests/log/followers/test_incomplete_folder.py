"""A start in an empty folder that ends before the folder is complete.

Covers: kafkawire.log.followers.service, kafkawire.log.followers.in_sync.
"""

from __future__ import annotations

import asyncio

from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import batch
from tests.kit.simloop import run
from tests.kit.sinks.follower_lives import ReplicatedLife, ReplicatedWorld


def test_set_keeps_a_follower_until_the_folder_is_complete() -> None:
    world = ReplicatedWorld(seed=1, machines=3)
    config = world.config
    config.replica_group_size, config.min_insync_replicas = 2, 1
    config.replica_lag_time_max_ms = 500

    async def members_once_started(life: ReplicatedLife) -> frozenset[str]:
        await life.start()
        assert life.replication is not None
        assert life.replication.in_sync is not None
        return life.replication.in_sync.members

    async def main() -> None:
        first = ReplicatedLife(world, world.sites[0])
        await first.start()
        (partition,) = await first.create("t", 1, durability="replicated")
        await asyncio.sleep(2)
        partition.append(batch(b"one"), EPOCH_MS)
        await partition.log.wait_until_committed()
        follower = world.sites[1].follower
        stored = world.stored_set()
        assert stored is not None
        assert stored.in_sync == {follower.replica_id}
        first.die("power")
        await first.bury()
        second = ReplicatedLife(world, world.sites[2])
        starting = asyncio.ensure_future(members_once_started(second))
        async with asyncio.timeout(10):
            await second.copied.wait()
        follower.end("kill", restart_s=30)
        await asyncio.sleep(10)
        assert not starting.done()
        assert world.stored_set() == stored
        second.die("kill")
        await second.bury()
        starting.cancel()
        third = ReplicatedLife(world, world.sites[2])
        assert await members_once_started(third) == {follower.replica_id}
        (partition,) = await third.partitions()
        assert partition.high_watermark == 1
        (partition,) = await third.partitions()
        assert partition.high_watermark == 1
        follower.end("kill", restart_s=30)
        await asyncio.sleep(10)
        stored = world.stored_set()
        assert stored is not None
        assert not stored.in_sync  # it is complete, so it may serve alone
        await third.close()
        await third.bury()

    run(world.loop, main())
