"""One partition: appending to it, planning reads of it, its offsets and epochs.

The hot path of every Produce is `queue`: check, assign, patch, queue. Queued batches become state
in `applied`, when kafkawire.log.append.commit_log has written the whole write batch.
kafkawire.log.partition.time_lookup reads by time; kafkawire.log.manager and
kafkawire.log.maintenance.retention move the log start. Callers must not assume that the high
watermark is the log end, or that this broker leads every partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kafkawire.codec.batches import CODEC_MASK, TRANSACTIONAL, stamp
from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.control import Aborted, TransactionMarker
from kafkawire.codec.counts import TopicTraffic
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.validate import Head, LongBatch, check_batch, check_records, convert
from kafkawire.log.journal.format import MAX_FRAME_PAYLOAD
from kafkawire.log.journal.write_batch import Frame
from kafkawire.log.partition import damaged_ranges, markers, time_lookup, truncate
from kafkawire.log.partition.hot_index import HotIndex
from kafkawire.log.partition.journal_extents import JournalExtents
from kafkawire.log.partition.producers import (
    ProducerBatch,
    Producers,
    last_sequence,
)
from kafkawire.log.partition.read_plan import Plan, make_plan
from kafkawire.log.partition.segment_extents import SegmentRows
from kafkawire.log.partition.verification import Guard
from kafkawire.log.partition.waiting_queue import Callback, WaitingQueue, unless_for_others
from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.offsets.manager import PartitionOffsetManager

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog

__all__ = ["Appended", "Partition", "Plan"]

logger = logging.getLogger(__name__)

_PATCH = Struct(">qii")
_patch: Final = _PATCH.pack_into
_OVERHEAD: Final = 12


class Appended(NamedTuple):
    """The result of an append. `log_append_time_ms` is -1 with CreateTime."""

    base_offset: int
    log_append_time_ms: int
    log_start: int


StoredForm = tuple[memoryview, int, int]
"""(batch, newest timestamp, log append time) of a batch as it is to be stored."""


class Inspected(NamedTuple):
    """The result of inspecting a long batch before it is queued: its newest timestamp, and the form
    in which it is to be stored, if that differs from the received one."""

    newest: int
    stored: StoredForm | None


class Sink(Protocol):
    """Where the records of some partitions have to be before they are committed: on the disk, in
    log objects, or at followers. `queue` has what is not there yet; `refusal`: the error for
    batches of these partitions, if they are refused.
    """

    @property
    def awaited_by_acks_1(self) -> bool:
        """Whether acks=1 waits for it, too, instead of for the write only."""

    @property
    def in_sync(self) -> int:
        """In how many replicas records are when they are committed."""

    @property
    def queue(self) -> WaitingQueue[Any]: ...
    @property
    def refusal(self) -> KafkaError | None: ...

    def add(self, partition: Partition, frame: Frame) -> None:
        """Add a frame that was written. Hot."""

    def wrote(self) -> None:
        """Note that a write batch is applied, of which there is something in `queue`."""

    def wait(self, callbacks: list[Callback]) -> None:
        """Call these when everything written so far is durable here, or with the reason why it
        never will be; with FailedPartitions if only some partitions have failed."""

    def room_bytes(self) -> int:
        """Return how many bytes may be queued before Produce requests have to wait. While batches
        of its partitions are refused instead, those of others need not wait."""


def stored_form(
    config: TopicConfig,
    batch: memoryview,
    head: Head,
    newest: int,
    now_ms: int,
    *,
    at_once: bool = True,
) -> StoredForm:
    """Return the batch as it is to be stored with LogAppendTime or a compression.type. With
    `at_once`, raise LongBatch for one that should be compressed in a thread."""
    append_time = now_ms if config.timestamp_type else None
    codec = head[5] & CODEC_MASK
    wanted = codec if config.compression < 0 else config.compression
    if wanted != codec or append_time is not None:
        level = config.compression_level
        stored = convert(batch, head, wanted, level, append_time, at_once=at_once)
        if len(stored) > config.max_message_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        batch = memoryview(stored)
    if append_time is None:
        return batch, newest, -1
    return batch, append_time, append_time


class Partition:
    """One partition of the log. `next_offset` is the applied end, `high_watermark` what readers may
    see, `last_stable_offset` what readers of committed records may see: it is lower while a
    transaction is open, or its marker not committed.

    `frame` collects the batches of the current write batch; `named_in` is the journal that has its
    naming frame; `dirty`: the next checkpoint must contain
    it; `tail` has the newest rows of its index, packed; the first `evicted` journal extents have no
    rows in memory. Offsets below `cut_offset` are in `segments`, all others in the journals.
    Everything below `commit_offset` is in the remote tier, everything below `dispatch_offset` is
    there or being uploaded; 0: never tiered. `bound` is the ledger's bound above all acknowledged
    offsets, last raised by `reserve` (kafkawire.log.journal.ledger). `traffic` counts bytes and
    records of its topic. Below `timed_upto` the index has the newest timestamps of the records
    themselves (kafkawire.log.partition.time_lookup). Retention keeps the records of a schedule
    topic from `kept_from` on. Offsets below `absent_end` without a row were left at another broker.
    `sink`: where its records have to be before they are committed. `closed`: it takes no appends,
    since it is being handed over or was removed; `removed`: it is not in memory any more;
    `resigned`: another broker leads it.
    """

    __slots__ = (
        "_rows", "absent_end", "bound", "closed", "commit_offset", "config",
        "cut_offset", "dirty", "dispatch_offset", "epochs", "evicted", "frame", "high_watermark",
        "index", "journal_extents", "kept_from", "last_stable_offset",
        "leader_epoch", "log", "log_start", "named_in", "next_offset", "number", "offsets",
        "producers", "removed", "reserve", "resigned", "segments", "sink", "size_bytes",
        "tail", "timed_upto", "topic", "topic_id", "traffic", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        log: CommitLog,
        number: int,
        topic_id: bytes,
        topic: str,
        index: int,
        leader_epoch: int,
        config: TopicConfig,
        traffic: TopicTraffic,
    ) -> None:
        self.log = log
        self.traffic = traffic
        self.number = number
        self.topic_id = topic_id
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        self.config = config
        self.sink: Sink = log.sink_of(config)
        self.offsets = PartitionOffsetManager(0)
        self.epochs: list[tuple[int, int]] = [(leader_epoch, 0)]
        self.log_start = 0
        self.next_offset = 0
        self.high_watermark = 0
        self.last_stable_offset = 0
        self.size_bytes = 0
        self.absent_end = 0
        self.closed = False
        self.removed = False
        self.resigned = False
        self.watchers: dict[Callable[[Partition], None], None] = {}  # in order of arrival
        self._rows = HotIndex()
        self.tail = bytearray()
        self.journal_extents = JournalExtents()
        self.evicted = 0
        self.segments = SegmentRows()
        self.cut_offset = 0
        self.dispatch_offset = 0
        self.commit_offset = 0
        self.producers = Producers()
        self.frame: Frame | None = None
        self.named_in = -1
        self.dirty = False
        self.bound = 0
        self.reserve = 0
        self.kept_from = 0
        self.timed_upto = 0

    @property
    def too_few_replicas(self) -> bool:
        """Whether fewer replicas are in sync than its topic wants for acks=all."""
        least = self.config.min_insync_replicas
        return least > 1 and self.sink.in_sync < least

    @property
    def rows(self) -> HotIndex:
        """The index of its batches in the journals; get it again after other tasks have run."""
        if self.tail:
            self.index_tail()
        return self._rows

    def index_tail(self) -> None:
        """Move the rows of `tail` to the index."""
        self._rows.add_packed(self.tail)
        self.tail.clear()

    def advance(self, high_watermark: int) -> None:
        """Raise the high watermark, and the last stable offset with it. Hot."""
        self.high_watermark = high_watermark
        transactions = self.producers.transactions
        if transactions is None:
            self.last_stable_offset = high_watermark
        else:
            self.last_stable_offset = max(self.log_start, transactions.stable(high_watermark))

    def append(self, batch: memoryview, now_ms: int) -> Appended:
        """Append a batch of the broker, which is known to be valid; see `queue`."""
        try:
            return Appended(*self.queue(batch, now_ms))
        except LongBatch:
            newest = check_batch(batch, self.config.max_message_bytes)[8]
            return Appended(*self.queue(batch, now_ms, Inspected(newest, None)))

    def queue(  # noqa: C901 (hot: no calls)
        self,
        batch: memoryview,
        now_ms: int,
        inspected: Inspected | None = None,
        guard: Guard | None = None,
    ) -> tuple[int, int, int]:
        """Check one batch, give it offsets, patch them into `batch` and queue it. Hot.

        `batch` is a writable view that must stay valid until the write batch's after_write
        callbacks ran. If it raises KafkaError nothing has changed. For a duplicate of an idempotent
        producer the original's offset is returned and nothing is queued. Returns the fields of an
        Appended. Raises LongBatch if its records cannot be checked at once: then
        kafkawire.log.append.long_batch does so first and its result is passed as `inspected`.
        `guard`: the one of `begin_verification`, which the first batch of a transaction needs.
        """
        config = self.config
        log = self.log
        head = check_batch(batch, config.max_message_bytes)
        if log.failed is not None or self.closed or self.sink.refusal is not None:
            raise self.refusal()
        count, append_time = head[12], -1
        if inspected is not None:
            newest = inspected.newest
        else:
            newest = check_records(batch, head, config, now_ms, log.validation)
        if newest != head[8]:
            stamp(batch, newest, log_append=False)
        producer_id = head[9]
        if producer_id >= 0:
            sequence = head[11]
            last = last_sequence(sequence, count)
            transactional = head[5] & TRANSACTIONAL
            if transactional:
                original = self.producers.check_transactional(
                    producer_id, head[10], sequence, last, guard
                )
            else:
                original = self.producers.check(producer_id, head[10], sequence, last)
            if original is not None:
                time = original[1] if config.timestamp_type else -1
                return original[0], time, self.log_start
        if config.timestamp_type or config.compression >= 0:
            if inspected is not None and inspected.stored is not None:
                batch, newest, append_time = inspected.stored
            else:
                batch, newest, append_time = stored_form(config, batch, head, newest, now_ms)
        base = self.offsets.assign(count)
        if producer_id >= 0:
            if transactional:
                entry = ProducerBatch(producer_id, head[10], sequence, last, newest)
                self.producers.queue_transactional(entry, base, now_ms)
            else:
                self.producers.queue(producer_id, head[10], sequence, last, base, now_ms)
        size = len(batch)
        _patch(batch, 0, base, size - _OVERHEAD, self.leader_epoch)
        frame = self.frame
        if frame is None or frame.length + size > MAX_FRAME_PAYLOAD:
            self.frame = frame = Frame(self, [batch], base, base + count, size, newest)
            log.frames.append(frame)
        else:
            frame.batches.append(batch)
            frame.end = base + count
            frame.length += size
            if newest > frame.newest:
                frame.newest = newest
        log.batch_bytes += size
        if not log.scheduled or log.batch_bytes > log.room_bytes:
            log.queued()
        return base, append_time, self.log_start

    def refusal(self) -> KafkaError:
        """The error for appends: the log has failed, or the partition is not here any more."""
        if self.removed and not self.resigned:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self.closed:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.sink.refusal is not None:
            return self.sink.refusal
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.log.failed)

    def append_records(self, batch: memoryview, now_ms: int) -> Appended:
        """Append a batch of a coordinator without a producer; see
        kafkawire.log.partition.markers.append_records."""
        return Appended(*markers.append_records(self, batch, now_ms))

    def append_marker(self, ending: TransactionMarker, now_ms: int) -> Appended:
        """Append the marker that ends a transaction; see
        kafkawire.log.partition.markers.append_marker."""
        return Appended(*markers.append_marker(self, ending, now_ms))

    def append_offsets(self, batch: memoryview, guard: Guard | None, now_ms: int) -> Appended:
        """Append a batch of TxnOffsetCommit; see
        kafkawire.log.partition.markers.append_offsets."""
        return Appended(*markers.append_offsets(self, batch, guard, now_ms))

    def after_commit(self, fn: Callback) -> None:
        """Call `fn` when what was appended so far is committed, or has failed."""
        self.log.after((self.sink,), unless_for_others(fn, self))

    def begin_frame(self) -> None:
        """Have the next append follow everything queued so far, of all partitions, in the journal:
        a crash that keeps this append keeps that, too."""
        self.frame = None

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, adds: bool
    ) -> Guard | None:
        """Return the guard that the first batch of a transaction needs, or None where nothing is
        to be verified; see Producers.begin_verification."""
        self.log.producing[self] = None  # for guards expire with producers
        return self.producers.begin_verification(producer_id, epoch, sequence, now_ms, adds=adds)

    def aborted(self, start: int, end: int) -> list[Aborted]:
        """Aborted transactions with a marker in the journals at or after `start`, and a first
        offset below `end`."""
        transactions = self.producers.transactions
        return transactions.aborted.overlapping(start, end) if transactions is not None else []

    def committed_end(self, offset: int) -> int:
        """Return where a page of committed records from `offset` on ends: at the last stable
        offset, or before, where the page would have too many aborted transactions."""
        transactions = self.producers.transactions
        end = self.last_stable_offset
        return end if transactions is None else transactions.aborted.end_of_page(offset, end)

    def watch(self, watcher: Callable[[Partition], None]) -> None:
        """Have `watcher` called by `moved`, after those that watch already."""
        self.watchers[watcher] = None

    def unwatch(self, watcher: Callable[[Partition], None]) -> None:
        """Undo `watch`, if it was called."""
        self.watchers.pop(watcher, None)

    def moved(self) -> None:
        """Notify the watchers that the high watermark, the last stable offset or the log start
        moved, or that the partition is removed."""
        for watcher in tuple(self.watchers):
            try:
                watcher(self)
            except Exception:  # one broken reader must not stop the others, nor the write batch
                logger.exception(
                    "a high-watermark callback of %s-%d failed", self.topic, self.index
                )

    def close_appends(self) -> None:
        """Take no appends until `open_appends`: another broker is about to lead it. Readers are
        served."""
        self.closed = True

    def open_appends(self) -> None:
        """Take appends again, and new transactions: it stays here."""
        self.producers.refuse_new_transactions(refuse=False)
        self.closed = self.removed

    def note_absent(self, end: int) -> None:
        """Note that offsets below `end` without a row were left at another broker."""
        self.absent_end = end

    def remove(self) -> None:
        """Take no more appends: it is not in memory any more."""
        self.closed = self.removed = True

    def resign(self) -> None:
        """Take no more appends: another broker leads it. Its readers are to be woken by `moved`."""
        self.closed = self.removed = self.resigned = True

    def rollback(self) -> None:
        """Forget what was queued: it was not written."""
        self.frame = None
        self.offsets.rollback()
        self.producers.rollback()

    def plan(self, offset: int, max_bytes: int, end: int, first: bool) -> Plan:
        """Plan a read of the whole batches from `offset` on, below `end` and within `max_bytes`.

        With `first` at least one batch, whatever its size. Empty if `offset` is at or after `end`.
        Raises OFFSET_OUT_OF_RANGE outside of log start..log end, CORRUPT_MESSAGE where recovery
        found acknowledged bytes damaged, or mapped bytes are no batch.
        """
        return make_plan(self, offset, max_bytes, end, first)

    async def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after `timestamp` (ms), below the
        high watermark."""
        return await time_lookup.offset_for_time(self, timestamp)

    async def max_timestamp(self) -> tuple[int, int]:
        """Return (offset, timestamp) of the first record with the newest timestamp, or (-1, -1)."""
        return await time_lookup.max_timestamp(self)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return (the largest epoch at or below `epoch`, its end offset), (-1, -1) if unknown.

        As LeaderEpochFileCache.endOffsetFor.
        """
        epochs = self.epochs
        if epoch < 0 or not epochs or epoch > epochs[-1][0]:
            return -1, -1
        if epoch == epochs[-1][0]:
            return epoch, self.next_offset
        known = epoch
        for other, start in epochs:
            if other > epoch:
                return known, start
            known = other
        raise AssertionError("the last epoch is larger")

    def lead(self, epoch: int) -> None:
        """Begin a new leader epoch at the log end."""
        assert epoch >= self.leader_epoch, "leader epochs only rise"
        self.leader_epoch = epoch
        while self.epochs and self.epochs[-1][1] >= self.next_offset:
            self.epochs.pop()  # nothing was written with it
        self.epochs.append((epoch, self.next_offset))
        self.mark_dirty()

    def mark_dirty(self) -> None:
        """Note that the next checkpoint must contain it."""
        if not self.dirty:
            self.dirty = True
            self.log.dirty.append(self)

    async def delete_records(self, offset: int) -> int:
        """Move the log start to `offset` (-1: the high watermark); return the new log start.

        Returns when that is durable. Raises OFFSET_OUT_OF_RANGE above the high watermark.
        """
        target = self.high_watermark if offset == -1 else offset
        if target < 0 or target > self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if target > self.log_start:
            await self.log.save_log_starts({self.number: target})
            if self.removed and self.log_start < target:
                # Not here any more: the client looks it up and sends the request again.
                raise self.refusal()
        return self.log_start

    def keep_from(self, offset: int) -> None:
        """Have retention keep the records from `offset` on, if this is a schedule topic: they are
        not delivered yet. 0: all of them, as long as nothing is known of deliveries."""
        self.kept_from = offset

    def start_at(self, offset: int) -> list[int]:
        """Move the log start offset; see kafkawire.log.partition.truncate.move_log_start."""
        return truncate.move_log_start(self, offset)

    async def damaged_payloads(self, first: int, last: int) -> list[bytes]:
        """Read damaged frames; see kafkawire.log.partition.damaged_ranges.damaged_payloads."""
        return await damaged_ranges.damaged_payloads(self.log, self.number, first, last)

    def snapshot(self) -> PartitionCheckpoint:
        """Return its row in a checkpoint, for everything applied so far."""
        return PartitionCheckpoint(
            self.number,
            self.next_offset,
            self.log_start,
            list(self.epochs),
            self.producers.entries(),
        )
