"""Damage to `__consumer_offsets`: groups load what can be read, and lost commits are answered with
an error instead of "never committed"."""

from __future__ import annotations

import logging

import pytest

from kafkawire.codec.batches import CRC_AT
from kafkawire.codec.control import COMMIT, TransactionMarker
from kafkawire.codec.errors import ErrorCode
from kafkawire.coordination.batches import batches_of
from kafkawire.groups import offsets as committed
from kafkawire.groups.load import GroupLoader
from kafkawire.groups.model.records import Offset, OffsetRecord, committed_keys, encode_record
from kafkawire.groups.model.transactional import PendingBatch, encode_batch
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.log.journal.format import HEAD_BYTES
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.kit.env import EPOCH_MS
from tests.kit.groups.script import GroupSettings
from tests.kit.log.logs import World, batch
from tests.kit.log.recovery import flip_bit

TOPIC = "__consumer_offsets"


async def commit(world: World, partition: Partition, **offsets: int) -> None:
    """One batch of commits of the group `g` for partition 0 of topics."""
    records = [OffsetRecord("g", topic, 0, Offset(at, -1, "", 0)) for topic, at in offsets.items()]
    (made,) = batches_of([encode_record(each) for each in records], 1 << 20, EPOCH_MS)
    partition.append(memoryview(made), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()


async def damaged(at: int) -> World:
    """Damage the last commit of a group, with a frame of another topic after it."""
    world = World(log_flush_offset_checkpoint_interval_ms=1 << 40)
    await world.start()
    (other,) = await world.topic("t")
    (partition,) = await world.topic(TOPIC, cleanup_policy="compact")
    await commit(world, partition, a=1, b=1)
    await commit(world, partition, b=2, c=3)
    log_position = partition.rows.log_position[-1]
    await commit(world, partition, d=4)
    other.append(batch(b"x"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    flip_bit(world, log_position + at)
    await world.crash()
    return world


async def load(world: World) -> GroupLoader:
    partition = world.find(TOPIC)
    place = group_snapshot("/groups", partition.topic_id, partition.index)
    loaded = GroupLoader(world.env, GroupSettings(), partition, world.log.commit_log, place)
    await loaded.load()
    return loaded


def fetched(loaded: GroupLoader, *topics: str) -> dict[str, int]:
    """By topic: the group's committed offset; the negative error code where it is an error."""
    asked = [OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in topics]
    request = OffsetFetchRequestGroup(group_id="g", topics=asked if topics else None)
    answer = committed.fetch(loaded.shard.offsets, request)
    return {
        topic.name: -one.error_code or one.committed_offset
        for topic in answer.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("at", [CRC_AT, 70, -1 - HEAD_BYTES + 12])
async def test_readable_commits_are_loaded_and_lost_ones_are_errors(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = await damaged(at)
    with caplog.at_level(logging.CRITICAL):
        loaded = await load(world)
    assert f"{TOPIC}-0: offsets 2-3 and the group state" in caplog.text
    lost = -int(ErrorCode.KAFKA_STORAGE_ERROR)
    assert fetched(loaded, "a", "b", "c", "d", "e") == {"a": 1, "b": 1, "c": lost, "d": 4, "e": -1}
    assert fetched(loaded) == {"a": 1, "b": 1, "c": lost, "d": 4}
    partition = world.find(TOPIC)
    assert partition.next_offset == 5
    await commit(world, partition, c=9)
    assert fetched(await load(world), "c") == {"c": 9}


@pytest.mark.parametrize("checkpoint", [True, False])
async def test_offsets_of_a_marker_that_cannot_be_read(
    checkpoint: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its producer is not known. A partition that has no open transaction any more, because of a
    checkpoint, proves that the transaction was ended; otherwise an operator ends it."""
    world = World(log_flush_offset_checkpoint_interval_ms=1 << 40)
    await world.start()
    (other,) = await world.topic("t")
    (partition,) = await world.topic(TOPIC, cleanup_policy="compact")
    await commit(world, partition, a=1)
    step = PendingBatch(7, 0, (OffsetRecord("g", "b", 0, Offset(2, -1, "", 0)),))
    guard = partition.begin_verification(7, 0, -1, EPOCH_MS, adds=True)
    partition.append_offsets(memoryview(encode_batch(step, EPOCH_MS)), guard, EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    partition.append_marker(TransactionMarker(7, 0, 0, COMMIT), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    log_position = partition.rows.log_position[-1]
    if checkpoint:
        await world.log.checkpoint()
    other.append(batch(b"x"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    for at in range(8, 61):
        flip_bit(world, log_position + at)
    await world.crash()
    with caplog.at_level(logging.WARNING):
        loaded = await load(world)
    pending = loaded.shard.offsets.pending
    if checkpoint:
        assert (
            "the markers that ended the transactions of producer ids 7 are damaged" in caplog.text
        )
        assert not pending
        assert fetched(loaded, "a", "b") == {"a": 1, "b": -int(ErrorCode.KAFKA_STORAGE_ERROR)}
    else:
        assert "open transactions of producer ids 7 are pending" in caplog.text
        assert pending.producers() == {7}


async def test_unreadable_end_of_log_does_not_block_loading() -> None:
    world = World(log_flush_offset_checkpoint_interval_ms=1 << 40)
    await world.start()
    (other,) = await world.topic("t")
    (partition,) = await world.topic(TOPIC, cleanup_policy="compact")
    await commit(world, partition, a=1)
    await commit(world, partition, c=3)
    log_position = partition.rows.log_position[-1] - HEAD_BYTES
    other.append(batch(b"x"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    for at in range(60):
        flip_bit(world, log_position + at, bit=0x5A)
    await world.crash()
    partition = world.find(TOPIC)
    loaded = await load(world)
    assert loaded.next_offset == partition.next_offset > 2
    assert fetched(loaded, "a", "c") == {"a": 1, "c": -1}


def test_keys_are_read_up_to_the_damage() -> None:
    records = [OffsetRecord("g", name, 0, Offset(1, -1, "", 0)) for name in ("one", "two", "three")]
    (made,) = batches_of([encode_record(each) for each in records], 1 << 20, EPOCH_MS)
    assert committed_keys(made) == {("g", name, 0) for name in ("one", "two", "three")}
    made[made.index(b"two") - 7] = 0x7F  # a length within the second record's key
    assert ("g", "one", 0) in committed_keys(made)
    assert committed_keys(bytes(100)) == set()
    assert committed_keys(b"\xff" * 100) == set()
