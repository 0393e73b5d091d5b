"""Control batches: the markers that end transactions (KIP-98), one record in a batch of 78 bytes.

    key    i16 version, i16 type: 0 abort, 1 commit (Kafka: ControlRecordType)
    value  i16 version, i32 coordinator epoch (Kafka: EndTransactionMarker)

Higher versions are read as version 0, as Kafka does. A TransactionMarker is what coordinators of
transactions send, groups apply and the log appends. Pure.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, build_one, records
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.types import Buffer

ABORT, COMMIT, OTHER, EMPTY = 0, 1, -1, -2
"""Types of control batches: the end of a transaction (Kafka: ControlRecordType), another type that
is ignored, or a batch whose record compaction has removed."""

NO_COORDINATOR = -1
"""The coordinator epoch where none is known."""


class Aborted(NamedTuple):
    """An aborted transaction with records in a partition: the offsets of its first record and of
    its marker."""

    producer_id: int
    first: int
    marker: int


_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class TransactionMarker(NamedTuple):
    """The end of a transaction in a partition; `kind`: ABORT or COMMIT; `version`: the transaction
    version of WriteTxnMarkers (KIP-1228), 2 if markers must have a higher epoch than the records.
    """

    producer_id: int
    epoch: int
    coordinator_epoch: int
    kind: int
    version: int = 0

    @property
    def commit(self) -> bool:
        """Whether the transaction is committed."""
        return self.kind == COMMIT


class ControlContent(NamedTuple):
    """The content of a control batch: ABORT, COMMIT, OTHER or EMPTY, and the epoch of the
    coordinator that wrote it."""

    kind: int
    coordinator_epoch: int


def pack_marker(
    producer_id: int, epoch: int, coordinator_epoch: int, kind: int, timestamp_ms: int
) -> bytearray:
    """Return the control batch that ends a transaction with ABORT or COMMIT."""
    assert kind in (ABORT, COMMIT), kind
    key, value = _KEY.pack(0, kind), _VALUE.pack(0, coordinator_epoch)
    return build_one(
        key,
        value,
        timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )


def read_marker(buf: Buffer, pos: int, head: BatchHead) -> ControlContent:
    """Return the content of the control batch at `pos`, whose head is `head`. A batch that cannot
    be decoded is OTHER; recovery must not fail because of it."""
    if not head.count:
        return ControlContent(EMPTY, NO_COORDINATOR)
    try:
        record = next(records(buf, pos))
    except KafkaError:
        return ControlContent(OTHER, NO_COORDINATOR)
    key, value = record.key, record.value
    if key is None or len(key) < _KEY.size:
        return ControlContent(OTHER, NO_COORDINATOR)
    kind: int = _KEY.unpack_from(key)[1]
    if kind not in (ABORT, COMMIT):
        return ControlContent(OTHER, NO_COORDINATOR)
    epoch = NO_COORDINATOR
    if value is not None and len(value) >= _VALUE.size:
        epoch = _VALUE.unpack_from(value)[1]
    return ControlContent(kind, epoch)
