"""Findings: damaged objects that a plan uses, and rows that differ from the evidence.

Without `find_damage` a restore trusts the manifest and the metadata in the objects. A row may be
sound and still wrong (`find_differences`): an older page of the database has older rows, and lacks
newer ones. Records would be hidden, deleted ones come back, a topic would be deleted, or offsets be
given again. Used by kafkawire.fsck, too.
"""

from __future__ import annotations

import os.path
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import ScrubArguments, ScrubResult, no_pace
from kafkawire.log.partition.damaged_ranges import Range, find_uncovered
from kafkawire.log.partition.stored_rows import has_all_rows, wrong_mappings
from kafkawire.log.segments.file import verify
from kafkawire.metadata.catalog import Catalog
from kafkawire.objectstore.errors import NoSuchObject
from kafkawire.offsets.catalog.port import PartitionRow
from kafkawire.progress import Progress
from kafkawire.restore.evidence import Doubt, DoubtKind, FolderEvidence, PartitionSeen
from kafkawire.restore.plan import UsedFile
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls


async def find_damage(
    env: Env, store: ObjectStore, used: list[UsedFile], folder: str, progress: Progress
) -> list[Doubt]:
    """Return a doubt for each damaged range that the plan uses, and for each other defect of its
    objects: every byte of them is read. `folder`: for a copy of one object at a time. Raises
    StoreError, OSError."""
    asking = RetryingCalls(env, store)
    doubts: list[Doubt] = []
    for at, one in enumerate(used):
        progress("checked", at, len(used))
        path = os.path.join(folder, one.file.object.hex())
        doubts += await _verify_object(env, asking, one, path)
    progress("checked", len(used), len(used))
    return doubts


async def _verify_object(env: Env, asking: RetryingCalls, used: UsedFile, path: str) -> list[Doubt]:
    key, fs = used.file.key, env.fs
    arguments = ScrubArguments(path, used.file.uuid)
    try:
        await asking.download(key, path, -1)
        result: ScrubResult = await env.offload.submit("files", verify.run, fs, arguments, no_pace)
    except NoSuchObject:
        return [Doubt(DoubtKind.MISSING, f"{key} is not there any more")]
    finally:
        await env.offload.submit("files", fs.remove, path)
    kept = {share.entry.number: share.offsets for _, share in used.shares}
    texts = [
        each.text
        for each in result.damaged
        if each.number in kept
        and each.first < kept[each.number][1]
        and each.end > kept[each.number][0]
    ]
    # The sentences about damaged batches come last.
    others = result.problems[: len(result.problems) - len(result.damaged)]
    texts += [problem.replace(f"{path}: ", "").replace(path, "it") for problem in others]
    return [Doubt(DoubtKind.DAMAGED, f"{key}: {text}") for text in texts]


class RowDifference(NamedTuple):
    """A wrong value of the row of a partition, as a sentence without its name. `unmapped`: offsets
    that an intact segment has and no row."""

    text: str
    unmapped: tuple[Range, ...] = ()


def find_differences(
    seen: FolderEvidence, catalog: Catalog, row: PartitionRow, log_position: int
) -> Iterator[RowDifference]:
    """Compare the row of a partition that the catalog has. `log_position`: of the checkpoint."""
    # Rows are stored before anything else says what they say: if one says less, a later one is
    # lost.
    whole = has_all_rows(catalog, row.number)
    if whole and (text := wrong_mappings(row)):
        yield RowDifference(text)
    partition, where = seen.partitions.get(row.number), catalog.locate(row.number)
    if partition is None or where is None or partition.topic_id != where.topic_id:
        return
    if where.topic_id in seen.deleted:
        yield RowDifference(
            "table topics has its topic, which was deleted according to the journals"
        )
    else:
        yield from _compare_log_start(row, partition)
        # Journals and segments may have records of a term that has ended, of which no row is kept.
        if whole:
            yield from _compare_offsets(row, partition, log_position)


def _compare_log_start(row: PartitionRow, seen: PartitionSeen) -> Iterator[RowDifference]:
    start = row.checkpoint.log_start if row.checkpoint is not None else 0
    if seen.stored_start > start:
        stored = f"begins at offset {start}" if row.checkpoint is not None else "has no row of it"
        text = (
            f"table partition_offset_checkpoints {stored}, and its records before offset "
            f"{seen.stored_start} were deleted according to the journals or the local manifest"
        )
        yield RowDifference(text)


def _compare_offsets(
    row: PartitionRow, seen: PartitionSeen, log_position: int
) -> Iterator[RowDifference]:
    start = row.checkpoint.log_start if row.checkpoint is not None else 0
    end = row.checkpoint.next_offset if row.checkpoint is not None else 0
    # Only frames before the checkpoint, which was stored after them.
    before = bisect_left(seen.places, log_position)
    if max(seen.ends[:before], default=0) > end:
        text = (
            f"table partition_offset_checkpoints has offsets up to {end}, and the journals more "
            "before the checkpoint"
        )
        yield RowDifference(text)
    mapped = ((mapping.base_offset, mapping.end_offset) for mapping in row.mappings)
    # Deleted offsets and those in journals need no row.
    held = sorted([(0, start), *mapped, *seen.ranges])
    for share in seen.shares:
        absent = tuple(find_uncovered(*share.offsets, held))
        if absent:
            offsets = ", ".join(f"{first}-{end - 1}" for first, end in absent)
            text = (
                f"table offset_mappings has no row of the offsets {offsets}, which segment "
                f"{share.file.uuid.hex()} has"
            )
            yield RowDifference(text, absent)
