"""Turns: what is appended together is written together, or not at all; commits and who waits."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from log.disk import real_env
from log.partition import Partition
from tests.kit.env import EPOCH_MS, InlineOffload
from tests.kit.logs import World, batch, read_all


def offload(world: World) -> InlineOffload:
    assert isinstance(world.env.offload, InlineOffload)
    return world.env.offload


async def ticks(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_appended_is_read_after_the_commit() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    assert partition.append(batch(b"a", b"b"), EPOCH_MS).base_offset == 0
    assert partition.append(batch(b"c"), EPOCH_MS).base_offset == 2
    assert (partition.next_offset, partition.high_watermark) == (0, 0)
    await log.commit_log.committed()
    assert (partition.next_offset, partition.high_watermark) == (3, 3)
    assert await read_all(partition) == [(0, b"a"), (1, b"b"), (2, b"c")]
    await world.restart()
    assert await read_all(world.find("t")) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert world.find("t").leader_epoch == 0
    await world.crash(power=True)
    assert await read_all(world.find("t")) == [(0, b"a"), (1, b"b"), (2, b"c")]
    await world.log.close()


async def test_batches_of_one_turn_share_a_frame_and_an_index_row() -> None:
    world = World()
    log = await world.start()
    one, two = await world.topic("t", 2)
    for partition in (one, two, one, one):
        partition.append(batch(b"x"), EPOCH_MS)
    await log.commit_log.committed()
    assert (len(one.rows), one.rows.count[0]) == (1, 3)
    assert (len(two.rows), two.rows.count[0]) == (1, 1)
    assert [offset for offset, _ in await read_all(one)] == [0, 1, 2]


async def test_a_frame_of_several_batches_stays_under_its_bound() -> None:
    world = World(journal_bytes=8 << 20)
    log = await world.start()
    (partition,) = await world.topic("t")
    for _ in range(5):
        partition.append(batch(bytes(400_000)), EPOCH_MS)
    await log.commit_log.committed()
    assert list(partition.rows.count) == [2, 2, 1]


async def test_the_stored_head_has_offset_and_leader_epoch() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    partition.append(batch(b"a"), EPOCH_MS)
    partition.lead(7)
    view = batch(b"b")
    partition.append(view, EPOCH_MS)
    assert int.from_bytes(view[:8], "big") == 1
    assert int.from_bytes(view[12:16], "big") == 7
    await log.commit_log.committed()


async def test_callbacks_come_in_order_and_one_that_raises_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    seen: list[str] = []

    def broken(failure: BaseException | None) -> None:
        seen.append("broken")
        raise ValueError("a bug")

    partition.append(batch(b"a"), EPOCH_MS)
    log.commit_log.after_commit(lambda failure: seen.append(f"commit {failure}"))
    log.commit_log.after_write(broken)
    log.commit_log.after_write(lambda failure: seen.append(f"write {failure}"))
    assert seen == []
    with caplog.at_level(logging.ERROR):
        await log.commit_log.committed()
    assert seen == ["broken", "write None", "commit None"]
    assert "a bug" in caplog.text


async def test_after_write_without_anything_queued_comes_at_the_end_of_the_turn() -> None:
    world = World()
    log = await world.start()
    seen: list[BaseException | None] = []
    log.commit_log.after_write(seen.append)
    assert seen == []
    await ticks(1)
    assert seen == [None]


async def check_refused_then_accepted(world: World, partition: Partition) -> None:
    """The next write fails, the one after it goes to the same offsets."""
    log = world.log.commit_log
    place, size = log.written, partition.size_bytes
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
    assert (log.written, partition.size_bytes) == (place, size)
    assert partition.next_offset == done.base_offset
    world.fs.faults.room_bytes = None
    again = partition.append(batch(b"kept"), EPOCH_MS)
    assert again.base_offset == done.base_offset
    await log.committed()


@pytest.mark.parametrize("power", [True, False])
async def test_a_short_write_leaves_everything_as_before(power: bool) -> None:
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


async def test_a_full_disk_refuses_and_recovers_when_space_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    await world.start()
    (partition,) = await world.topic("t")
    partition.append(batch(b"before"), EPOCH_MS)
    await world.log.commit_log.committed()
    world.fs.faults.room_bytes = 0
    with caplog.at_level(logging.WARNING):
        await check_refused_then_accepted(world, partition)
    assert [value for _, value in await read_all(partition)] == [b"before", b"kept"]
    assert "cannot write to the commit log" in caplog.text
    assert "takes writes again" in caplog.text


async def test_remains_of_a_failed_write_never_pass_for_data() -> None:
    """The failed turn was larger than the next: its tail lies there whole, at valid places."""
    world = World()
    log = await world.start()
    one, two = await world.topic("t", 2)
    one.append(batch(b"named"), EPOCH_MS)
    two.append(batch(b"named"), EPOCH_MS)
    await log.commit_log.committed()
    one.append(batch(bytes(16)), EPOCH_MS)
    two.append(batch(b"never acknowledged"), EPOCH_MS)
    file = log.journals.active.opened()
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
    await log.commit_log.committed()
    await world.crash(power=False)
    assert len(await read_all(world.find("t", 0))) == 2
    assert await read_all(world.find("t", 1)) == [(0, b"named")]


async def test_a_failed_fsync_stops_writes_until_the_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    partition.append(batch(b"kept"), EPOCH_MS)
    await log.commit_log.committed()
    world.fs.faults.failing_syncs = 1
    partition.append(batch(b"doubtful"), EPOCH_MS)
    with caplog.at_level(logging.CRITICAL), pytest.raises(KafkaError, match="until the broker"):
        await log.commit_log.committed()
    assert caplog.text.count("fsync failed") == 1
    assert log.commit_log.failed is not None
    with pytest.raises(KafkaError) as refused:
        partition.append(batch(b"refused"), EPOCH_MS)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        await log.commit_log.committed()
    assert not log.commit_log.full
    assert await read_all(partition) == [(0, b"kept")]
    await world.crash(power=False)
    # The kernel still had the bytes, and takes them for clean: recovery must write them again.
    found = [(0, b"kept"), (1, b"doubtful")]
    assert await read_all(world.find("t")) == found
    world.find("t").append(batch(b"on"), EPOCH_MS)
    await world.log.commit_log.committed()
    await world.crash(power=True)
    assert await read_all(world.find("t")) == [*found, (2, b"on")]


async def test_a_turn_may_be_larger_than_a_journal() -> None:
    world = World(journal_bytes=4096)
    log = await world.start()
    partitions = await world.topic("t", 4)
    for at in range(12):
        partitions[at % 4].append(batch(bytes(2500)), EPOCH_MS)
        partitions[at % 4].append(batch(bytes(9000)), EPOCH_MS)
    await log.commit_log.committed()
    assert len(list(log.journals)) >= 4
    await world.crash()
    for index in range(4):
        assert len(await read_all(world.find("t", index))) == 6


async def test_a_failed_turn_over_several_journals_fails_whole() -> None:
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
    await log.commit_log.committed()
    await world.crash()
    for index in range(3):
        assert await read_all(world.find("t", index)) == [(0, b"kept")]


async def test_while_writes_are_slow_a_thread_does_them_and_turns_pile_up() -> None:
    world = World(slow_write_ms=0)
    log = await world.start()
    (partition,) = await world.topic("t")
    commit_log = log.commit_log
    commit_log._slow = True
    offload(world).hold("write")
    order: list[str] = []
    for name in ("first", "second", "third"):
        partition.append(batch(name.encode()), EPOCH_MS)
        commit_log.after_write(lambda failure, name=name: order.append(name))  # type: ignore[misc]
        await ticks(2)
    assert (order, partition.next_offset) == ([], 0)
    assert len(offload(world).held) == 1
    offload(world).let_go("write")
    await commit_log.committed()
    assert order == ["first", "second", "third"]
    assert len(partition.rows) == 2  # the first alone, the others as they piled up
    assert [value for _, value in await read_all(partition)] == [b"first", b"second", b"third"]


async def test_what_was_queued_behind_a_failed_write_fails_with_it() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    log.commit_log._slow = True
    offload(world).hold("write")
    answers: list[BaseException | None] = []
    for value in (b"one", b"two"):
        partition.append(batch(value), EPOCH_MS)
        log.commit_log.after_write(answers.append)
        await ticks(2)
    world.fs.faults.failing_writes = 1
    offload(world).let_go("write")
    await ticks()
    assert [type(answer) for answer in answers] == [KafkaError, KafkaError]
    assert partition.append(batch(b"three"), EPOCH_MS).base_offset == 0
    await log.commit_log.committed()
    assert await read_all(partition) == [(0, b"three")]


async def test_a_commit_covers_all_that_is_written_and_the_next_gathers_meanwhile() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    offload(world).hold("commit")
    order: list[int] = []
    for n in range(3):
        partition.append(batch(b"x"), EPOCH_MS)
        log.commit_log.after_commit(lambda failure, n=n: order.append(n))  # type: ignore[misc]
        await ticks(2)
    assert (partition.next_offset, partition.high_watermark, order) == (3, 0, [])
    assert len(offload(world).held) == 1
    offload(world).let_go("commit")
    await ticks()
    assert (partition.high_watermark, order) == (3, [0, 1, 2])


async def test_a_watched_partition_is_committed_at_once_others_after_the_delay() -> None:
    world = World(commit_delay_ms=40)
    log = await world.start()
    watched, other = await world.topic("t", 2)
    moved: list[int] = []
    watched.watchers.add(lambda partition: moved.append(partition.high_watermark))
    other.append(batch(b"x"), EPOCH_MS)
    await ticks()
    assert other.high_watermark == 0
    watched.append(batch(b"x"), EPOCH_MS)
    await ticks()
    assert (moved, other.high_watermark) == ([1], 1)
    other.append(batch(b"x"), EPOCH_MS)
    await ticks()
    assert other.high_watermark == 1
    log.commit_log.want_commit()
    await ticks()
    assert other.high_watermark == 2
    other.append(batch(b"x"), EPOCH_MS)
    await asyncio.sleep(0.2)
    assert other.high_watermark == 3


async def test_flush_os_answers_after_the_write() -> None:
    world = World(flush="os")
    log = await world.start()
    (partition,) = await world.topic("t")
    offload(world).hold("commit")
    partition.append(batch(b"x"), EPOCH_MS)
    await log.commit_log.committed()
    assert (partition.high_watermark, log.commit_log.full) == (1, False)
    offload(world).let_go("commit")


async def test_produces_wait_while_too_much_is_uncommitted() -> None:
    world = World(uncommitted_max_bytes=500)
    log = await world.start()
    (partition,) = await world.topic("t")
    offload(world).hold("commit")
    partition.append(batch(bytes(300)), EPOCH_MS)
    assert not log.commit_log.full
    partition.append(batch(bytes(300)), EPOCH_MS)
    assert log.commit_log.full
    room: list[bool] = []
    log.commit_log.when_room(lambda: room.append(log.commit_log.full))
    await ticks()
    assert (room, log.commit_log.full) == ([], True)
    log.commit_log.want_commit()
    await ticks()
    offload(world).let_go("commit")
    await ticks()
    assert room == [False]


async def test_a_second_process_is_refused_in_one_sentence() -> None:
    world = World()
    log = await world.start()
    other = World(world.env)
    with pytest.raises(Exception, match="another kafkawire process uses"):
        await other.start()
    await log.close()
    await other.start()
    await other.log.close()


async def test_what_is_not_a_batch_changes_nothing() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t", max_message_bytes="200")
    torn = batch(b"x")
    torn[30] ^= 1
    for view, code in ((torn, 2), (batch(bytes(300)), 10), (batch(b"x", attributes=0x10), 48)):
        with pytest.raises(KafkaError) as refused:
            partition.append(view, EPOCH_MS)
        assert refused.value.code == code
    assert (partition.offsets.pending, log.commit_log.frames) == (0, [])


async def test_log_append_time_and_compression_make_the_stored_form() -> None:
    world = World()
    log = await world.start()
    (timed,) = await world.topic("timed", message_timestamp_type="LogAppendTime")
    (packed,) = await world.topic("packed", compression_type="gzip")
    done = timed.append(batch(b"x", timestamp_ms=5), EPOCH_MS)
    assert done.log_append_time_ms == EPOCH_MS
    assert packed.append(batch(bytes(1000)), EPOCH_MS).log_append_time_ms == -1
    await log.commit_log.committed()
    assert await timed.offset_for_time(EPOCH_MS) == (0, EPOCH_MS)
    assert packed.size_bytes < 500
    assert await read_all(packed) == [(0, bytes(1000))]


async def test_a_removed_partition_takes_nothing_and_wakes_its_readers() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    woken: list[bool] = []
    partition.watchers.add(lambda gone: woken.append(gone.removed))
    log.remove_topic(world.catalog.by_name["t"])
    assert woken == [True]
    with pytest.raises(KafkaError) as refused:
        partition.append(batch(b"x"), EPOCH_MS)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_callback_may_append_while_the_thread_writes() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    broken: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    log.commit_log._slow = True
    log.commit_log._slow_s = -1.0  # every write counts as slow

    def more(failure: BaseException | None) -> None:
        if partition.offsets.pending < 5:
            partition.append(batch(b"x"), EPOCH_MS)
            log.commit_log.after_write(more)

    more(None)
    await ticks(40)
    assert broken == []
    assert (partition.next_offset, log.commit_log._slow) == (5, True)


async def test_a_roll_without_room_leaves_the_naming_frames_to_be_written() -> None:
    """The turn that failed had named a partition in the journal it began in. Nothing of it is
    there, so the next frame of that partition is named again: otherwise the journal would not
    know that it holds the partition, and go while it is needed."""
    world = World(journal_bytes=1 << 20)
    log = await world.start()
    old, new = await world.topic("t", 2)
    old.append(batch(bytes(900_000)), EPOCH_MS)
    await log.commit_log.committed()
    log.journals.ready.clear()  # nothing is made ready ahead
    world.fs.faults.room_bytes = 0
    new.append(batch(b"first frame, in the old journal"), EPOCH_MS)
    old.append(batch(bytes(500_000)), EPOCH_MS)  # needs the next journal
    with pytest.raises(KafkaError):
        await log.commit_log.committed()
    assert (old.next_offset, new.next_offset) == (1, 0)
    world.fs.faults.room_bytes = None
    new.append(batch(b"kept"), EPOCH_MS)
    await log.commit_log.committed()
    holds = log.journals.active
    assert new.number in holds.numbers
    for _ in range(4):
        old.append(batch(bytes(900_000)), EPOCH_MS)
        await log.commit_log.committed()
    await old.delete_records(-1)
    await ticks(50)
    assert holds.rolled
    assert await read_all(new) == [(0, b"kept")]


@pytest.mark.parametrize("flush", ["commit", "os"])
async def test_the_real_disk_holds_it_too(tmp_path: Path, flush: str) -> None:
    """Rolling, recycling, mapped and cold reads, a restart, a start after no goodbye."""
    world = World(real_env(), flush=flush, journal_bytes=1 << 16, hot_bytes=1 << 17)
    world.folder = str(tmp_path / "1")
    await world.start()
    (partition,) = await world.topic("t")
    for at in range(60):
        partition.append(batch(b"%d:" % at + bytes(10_000)), EPOCH_MS)
        if at % 3 == 0:
            await world.log.commit_log.committed()
    await world.log.commit_log.committed()
    expected = [(at, b"%d:" % at + bytes(10_000)) for at in range(60)]
    assert await read_all(partition) == expected
    assert not partition.plan(0, 1 << 20, 60, True).hot
    await partition.delete_records(40)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    assert world.log.journals.spares
    for at in range(60, 90):
        partition.append(batch(b"%d:" % at + bytes(10_000)), EPOCH_MS)
        await world.log.commit_log.committed()
    expected = expected[40:] + [(at, b"%d:" % at + bytes(10_000)) for at in range(60, 90)]
    await world.restart()
    assert await read_all(world.find("t")) == expected
    world.find("t").append(batch(b"last"), EPOCH_MS)
    await world.log.commit_log.committed()
    await world.abandon()
    world.log._lock.release()
    await world.start()
    assert await read_all(world.find("t")) == [*expected, (90, b"last")]
    assert world.find("t").leader_epoch == 1
    await world.log.close()
    world.env.offload.close()
