"""Adoption: append what the log objects of earlier lives have, and the journals here do not.

After the loss of a data folder that is everything which was not uploaded in segments; after a power
failure the last frames, which no fsync covered. Batches are appended as they are, with their
offsets and leader epochs, before any request is served.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kafkawire.codec.batches import (
    BASE_OFFSET,
    HEAD,
    LAST_DELTA,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    PRODUCER_ID,
)
from kafkawire.codec.control import ControlContent
from kafkawire.log.io.callbacks import await_callbacks
from kafkawire.log.journal.scan import marker_of
from kafkawire.log.partition.state import Frame
from kafkawire.log.recovery.restore import TransactionHistory
from kafkawire.offsets.manager import PartitionOffsetManager

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.objects.format import StoredFrame
    from kafkawire.log.partition.loader import Loader
    from kafkawire.log.partition.partition import Partition
    from kafkawire.offsets.catalog.port import SegmentCatalog

logger = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 16 << 20
"""Bytes that are queued before they are written."""
ROWS_AT_ONCE = 200
"""Partitions whose checkpoints are read at a time, as they are loaded."""


class Adoption:
    """The partitions with durability=s3 that objects have, as they are filled. `changed`: those
    that batches were appended to or have changed: a checkpoint must have them before objects are
    released."""

    def __init__(self, commit_log: CommitLog, loader: Loader, storage: SegmentCatalog) -> None:
        self._commit_log = commit_log
        self._loader = loader
        self._storage = storage
        self._slices = commit_log.env.slices
        # By partition number: the next offset according to SQL and the journals.
        self._known: dict[int, int] = {}
        # By partition number: below this offset batches are part of its producers and epochs.
        self._replayed: dict[int, int] = {}
        self._history = TransactionHistory()
        self.changed: dict[int, Partition] = {}

    async def load(self, numbers: Iterable[int]) -> None:
        """Load partitions, those of them that are led here, and prepare them for appends after what
        they have. Raises what the storage raises."""
        new = sorted(set(numbers) - self._known.keys())
        partitions = self._loader.partitions
        # Before they are loaded: those in memory have replayed what the journals here have.
        replayed = {
            number: partitions[number].next_offset for number in new if number in partitions
        }
        await self._loader.load(new)
        others = [number for number in new if number not in replayed]
        for at in range(0, len(others), ROWS_AT_ONCE):
            for row in await self._storage.load_partitions(others[at : at + ROWS_AT_ONCE]):
                state = row.checkpoint
                replayed[row.number] = state.next_offset if state is not None else 0
        for number in new:
            partition = partitions.get(number)
            if partition is not None and partition.sink is self._commit_log.object_sink:
                self._known[number] = partition.next_offset
                self._replayed[number] = replayed[number]
                # SQL may be ahead of the journals here: appends continue where the records end.
                _rewind(partition)
                _end_epochs(partition, replayed[number])
            await self._slices.give_way()

    def missing(self, ends: dict[int, int]) -> bool:
        """Return whether an object with these ends has something that a partition here lacks."""
        for number, end in ends.items():
            if number in self._known:
                there = self._loader.partitions[number].next_offset
                # Batches that segments have may still have to be replayed.
                if end > min(there, self._replayed[number]):
                    return True
        return False

    async def append(self, frames: Iterable[StoredFrame]) -> None:
        """Append the batches of an object that are missing. Raises KAFKA_STORAGE_ERROR."""
        log = self._commit_log
        for frame in frames:
            partition = self._loader.partitions.get(frame.number)
            if partition is None or frame.number not in self._known:
                continue
            batches = [batch for batch in frame.batches if self._take(partition, batch)]
            if batches:
                self._queue(partition, batches)
            # Memory has so many bytes of objects at a time.
            if log.batch_bytes > MAX_QUEUED_BYTES:
                await await_callbacks(log.after_write)
            await self._slices.give_way()
        await await_callbacks(log.after_write)

    def _take(self, partition: Partition, batch: memoryview) -> bool:
        """Take a batch into the state of its partition; return whether it is missing there."""
        fields = HEAD.unpack_from(batch, 0)
        base, count = fields[BASE_OFFSET], fields[LAST_DELTA] + 1
        expected = partition.offsets.pending
        # Below the checkpoint's next offset batches change neither producers nor epochs again;
        # segments may be ahead of the checkpoint, and batches of theirs only change these.
        new = base >= self._replayed[partition.number]
        if base + count <= expected and not new:
            return False
        marker = marker_of(batch, 0, fields)
        self._history.take_facts(partition.number, [(0, fields, marker)])
        if new:
            self._replay(partition, fields, marker)
        if base + count <= expected:
            return False
        # Assigned all the same: these offsets may have been acknowledged.
        if base > expected:
            logger.critical(
                "offsets %d-%d of %s-%d are in no segment and no log object: reading them returns "
                "an error",
                expected,
                base - 1,
                partition.topic,
                partition.index,
            )
            partition.offsets.assign(base - expected)
        elif base < expected:
            # Within what is here already, unless nothing of it is: then the log start is within
            # this batch.
            if expected != partition.log_start or expected != partition.next_offset:
                return False
            _continue_at(partition, base)
        partition.offsets.assign(count)
        return True

    def _replay(
        self, partition: Partition, fields: Sequence[int], marker: ControlContent | None
    ) -> None:
        if fields[LEADER_EPOCH] > partition.epochs[-1][0]:
            partition.epochs.append((fields[LEADER_EPOCH], fields[BASE_OFFSET]))
        if fields[PRODUCER_ID] >= 0:
            partition.producers.replay(fields, marker)
        partition.mark_dirty()
        self.changed[partition.number] = partition

    def _queue(self, partition: Partition, batches: list[memoryview]) -> None:
        first, last = HEAD.unpack_from(batches[0], 0), HEAD.unpack_from(batches[-1], 0)
        newest = max(HEAD.unpack_from(batch, 0)[MAX_TIMESTAMP] for batch in batches)
        size = sum(map(len, batches))
        log = self._commit_log
        end = last[BASE_OFFSET] + last[LAST_DELTA] + 1
        log.frames.append(Frame(partition, batches, first[BASE_OFFSET], end, size, newest))
        log.batch_bytes += size
        log.schedule_flush()
        self.changed[partition.number] = partition

    async def finish(self) -> None:
        """Complete the partitions, when everything was appended."""
        for number, known in self._known.items():
            partition = self._loader.partitions.get(number)
            if partition is None:
                continue
            if partition.next_offset < known:
                self._report_lost(partition, known)
            self._history.give(partition)
            # What was appended may be of earlier epochs; the current one begins after it.
            if partition.epochs[-1][0] < partition.leader_epoch:
                partition.start_epoch(partition.leader_epoch)
            # The objects have everything: it is committed.
            partition.raise_high_watermark(partition.next_offset)
            await self._slices.give_way()

    def _report_lost(self, partition: Partition, known: int) -> None:
        """Continue a partition after offsets that SQL knows of and no object has."""
        logger.critical(
            "%s-%d continues at offset %d: offsets %d-%d were stored, according to SQL, and are in "
            "no segment and no log object",
            partition.topic,
            partition.index,
            known,
            partition.next_offset,
            known - 1,
        )
        # These offsets may have been acknowledged: they are not assigned again.
        _continue_at(partition, known)
        partition.mark_dirty()


def _continue_at(partition: Partition, offset: int) -> None:
    partition.next_offset = offset
    partition.offsets = PartitionOffsetManager(offset)


def _rewind(partition: Partition) -> None:
    """Have appends continue at the end of what the partition has in segments and journals, if SQL
    has a later next offset."""
    known = partition.next_offset
    end = max(partition.cut_offset, partition.log_start)
    if len(partition.journal_extents):
        end = max(end, partition.journal_extents.end[-1])
    rows = partition.rows
    if len(rows):
        end = max(end, rows.base[-1] + rows.count[-1])
    if end >= known:
        return
    _continue_at(partition, end)
    partition.raise_high_watermark(end)


def _end_epochs(partition: Partition, replayed: int) -> None:
    """Forget leader epochs that were begun and have no batches yet: what is appended may be of
    earlier ones. `finish` begins the current one again."""
    epochs = partition.epochs
    # Begun and without batches: what is appended may be of earlier ones.
    while len(epochs) > 1 and epochs[-1][1] >= replayed:
        epochs.pop()
    if epochs[-1][1] >= replayed:
        epochs[-1] = (0, 0)
