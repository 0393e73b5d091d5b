"""Write batches: batches appended together are written together, and their stored form."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.append.commit_log import MANY_REQUESTS
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import Buffer
from kafkawire.log.journal.write_batch import BLOCK_BYTES
from kafkawire.log.partition.read_plan import HotRead
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch, read_all
from tests.kit.memfs import MemFile
from tests.kit.waiting import ticks


async def test_appended_records_are_read_after_commit() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    assert partition.append(batch(b"a", b"b"), EPOCH_MS).base_offset == 0
    assert partition.append(batch(b"c"), EPOCH_MS).base_offset == 2
    assert (partition.next_offset, partition.high_watermark) == (0, 0)
    await log.commit_log.wait_until_committed()
    assert (partition.next_offset, partition.high_watermark) == (3, 3)
    assert await read_all(partition) == [(0, b"a"), (1, b"b"), (2, b"c")]
    await world.restart()
    assert await read_all(world.find("t")) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert world.find("t").leader_epoch == 0
    await world.crash(power=True)
    assert await read_all(world.find("t")) == [(0, b"a"), (1, b"b"), (2, b"c")]
    await world.log.close()


async def test_batches_of_one_write_share_frame_and_index_row() -> None:
    world = World()
    log = await world.start()
    one, two = await world.topic("t", 2)
    for partition in (one, two, one, one):
        partition.append(batch(b"x"), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    assert (len(one.rows), one.rows.count[0]) == (1, 3)
    assert (len(two.rows), two.rows.count[0]) == (1, 1)
    assert [offset for offset, _ in await read_all(one)] == [0, 1, 2]


async def test_batches_of_many_requests_are_written_at_once() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    written: list[BaseException | None] = []
    requests: list[object] = []
    partition.append(batch(b"a"), EPOCH_MS)
    log.commit_log.after_write(written.append, requests)
    requests += range(MANY_REQUESTS - 1)
    log.commit_log.write_many()
    assert written == []
    requests.append(None)
    log.commit_log.write_many()
    assert (written, partition.next_offset) == ([None], 1)
    partition.append(batch(b"b"), EPOCH_MS)
    log.commit_log.write_many()
    assert partition.next_offset == 1
    await log.commit_log.wait_until_committed()
    assert await read_all(partition) == [(0, b"a"), (1, b"b")]


async def test_many_requests_that_wait_for_fsync_share_one() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    committed: list[BaseException | None] = []
    partition.append(batch(b"a"), EPOCH_MS)
    log.commit_log.after_write(lambda _: None, range(MANY_REQUESTS))
    log.commit_log.after_commit(committed.append)
    log.commit_log.write_many()
    assert partition.next_offset == 0
    await log.commit_log.wait_until_committed()
    assert (committed, partition.next_offset) == ([None], 1)


async def test_frame_size_is_bounded() -> None:
    world = World(journal_bytes=8 << 20)
    log = await world.start()
    (partition,) = await world.topic("t")
    for _ in range(5):
        partition.append(batch(bytes(400_000)), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    assert list(partition.rows.count) == [2, 2, 1]


async def test_stored_header_has_offset_and_leader_epoch() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    partition.append(batch(b"a"), EPOCH_MS)
    partition.start_epoch(7)
    view = batch(b"b")
    partition.append(view, EPOCH_MS)
    assert int.from_bytes(view[:8], "big") == 1
    assert int.from_bytes(view[12:16], "big") == 7
    await log.commit_log.wait_until_committed()


async def test_callbacks_run_in_order_despite_exception(
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
        await log.commit_log.wait_until_committed()
    assert seen == ["broken", "write None", "commit None"]
    assert "a bug" in caplog.text


async def test_after_write_without_queued_batches_runs_at_end_of_write() -> None:
    world = World()
    log = await world.start()
    seen: list[BaseException | None] = []
    log.commit_log.after_write(seen.append)
    assert seen == []
    await ticks(1)
    assert seen == [None]


async def test_write_batch_may_be_larger_than_a_journal() -> None:
    world = World(journal_bytes=4096)
    log = await world.start()
    partitions = await world.topic("t", 4)
    for at in range(12):
        partitions[at % 4].append(batch(bytes(2500)), EPOCH_MS)
        partitions[at % 4].append(batch(bytes(9000)), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    assert len(list(log.journals)) >= 4
    await world.crash()
    for index in range(4):
        assert len(await read_all(world.find("t", index))) == 6


async def test_last_block_of_a_write_is_written_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a block that begins in the write: the kernel would read what is left of it first."""
    written: list[tuple[int, int]] = []
    write = MemFile.pwritev

    def note(file: MemFile, buffers: list[Buffer], position: int) -> int:
        length = write(file, buffers, position)
        if any(file is each.file for each in [*log.journals, *log.journals.ready]):
            written.append((position, position + length))
        return length

    world = World(journal_bytes=10_000)
    log = await world.start()
    (partition,) = await world.topic("t")
    monkeypatch.setattr(MemFile, "pwritev", note)
    sizes = [1000, 10, 3000, 10, 10, 4096, 100, 9_000, 20_000, 10]
    for size in sizes:
        partition.append(batch(bytes(size)), EPOCH_MS)
        await log.commit_log.wait_until_committed()
    journals = {end for journal in log.journals for end in (journal.end, journal.capacity)}
    for start, end in written:
        same_block = (end - 1) // BLOCK_BYTES == (start - 1) // BLOCK_BYTES
        assert end % BLOCK_BYTES == 0 or same_block or end in journals
    assert any(end % BLOCK_BYTES == 0 for _, end in written)
    await world.crash(power=True)
    assert [len(value or b"") for _, value in await read_all(world.find("t"))] == sizes
    await world.log.close()


async def test_second_process_is_refused_in_one_sentence() -> None:
    world = World()
    log = await world.start()
    other = World(world.env)
    with pytest.raises(Exception, match="another kafkawire process uses"):
        await other.start()
    await log.close()
    await other.start()
    await other.log.close()


async def test_invalid_batch_changes_nothing() -> None:
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


async def test_stored_form_has_log_append_time_and_compression() -> None:
    world = World()
    log = await world.start()
    (timed,) = await world.topic("timed", message_timestamp_type="LogAppendTime")
    (packed,) = await world.topic("packed", compression_type="gzip")
    done = timed.append(batch(b"x", timestamp_ms=5), EPOCH_MS)
    assert done.log_append_time_ms == EPOCH_MS
    assert packed.append(batch(bytes(1000)), EPOCH_MS).log_append_time_ms == -1
    await log.commit_log.wait_until_committed()
    assert await timed.offset_for_time(EPOCH_MS) == (0, EPOCH_MS)
    assert packed.size_bytes < 500
    assert await read_all(packed) == [(0, bytes(1000))]


async def test_removed_partition_refuses_appends_and_wakes_readers() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    woken: list[bool] = []
    partition.watch(lambda gone: woken.append(gone.removed))
    log.remove_topic(world.catalog.by_name["t"])
    assert woken == [True]
    with pytest.raises(KafkaError) as refused:
        partition.append(batch(b"x"), EPOCH_MS)
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("flush", ["commit", "os"])
async def test_log_on_real_disk(tmp_path: Path, flush: str) -> None:
    """Rolling, recycling, mapped and cold reads, a restart, a start after a crash."""
    world = World(real_env(), flush=flush, journal_bytes=1 << 16, hot_bytes=1 << 17)
    world.folder = str(tmp_path / "1")
    await world.start()
    (partition,) = await world.topic("t")
    for at in range(60):
        partition.append(batch(b"%d:" % at + bytes(10_000)), EPOCH_MS)
        if at % 3 == 0:
            await world.log.commit_log.wait_until_committed()
    await world.log.commit_log.wait_until_committed()
    expected = [(at, b"%d:" % at + bytes(10_000)) for at in range(60)]
    assert await read_all(partition) == expected
    assert not isinstance(partition.plan(0, 1 << 20, 60, True), HotRead)
    await partition.delete_records(40)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    assert world.log.journals.spares
    for at in range(60, 90):
        partition.append(batch(b"%d:" % at + bytes(10_000)), EPOCH_MS)
        await world.log.commit_log.wait_until_committed()
    expected = expected[40:] + [(at, b"%d:" % at + bytes(10_000)) for at in range(60, 90)]
    await world.restart()
    assert await read_all(world.find("t")) == expected
    world.find("t").append(batch(b"last"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    await world.abandon()
    world.log._lock.release()
    await world.start()
    assert await read_all(world.find("t")) == [*expected, (90, b"last")]
    assert world.find("t").leader_epoch == 1
    await world.log.close()
    world.env.offload.close()
