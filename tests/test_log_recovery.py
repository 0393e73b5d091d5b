"""Recovery, as a table of ends: what is torn, rotten, missing or left over, and what counts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from log import frame
from log.env import LogError
from log.journal import POSITION_MASK, index_name, journal_name
from log.journalindex import Extent, JournalIndex, pack_index, read_index
from log.manager import Log
from log.partition import Partition
from log.runfile import Run, read_run, write_run
from log.scan import scan
from tests.kit.env import EPOCH_MS, InlineOffload
from tests.kit.logs import FOLDER, World, batch, read_all

JOURNALS = f"{FOLDER}/journals"


async def start(*values: bytes, **settings: Any) -> tuple[World, Partition]:
    """A log whose only partition holds these values, each committed by itself."""
    world = World(**settings)
    await world.start()
    (partition,) = await world.topic("t")
    for value in values:
        partition.append(batch(value), EPOCH_MS)
        await world.log.commit_log.committed()
    return world, partition


def spoil(world: World, place: int, *, bit: int = 1) -> None:
    """Rot: one bit at a place is not what was written."""
    node = world.fs.files[f"{JOURNALS}/{journal_name(place >> 32)}"]
    node.data[place & POSITION_MASK] ^= bit
    node.durable[place & POSITION_MASK] ^= bit


async def everything(world: World) -> list[bytes | None]:
    return [value for _, value in await read_all(world.find("t"))]


async def test_after_a_clean_end_nothing_is_scanned_and_no_epoch_rises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, partition = await start(b"a", b"b")
    await world.log.close()

    def no_scan(*_: object) -> None:
        raise AssertionError("the index file covers everything")

    monkeypatch.setattr("log.recovery.scan", no_scan)
    await world.start()
    assert await everything(world) == [b"a", b"b"]
    assert world.find("t").leader_epoch == partition.leader_epoch


@pytest.mark.parametrize("power", [True, False])
async def test_any_other_end_raises_the_epoch_of_what_was_written(power: bool) -> None:
    world = World()
    await world.start()
    one, idle = await world.topic("t", 2)
    one.append(batch(b"a"), EPOCH_MS)
    await world.log.commit_log.committed()
    await world.crash(power)
    one, idle = world.find("t", 0), world.find("t", 1)
    assert (one.leader_epoch, idle.leader_epoch) == (1, 0)
    assert one.epochs == [(0, 0), (1, 1)]
    assert one.epoch_end(0) == (0, 1)
    assert one.epoch_end(1) == (1, 1)
    assert one.epoch_end(2) == (-1, -1)


async def test_under_flush_os_every_epoch_rises_since_a_tail_may_be_lost_unseen() -> None:
    world = World(flush="os")
    await world.start()
    await world.topic("t", 2)
    await world.crash()
    assert [world.find("t", index).leader_epoch for index in (0, 1)] == [1, 1]


@pytest.mark.parametrize("cut_bytes", [1, 30, 48, 60, 100])
async def test_a_torn_tail_that_was_never_acknowledged_is_cut(cut_bytes: int) -> None:
    world, partition = await start(b"a", b"b")
    partition.append(batch(b"torn"), EPOCH_MS)
    await world.env.sleep(0)
    place = partition.rows.place[-1] - frame.HEAD_BYTES
    assert partition.next_offset == 3
    await world.abandon()
    world.fs.kill()
    node = world.fs.files[f"{JOURNALS}/{journal_name(1)}"]
    start_at = (place & POSITION_MASK) + cut_bytes
    node.data[start_at : start_at + 200] = bytes(200)
    await world.start()
    assert await everything(world) == [b"a", b"b"]
    assert world.log.commit_log.written == place
    world.find("t").append(batch(b"c"), EPOCH_MS)
    await world.log.commit_log.committed()
    await world.crash()
    assert await everything(world) == [b"a", b"b", b"c"]


async def test_what_lies_behind_a_torn_frame_goes_with_it() -> None:
    """Writes reach the disk in any order: the second turn's bytes came through, not the first's."""
    world, partition = await start(b"a")
    for value in (b"torn", b"whole"):
        partition.append(batch(value), EPOCH_MS)
        await world.env.sleep(0)
    spoil(world, partition.rows.place[1] + 70)
    await world.crash(power=False)
    assert await everything(world) == [b"a"]


@pytest.mark.parametrize("at", [-48, -44, -36, -20, 0, 8, 30, 65])
async def test_damage_to_acknowledged_data_is_quarantined(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped bit in the magic, checksum, place, run, batch head or records of a frame."""
    world, partition = await start(b"a", b"rotten", b"c", b"d")
    spoil(world, partition.rows.place[1] + at)
    with caplog.at_level(logging.CRITICAL):
        await world.crash()
    assert "is damaged in bytes" in caplog.text
    partition = world.find("t")
    assert partition.next_offset == 4
    plan = partition.plan(0, 1 << 20, 4, True)
    views, release = world.log.commit_log.views(plan)
    assert len(views) == 1
    release()
    with pytest.raises(KafkaError) as refused:
        partition.plan(1, 1 << 20, 4, True)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert await read_all(partition, 2) == [(2, b"c"), (3, b"d")]
    assert await partition.delete_records(2) == 2
    assert await everything(world) == [b"c", b"d"]
    assert partition.append(batch(b"e"), EPOCH_MS).base_offset == 4
    await world.log.commit_log.committed()


async def test_a_rotten_end_of_what_a_checkpoint_covers_is_damage_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, partition = await start(b"a", b"b")
    await world.log.checkpoint()
    spoil(world, partition.rows.place[1] + 65)
    with caplog.at_level(logging.CRITICAL):
        await world.crash()
    assert "is damaged in bytes" in caplog.text
    partition = world.find("t")
    assert partition.append(batch(b"c"), EPOCH_MS).base_offset == 2
    await world.log.commit_log.committed()
    await world.crash()
    partition = world.find("t")
    assert await read_all(partition, 2) == [(2, b"c")]
    with pytest.raises(KafkaError):
        partition.plan(1, 1 << 20, 3, True)


async def test_frames_of_an_older_run_after_a_cut_never_come_back() -> None:
    world, partition = await start(b"a")
    for value in (b"torn", b"stale"):
        partition.append(batch(value), EPOCH_MS)
        await world.env.sleep(0)
    spoil(world, partition.rows.place[1] + 70)
    await world.crash(power=False)
    partition = world.find("t")
    partition.append(batch(b"new!"), EPOCH_MS)  # ends exactly where the stale frame begins
    await world.log.commit_log.committed()
    await world.crash(power=False)
    assert await everything(world) == [b"a", b"new!"]


async def roll(world: World, count: int, size_bytes: int = 1000) -> None:
    """Append until journals have been rolled."""
    for _ in range(count):
        world.find("t").append(batch(bytes(size_bytes)), EPOCH_MS)
        await world.log.commit_log.committed()
    for _ in range(20):
        await world.env.sleep(0)


async def test_leftovers_in_a_recycled_journal_are_not_data() -> None:
    world, _ = await start(journal_bytes=4096, recycle_bytes=1 << 20)
    await roll(world, 12)
    partition = world.find("t")
    await partition.delete_records(partition.high_watermark)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    assert len(world.log.journals.spares) + len(world.log.journals.ready) >= 3
    reused = len(world.log.journals.spares)
    await roll(world, 5, size_bytes=10)
    await roll(world, 8)
    assert len(world.log.journals.spares) < reused
    before = await everything(world)
    await world.crash()
    assert await everything(world) == before
    assert len(before) == 13


@pytest.mark.parametrize("harm", ["remove", "rot", "cut"])
async def test_a_missing_or_damaged_index_file_only_costs_time(harm: str) -> None:
    world, _ = await start(journal_bytes=4096)
    await roll(world, 10)
    path = f"{JOURNALS}/{index_name(1)}"
    node = world.fs.files[path]
    await world.log.close()
    if harm == "remove":
        world.fs.remove(path)
    elif harm == "rot":
        node.data[100] ^= 1
    else:
        node.resize(90)
    await world.start()
    assert len(await everything(world)) == 10
    for _ in range(20):
        await world.env.sleep(0)
    assert read_index(world.fs, JOURNALS, 1) is not None, "it was made again"


async def test_recovery_reads_index_files_and_scans_the_last_journal_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = await start(journal_bytes=4096)
    await roll(world, 10)
    scanned: list[int] = []

    def counting(buf: memoryview, number: int, *rest: int) -> object:
        scanned.append(number)
        return scan(buf, number, *rest)

    monkeypatch.setattr("log.recovery.scan", counting)
    last = world.log.journals.active.number
    await world.crash()
    assert scanned == [last]
    assert len(await everything(world)) == 10


async def test_a_journal_of_which_nothing_reached_the_disk_ends_the_log() -> None:
    world, _ = await start(journal_bytes=4096)
    await roll(world, 4)
    first = world.log.journals.active.number
    partition = world.find("t")
    committed = partition.high_watermark
    assert isinstance(world.env.offload, InlineOffload)
    world.env.offload.hold("commit")
    for _ in range(8):
        partition.append(batch(bytes(1000)), EPOCH_MS)
        await world.env.sleep(0)
    assert world.log.journals.active.number >= first + 2
    await world.abandon()
    world.fs.kill()
    world.env.offload.holding.clear()
    world.env.offload.held.clear()
    lost = world.fs.files[f"{JOURNALS}/{journal_name(first + 1)}"]
    lost.data[:] = bytes(len(lost.data))
    await world.start()
    kept = len(await everything(world))
    assert committed <= kept < committed + 8
    assert world.log.journals.active.number == first


async def test_lost_journals_are_reported_and_offsets_never_given_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, _ = await start(b"a", b"b", b"c")
    await world.log.checkpoint()
    await world.abandon()
    world.fs.crash()
    for name in world.fs.listdir(JOURNALS):
        world.fs.remove(f"{JOURNALS}/{name}")
    await world.start()
    assert world.find("t").append(batch(b"d"), EPOCH_MS).base_offset == 3
    await world.log.commit_log.committed()
    with pytest.raises(KafkaError):
        world.find("t").plan(0, 1 << 20, 4, True)
    assert await read_all(world.find("t"), 3) == [(3, b"d")]


async def test_a_mark_of_a_clean_end_is_not_believed_if_the_log_goes_on() -> None:
    world, _ = await start(b"a")
    await world.log.close()
    mark = read_run(world.fs, FOLDER)
    assert mark is not None
    assert mark.end > 0
    await world.start()
    world.find("t").append(batch(b"b"), EPOCH_MS)
    await world.log.commit_log.committed()
    await world.abandon()
    world.fs.crash()
    write_run(world.fs, FOLDER, mark)  # somebody put an old file back
    await world.start()
    assert await everything(world) == [b"a", b"b"]
    assert world.find("t").leader_epoch == 1


async def test_a_lost_run_file_leads_to_a_run_number_nobody_had() -> None:
    world, _ = await start(b"a")
    await world.crash()
    before = world.log.commit_log.run
    await world.abandon()
    world.fs.crash()
    world.fs.files[f"{FOLDER}/run"].data[3] ^= 1
    assert read_run(world.fs, FOLDER) is None
    await world.start()
    assert world.log.commit_log.run > before + (1 << 32)
    assert await everything(world) == [b"a"]


async def test_a_newer_journal_is_refused_in_one_sentence() -> None:
    world, _ = await start(b"a")
    await world.log.close()
    node = world.fs.files[f"{JOURNALS}/{journal_name(1)}"]
    node.data[8:12] = (frame.VERSION + 1).to_bytes(4, "big")
    with pytest.raises(LogError, match="has format version 2, this kafkawire reads up to 1"):
        await world.start()
    assert not world.fs.locks


async def test_a_newer_run_file_is_refused() -> None:
    world, _ = await start(b"a")
    await world.log.close()
    write_run(world.fs, FOLDER, Run(1, -1, "commit"))
    node = world.fs.files[f"{FOLDER}/run"]
    line = bytes(node.data).split(b"\n")[0].replace(b'"version": 1', b'"version": 9')
    from crc32c import crc32c

    node.data = bytearray(b"%s\n%08x\n" % (line, crc32c(line)))
    with pytest.raises(LogError, match="format version 9"):
        await world.start()


async def test_producers_are_known_after_any_end() -> None:
    world = World()
    await world.start()
    (partition,) = await world.topic("t")

    def numbered(sequence: int) -> memoryview:
        return batch(b"%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)

    for sequence in range(3):
        partition.append(numbered(sequence), EPOCH_MS)
    await world.log.commit_log.committed()
    await world.log.checkpoint()
    partition.append(numbered(3), EPOCH_MS)
    await world.log.commit_log.committed()
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


async def test_a_deleted_topic_stays_deleted_and_its_frames_harm_nobody() -> None:
    world = World()
    log: Log = await world.start()
    (old,) = await world.topic("t")
    old.append(batch(b"old"), EPOCH_MS)
    await log.commit_log.committed()
    await world.metadata.delete_topics([old.topic_id])
    log.remove_topic(world.catalog.remove_topic(old.topic_id))
    (new,) = await world.topic("t")
    new.append(batch(b"new"), EPOCH_MS)
    await log.commit_log.committed()
    await world.crash()
    assert await read_all(world.find("t")) == [(0, b"new")]


def test_an_index_file_of_another_journal_or_format_is_none() -> None:
    data = pack_index(5, Extent(64, 1, 0, 0), {})
    assert JournalIndex(memoryview(data), 5).extent.end == 64
    with pytest.raises(frame.FormatError):
        JournalIndex(memoryview(data), 6)
    newer = bytearray(data)
    newer[8:12] = (2).to_bytes(4, "little")
    with pytest.raises(frame.FormatError):
        JournalIndex(memoryview(newer), 5)


async def test_an_index_that_is_made_again_holds_all_rows_whatever_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = await start(journal_bytes=4096)
    await roll(world, 10)
    await world.log.close()
    world.fs.remove(f"{JOURNALS}/{index_name(1)}")
    monkeypatch.setattr("log.loading.INDEX_BYTES_AT_MOST", 0)
    for _ in range(2):
        await world.start()
        for _ in range(20):
            await world.env.sleep(0)
        assert len(await everything(world)) == 10
        await world.log.close()


async def test_a_journal_rolled_while_another_is_made_durable_is_not_indexed_with_it() -> None:
    world, _ = await start(journal_bytes=4096, cut_interval_ms=1 << 40)
    assert isinstance(world.env.offload, InlineOffload)
    await roll(world, 3)  # the first journal is nearly full
    world.env.offload.hold("commit")
    for _ in range(8):
        world.find("t").append(batch(bytes(1000)), EPOCH_MS)
        for _ in range(10):
            await world.env.sleep(0)
    world.env.offload.let_go("commit")
    world.env.offload.hold("commit")
    for _ in range(20):
        await world.env.sleep(0)
    committed = world.log.commit_log.commits.committed
    rolled = [journal for journal in world.log.journals if journal.rolled]
    assert len(rolled) > 1
    assert all(journal.indexed is (journal.end_place <= committed) for journal in rolled)
    world.env.offload.let_go("commit")
    for _ in range(20):
        await world.env.sleep(0)
    await world.log.indexer.run()
    assert all(journal.indexed for journal in rolled)
    await world.log.close()


async def test_a_journal_that_was_begun_in_vain_does_not_end_the_one_before() -> None:
    world, _ = await start(journal_bytes=4096)
    partition = world.find("t")
    for value in (b"a", b"b"):
        partition.append(batch(value + bytes(1000)), EPOCH_MS)
        await world.log.commit_log.committed()
    first = world.log.journals.active
    world.fs.faults.room_bytes = 1500  # for the header of the next journal, not for the frame
    partition.append(batch(b"never" + bytes(2000)), EPOCH_MS)
    with pytest.raises(KafkaError):
        await world.log.commit_log.committed()
    world.fs.faults.room_bytes = None
    partition.append(batch(b"c"), EPOCH_MS)
    await world.log.commit_log.committed()
    assert world.log.journals.active is first
    for power in (False, True):
        await world.crash(power)
        got = [bytes(value or b"")[:1] for _, value in await read_all(world.find("t"))]
        assert got == [b"a", b"b", b"c"]
