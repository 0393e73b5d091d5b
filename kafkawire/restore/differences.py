"""Differences between the rows of partitions and what journals, segments and the local manifest
say.

A row may be sound and still wrong: an older page of the database has older rows, and lacks newer
ones. Rows are stored before anything else says what they say, so a row that says less was stored
later and is lost: records would be hidden, deleted ones come back, a topic would be deleted, or
offsets be given again. Used by kafkawire.fsck and by `restore --from-log`. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from kafkawire.log.partition.damaged_ranges import Range, uncovered
from kafkawire.log.partition.stored_rows import has_all_rows, wrong_mappings
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import PartitionRow
from kafkawire.restore.evidence import FolderEvidence, PartitionSeen


class RowDifference(NamedTuple):
    """A wrong value of the row of a partition, as a sentence without its name. `unmapped`: offsets
    that an intact segment has and no row."""

    text: str
    unmapped: tuple[Range, ...] = ()


def differences(
    seen: FolderEvidence, catalog: Catalog, row: PartitionRow, log_position: int
) -> Iterator[RowDifference]:
    """Compare the row of a partition that the catalog has. `log_position`: of the checkpoint."""
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
        yield from _log_start(row, partition)
        # Journals and segments may have records of a term that has ended, of which no row is kept.
        if whole:
            yield from _offsets(row, partition, log_position)


def _log_start(row: PartitionRow, seen: PartitionSeen) -> Iterator[RowDifference]:
    start = row.checkpoint.log_start if row.checkpoint is not None else 0
    if seen.stored_start > start:
        stored = f"begins at offset {start}" if row.checkpoint is not None else "has no row of it"
        text = (
            f"table partition_offset_checkpoints {stored}, and its records before offset "
            f"{seen.stored_start} were deleted according to the journals or the local manifest"
        )
        yield RowDifference(text)


def _offsets(row: PartitionRow, seen: PartitionSeen, log_position: int) -> Iterator[RowDifference]:
    start = row.checkpoint.log_start if row.checkpoint is not None else 0
    end = row.checkpoint.next_offset if row.checkpoint is not None else 0
    before = bisect_left(seen.places, log_position)
    if max(seen.ends[:before], default=0) > end:
        text = (
            f"table partition_offset_checkpoints has offsets up to {end}, and the journals more "
            "before the checkpoint"
        )
        yield RowDifference(text)
    mapped = ((mapping.base_offset, mapping.end_offset) for mapping in row.mappings)
    held = sorted([(0, start), *mapped, *seen.ranges])
    for share in seen.shares:
        absent = tuple(uncovered(*share.offsets, held))
        if absent:
            offsets = ", ".join(f"{first}-{end - 1}" for first, end in absent)
            text = (
                f"table offset_mappings has no row of the offsets {offsets}, which segment "
                f"{share.file.uuid.hex()} has"
            )
            yield RowDifference(text, absent)
