"""AddPartitionsToTxn, AddOffsetsToTxn and the check whether partitions belong to a transaction.

Kafka: TransactionCoordinator.handleAddPartitionsToTransaction and
handleVerifyPartitionsInTransaction. Pure; called by kafkawire.transactions.machine.shard.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.records import MAX_ENCODED_AT_ONCE
from kafkawire.transactions.machine.request import AddPartitions, VerifyPartitions
from kafkawire.transactions.machine.transaction import (
    ONGOING,
    PREPARED,
    TopicPartition,
    Transaction,
)


def check_add(at: Transaction | None, ask: AddPartitions, *, pending: bool) -> ErrorCode:
    """The error of adding partitions, or NONE. `pending`: markers of this id are outstanding."""
    if not ask.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if at is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # Before the producer is checked, whose id may be about to change.
    if pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return _check_producer(at, ask)


def _check_producer(at: Transaction, ask: AddPartitions | VerifyPartitions) -> ErrorCode:
    if ask.producer_id != at.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if ask.producer_epoch != at.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if at.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def contains_all(at: Transaction, ask: AddPartitions) -> bool:
    # As in Kafka, a repeated request is answered without a record.
    return at.state is ONGOING and ask.partitions <= at.partitions


def is_large(at: Transaction | None, ask: AddPartitions) -> bool:
    """True if the transaction's record would have too many partitions to encode in one step."""
    known = 0 if at is None else len(at.partitions)
    if known + len(ask.partitions) <= MAX_ENCODED_AT_ONCE:
        return False
    return at is None or not contains_all(at, ask)


def verify(at: Transaction | None, ask: VerifyPartitions) -> dict[TopicPartition, ErrorCode]:
    """A code per partition: NONE if it is in the transaction, TRANSACTION_ABORTABLE if it is not;
    an error of the producer is that of every partition."""
    if not ask.transactional_id:
        code = ErrorCode.INVALID_REQUEST
    elif at is None:
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    else:
        code = _check_producer(at, ask)
    if at is None or code is not ErrorCode.NONE:
        return dict.fromkeys(ask.partitions, code)
    return {
        partition: ErrorCode.NONE if partition in at.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in ask.partitions
    }
