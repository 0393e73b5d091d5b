"""Missing or truncated journals: detected, reported, and no acknowledged offset is assigned again.
The ledger that makes it possible: its format, its bounds, and damage to it.

Covers: kafkawire.log.journal.directory.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafkawire.codec.errors import KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.fsck.check import check
from kafkawire.fsck.report import FsckReport
from kafkawire.log.journal.file import index_name, journal_name
from kafkawire.log.journal.ledger import MIN_RESERVE, NAMES, RECORD_MAGIC, RECORDS_AT, read_ledger
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import HotRead
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import FOLDER, World, batch, read_all, values
from tests.kit.log.recovery import JOURNALS
from tests.kit.memory_metadata import MemoryMetadata

PARTITIONS = 3


async def put(world: World, partition: Partition, count: int = 1, size: int = 10) -> int:
    """Append a batch of records; return the base offset, once it is committed."""
    done = partition.append(batch(*[b"%d" % n + bytes(size) for n in range(count)]), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    return done.base_offset


async def filled(records: int = 40, **settings: Any) -> World:
    """Small journals with records of three partitions, covered by a checkpoint only if a journal
    was rolled after it."""
    world = World(
        **{"log_flush_offset_checkpoint_interval_ms": 1 << 40, "cut_interval_ms": 1 << 40,
           "journal_bytes": 4096, **settings}
    )  # fmt: skip
    await world.start()
    partitions = await world.topic("t", PARTITIONS)
    for n in range(records):
        await put(world, partitions[n % PARTITIONS], count=1 + n % 3, size=100)
    for _ in range(20):
        await world.env.sleep(0)
    return world


def journals(world: World) -> list[str]:
    return [f"{JOURNALS}/{n}" for n in world.fs.listdir(JOURNALS) if n.endswith(".journal")]


def remove(world: World, path: str) -> None:
    world.fs.remove(path)
    world.fs.sync_dir(JOURNALS)


def cut_short(world: World, path: str, size: int) -> None:
    file = world.fs.open(path)
    file.truncate(size)
    file.sync()


async def stop(world: World, power: bool = False) -> dict[int, int]:
    """End by a crash; return the next offset of each partition, all acknowledged."""
    ends = {index: world.find("t", index).high_watermark for index in range(PARTITIONS)}
    await world.abandon()
    if power:
        world.fs.crash()
    else:
        world.fs.kill()
    return ends


async def no_offset_again(world: World, ends: dict[int, int]) -> int:
    """Check that every acknowledged offset is there, or an error; and that appends continue after
    all of them and can be read. Return the number of lost offsets."""
    lost = 0
    for index, end in ends.items():
        partition = world.find("t", index)
        assert partition.next_offset >= end, f"t-{index} assigns offsets again"
        for offset in range(end):
            try:
                got = await read_all_from(partition, offset)
                assert got == offset, f"t-{index} skips offset {offset}"
            except KafkaError:
                lost += 1
        base = await put(world, partition)
        assert base >= end
        assert [at for at, _ in await read_all(partition, base)] == [base]
    return lost


async def read_all_from(partition: Partition, offset: int) -> int:
    """The first offset that a Fetch at `offset` gives."""
    plan = partition.plan(offset, 1, partition.high_watermark, True)
    buffers: list[Buffer] = (
        list(partition.log.views(plan)[0])
        if isinstance(plan, HotRead)
        else await partition.log.read(plan)
    )
    return next(at for at, _ in values(buffers) if at >= offset)


async def scanned_at(world: World) -> FsckReport:
    world.metadata = MemoryMetadata(world.database)
    world.catalog = await world.metadata.open()
    world.storage = world.metadata.storage(world.env.clock.now_ms)
    return await check(world.env, FOLDER, 1, world.catalog, world.storage, world.metadata)


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("index", [True, False])
async def test_removed_journal_is_detected(
    which: int, index: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = await filled()
    path = journals(world)[which]
    number = int(path.rpartition("/")[2][:10])
    ends = await stop(world)
    remove(world, path)
    if not index:
        remove(world, f"{JOURNALS}/{index_name(number)}")
    report = await scanned_at(world)
    assert not report.clean
    texts = [f"{problem.where} {problem.text}" for problem in report.problems]
    assert any(text.startswith(f"journal {number} is missing") for text in texts), texts
    with caplog.at_level(logging.CRITICAL):
        await world.start()
    assert f"journal {number} is missing" in caplog.text
    assert "offsets" in caplog.text
    assert " of t-2 are lost" in caplog.text, "the loss is reported"
    assert await no_offset_again(world, ends) > 0
    caplog.clear()
    await world.restart()
    assert await no_offset_again(world, {}) == 0
    assert "is missing" not in caplog.text, "it is reported once"


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("part", [0, 1, 2, 3])
async def test_truncated_journal_is_detected(
    which: int, part: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = await filled()
    path = journals(world)[which]
    end = next(journal.end for journal in world.log.journals if journal.path == path)
    ends = await stop(world)
    cut_short(world, path, end * part // 4)
    assert not (await scanned_at(world)).clean
    with caplog.at_level(logging.CRITICAL):
        await world.start()
    assert ("was cut short" if part else "is missing") in caplog.text
    assert await no_offset_again(world, ends) > 0
    await world.crash()
    assert await no_offset_again(world, {}) == 0


@pytest.mark.parametrize("power", [False, True])
async def test_loss_of_all_journals_is_detected(power: bool) -> None:
    world = await filled(records=7)
    await world.log.commit_log.ledger.tick()
    ends = await stop(world, power)
    for path in journals(world):
        remove(world, path)
    await world.start()
    assert await no_offset_again(world, ends) == sum(ends.values())
    assert all(world.find("t", at).leader_epoch == 1 for at in range(PARTITIONS))


async def test_damaged_last_frame_is_detected() -> None:
    """The process dies just after the response: only the ledger records the acknowledgement."""
    world = await filled(records=3)
    partition = world.find("t", 2)
    log_position = partition.rows.log_position[-1] & 0xFFFFFFFF
    ends = await stop(world)
    node = world.fs.files[journals(world)[-1]]
    node.data[log_position + 70] ^= 1
    await world.start()
    assert await no_offset_again(world, ends) == 3


async def test_unacknowledged_torn_tail_is_truncated_silently(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await filled(records=3)
    partition = world.find("t")
    partition.append(batch(b"torn"), EPOCH_MS)
    await world.env.sleep(0)
    log_position = partition.rows.log_position[-1] & 0xFFFFFFFF
    ends = await stop(world)
    node = world.fs.files[journals(world)[-1]]
    node.data[log_position + 20 : log_position + 100] = bytes(80)
    with caplog.at_level(logging.ERROR):
        await world.start()
    assert not caplog.records
    assert [world.find("t", at).next_offset for at in range(3)] == [1, 2, 3]
    assert await no_offset_again(world, ends) == 0


async def test_bounds_are_ahead_of_acknowledged_offsets() -> None:
    world = await filled(records=3, journal_bytes=1 << 20)
    ledger = world.log.commit_log.ledger
    partition = world.find("t")

    def bound() -> int:
        contents = read_ledger(world.fs, FOLDER)
        assert contents is not None
        assert not contents.damaged
        assert contents.committed <= world.log.commit_log.disk_sink.committed
        return contents.bounds.get(partition.number, 0)

    assert bound() == 1 + MIN_RESERVE
    await put(world, partition, count=MIN_RESERVE - 1)
    assert bound() == MIN_RESERVE + 1
    await ledger.tick()
    assert bound() >= partition.next_offset + MIN_RESERVE, "it is raised ahead of need"
    await world.log.checkpoint()
    await ledger.tick()
    assert bound() == 0
    assert partition.bound == partition.next_offset
    await put(world, partition)
    assert bound() > partition.next_offset
    for _ in range(300):  # many checkpoints: the state is written again, the other file is used
        await world.log.checkpoint()
        await ledger.tick()
        await put(world, partition)
    assert bound() > partition.next_offset
    assert max(world.fs.open(f"{FOLDER}/{name}").size() for name in NAMES) < 1 << 16


async def test_recycled_journals_are_not_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await filled()
    for index in range(PARTITIONS):
        await world.find("t", index).delete_records(-1)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    assert len(journals(world)) < 3
    for power in (False, True):
        with caplog.at_level(logging.ERROR):
            await world.crash(power)
        assert not caplog.records
    await world.restart()
    assert not caplog.records


@pytest.mark.parametrize("at", [0, 520, RECORDS_AT, RECORDS_AT + 50, -1])
@pytest.mark.parametrize("name", NAMES)
async def test_damaged_ledger_is_ignored(
    name: str, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = await filled(records=9)
    ends = await stop(world)
    node = world.fs.files[f"{FOLDER}/{name}"]
    for position in range(at, at + 40) if at >= 0 else range(RECORDS_AT, len(node.data)):
        node.data[position] ^= 0xFF
    with caplog.at_level(logging.ERROR):
        await world.start()
    assert not caplog.records
    assert await no_offset_again(world, ends) == 0


@pytest.mark.parametrize("harmed", [1, 2, 3])
async def test_damaged_ledger_record_reports_no_lost_journal(
    harmed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A journal that the damaged record has as recycled is not considered lost."""
    world = await filled()
    for index in range(PARTITIONS):
        await world.find("t", index).delete_records(-1)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    await put(world, world.find("t"))
    ends = await stop(world)
    for name in NAMES:
        node = world.fs.files[f"{FOLDER}/{name}"]
        at = RECORDS_AT
        for _ in range(harmed):
            at = node.data.find(RECORD_MAGIC, at + 1)
        if at > 0:
            node.data[at + 45] ^= 1
    with caplog.at_level(logging.WARNING):
        await world.start()
    assert "cannot detect missing journals" in caplog.text
    assert "is missing," not in caplog.text
    assert [world.find("t", index).next_offset for index in ends] == list(ends.values())
    report = await scanned_at(world)
    assert report.clean


async def test_ledger_and_log_recover_from_full_disk() -> None:
    world = await filled(records=3, journal_bytes=1 << 16)
    ledger = world.log.commit_log.ledger
    world.fs.faults.room_bytes = 0
    ledger.mark(world.log.commit_log.disk_sink.committed)
    await ledger.tick()
    assert await ledger.retire([99]) is False, "no journal listed in the ledger is deleted"
    world.fs.faults.room_bytes = None
    await ledger.tick()
    for index in range(PARTITIONS):
        await put(world, world.find("t", index))
    ends = await stop(world, power=True)
    contents = read_ledger(world.fs, FOLDER)
    assert contents is not None
    assert not contents.damaged
    for path in journals(world):
        remove(world, path)
    await world.start()
    assert await no_offset_again(world, ends) == sum(ends.values())


async def test_ledger_of_older_version_is_ignored() -> None:
    """It recycles journals without recording it, and drops the mark from the run file."""
    from kafkawire.log.journal.run_file import RunState, read_run, write_run

    world = await filled()
    ends = await stop(world)
    run = read_run(world.fs, FOLDER)
    assert run is not None
    assert run.ledger
    write_run(world.fs, FOLDER, RunState(run.start + 1, -1, run.flush, ledger=False))
    world.fs.remove(f"{JOURNALS}/{journal_name(1)}")
    await world.start()
    partition = world.find("t")
    assert partition.next_offset == ends[0]


async def test_journal_truncated_before_checkpoint() -> None:
    """The end of such a journal is unknown, so the checkpoint bounds nothing."""
    world = await filled(records=10, journal_bytes=1 << 16)
    await world.log.checkpoint()
    for index in range(PARTITIONS):
        await put(world, world.find("t", index), count=5)
    ends = await stop(world)
    for name in NAMES:  # as if the machine had ended: the last committed places are not durable
        world.fs.files[f"{FOLDER}/{name}"].data[:RECORDS_AT] = bytes(RECORDS_AT)
    cut_short(world, journals(world)[-1], 600)
    await world.start()
    assert await no_offset_again(world, ends) > 0


async def test_journal_ends_at_ledger_bound_if_next_has_no_header() -> None:
    world = await filled()
    await world.log.commit_log.ledger.tick()
    ends = await stop(world)
    first, second = journals(world)[:2]
    for position in range(64):
        world.fs.files[second].data[position] ^= 0x5A
    for number in (1, 2):
        remove(world, f"{JOURNALS}/{index_name(number)}")
    contents = read_ledger(world.fs, FOLDER)
    assert contents is not None
    world.fs.files[first].data[contents.journals[1] - 100] ^= 1
    await world.start()
    assert await no_offset_again(world, ends) in (1, 2, 3), "one frame"
