"""Loading a coordinator from its snapshot and the log after it.

A loader reads the newest usable snapshot, then the committed part of the log after it, in slices
small enough for other work of the event loop. A snapshot that may not be of this log is ignored. A
batch that cannot be parsed is skipped with a warning. Damaged ranges of the log are passed to the
loader's `pass_damage`. Other failures of the log are errors, because they may be temporary.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, iter_batches, records
from kafkawire.codec.errors import DamagedOffsets, ErrorCode, KafkaError
from kafkawire.codec.types import Buffer, DecodeError
from kafkawire.coordination import snapshot
from kafkawire.coordination.snapshot import PendingPair, SnapshotLocation
from kafkawire.log.io.ports import Env

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

SLICE_BYTES = 32 * 1024
"""Bytes read and applied at a time: 300 to 500 records, under ten milliseconds."""


class PartitionLoader(ABC):
    """The state of one coordinator partition while it is loaded; call `load` once.

    `next_offset`: the end of the loaded records; `log_bytes`: bytes read after the snapshot, which
    has `snapshot_bytes` (0: there was none). `contents`: what is loaded, for log lines.
    """

    contents: ClassVar[str]
    slice_records: ClassVar[int]

    def __init__(
        self, env: Env, partition: Partition, commit_log: CommitLog, place: SnapshotLocation
    ) -> None:
        self.env = env
        self.partition = partition
        self.next_offset = partition.log_start
        self.log_bytes = 0
        self.snapshot_bytes = 0
        self._commit_log = commit_log
        self._place = place

    @abstractmethod
    def apply_record(self, key: Buffer | None, value: Buffer | None, producer_id: int) -> None:
        """Apply a record of the snapshot or the log; `producer_id`: of its transaction, or -1.
        Raises DecodeError if it cannot be parsed, which is logged."""

    @abstractmethod
    def take_pending(self, stored: PendingPair) -> None:
        """Apply a pending offset of a snapshot. Raises DecodeError."""

    @abstractmethod
    def take_marker(self, buffer: Buffer, position: int, head: BatchHead) -> None:
        """Apply a control batch of the log."""

    @abstractmethod
    async def pass_damage(self, first: int, end: int) -> None:
        """Record that the offsets [first, end) of the log are damaged, and log what that means."""

    async def load(self, *, gained: bool = False) -> None:
        """Load all committed records; `gained`: another broker led the partition until now. Raises
        KafkaError or OSError if the log cannot be read."""
        partition = self.partition
        # Only committed records are loaded. What is appended but not committed would be missing.
        try:
            await self._commit_log.wait_until_committed()
        except KafkaError as error:
            logger.warning(
                "%s-%d: loading %s only up to the high watermark: %s",
                partition.topic, partition.index, self.contents, error,
            )  # fmt: skip
        end = partition.high_watermark
        self.next_offset = partition.log_start
        await self._load_snapshot(end, gained=gained)
        while self.next_offset < end:
            try:
                plan = partition.plan(self.next_offset, SLICE_BYTES, end, True)
                buffers = await self._commit_log.read(plan)
            except DamagedOffsets as damage:
                await self.pass_damage(self.next_offset, damage.end)
                self.next_offset = damage.end
                continue
            before = self.next_offset
            for buffer in buffers:
                self._load_batches(buffer)
            if self.next_offset == before:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"the log has no batch at offset {before}"
                )

    async def _load_snapshot(self, end: int, *, gained: bool) -> None:
        env, place = self.env, self._place
        found = await env.offload.submit("files", snapshot.read, env.fs, place)
        if found is None:
            return
        next_offset, pairs = found.next_offset, found.pairs
        if next_offset > end:
            # With flush=os a crash can lose records that a snapshot has. Their offsets will be
            # assigned again, so the file must be deleted before that: later it would seem to fit.
            logger.warning("removing snapshot %s: it is ahead of the log", place.path)
            await env.offload.submit("files", snapshot.remove, env.fs, place)
            return
        if misfit := self._misfit(found, gained=gained):
            logger.warning(
                "ignoring snapshot %s, replaying the log instead: %s", place.path, misfit
            )
            return
        for start in range(0, len(pairs), self.slice_records):
            for key, value in pairs[start : start + self.slice_records]:
                self._take(key, value)
            await env.slices.pause()
        # In one step: as many as open transactions have committed, which is few.
        for pending in found.pending:
            try:
                self.take_pending(pending)
            except DecodeError as error:
                logger.warning("skipping a pending offset of %s: %s", place.path, error)
        self.next_offset = max(next_offset, self.next_offset)
        self.snapshot_bytes = sum(len(key) + len(value) for key, value in pairs)

    def _misfit(self, found: snapshot.Contents, *, gained: bool) -> str:
        """Return why the records of a snapshot may not be those before its end in the log."""
        partition, term = self.partition, found.term
        # Of a backup, or an earlier program.
        if term is None:
            return "it has no leader epoch, and another broker led the partition" if gained else ""
        # Another leader may have replaced the end of the log, if its epoch begins before it.
        if found.next_offset > partition.epoch_end(term.leader_epoch)[1]:
            return (
                f"it ends at offset {found.next_offset}, before which a later leader epoch than "
                f"its own, {term.leader_epoch}, begins"
            )
        # Another broker may have led since and written tombstones or markers, which compaction
        # removes after delete.retention.ms: the snapshot would restore what they deleted or ended.
        age_ms = abs(self.env.clock.now_ms() - term.taken_ms)
        if term.leader_epoch < partition.leader_epoch and age_ms > self._max_age_ms():
            return (
                f"it is of leader epoch {term.leader_epoch}, and so old that tombstones which "
                "another leader wrote may have been removed since"
            )
        return ""

    def _max_age_ms(self) -> int:
        # Half of the time after which tombstones are removed: the clocks of two brokers differ.
        return self.partition.config.delete_retention_ms // 2

    def _load_batches(self, buffer: Buffer) -> None:
        for position, head in iter_batches(buffer):
            # The bytes may begin with batches that the snapshot has.
            if head.last_offset < self.next_offset:
                continue
            if head.attributes & CONTROL:
                self.take_marker(buffer, position, head)
            else:
                self._load_records(buffer, position, head)
            self.next_offset = head.last_offset + 1
            self.log_bytes += head.size_bytes

    def _load_records(self, buffer: Buffer, position: int, head: BatchHead) -> None:
        producer_id = head.producer_id if head.attributes & TRANSACTIONAL else -1
        try:
            for record in records(buffer, position):
                if record.offset >= self.next_offset:
                    self._take(record.key, record.value, producer_id)
        # Skipped, so that it does not affect the other groups or transactional ids.
        except (KafkaError, DecodeError) as error:
            logger.warning(
                "skipping the rest of a batch of %s, offsets %d-%d: %s",
                self.partition.topic, head.base_offset, head.last_offset, error,
            )  # fmt: skip

    def _take(self, key: Buffer | None, value: Buffer | None, producer_id: int = -1) -> None:
        try:
            self.apply_record(key, value, producer_id)
        except DecodeError as error:
            logger.warning("skipping a record of %s: %s", self.partition.topic, error)
