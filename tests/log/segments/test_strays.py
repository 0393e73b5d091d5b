"""Segment files with records of which there is no row: the start is refused, and fsck names them.

Covers: kafkawire.restore.findings, kafkawire.log.segments.strays.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.worker_jobs import unpack_all
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.log.segments.merge.plan import Rewrite
from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.offsets.catalog.kv.layout import (
    CHECKPOINT,
    mapping_key,
    member_key,
    pack_mapping,
    partition_key,
)
from kafkawire.offsets.catalog.kv.store import Writes
from kafkawire.offsets.catalog.port import LIVE, SegmentRange
from tests.kit.log.cutting import cut, fill, segments, started
from tests.kit.log.fsck import scanned
from tests.kit.log.logs import World
from tests.kit.memfs import MemFileSystem
from tests.kit.memory_metadata import MemoryMetadata


def contents(world: World) -> dict[str, bytes]:
    fs = world.fs
    assert isinstance(fs, MemFileSystem)
    found = {}
    for folder in ("/data/brokers/1", "/data/brokers/1/journals", "/data/brokers/1/segments"):
        for name in fs.listdir(folder):
            path = f"{folder}/{name}"
            if name not in ("journals", "segments", "lock", "run"):
                file = fs.open(path)
                found[path] = file.pread(file.size(), 0)
    return found


async def test_rows_that_went_back_are_refused() -> None:
    """Rows of one cut are lost, and with them the next offset: the journals are recycled."""
    world = await started()
    await fill(world.find("t0"), 60)
    old = dict(world.database.offsets.scan(b"", b"\xff"))
    await cut(world)
    (name,) = segments(world)
    end = world.find("t0").cut_offset
    await world.log.close()
    for key, _ in world.database.offsets.scan(b"", b"\xff"):
        del world.database.offsets._values[key]
    world.database.offsets._keys.clear()
    for key, value in old.items():
        world.database.offsets._add([key])
        world.database.offsets._values[key] = value
    before = contents(world)
    with pytest.raises(IdentityError) as caught:
        await world.start()
    text = str(caught.value)
    assert f"/data/brokers/1/segments/{name} is the only copy of t0-0 offsets 0-{end - 1}" in text
    assert "`kafkawire restore --from-log --data /data`" in text
    assert contents(world) == before
    world.fs.remove(f"/data/brokers/1/segments/{name}")
    await world.start()  # as the message says
    await world.log.close()


@pytest.mark.parametrize("why", ["deleted records", "deleted topic", "in the journals"])
async def test_a_file_whose_records_are_not_needed_is_ignored(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = await started()
    partition = world.find("t0")
    await fill(partition, 60)
    assert await world.log.segments.cut()
    (name,) = segments(world)
    file = world.fs.open(f"/data/brokers/1/segments/{name}")
    data = file.pread(file.size(), 0)
    if why == "deleted records":
        await world.log.checkpoints.move_log_starts({partition.number: partition.next_offset})
        await world.log.checkpoint()
        await world.log.retention.reclaim()
    elif why == "deleted topic":
        info = world.catalog.by_name["t0"]
        await world.metadata.delete_topics([info.id])
        world.catalog.remove_topic(info.id)
        world.log.remove_topic(info)
    await world.log.close()
    await world.storage.remove_mappings({partition.number: partition.next_offset})
    await world.storage.drop_segments([1])
    copy = world.fs.open(f"/data/brokers/1/segments/{name}", create=True)
    copy.pwritev([data], 0)
    await world.start()
    assert re.search(f"{name} is not in the metadata: the file is ignored and kept", caplog.text)
    await world.log.close()


async def with_mappings() -> World:
    """A stopped broker whose partition has three mappings, and records in its journals."""
    world = await started()
    for _ in range(3):
        await fill(world.find("t0"), 30)
        await cut(world)
    await fill(world.find("t0"), 5)
    assert len(world.find("t0").segments) == 3
    await world.log.close()
    return world


async def mappings_of(world: World) -> list[SegmentRange]:
    (row,) = await world.storage.load_partitions([world.find("t0").number])
    return row.mappings


def replace_mapping(world: World, old: SegmentRange, new: SegmentRange | None) -> None:
    """Change a row as no operation of the broker does."""
    writes = Writes()
    writes.delete(mapping_key(old.number, old.base_offset))
    writes.delete(member_key(old))
    if new is not None:
        writes.put(mapping_key(new.number, new.base_offset), pack_mapping(new))
        writes.put(member_key(new), b"")
    world.database.offsets.write(writes)


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_mapping_that_is_gone_is_named(at: int) -> None:
    world = await with_mappings()
    gone = (await mappings_of(world))[at]
    replace_mapping(world, gone, None)
    offsets = f"{gone.base_offset}-{gone.end_offset - 1}"
    report = await scanned(world)
    found = [p for p in report.problems if p.where == "t0-0" and offsets in p.text]
    assert any(f"no row of the offsets {offsets}, which segment " in p.text for p in found)
    assert all("`kafkawire restore --from-log --data /data`" in p.text for p in found)
    assert not any(p.skip for p in report.problems), "the records are there"
    with pytest.raises(IdentityError) as caught:
        await world.start()
    text = str(caught.value)
    assert "table offset_mappings has no row of " in text
    assert "t0-0" in text
    assert offsets in text
    assert "`kafkawire restore --from-log --data /data`" in text
    replace_mapping(world, gone, gone)
    assert (await scanned(world)).clean
    await world.start()
    await world.log.close()


async def test_mapping_with_the_offsets_of_another_is_named() -> None:
    world = await with_mappings()
    first, second, _ = await mappings_of(world)
    replace_mapping(world, second, second._replace(base_offset=second.base_offset - 4))
    said = f"table offset_mappings has two rows of the offsets {first.end_offset - 4}-"
    assert any(said in p.text for p in (await scanned(world)).problems)
    with pytest.raises(IdentityError, match=f"{said}.* of t0-0: .*kafkawire restore --from-log"):
        await world.start()


@pytest.mark.parametrize("at", [0, 1, -1])
async def test_mapping_of_partition_without_journals_is_named_when_it_is_loaded(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = await started(2)
    number = world.find("t0").number
    for _ in range(3):
        await fill(world.find("t0"), 30)
        await cut(world)
    await fill(world.find("t1"), 60)
    await cut(world)
    await world.log.close()
    (row,) = await world.storage.load_partitions([number])
    gone = row.mappings[at]
    replace_mapping(world, gone, None)
    await world.start()
    await world.log.loader.load([number])
    await world.log.loader.load([number])
    said = r"table offset_mappings has no row of the offsets .* of t0-0"
    assert len(re.findall(said, caplog.text)) == 1
    if at >= 0:
        with pytest.raises(KafkaError) as refused:
            world.log.loader.get(number)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    else:
        assert world.log.loader.get(number).next_offset == 90, "no offset is given again"
    await world.log.close()


async def test_log_start_that_went_back_is_named() -> None:
    """Deleted records would be back."""
    world = await with_mappings()
    (row,) = await world.storage.load_partitions([world.find("t0").number])
    before = row.checkpoint
    assert before is not None
    await world.start()
    partition = world.find("t0")
    await world.log.checkpoints.move_log_starts({partition.number: 7})
    await fill(partition, 20)  # another journal names the partition
    await world.abandon()
    world.fs.crash()
    metadata = MemoryMetadata(world.database)
    world.catalog = await metadata.open()
    world.storage = metadata.storage(world.env.clock.now_ms)
    (now,) = await world.storage.load_partitions([partition.number])
    assert now.checkpoint is not None
    assert (await scanned(world)).clean
    older = replace(now.checkpoint, log_start=0)
    position = await world.storage.load_log_position(1)
    await world.storage.save_checkpoint(Checkpoint(1, position, [older]))
    with pytest.raises(IdentityError, match="has log start 0, and a journal log start 7 of t0-0: "):
        await world.start()
    (problem,) = [p for p in (await scanned(world)).problems if p.where == "t0-0"]
    assert problem.text.startswith(
        "table partition_offset_checkpoints begins at offset 0, and its records before offset 7 "
        "were deleted according to "
    )
    assert "`kafkawire restore --from-log --data /data`" in problem.text


@pytest.mark.parametrize("gone", [False, True])
async def test_checkpoint_that_went_back_is_named(gone: bool) -> None:
    """The journals have more than the row, before what the checkpoint of the broker covers."""
    world = await started()
    partition = world.find("t0")
    await fill(partition, 5)
    await world.log.checkpoint()
    (older,) = await world.storage.load_partitions([partition.number])
    assert older.checkpoint is not None
    await fill(partition, 5)
    await world.log.close()
    if gone:
        writes = Writes()
        writes.delete(partition_key(partition.number, CHECKPOINT))
        world.database.offsets.write(writes)
    else:
        position = await world.storage.load_log_position(1)
        await world.storage.save_checkpoint(Checkpoint(1, position, [older.checkpoint]))
    said = "table partition_offset_checkpoints has offsets up to "
    assert any(p.where == "t0-0" and said in p.text for p in (await scanned(world)).problems)
    said = "table partition_offset_checkpoints lacks offsets before the checkpoint of t0-0: "
    with pytest.raises(IdentityError, match=f"{said}.*kafkawire restore --from-log --data /data"):
        await world.start()


async def test_merge_of_partition_that_is_not_in_memory_keeps_its_log_start() -> None:
    """A rebuild believes the log start in a segment: that of a merge was its first offset, which
    hid the records before it."""
    world = await with_mappings()
    await world.start()
    number = world.find("t0").number
    rows = await mappings_of(world)
    world.log.loader.unload(world.find("t0"))
    inputs = await world.storage.segments(1, [LIVE], 10)
    rewrite = Rewrite([row for row in inputs if row.id == rows[1].segment_id], {number: [rows[1]]})
    (made,) = await world.log.segments.rewriter._inputs(rewrite)
    (keep,) = unpack_all(made.keeps)
    assert keep.from_offset > 0
    assert keep.log_start == 0
    await world.log.close()
