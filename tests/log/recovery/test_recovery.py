"""Recovery after every kind of end: torn, damaged or unacknowledged frames, and the resulting log.

Covers: kafkawire.log.recovery.result.
"""

from __future__ import annotations

import logging

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.file import POSITION_MASK, journal_name
from kafkawire.log.journal.run_file import read_run, write_run
from kafkawire.log.manager import Log
from kafkawire.log.partition.read_plan import HotRead
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import FOLDER, World, batch, read_all
from tests.kit.log.recovery import JOURNALS, everything, flip_bit, start, write_zeros


async def test_clean_end_needs_no_scan_and_keeps_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, partition = await start(b"a", b"b")
    await world.log.close()

    def no_scan(*_: object) -> None:
        raise AssertionError("the index file covers everything")

    monkeypatch.setattr("kafkawire.log.recovery.recover.scan", no_scan)
    await world.start()
    assert await everything(world) == [b"a", b"b"]
    assert world.find("t").leader_epoch == partition.leader_epoch


@pytest.mark.parametrize("power", [True, False])
async def test_unclean_end_raises_epochs_of_written_partitions(power: bool) -> None:
    world = World()
    await world.start()
    one, idle = await world.topic("t", 2)
    one.append(batch(b"a"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    await world.crash(power)
    one, idle = world.find("t", 0), world.find("t", 1)
    assert (one.leader_epoch, idle.leader_epoch) == (1, 0)
    assert one.epochs == [(0, 0), (1, 1)]
    assert one.epoch_end(0) == (0, 1)
    assert one.epoch_end(1) == (1, 1)
    assert one.epoch_end(2) == (-1, -1)


async def test_unclean_end_under_flush_os_raises_all_epochs() -> None:
    world = World(flush="os")
    await world.start()
    await world.topic("t", 2)
    await world.crash()
    assert [world.find("t", index).leader_epoch for index in (0, 1)] == [1, 1]


@pytest.mark.parametrize("cut_bytes", [1, 30, 48, 60, 100])
async def test_unacknowledged_torn_tail_is_truncated(cut_bytes: int) -> None:
    world, partition = await start(b"a", b"b")
    partition.append(batch(b"torn"), EPOCH_MS)
    await world.env.sleep(0)
    log_position = partition.rows.log_position[-1] - journal_format.HEAD_BYTES
    assert partition.next_offset == 3
    await world.abandon()
    world.fs.kill()
    node = world.fs.files[f"{JOURNALS}/{journal_name(1)}"]
    start_at = (log_position & POSITION_MASK) + cut_bytes
    node.data[start_at : start_at + 200] = bytes(200)
    await world.start()
    assert await everything(world) == [b"a", b"b"]
    assert world.log.commit_log.written == log_position
    world.find("t").append(batch(b"c"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    await world.crash()
    assert await everything(world) == [b"a", b"b", b"c"]


async def test_frames_after_torn_frame_are_dropped() -> None:
    """Writes reach the disk in any order: the second batch's bytes were stored, the first's were
    not."""
    world, partition = await start(b"a")
    for value in (b"torn", b"whole"):
        partition.append(batch(value), EPOCH_MS)
        await world.env.sleep(0)
    flip_bit(world, partition.rows.log_position[1] + 70)
    await world.crash(power=False)
    assert await everything(world) == [b"a"]


@pytest.mark.parametrize("at", [-48, -44, -36, -20, 0, 8, 30, 65])
async def test_damage_to_acknowledged_data_is_quarantined(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped bit in the magic, checksum, position, run, batch header or records of a frame."""
    world, partition = await start(b"a", b"rotten", b"c", b"d")
    flip_bit(world, partition.rows.log_position[1] + at)
    with caplog.at_level(logging.CRITICAL):
        await world.crash()
    assert "is damaged in bytes" in caplog.text
    partition = world.find("t")
    assert partition.next_offset == 4
    plan = partition.plan(0, 1 << 20, 4, True)
    assert isinstance(plan, HotRead)
    views, release = world.log.commit_log.views(plan)
    assert len(views) == 1
    release()
    with pytest.raises(KafkaError) as refused:
        partition.plan(1, 1 << 20, 4, True)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert await read_all(partition, 2) == [(2, b"c"), (3, b"d")]
    assert await partition.delete_records(2) == 2
    assert await everything(world) == [b"c", b"d"]
    assert partition.append(batch(b"e"), EPOCH_MS).base_offset == 4
    await world.log.commit_log.wait_until_committed()


async def test_lost_offsets_are_named_though_their_bytes_do_not_say(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A block of zeros over the end of a frame and the head of the next, as a bad sector is."""
    world, partition = await start(b"a", b"rotten", b"lost", b"d")
    before = partition.rows.log_position[2] - journal_format.HEAD_BYTES
    write_zeros(world, before - 10, 10 + journal_format.HEAD_BYTES)
    with caplog.at_level(logging.CRITICAL):
        await world.crash()
    assert "offsets 1-1 of t-0 are lost" in caplog.text
    assert "whose records they were is unknown" in caplog.text
    assert "in no journal and no segment: offsets 2-2 of t-0 are lost" in caplog.text


async def test_damage_at_end_of_checkpointed_data_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, partition = await start(b"a", b"b")
    await world.log.checkpoint()
    flip_bit(world, partition.rows.log_position[1] + 65)
    with caplog.at_level(logging.CRITICAL):
        await world.crash()
    assert "is damaged in bytes" in caplog.text
    partition = world.find("t")
    assert partition.append(batch(b"c"), EPOCH_MS).base_offset == 2
    await world.log.commit_log.wait_until_committed()
    await world.crash()
    partition = world.find("t")
    assert await read_all(partition, 2) == [(2, b"c")]
    with pytest.raises(KafkaError):
        partition.plan(1, 1 << 20, 3, True)


async def test_truncated_frames_of_older_run_are_never_read() -> None:
    world, partition = await start(b"a")
    for value in (b"torn", b"stale"):
        partition.append(batch(value), EPOCH_MS)
        await world.env.sleep(0)
    flip_bit(world, partition.rows.log_position[1] + 70)
    await world.crash(power=False)
    partition = world.find("t")
    partition.append(batch(b"new!"), EPOCH_MS)  # ends exactly where the stale frame begins
    await world.log.commit_log.wait_until_committed()
    await world.crash(power=False)
    assert await everything(world) == [b"a", b"new!"]


async def test_clean_mark_is_ignored_if_log_continues() -> None:
    world, _ = await start(b"a")
    await world.log.close()
    mark = read_run(world.fs, FOLDER)
    assert mark is not None
    assert mark.end > 0
    await world.start()
    world.find("t").append(batch(b"b"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    await world.abandon()
    world.fs.crash()
    write_run(world.fs, FOLDER, mark)  # an old file was restored
    await world.start()
    assert await everything(world) == [b"a", b"b"]
    assert world.find("t").leader_epoch == 1


async def test_producer_state_survives_any_end() -> None:
    world = World()
    await world.start()
    (partition,) = await world.topic("t")

    def numbered(sequence: int) -> memoryview:
        return batch(b"%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)

    for sequence in range(3):
        partition.append(numbered(sequence), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    await world.log.checkpoint()
    partition.append(numbered(3), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    for _ in range(2):
        await world.crash()
        partition = world.find("t")
        for sequence in range(4):
            assert partition.append(numbered(sequence), EPOCH_MS).base_offset == sequence
        with pytest.raises(KafkaError) as refused:
            partition.append(numbered(9), EPOCH_MS)
        assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    await world.restart()
    assert world.find("t").append(numbered(3), EPOCH_MS).base_offset == 3


async def test_deleted_topic_stays_deleted_after_recovery() -> None:
    world = World()
    log: Log = await world.start()
    (old,) = await world.topic("t")
    old.append(batch(b"old"), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    await world.metadata.delete_topics([old.topic_id])
    log.remove_topic(world.catalog.remove_topic(old.topic_id))
    (new,) = await world.topic("t")
    new.append(batch(b"new"), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    await world.crash()
    assert await read_all(world.find("t")) == [(0, b"new")]
