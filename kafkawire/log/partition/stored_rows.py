"""Fill a partition with what the offset storage has of it: checkpoint, segment rows, producers.

A start does so before it adds what the journals hold (kafkawire.log.recovery.restore); of a
partition that is loaded later the journals hold nothing (kafkawire.log.partition.loader).
"""

from __future__ import annotations

from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.truncate import drop_journals
from kafkawire.offsets.catalog.port import PartitionRow
from kafkawire.offsets.manager import PartitionOffsetManager


def fill(partition: Partition, row: PartitionRow) -> None:
    """Load a partition of which the journals hold nothing."""
    take_row(partition, row)
    finish(partition)
    if partition.epochs[-1][0] < partition.leader_epoch:
        partition.lead(partition.leader_epoch)  # it rose while the partition was not in memory


def take_row(partition: Partition, row: PartitionRow) -> None:
    """Take over what SQL remembers.

    Where its segments end is not its next offset yet: batches after the checkpoint are to be
    replayed though they were cut.
    """
    state = row.checkpoint
    if state is not None:
        partition.next_offset = state.next_offset
        partition.log_start = state.log_start
        if state.leader_epochs:
            partition.epochs = list(state.leader_epochs)
        partition.producers.load(state.producers)
        if state.producers:
            partition.log.producing.add(partition)
    partition.dispatch_offset, partition.commit_offset = row.dispatch_offset, row.commit_offset
    living = [mapping for mapping in row.mappings if mapping.end_offset > partition.log_start]
    if len(living) < len(row.mappings):
        partition.log.trimmed[partition.number] = partition.log_start
    if living:
        partition.segments.splice(0, 0, living)
        partition.cut_offset = living[-1].end_offset


def finish(partition: Partition) -> None:
    """All rows are there: set what follows from them."""
    partition.next_offset = max(partition.next_offset, partition.cut_offset)
    log_start = min(partition.log_start, partition.next_offset)
    partition.log_start = 0
    portions, rows = partition.portions, partition.rows
    partition.size_bytes = sum(rows.length) + sum(portions.size[: partition.evicted])
    partition.size_bytes += sum(partition.segments.length)
    partition.offsets = PartitionOffsetManager(partition.next_offset)
    partition.high_watermark = partition.bound = partition.next_offset
    dirty, partition.dirty = partition.dirty, True
    if log_start:
        partition.start_at(log_start)  # which SQL knows, so it soils nothing
    drop_journals(partition, partition.cut_offset)  # of a journal that was cut in part
    partition.dirty = dirty
