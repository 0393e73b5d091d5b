"""Fill a partition with what the offset storage has of it: checkpoint, segment rows, producers.

A start does so before it adds the batches in the journals (kafkawire.log.recovery.restore); a
partition that is loaded later has none there (kafkawire.log.partition.loader). `limit_to_segments`
makes a view of one that another broker leads (kafkawire.broker.rack_reads.views).
"""

from __future__ import annotations

from kafkawire.codec.configs.durability_rules import BEYOND_FOLDER, DURABILITY
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.truncate import drop_journals
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.offsets.catalog.port import PartitionRow
from kafkawire.offsets.manager import PartitionOffsetManager


class RowVersion:
    """A count that rises whenever rows of segments in the offset storage are replaced, by
    kafkawire.log.segments.store.swap. If `number` differs before and after a read of rows, the read
    must be repeated."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def note_replacement(self) -> None:
        self.number += 1


def has_all_rows(catalog: Catalog, number: int) -> bool:
    """Return whether rows have all offsets of a partition that are not in the journals."""
    where = catalog.locate(number)
    # Another broker may have led it and not have cut all of it.
    if where is None or len(catalog.brokers) > 1:
        return False
    # Log objects and followers, for topics other than durability=local, are read after the rows.
    return catalog.by_id[where.topic_id].configs.get(DURABILITY) not in BEYOND_FOLDER


def wrong_mappings(row: PartitionRow) -> str:
    """Return, as a sentence, where the mappings of a partition do not follow one another from
    its log start on, as each change leaves them; empty: nowhere."""
    end = log_start = row.checkpoint.log_start if row.checkpoint is not None else 0
    for mapping in row.mappings:
        base = mapping.base_offset
        if base > end:
            return f"table offset_mappings has no row of the offsets {end}-{base - 1}"
        # The first row may begin below the log start.
        if base < end and end > log_start:
            return f"table offset_mappings has two rows of the offsets {base}-{end - 1}"
        end = max(log_start, mapping.end_offset)
    # The last rows may be gone: of segments whose files were lost before they were uploaded.
    return ""


def begin_epoch(row: PartitionRow, epoch: int) -> PartitionCheckpoint | None:
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
        partition.start_epoch(
            partition.leader_epoch
        )  # it rose while the partition was not in memory


def take_row(partition: Partition, row: PartitionRow) -> None:
    """Take over the rows of SQL."""
    state = row.checkpoint
    if state is not None:
        # Not yet the end of its segments: batches after the checkpoint must be replayed although
        # they were cut.
        partition.next_offset = state.next_offset
        partition.log_start = state.log_start
        if state.leader_epochs:
            partition.epochs = list(state.leader_epochs)
        partition.producers.load(state.producers)
        if state.producers:
            partition.log.producing[partition] = None
    partition.dispatch_offset, partition.commit_offset = row.dispatch_offset, row.commit_offset
    # The log start may have moved after the rows were written.
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
    partition.raise_high_watermark(partition.next_offset)
    # As if dirty: what follows must not add it to the list of the next checkpoint.
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
    partition.raise_high_watermark(end)
    partition.resign()
