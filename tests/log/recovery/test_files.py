"""Recovery of files that are missing, old, new or foreign: indexes, journals, the run file.

Covers: kafkawire.log.io.atomic_file, kafkawire.log.journal.run_file.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import KafkaError
from kafkawire.log.io.ports import LogError
from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.file import index_name, journal_name
from kafkawire.log.journal.index_file import Extent, JournalIndex, pack_index, read_index
from kafkawire.log.journal.run_file import RunState, read_run, write_run
from kafkawire.log.journal.scan import scan
from tests.kit.env import EPOCH_MS, InlineOffload
from tests.kit.log.logs import FOLDER, batch, read_all
from tests.kit.log.recovery import JOURNALS, everything, roll, start


async def test_old_frames_in_recycled_journal_are_not_data() -> None:
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
async def test_missing_or_damaged_index_file_is_rebuilt(harm: str) -> None:
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
    assert read_index(world.fs, JOURNALS, 1) is not None, "it was rebuilt"


async def test_recovery_scans_only_last_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = await start(journal_bytes=4096)
    await roll(world, 10)
    scanned: list[int] = []

    def counting(buf: memoryview, number: int, *rest: int) -> object:
        scanned.append(number)
        return scan(buf, number, *rest)

    monkeypatch.setattr("kafkawire.log.recovery.recover.scan", counting)
    last = world.log.journals.active.number
    await world.crash()
    assert scanned == [last]
    assert len(await everything(world)) == 10


async def test_log_ends_at_journal_without_durable_bytes() -> None:
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


async def test_lost_journals_are_reported_and_offsets_not_reused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, _ = await start(b"a", b"b", b"c")
    await world.log.checkpoint()
    await world.abandon()
    world.fs.crash()
    for name in world.fs.listdir(JOURNALS):
        world.fs.remove(f"{JOURNALS}/{name}")
    await world.start()
    base = world.find("t").append(batch(b"d"), EPOCH_MS).base_offset
    assert base >= 3, "the checkpoint knows 3; a second of commits may have come after it"
    await world.log.commit_log.wait_until_committed()
    with pytest.raises(KafkaError):
        world.find("t").plan(0, 1 << 20, 4, True)
    assert await read_all(world.find("t"), base) == [(base, b"d")]


async def test_lost_run_file_gives_unused_run_number() -> None:
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


async def test_newer_journal_is_refused_in_one_sentence() -> None:
    world, _ = await start(b"a")
    await world.log.close()
    node = world.fs.files[f"{JOURNALS}/{journal_name(1)}"]
    node.data[8:12] = (journal_format.VERSION + 1).to_bytes(4, "big")
    with pytest.raises(LogError, match="has format version 2, this kafkawire reads up to 1"):
        await world.start()
    assert not world.fs.locks


async def test_newer_run_file_is_refused() -> None:
    world, _ = await start(b"a")
    await world.log.close()
    write_run(world.fs, FOLDER, RunState(1, -1, "commit"))
    node = world.fs.files[f"{FOLDER}/run"]
    line = bytes(node.data).split(b"\n")[0].replace(b'"version": 1', b'"version": 9')
    from crc32c import crc32c

    node.data = bytearray(b"%s\n%08x\n" % (line, crc32c(line)))
    with pytest.raises(LogError, match="format version 9"):
        await world.start()


def test_index_file_of_other_journal_or_format_is_ignored() -> None:
    data = pack_index(5, Extent(64, 1, 0, 0), {})
    assert JournalIndex(memoryview(data), 5).extent.end == 64
    with pytest.raises(journal_format.JournalFormatError):
        JournalIndex(memoryview(data), 6)
    newer = bytearray(data)
    newer[8:12] = (4).to_bytes(4, "little")
    with pytest.raises(journal_format.JournalFormatError):
        JournalIndex(memoryview(newer), 5)


async def test_rebuilt_index_has_all_rows_despite_memory_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, _ = await start(journal_bytes=4096)
    await roll(world, 10)
    await world.log.close()
    world.fs.remove(f"{JOURNALS}/{index_name(1)}")
    monkeypatch.setattr("kafkawire.log.recovery.restore.MAX_INDEX_BYTES", 0)
    for _ in range(2):
        await world.start()
        for _ in range(20):
            await world.env.sleep(0)
        assert len(await everything(world)) == 10
        await world.log.close()


async def test_journal_rolled_during_sync_is_not_indexed_early() -> None:
    world, _ = await start(journal_bytes=4096, cut_interval_ms=1 << 40)
    assert isinstance(world.env.offload, InlineOffload)
    await roll(world, 3)  # the first journal is nearly full
    world.env.offload.hold("commit")
    for _ in range(8):
        world.find("t").append(batch(bytes(1000)), EPOCH_MS)
        for _ in range(10):
            await world.env.sleep(0)
    world.env.offload.release("commit")
    world.env.offload.hold("commit")
    for _ in range(20):
        await world.env.sleep(0)
    committed = world.log.commit_log.disk_sink.committed
    rolled = [journal for journal in world.log.journals if journal.rolled]
    assert len(rolled) > 1
    assert all(journal.indexed is (journal.end_log_position <= committed) for journal in rolled)
    world.env.offload.release("commit")
    for _ in range(20):
        await world.env.sleep(0)
    await world.log.indexer.run()
    assert all(journal.indexed for journal in rolled)
    await world.log.close()


async def test_unused_next_journal_does_not_end_previous_one() -> None:
    world, _ = await start(journal_bytes=4096)
    partition = world.find("t")
    for value in (b"a", b"b"):
        partition.append(batch(value + bytes(1000)), EPOCH_MS)
        await world.log.commit_log.wait_until_committed()
    first = world.log.journals.active
    world.fs.faults.room_bytes = 1500  # space for the header of the next journal, not for the frame
    partition.append(batch(b"never" + bytes(2000)), EPOCH_MS)
    with pytest.raises(KafkaError):
        await world.log.commit_log.wait_until_committed()
    world.fs.faults.room_bytes = None
    partition.append(batch(b"c"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    assert world.log.journals.active is first
    for power in (False, True):
        await world.crash(power)
        got = [bytes(value or b"")[:1] for _, value in await read_all(world.find("t"))]
        assert got == [b"a", b"b", b"c"]
