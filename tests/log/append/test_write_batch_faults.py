"""Write batches that cannot be written whole: refused, rolled back, and never read as data
later."""

from __future__ import annotations

import logging

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch, offload, read_all
from tests.kit.waiting import ticks


async def check_refused_then_accepted(world: World, partition: Partition) -> None:
    """Check that the next write fails and the one after it gets the same offsets."""
    log = world.log.commit_log
    log_position, size = log.written, partition.size_bytes
    answers: list[BaseException | None] = []
    done = partition.append(batch(b"lost", b"lost"), EPOCH_MS)
    log.after_write(answers.append)
    log.after_commit(answers.append)
    await ticks()
    assert all(isinstance(answer, KafkaError) for answer in answers), answers
    assert len(answers) == 2
    assert {answer.code for answer in answers if isinstance(answer, KafkaError)} == {
        ErrorCode.KAFKA_STORAGE_ERROR
    }
    assert (log.written, partition.size_bytes) == (log_position, size)
    assert partition.next_offset == done.base_offset
    world.fs.faults.room_bytes = None
    again = partition.append(batch(b"kept"), EPOCH_MS)
    assert again.base_offset == done.base_offset
    await log.wait_until_committed()


@pytest.mark.parametrize("power", [True, False])
async def test_short_write_changes_nothing(power: bool) -> None:
    world = World()
    await world.start()
    (partition,) = await world.topic("t")
    for _ in range(5):
        world.fs.faults.short_writes = 1
        await check_refused_then_accepted(world, partition)
    expected = [(offset, b"kept") for offset in range(5)]
    assert await read_all(partition) == expected
    await world.crash(power)
    assert await read_all(world.find("t")) == expected


async def test_full_disk_refuses_writes_until_space_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    await world.start()
    (partition,) = await world.topic("t")
    partition.append(batch(b"before"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    world.fs.faults.room_bytes = 0
    with caplog.at_level(logging.WARNING):
        await check_refused_then_accepted(world, partition)
    assert [value for _, value in await read_all(partition)] == [b"before", b"kept"]
    assert "cannot write to the commit log" in caplog.text
    assert "can be written again" in caplog.text


async def test_remains_of_failed_write_are_not_read_as_data() -> None:
    """The failed write batch was larger than the next: its tail remains intact, at valid
    positions."""
    world = World()
    log = await world.start()
    one, two = await world.topic("t", 2)
    one.append(batch(b"named"), EPOCH_MS)
    two.append(batch(b"named"), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    one.append(batch(bytes(16)), EPOCH_MS)
    two.append(batch(b"never acknowledged"), EPOCH_MS)
    file = log.journals.active.require_file()
    whole = type(file).pwritev

    def fails_after_writing(self: object, buffers: list[bytes], position: int) -> int:
        return whole(file, buffers, position) - 1

    type(file).pwritev = fails_after_writing  # type: ignore[method-assign, assignment]
    try:
        await ticks()
    finally:
        type(file).pwritev = whole  # type: ignore[method-assign]
    assert (one.next_offset, two.next_offset) == (1, 1)
    one.append(batch(bytes(16)), EPOCH_MS)  # as long as the one that failed
    await log.commit_log.wait_until_committed()
    await world.crash(power=False)
    assert len(await read_all(world.find("t", 0))) == 2
    assert await read_all(world.find("t", 1)) == [(0, b"named")]


async def test_failed_write_batch_over_several_journals_fails_whole() -> None:
    world = World(journal_bytes=4096)
    log = await world.start()
    partitions = await world.topic("t", 3)
    active = log.journals.active
    for partition in partitions:
        partition.append(batch(bytes(3000)), EPOCH_MS)
    world.fs.faults.room_bytes = 5000
    failed: list[BaseException | None] = []
    log.commit_log.after_write(failed.append)
    await ticks()
    assert isinstance(failed[0], KafkaError)
    assert log.journals.active is active
    assert [partition.next_offset for partition in partitions] == [0, 0, 0]
    world.fs.faults.room_bytes = None
    for partition in partitions:
        partition.append(batch(b"kept"), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    await world.crash()
    for index in range(3):
        assert await read_all(world.find("t", index)) == [(0, b"kept")]


async def test_batches_queued_after_failed_write_fail_with_it() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    log.commit_log.writer.slow = True
    offload(world).hold("write")
    answers: list[BaseException | None] = []
    for value in (b"one", b"two"):
        partition.append(batch(value), EPOCH_MS)
        log.commit_log.after_write(answers.append)
        await ticks(2)
    world.fs.faults.failing_writes = 1
    offload(world).release("write")
    await ticks()
    assert [type(answer) for answer in answers] == [KafkaError, KafkaError]
    assert partition.append(batch(b"three"), EPOCH_MS).base_offset == 0
    await log.commit_log.wait_until_committed()
    assert await read_all(partition) == [(0, b"three")]


async def test_failed_roll_writes_naming_frames_again() -> None:
    """The failed write batch had named a partition in the journal it began in. Nothing of it is
    stored, so the next frame of that partition is named again: otherwise the journal would not
    record that it holds the partition, and be deleted while it is needed."""
    world = World(journal_bytes=1 << 20)
    log = await world.start()
    old, new = await world.topic("t", 2)
    old.append(batch(bytes(900_000)), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    log.journals.ready.clear()  # no journal is prepared in advance
    world.fs.faults.room_bytes = 0
    new.append(batch(b"first frame, in the old journal"), EPOCH_MS)
    old.append(batch(bytes(500_000)), EPOCH_MS)  # needs the next journal
    with pytest.raises(KafkaError):
        await log.commit_log.wait_until_committed()
    assert (old.next_offset, new.next_offset) == (1, 0)
    world.fs.faults.room_bytes = None
    new.append(batch(b"kept"), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    holds = log.journals.active
    assert new.number in holds.numbers
    for _ in range(4):
        old.append(batch(bytes(900_000)), EPOCH_MS)
        await log.commit_log.wait_until_committed()
    await old.delete_records(-1)
    await ticks(50)
    assert holds.rolled
    assert await read_all(new) == [(0, b"kept")]
