"""Batches of offsets and markers that transactions write to `__consumer_offsets`.

PendingBatch and TransactionMarker are steps, as records are: appended, then applied; replay applies
the same. VerifyOffsets is the port to the transaction coordinator, which this package does not
import. Pure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.codec.batches import TRANSACTIONAL, build
from kafkawire.codec.control import TransactionMarker
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.records import OffsetRecord, encode_record

if TYPE_CHECKING:
    from kafkawire.log.partition.verification import Guard

ABORTABLE_FROM = 4
"""The first version of TxnOffsetCommit that answers TRANSACTION_ABORTABLE (KIP-890)."""
ADDS_FROM = 5
"""The first version that adds the group's partition to the transaction by itself (KIP-890)."""
LOADING_FROM = 2
"""The first version that answers COORDINATOR_LOAD_IN_PROGRESS."""


class PendingBatch(NamedTuple):
    """The offsets of one TxnOffsetCommit: one transactional batch. None of the records is a
    tombstone."""

    producer_id: int
    producer_epoch: int
    records: tuple[OffsetRecord, ...]
    guard: Guard | None = None


TransactionStep = PendingBatch | TransactionMarker


def encode_batch(step: PendingBatch, now_ms: int) -> bytearray:
    """Return the transactional batch of a step: ordinary records."""
    return build(
        [encode_record(record) for record in step.records],
        timestamp_ms=now_ms,
        producer_id=step.producer_id,
        producer_epoch=step.producer_epoch,
        # The broker writes the batch in the name of the producer, whose sequence it must not use.
        base_sequence=-1,
        attributes=TRANSACTIONAL,
    )


class Verification(NamedTuple):
    """Whether a partition belongs to a transaction. `adds`: add it, otherwise only check."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partition: int
    adds: bool


class Verified(NamedTuple):
    """The answer of the transaction coordinator, and the guard that the append needs."""

    code: ErrorCode = ErrorCode.NONE
    guard: Guard | None = None


VerifyOffsets = Callable[[Verification], Awaitable[Verified]]
"""Verifies the partition of `__consumer_offsets` with this index; asks no coordinator if the
producer's transaction is open there, or if verification is disabled."""


def verification_code(code: ErrorCode, version: int) -> ErrorCode:
    """Map a code of the transaction coordinator to the one that a client of this version of
    TxnOffsetCommit expects (Kafka: GroupCoordinatorService.commitTransactionalOffsets)."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    return code


def client_code(code: int, version: int) -> int:
    """Map a code of a response to one that this version of TxnOffsetCommit has."""
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_FROM:
        return int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return code
