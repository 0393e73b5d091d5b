"""Control batches that end a transaction in a partition: building and reading markers (KIP-98).

    attributes    transactional | control, no compression; base sequence -1, one record
    key           version int16 0, type int16: 0 ABORT, 1 COMMIT (2 and more: KRaft's)
    value         version int16 0, coordinator epoch int32

A key or value of a newer version is read as version 0. A marker takes 78 bytes.

Pure; the partition's half of transactions appends and reads these.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, build, read_head, records
from kafkawire.codec.types import Buffer

ABORT, COMMIT = 0, 1
"""Types of control records that end a transaction (Kafka: ControlRecordType)."""

NO_COORDINATOR_EPOCH = -1

_KEY = Struct(">hh")
_VALUE = Struct(">hi")


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """The end of a transaction in one partition."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


def marker_batch(marker: TransactionMarker, timestamp_ms: int) -> bytearray:
    """Return the control batch of a marker, 78 bytes; the partition sets the base offset."""
    key = _KEY.pack(0, COMMIT if marker.commit else ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    return build(
        [(key, value)],
        timestamp_ms=timestamp_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )


def read_marker(batch: Buffer, position: int = 0) -> TransactionMarker | None:
    """Return the marker in the control batch at `position`; None for other control records and for
    the empty batch that the log cleaner leaves. Raises KafkaError(CORRUPT_MESSAGE)."""
    head = read_head(batch, position)
    if not head.attributes & CONTROL or not head.count:
        return None
    record = next(records(batch, position))
    if record.key is None or len(record.key) < _KEY.size:
        return None
    kind: int = _KEY.unpack_from(record.key)[1]
    if kind not in (ABORT, COMMIT):
        return None
    epoch = NO_COORDINATOR_EPOCH
    if record.value is not None and len(record.value) >= _VALUE.size:
        epoch = _VALUE.unpack_from(record.value)[1]
    return TransactionMarker(head.producer_id, head.producer_epoch, kind == COMMIT, epoch)
