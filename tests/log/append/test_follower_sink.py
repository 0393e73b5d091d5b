"""Commits and checkpoints that wait for followers, and those that do not.

Covers: kafkawire.log.append.follower_sink, kafkawire.log.maintenance.checkpoints.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.maintenance import checkpoints
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch
from tests.kit.waiting import WITHIN_S, settle


async def test_checkpoint_waits_until_followers_have_the_whole_log() -> None:
    world = World()
    await world.start()
    log = world.log.commit_log
    (partition,) = await world.topic("t", durability="replicated")
    pumped: list[int] = []
    log.follower_sink.update("")
    log.follower_sink.when_written(lambda: pumped.append(log.written))
    partition.append(batch(b"one"), EPOCH_MS)
    await settle()
    log.follower_sink.commit(log.written)
    await world.topic("local")  # only catalog frames, and records of another durability
    world.find("local").append(batch(b"two"), EPOCH_MS)
    await log.wait_until_committed()
    saving = asyncio.ensure_future(world.log.checkpoint())
    await settle()
    assert not saving.done()
    assert pumped[-1] == log.written
    log.follower_sink.commit(log.written)
    await saving
    assert world.log.checkpoints.log_position == log.written
    await world.log.checkpoint()  # nothing was written since
    log.follower_sink.fail_waiting(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))


async def test_log_without_replicated_topics_waits_for_no_follower() -> None:
    world = World()
    await world.start()
    await world.topic("t")
    world.find("t").append(batch(b"one"), EPOCH_MS)
    await world.log.checkpoint()
    await world.log.close()


async def test_log_start_of_a_local_topic_moves_without_followers() -> None:
    world = World()
    await world.start()
    log = world.log.commit_log
    (partition,) = await world.topic("t", durability="replicated")
    (local,) = await world.topic("local")
    log.follower_sink.update("")
    log.follower_sink.when_written(lambda: None)
    for each in (partition, local):
        each.append(batch(b"one"), EPOCH_MS)
    await log.disk_sink.wait_until_durable()
    saving = asyncio.ensure_future(world.log.checkpoint())
    await settle()
    async with asyncio.timeout(WITHIN_S):
        assert await local.delete_records(1) == 1
    assert not saving.done()
    log.follower_sink.commit(log.written)
    await saving


async def test_checkpoints_wait_for_followers_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "WAIT_S", 0.001)
    world = World()
    await world.start()
    log = world.log.commit_log
    (partition,) = await world.topic("t", durability="replicated")
    log.follower_sink.update("")
    log.follower_sink.when_written(lambda: None)
    partition.append(batch(b"one"), EPOCH_MS)
    await settle()
    log.follower_sink.commit(log.written)
    partition.append(batch(b"two"), EPOCH_MS)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="did not get the log within"):
            await world.log.checkpoint()
    with pytest.raises(TimeoutError, match="did not get the log within"):
        await partition.delete_records(1)
    assert partition.log_start == 0
    log.follower_sink.commit(log.written)
    await world.log.checkpoint()
    assert world.log.checkpoints.log_position == log.written
    assert await partition.delete_records(1) == 1


async def test_too_few_replicas_concern_the_topics_that_want_more() -> None:
    """The set has become smaller since the batches of one write batch were appended."""
    world = World()
    await world.start()
    log = world.log.commit_log
    topics = [
        await world.topic(name, durability="replicated", min_insync_replicas=count)
        for name, count in (("two", "2"), ("three", "3"))
    ]
    log.follower_sink.update("")
    log.follower_sink.in_sync = 3
    failures: dict[str, BaseException | None] = {}
    for (partition,) in topics:
        partition.append(batch(b"one"), EPOCH_MS)
        partition.after_commit(lambda why, name=partition.topic: failures.update({name: why}))  # type: ignore[misc]
    committed = asyncio.ensure_future(log.wait_until_committed())
    durable = asyncio.ensure_future(log.wait_until_durable())
    await settle()
    assert failures == {}
    log.follower_sink.in_sync = 2
    log.follower_sink.commit(log.written)
    assert [each.high_watermark for (each,) in topics] == [1, 1]
    assert failures["two"] is None
    assert isinstance(failures["three"], KafkaError)
    assert failures["three"].code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    await committed  # all in-sync followers have it
    await durable
