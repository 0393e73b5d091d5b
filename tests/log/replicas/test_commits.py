"""Commits that wait for followers without records of topics with durability=replicated."""

from __future__ import annotations

import asyncio

from kafkawire.codec.errors import ErrorCode, KafkaError
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch
from tests.kit.waiting import settle


async def test_checkpoint_waits_until_followers_have_the_whole_log() -> None:
    world = World()
    await world.start()
    log = world.log.commit_log
    (partition,) = await world.topic("t", durability="replicated")
    pumped: list[int] = []
    log.replicas.update("")
    log.replicas.when_written(lambda: pumped.append(log.written))
    partition.append(batch(b"one"), EPOCH_MS)
    await settle()
    log.replicas.commit(log.written)
    await world.topic("local")  # only catalog frames, and records of another durability
    world.find("local").append(batch(b"two"), EPOCH_MS)
    await log.committed()
    saving = asyncio.ensure_future(world.log.checkpoint())
    await settle()
    assert not saving.done()
    assert pumped[-1] == log.written
    log.replicas.commit(log.written)
    await saving
    assert world.log.checkpoints.log_position == log.written
    await world.log.checkpoint()  # nothing was written since
    log.replicas.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))


async def test_log_without_replicated_topics_waits_for_no_follower() -> None:
    world = World()
    await world.start()
    await world.topic("t")
    world.find("t").append(batch(b"one"), EPOCH_MS)
    await world.log.checkpoint()
    await world.log.close()
