"""Fill a partition with what the offset storage has of it: checkpoint, segment rows, producers.

A start does so before it adds the batches in the journals (kafkawire.log.recovery.restore); a
partition that is loaded later has none there (kafkawire.log.partition.loader). `limit_to_segments`
makes a view of one that another broker leads (kafkawire.broker.replicas.views).
"""

from __future__ import annotations

from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.truncate import drop_journals
from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.offsets.catalog.port import PartitionRow
from kafkawire.offsets.manager import PartitionOffsetManager


def begun(row: PartitionRow, epoch: int) -> PartitionCheckpoint | None:
    """Return the state of a partition at the begin of a leader epoch, with everything that is
    stored of it; None if the epoch is stored already, or the first."""
    state = row.checkpoint
    epochs = list(state.leader_epochs) if state is not None else []
    if epoch <= (epochs[-1][0] if epochs else 0):
        return None
    end = max([0, *(mapping.end_offset for mapping in row.mappings[-1:])])
    if state is not None:
        end = max(end, state.next_offset)
    while epochs and epochs[-1][1] >= end:
        epochs.pop()  # nothing was written with it
    epochs.append((epoch, end))
    log_start = state.log_start if state is not None else 0
    producers = state.producers if state is not None else []
    return PartitionCheckpoint(row.number, end, log_start, epochs, producers)


def fill(partition: Partition, row: PartitionRow) -> None:
    """Load a partition that has no batches in the journals."""
    take_row(partition, row)
    finish(partition)
    if partition.epochs[-1][0] < partition.leader_epoch:
        partition.lead(partition.leader_epoch)  # it rose while the partition was not in memory


def take_row(partition: Partition, row: PartitionRow) -> None:
    """Take over the rows of SQL.

    The end of its segments is not its next offset yet: batches after the checkpoint must be
    replayed although they were cut.
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
    """Set the fields that follow from the rows, when all are there."""
    partition.next_offset = max(partition.next_offset, partition.cut_offset)
    log_start = min(partition.log_start, partition.next_offset)
    partition.log_start = 0
    extents, rows = partition.journal_extents, partition.rows
    partition.size_bytes = sum(rows.length) + sum(extents.size[: partition.evicted])
    partition.size_bytes += sum(partition.segments.length)
    partition.offsets = PartitionOffsetManager(partition.next_offset)
    partition.bound = partition.next_offset
    partition.advance(partition.next_offset)
    dirty, partition.dirty = partition.dirty, True
    if log_start:
        partition.start_at(log_start)  # which SQL has, so nothing becomes dirty
    drop_journals(partition, partition.cut_offset)  # of a journal that was partly cut
    partition.dirty = dirty


def limit_to_segments(
    partition: Partition, state: PartitionCheckpoint | None, log_start: int, end: int
) -> None:
    """Make a new partition, whose segment rows are there, one that serves reads of these below
    `end` and takes no appends: another broker leads it."""
    if state is not None:
        partition.epochs = [each for each in state.leader_epochs if each[1] < end]
    if not partition.epochs or partition.epochs[-1][0] < partition.leader_epoch:
        partition.epochs.append((partition.leader_epoch, end))
    partition.log_start = log_start
    partition.cut_offset = partition.commit_offset = partition.next_offset = end
    partition.advance(end)
    partition.resign()
