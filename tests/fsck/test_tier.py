"""fsck and a restore from the log, for folders with segments in the remote tier.

Covers: kafkawire.fsck.segments.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafkawire.fsck.report import FsckReport
from kafkawire.log.segments.file.open import segment_path
from kafkawire.manifest.columns import Entry
from kafkawire.offsets.catalog.kv import layout
from kafkawire.offsets.catalog.kv.store import Writes
from kafkawire.offsets.catalog.port import COPY_FINISHED, LIVE, ObjectRow
from kafkawire.offsets.storage.memory import MemoryRows
from kafkawire.restore.combine import add_bucket
from kafkawire.restore.data_folder import gather_from_folder
from kafkawire.restore.evidence import BucketEvidence, PartitionSeen, SegmentSeen, TopicSeen
from kafkawire.restore.insert import enter_offsets
from kafkawire.restore.plan import plan_restore
from tests.kit.log.fsck import scanned
from tests.kit.log.logs import FOLDER
from tests.kit.tier.local import SEGMENTS, LocalWorld


async def tiered() -> LocalWorld:
    """Two segments, both uploaded, the first without a file; then a clean end."""
    world = LocalWorld()
    partition = await world.begin()
    for _ in range(2):
        await world.fill(partition, 40)
        await world.cut()
    first, _ = await world.upload()
    storage = world.storage
    await world.log.segments.swapper.update(lambda: storage.set_local([first.id], False))
    await world.local.files.sweep(0)
    ends = partition.segments.end
    await storage.save_tiering_offsets({partition.number: (ends[-1], ends[0])})
    await world.log.retention.reclaim()
    await world.log.close()
    return world


def texts(report: FsckReport) -> list[str]:
    return [f"{problem.where}: {problem.text}" for problem in report.problems]


async def test_segments_in_the_remote_tier_need_no_file() -> None:
    report = await scanned(await tiered())
    assert report.problems == []
    assert (report.segments, report.partitions) == (2, 1)


async def test_file_due_for_deletion_is_harmless_and_kept() -> None:
    """Only the running broker can ask the tier whether it has the object."""
    world = await tiered()
    first, _ = await world.rows()
    path = segment_path(SEGMENTS, first.uuid)
    world.fs.open(path, create=True).close()
    report = await scanned(world)
    assert texts(report) == [
        f"segment {first.uuid.hex()}: it is in the remote tier, and its file is still here: the "
        "broker removes it once the tier has confirmed that it has the object"
    ]
    assert report.clean
    await report.repair()
    assert path in world.fs.files


async def test_segment_without_file_or_object_is_reported_with_offsets() -> None:
    world = await tiered()
    first, _ = await world.rows()
    await world.storage.delete_objects([first.object], 5)
    report = await scanned(world)
    assert not report.clean
    one, other = texts(report)
    assert one == (
        f"segment {first.uuid.hex()}: its rows say that it is neither here nor in the remote tier"
    )
    assert other.startswith("t-0: offsets 0-")


async def test_two_finished_objects_of_a_segment_are_reported() -> None:
    world = await tiered()
    first, _ = await world.rows()
    storage = world.storage
    other = ObjectRow(b"o" * 16, first.id, 1, state=COPY_FINISHED)
    rows = await storage.objects_by_uuid([first.object])
    assert len(rows) == 1

    await storage.relocate_objects({first.object: other})
    _swap_states(world, first.object)
    report = await scanned(world)
    (problem,) = report.problems
    assert problem.where == f"object {first.object.hex()}"
    assert problem.text.endswith(f"is read from {other.uuid.hex()}")
    await report.repair()
    assert (await scanned(world)).problems == []


def _swap_states(world: LocalWorld, uuid: bytes) -> None:
    """Make an object finished that is being deleted, which no call of the storage does."""
    rows = world.database.offsets
    (value,) = rows.get([layout.object_key(uuid)])
    assert value is not None
    row = layout.unpack_object(layout.object_key(uuid), value)
    writes = Writes()
    finished = replace(row, state=COPY_FINISHED)
    writes.put(layout.object_key(uuid), layout.pack_object(finished))
    writes.put(layout.state_key(1, COPY_FINISHED, uuid), b"")
    rows.write(writes)


async def test_dangling_reference_is_reported() -> None:
    world = await tiered()
    _, second = await world.rows()
    writes = Writes()
    writes.delete(layout.object_key(second.object))
    writes.delete(layout.state_key(1, COPY_FINISHED, second.object))
    world.database.offsets.write(writes)
    assert texts(await scanned(world)) == [
        f"segment {second.uuid.hex()}: its row points to the object {second.object.hex()}, which "
        "is not finished"
    ]


@pytest.mark.parametrize(
    ("dispatch", "commit", "text"),
    [
        (10_000, 5, "its dispatch offset 10000 is beyond its segments"),
        (0, 10_000, "is not between 0 and its dispatch offset"),
    ],
)
async def test_tiering_offsets_outside_partition_are_reported(
    dispatch: int, commit: int, text: str
) -> None:
    world = await tiered()
    await world.storage.save_tiering_offsets({1: (dispatch, commit)})
    report = await scanned(world)
    assert not report.clean
    assert any(text in each for each in texts(report)), texts(report)


async def test_restore_from_log_reports_possibly_remote_records() -> None:
    world = await tiered()
    border = (await world.storage.load_partitions([1]))[0].mappings[0].end_offset
    rebuilt = plan_restore(gather_from_folder(world.env, FOLDER, lambda *_: None), 1)
    (checkpoint,) = rebuilt.checkpoints
    assert (checkpoint.log_start, checkpoint.next_offset) == (border, 80)
    assert [share.entry.base_offset for share in rebuilt.shares[1]] == [border]
    (text,) = [loss for loss in rebuilt.texts() if loss.startswith("t-0")]
    assert f"t-0 starts at offset {border}" in text
    assert "in a remote tier only" in text
    assert "name it with --tier" in text


async def in_the_bucket(world: LocalWorld) -> BucketEvidence:
    """The listing that a restore would find in the bucket of `tiered`."""
    info = world.catalog.by_name["t"]
    bucket = BucketEvidence(
        cluster_id=world.catalog.cluster_id, node_id=1, has_manifest=True, next_partition=2
    )
    bucket.topics[info.id] = TopicSeen(info.id, "t", numbers={0: 1}, count=1)
    bucket.partitions[1] = PartitionSeen(1, next_offset=1)
    for row in await world.rows():
        mappings = await world.storage.segment_mappings([row.id])
        entries = [Entry(m.number, *m[2:12]) for m in mappings]
        bucket.segments.append(
            SegmentSeen(
                row.uuid, row.created_ms, row.size_bytes, object=row.object, node_id=1,
                entries=entries, cluster_id=bucket.cluster_id,
            )
        )  # fmt: skip
    return bucket


async def test_restore_from_log_adds_remote_only_segments() -> None:
    world = await tiered()
    before = await world.rows()
    mapped = (await world.storage.load_partitions([1]))[0].mappings
    seen = gather_from_folder(world.env, FOLDER, lambda *_: None)
    add_bucket(seen, await in_the_bucket(world))
    rebuilt = plan_restore(seen, 1)
    rebuilt.tier = "file:///tier"
    (checkpoint,) = rebuilt.checkpoints
    assert (checkpoint.log_start, checkpoint.next_offset) == (0, 80)
    world.database.offsets = MemoryRows()
    storage = world.metadata.storage(world.env.clock.now_ms)
    await enter_offsets(world.env, storage, FOLDER, rebuilt)
    rows = await storage.segments(1, [LIVE], 10)
    assert {(row.uuid, row.local, row.object, row.tier) for row in rows} == {
        (row.uuid, row.local, row.object, 0) for row in before
    }
    (partition,) = await storage.load_partitions([1])
    assert [m[2:12] for m in partition.mappings] == [m[2:12] for m in mapped]
    assert partition.commit_offset == mapped[-1].end_offset
    world.storage = storage
    assert (await scanned(world)).problems == []
