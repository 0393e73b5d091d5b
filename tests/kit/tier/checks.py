"""Invariants of a tiered broker's rows, files and bucket, checked from outside.

`check_moment` holds at every moment, between any two steps of any task; `check_bucket` reads every
record that the bucket alone has, as a restore would; `check_settled` holds once no work is due any
more. Objects that a test damaged without the broker are exempt.
"""

from __future__ import annotations

from itertools import pairwise

from kafkawire.codec.batches import iter_batches
from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.log.segments.file.open import SUFFIX
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import segment_key, segment_uuid
from kafkawire.manifest.reader import NoManifest, read_manifest
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_STARTED,
    LIVE,
    ObjectRow,
    PartitionRow,
    SegmentRow,
)
from tests.kit.log.logs import FOLDER
from tests.kit.tier.model import Row, rows_in
from tests.kit.tier.world import CLUSTER_NODE, TierWorld

ALL = 100_000


def manifest_of(world: TierWorld) -> Manifest | None:
    """The manifest that a reader of the bucket finds; None: none was written yet. It is read again
    only where one of its objects has been replaced, because each step asks for it."""
    held, reads = world.bucket.held, world.manifest_reads
    if reads and all(held.get(key) is was for key, was in reads.items()):
        return world.manifest
    reads.clear()

    def get(key: str) -> bytes:
        reads[key] = held.get(key)
        return held[key].data

    try:
        world.manifest = read_manifest(get)
    except NoManifest:
        world.manifest = None
    except BaseException:
        reads.clear()
        raise
    return world.manifest


def objects_in(world: TierWorld, *states: int) -> list[ObjectRow]:
    """Rows of objects in these states."""
    rows: list[ObjectRow] = world.peek(lambda s: s.objects(CLUSTER_NODE, states, ALL))
    return rows


def partitions_in(world: TierWorld) -> list[PartitionRow]:
    """The rows of every partition of every topic that exists."""
    numbers = [row.number for info in world.topics().values() for row in info.partitions]
    rows: list[PartitionRow] = world.peek(lambda s: s.load_partitions(numbers))
    return rows


def check_moment(world: TierWorld) -> None:
    """Check that the bucket alone has everything below the commit offsets, and that rows refer to
    existing things."""
    manifest = manifest_of(world)
    _check_rows(world)
    if manifest is None:
        assert not objects_in(world, COPY_FINISHED), "an object is finished, without a manifest"
        return
    for number in manifest.numbers:
        expected, there = world.expected(number), manifest.get_partition(number)
        assert there is not None
        # Reads do not wait for the bucket where it has nothing; at and after its end it shows
        # nothing.
        deleted_below = min(expected.deleted_below, there.end)
        assert there.log_start >= deleted_below, (
            f"{expected}: the bucket has records that were deleted"
        )
        if not expected.switched:
            _check_covered(world, manifest, number)
    for row in partitions_in(world):
        log_start = row.checkpoint.log_start if row.checkpoint is not None else 0
        if row.commit_offset > log_start and not world.expected(row.number).switched:
            there = manifest.get_partition(row.number)
            assert there is not None, f"the manifest does not know partition {row.number}"
            assert there.end >= row.commit_offset, (
                f"partition {row.number} is committed up to {row.commit_offset}, the manifest "
                f"ends at {there.end}"
            )


def _check_covered(world: TierWorld, manifest: Manifest, number: int) -> None:
    there = manifest.get_partition(number)
    assert there is not None
    spans = manifest.spans(number)
    where = f"{world.expected(number)} [{there.log_start}, {there.end})"
    if there.log_start < there.end:
        assert spans, f"{where}: no object contains any of it"
        assert spans[0].base == there.log_start, f"{where}: its objects begin at {spans[0].base}"
        assert spans[-1].end == there.end, f"{where}: its objects end at {spans[-1].end}"
    for one, two in pairwise(spans):
        assert one.end == two.base, f"{where}: nothing from {one.end} to {two.base}"
    for span in spans:
        _check_object(world, manifest, span.object, where)


def _check_object(world: TierWorld, manifest: Manifest, at: int, where: str) -> None:
    row = manifest.objects[at]
    key = segment_key(row.uuid)
    if key in world.bucket.harmed:
        return
    held = world.bucket.held.get(key)
    assert held is not None, f"{where}: the manifest names {key}, which is not there"
    assert len(held.data) == row.size_bytes, f"{where}: {key} has {len(held.data)} bytes"


def _check_rows(world: TierWorld) -> None:
    finished = {row.uuid: row for row in objects_in(world, COPY_FINISHED)}
    for row in finished.values():
        key = segment_key(row.uuid)
        assert key in world.bucket.held or key in world.bucket.harmed, f"{key} is not there"
    segments: list[SegmentRow] = world.peek(lambda s: s.segments(CLUSTER_NODE, (LIVE,), ALL))
    for segment in segments:
        if segment.object:
            owner = finished.get(segment.object)
            assert owner is not None, f"segment {segment.id} has an object that is not finished"
            assert owner.segment_id == segment.id
        path = f"{FOLDER}/segments/{segment.uuid.hex()}{SUFFIX}"
        if segment.local:
            assert path in world.fs.files, f"segment {segment.id} has no file"
        else:
            assert segment.object, f"segment {segment.id} has neither a file nor an object"
    for stored in partitions_in(world):
        assert stored.dispatch_offset >= stored.commit_offset, f"partition {stored.number}"


def check_bucket(world: TierWorld) -> int:
    """Check that every record the manifest lists is there, as it was acknowledged; return their
    number."""
    manifest = manifest_of(world)
    count = 0
    for number in manifest.numbers if manifest is not None else ():
        assert manifest is not None
        row = manifest.get_partition(number)
        assert row is not None
        if world.expected(number).switched or row.log_start >= row.end:
            continue
        found: list[tuple[int, Row]] = []
        harmed = False
        for span in manifest.spans(number):
            key = segment_key(manifest.objects[span.object].uuid)
            if key in world.bucket.harmed:
                harmed = True
                break
            entry = manifest.entries[span.entry]
            data = world.bucket.held[key].data[entry.start : entry.start + entry.length]
            assert len(data) == entry.length
            assert sum(1 for _ in iter_batches(data)) == entry.batches
            found += [pair for pair in rows_in([data], span.base) if pair[0] < span.end]
        if not harmed:
            world.promises.check(number, row.log_start, row.end, found)
            count += len(found)
    return count


def check_settled(world: TierWorld) -> None:
    """Check that everything due is uploaded, nothing unneeded is left, and the manifest is up to
    date."""
    check_moment(world)
    for state, what in ((COPY_STARTED, "uploads"), (DELETE_STARTED, "deletions")):
        left = objects_in(world, state)
        assert not left, f"{len(left)} {what} are not ended: {left[0]}"
    rows = {segment_key(row.uuid) for row in objects_in(world, COPY_FINISHED)}
    there = {key for key in world.bucket.held if segment_uuid(key) is not None}
    assert not there - rows, f"objects without a row: {sorted(there - rows)}"
    assert rows - there <= world.bucket.harmed
    manifest = manifest_of(world)
    for name, info in world.topics().items():
        config = TopicConfig(info.configs, world.config.texts)
        if not config.copies:
            continue
        assert manifest is not None, "nothing was uploaded"
        assert manifest.topics[name].id == info.id, f"another {name} is in the manifest"
        assert dict(manifest.topics[name].configs) == dict(info.configs)
    if manifest is not None:
        stale = set(manifest.topics) - set(world.topics())
        assert not stale, f"deleted topics are in the manifest: {stale}"
        listed = {manifest.objects.uuid(at) for at in range(len(manifest.objects))}
        named = {segment_key(uuid) for uuid in listed}
        assert named == rows, f"the manifest and the rows differ in {named ^ rows}"
