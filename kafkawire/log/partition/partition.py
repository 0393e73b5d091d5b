"""One partition: appending to it and planning reads of it, on its state
(kafkawire.log.partition.state).

The hot path of every Produce is `queue`: check, assign, patch, queue. Queued batches become state
in `applied`, when kafkawire.log.append.commit_log has written the whole write batch.
kafkawire.log.partition.time_lookup reads by time; kafkawire.log.manager and
kafkawire.log.maintenance.retention move the log start. Callers must not assume that the high
watermark is the log end, or that this broker leads every partition.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from kafkawire.codec.batches import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    CODEC_MASK,
    COUNT,
    COUNT_AT,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
    BatchHead,
    read_head,
    stamp,
)
from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.control import TransactionMarker, pack_marker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.validate import Head, LongBatch, check_batch, check_records, convert
from kafkawire.log.io.callbacks import Callback
from kafkawire.log.journal.format import MAX_FRAME_PAYLOAD
from kafkawire.log.partition import damaged_ranges, time_lookup, truncate
from kafkawire.log.partition.producers import ProducerBatch, last_sequence
from kafkawire.log.partition.read_plan import make_plan
from kafkawire.log.partition.state import Frame, LoadedPartition, Plan
from kafkawire.log.partition.verification import Guard
from kafkawire.log.partition.waiting_queue import unless_for_others

__all__ = ["Appended", "Partition", "Plan"]

_PATCH = Struct(">qii")
_patch: Final = _PATCH.pack_into
_OVERHEAD: Final = 12
_NEWEST = Struct(">q")
_COUNT = Struct(">i")


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
    codec = head[ATTRIBUTES] & CODEC_MASK
    wanted = codec if config.compression < 0 else config.compression
    if wanted != codec or append_time is not None:
        level = config.compression_level
        stored = convert(batch, head, wanted, level, append_time, at_once=at_once)
        # Packed again it may be larger than the limit, which holds for what is stored.
        if len(stored) > config.max_message_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        batch = memoryview(stored)
    if append_time is None:
        return batch, newest, -1
    return batch, append_time, append_time


class Partition(LoadedPartition):
    """One partition of the log: appending to it, and planning reads of it."""

    __slots__ = ()

    def append(self, batch: memoryview, now_ms: int) -> Appended:
        """Append a batch of the broker, which is known to be valid; see `queue`."""
        try:
            return Appended(*self.queue(batch, now_ms))
        # What the broker writes is valid: the check of its records may be left out.
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
        count, append_time = head[COUNT], -1
        if inspected is not None:
            newest = inspected.newest
        else:
            newest = check_records(batch, head, config, now_ms, log.validation)
        # The producer computed its newest timestamp wrongly; lookups by time need the true one.
        if newest != head[MAX_TIMESTAMP]:
            stamp(batch, newest, log_append=False)
        producer_id = head[PRODUCER_ID]
        if producer_id >= 0:
            # Before offsets are assigned: a duplicate gets the original's, and nothing is queued.
            sequence = head[BASE_SEQUENCE]
            last = last_sequence(sequence, count)
            transactional = head[ATTRIBUTES] & TRANSACTIONAL
            if transactional:
                original = self.producers.check_transactional(
                    producer_id, head[PRODUCER_EPOCH], sequence, last, guard
                )
            else:
                original = self.producers.check(producer_id, head[PRODUCER_EPOCH], sequence, last)
            if original is not None:
                # The time of the original: with LogAppendTime the answer must be the same as the
                # first.
                time = original[1] if config.timestamp_type else -1
                return original[0], time, self.log_start
        # After the check for duplicates: packing again costs much more than that.
        if config.timestamp_type or config.compression >= 0:
            if inspected is not None and inspected.stored is not None:
                batch, newest, append_time = inspected.stored
            else:
                batch, newest, append_time = stored_form(config, batch, head, newest, now_ms)
        # From here on nothing fails: offsets are assigned and the batch is queued.
        base = self.offsets.assign(count)
        if producer_id >= 0:
            if transactional:
                entry = ProducerBatch(producer_id, head[PRODUCER_EPOCH], sequence, last, newest)
                self.producers.queue_transactional(entry, base, now_ms)
            else:
                self.producers.queue(
                    producer_id, head[PRODUCER_EPOCH], sequence, last, base, now_ms
                )
        size = len(batch)
        # The base offset and the leader epoch are outside of the batch's CRC, so it stays valid.
        _patch(batch, 0, base, size - _OVERHEAD, self.leader_epoch)
        frame = self.frame
        # One frame for all batches of a partition in a write batch, up to 1 MiB.
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
        # Also when the flush is scheduled: it notes that the log is full.
        if not log.scheduled or log.batch_bytes > log.room_bytes:
            log.schedule_flush()
        return base, append_time, self.log_start

    # What coordinators write bypasses the checks of a producer's batch, which it cannot fail, and
    # goes the way of every batch otherwise: checked against the producers' state, given offsets,
    # queued on the current write batch. A batch must stay valid until its write batch is written.

    def append_records(self, batch: memoryview, now_ms: int) -> Appended:
        """Append a batch of the records of a coordinator: valid, uncompressed and without a
        producer. Raises MESSAGE_TOO_LARGE, KAFKA_STORAGE_ERROR."""
        config = self.config
        if config.timestamp_type or config.compression > 0:
            return self.append(batch, now_ms)  # it is stored in another form
        self._check_appendable(batch)
        (newest,) = _NEWEST.unpack_from(batch, MAX_TIMESTAMP_AT)
        (count,) = _COUNT.unpack_from(batch, COUNT_AT)
        base = self.offsets.assign(count)
        self._queue_checked(batch, base, count, newest)
        return Appended(base, -1, self.log_start)

    def append_marker(self, ending: TransactionMarker, now_ms: int) -> Appended:
        """Append the control batch that ends a transaction.

        The caller waits for the commit. Raises INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
        """
        if self.log.failed is not None or self.closed:
            raise self.refusal()
        # Also without an open transaction: a coordinator that was restarted sends markers again.
        self.producers.check_marker(ending)
        marker = pack_marker(
            ending.producer_id, ending.epoch, ending.coordinator_epoch, ending.kind, now_ms
        )
        batch = memoryview(marker)
        append_time = -1
        if self.config.timestamp_type:
            append_time = now_ms
            stamp(batch, now_ms, log_append=True)
        base = self.offsets.assign(1)
        self.producers.queue_marker(ending, base, now_ms)
        self._queue_checked(batch, base, 1, now_ms)
        return Appended(base, append_time, self.log_start)

    def append_offsets(self, batch: memoryview, guard: Guard | None, now_ms: int) -> Appended:
        """Append a batch of offsets that belongs to a transaction (TxnOffsetCommit): transactional,
        without sequence numbers. Raises INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE without the guard
        it needs, MESSAGE_TOO_LARGE, KAFKA_STORAGE_ERROR."""
        self._check_appendable(batch)
        head: BatchHead = read_head(batch)
        producer_id, epoch = head.producer_id, head.producer_epoch
        self.producers.check_transactional(producer_id, epoch, -1, -1, guard)
        base = self.offsets.assign(head.count)
        entry = ProducerBatch(producer_id, epoch, -1, -1, head.max_timestamp)
        self.producers.queue_transactional(entry, base, now_ms)
        self._queue_checked(batch, base, head.count, head.max_timestamp)
        return Appended(base, -1, self.log_start)

    def _check_appendable(self, batch: memoryview) -> None:
        if self.log.failed is not None or self.closed:
            raise self.refusal()
        if len(batch) > self.config.max_message_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)

    def _queue_checked(self, batch: memoryview, base: int, count: int, newest: int) -> None:
        size = len(batch)
        _patch(batch, 0, base, size - _OVERHEAD, self.leader_epoch)
        frame, log = self.frame, self.log
        if frame is None or frame.length + size > MAX_FRAME_PAYLOAD:
            self.frame = frame = Frame(self, [batch], base, base + count, size, newest)
            log.frames.append(frame)
        else:
            frame.batches.append(batch)
            frame.end = base + count
            frame.length += size
            frame.newest = max(frame.newest, newest)
        log.batch_bytes += size
        if not log.scheduled or log.batch_bytes > log.room_bytes:
            log.schedule_flush()

    def after_commit(self, fn: Callback) -> None:
        """Call `fn` when what was appended so far is committed, or has failed."""
        self.log.call_when_durable((self.sink,), unless_for_others(fn, self))

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

    def start_at(self, offset: int) -> list[int]:
        return truncate.move_log_start(self, offset)

    async def damaged_payloads(self, first: int, last: int) -> list[bytes]:
        """Read damaged frames; see kafkawire.log.partition.damaged_ranges.damaged_payloads."""
        return await damaged_ranges.damaged_payloads(self.log, self.number, first, last)
