"""A start on another machine while the process before creates its first topic with
durability=replicated.

Covers: kafkawire.broker.followers.opening.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.metadata.store import MetadataError
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import batch
from tests.kit.simloop import run
from tests.kit.sinks.follower_lives import ReplicatedLife, ReplicatedWorld
from tests.kit.waiting import until


class StartDuringCreation(ReplicatedLife):
    """A start that loads the catalog, and registers after `before` has created the topic `t` and
    acknowledged a record in it."""

    before: ReplicatedLife
    created = False

    async def stall(self) -> None:
        if not self.created:
            self.created = True
            (partition,) = await self.before.create("t", 1, durability="replicated")
            await until(lambda: partition.sink.refusal is None)
            partition.append(batch(b"one"), EPOCH_MS)
            await partition.log.wait_until_committed()


@pytest.mark.parametrize("is_first", [True, False])
def test_records_of_a_topic_created_during_a_start_are_not_lost(is_first: bool) -> None:
    world = ReplicatedWorld(seed=1, machines=3)
    world.config.replica_group_size = world.config.min_insync_replicas = 2

    async def main() -> None:
        first = ReplicatedLife(world, world.sites[0])
        await first.start()
        if not is_first:
            await first.create("earlier", 1, durability="replicated")
        second = StartDuringCreation(world, world.sites[2])
        second.before = first
        with pytest.raises(MetadataError, match="became the leader of partitions of t while"):
            await second.start()
        stored = world.stored_set()
        assert stored is not None
        assert stored.in_sync == {world.sites[1].follower.replica_id}
        for life in (second, first):
            life.die("power")
            await life.bury()
        third = ReplicatedLife(world, world.sites[2])
        async with asyncio.timeout(60):
            await third.start()
        partition = (await third.partitions())[-1]
        assert (partition.topic, partition.high_watermark) == ("t", 1)
        await third.close()
        await third.bury()

    run(world.loop, main())
