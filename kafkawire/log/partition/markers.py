"""Appending what coordinators write: their records, transaction markers, and offsets committed in
transactions.

They bypass the checks of a producer's batch, which their writers cannot fail, and go the way of
every batch otherwise: checked against the producers' state, given offsets, queued on the current
write batch. Called by kafkawire.log.partition.partition.
"""

from __future__ import annotations

from struct import Struct

from kafkawire.codec.batches import (
    COUNT_AT,
    MAX_TIMESTAMP_AT,
    BatchHead,
    read_head,
    stamp,
)
from kafkawire.codec.control import TransactionMarker, pack_marker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.journal.format import MAX_FRAME_PAYLOAD
from kafkawire.log.partition.producers import ProducerBatch
from kafkawire.log.partition.state import Frame, LoadedPartition
from kafkawire.log.partition.verification import Guard

_NEWEST = Struct(">q")
_COUNT = Struct(">i")
_PATCH = Struct(">qii")
_OVERHEAD = 12


def append_records(partition: LoadedPartition, batch: memoryview) -> tuple[int, int, int]:
    """Append a batch of the records of a coordinator: valid, uncompressed and without a producer;
    (its base offset, -1, log start). Not where batches are stored in another form.

    `batch` must stay valid until the write batch is written. KafkaError: MESSAGE_TOO_LARGE,
    KAFKA_STORAGE_ERROR.
    """
    if partition.log.failed is not None or partition.closed:
        raise partition.refusal()
    if len(batch) > partition.config.max_message_bytes:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
    (newest,) = _NEWEST.unpack_from(batch, MAX_TIMESTAMP_AT)
    (count,) = _COUNT.unpack_from(batch, COUNT_AT)
    base = partition.offsets.assign(count)
    _queue(partition, batch, base, count, newest)
    return base, -1, partition.log_start


def append_marker(
    partition: LoadedPartition, ending: TransactionMarker, now_ms: int
) -> tuple[int, int, int]:
    """Append the control batch that ends a transaction; (its offset, append time or -1, log start).

    It is written even where the producer has no open transaction: a coordinator that was restarted
    sends its markers again. The caller waits for the commit (CommitLog.after_commit). KafkaError:
    INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
    """
    if partition.log.failed is not None or partition.closed:
        raise partition.refusal()
    partition.producers.check_marker(ending)
    batch = memoryview(
        pack_marker(ending.producer_id, ending.epoch, ending.coordinator_epoch, ending.kind, now_ms)
    )
    append_time = -1
    if partition.config.timestamp_type:
        append_time = now_ms
        stamp(batch, now_ms, log_append=True)
    base = partition.offsets.assign(1)
    partition.producers.queue_marker(ending, base, now_ms)
    _queue(partition, batch, base, 1, now_ms)
    return base, append_time, partition.log_start


def append_offsets(
    partition: LoadedPartition, batch: memoryview, guard: Guard | None, now_ms: int
) -> tuple[int, int, int]:
    """Append a batch of offsets that belongs to a transaction (TxnOffsetCommit): transactional,
    without sequence numbers; (its base offset, -1, log start).

    `batch` must stay valid until the write batch is written. KafkaError: INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE without the guard it needs, MESSAGE_TOO_LARGE, KAFKA_STORAGE_ERROR.
    """
    if partition.log.failed is not None or partition.closed:
        raise partition.refusal()
    if len(batch) > partition.config.max_message_bytes:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
    head: BatchHead = read_head(batch)
    producer_id, epoch = head.producer_id, head.producer_epoch
    partition.producers.check_transactional(producer_id, epoch, -1, -1, guard)
    base = partition.offsets.assign(head.count)
    entry = ProducerBatch(producer_id, epoch, -1, -1, head.max_timestamp)
    partition.producers.queue_transactional(entry, base, now_ms)
    _queue(partition, batch, base, head.count, head.max_timestamp)
    return base, -1, partition.log_start


def _queue(
    partition: LoadedPartition, batch: memoryview, base: int, count: int, newest: int
) -> None:
    """Patch the offsets into a batch and queue it, as Partition.queue does."""
    size = len(batch)
    _PATCH.pack_into(batch, 0, base, size - _OVERHEAD, partition.leader_epoch)
    frame, log = partition.frame, partition.log
    if frame is None or frame.length + size > MAX_FRAME_PAYLOAD:
        partition.frame = frame = Frame(partition, [batch], base, base + count, size, newest)
        log.frames.append(frame)
    else:
        frame.batches.append(batch)
        frame.end = base + count
        frame.length += size
        frame.newest = max(frame.newest, newest)
    log.batch_bytes += size
    if not log.scheduled or log.batch_bytes > log.room_bytes:
        log.queued()
