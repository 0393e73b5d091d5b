"""Requests to the transaction machine and their answers, free of wire versions, and its settings.

A request is about one transactional id: AddPartitionsToTxn 4 and 5 have several, and are split by
the handler. Codes are those that the newest version knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.transaction import NO_EPOCH, NO_PRODUCER_ID, TopicPartition


class TransactionConfig(Protocol):
    """The settings of the broker that transactions obey, read at each use; names are Kafka's.
    `transaction_version` is the level of the finalized feature transaction.version."""

    @property
    def transaction_version(self) -> int: ...
    @property
    def transaction_max_timeout_ms(self) -> int: ...
    @property
    def transaction_two_phase_commit_enable(self) -> bool: ...
    @property
    def transactional_id_expiration_ms(self) -> int: ...


class InitProducer(NamedTuple):
    """InitProducerId with a transactional id. Producer id and epoch are those the client had, or
    both -1."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    two_phase_commit: bool = False
    keep_prepared: bool = False


class AddPartitions(NamedTuple):
    """AddPartitionsToTxn for one id, or AddOffsetsToTxn with the group's partition of
    `__consumer_offsets`. `transaction_version`: 2 for AddPartitionsToTxn 4 and later, else 0."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    transaction_version: int = 0


class VerifyPartitions(NamedTuple):
    """Whether partitions are in the open transaction (AddPartitionsToTxn 4 on, verify-only)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]


class EndTransaction(NamedTuple):
    """EndTxn. `transaction_version`: 2 for EndTxn 5 and later, else 0."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int = 0


Request = InitProducer | AddPartitions | EndTransaction


class Answer(NamedTuple):
    """The result of a request. Producer id and epoch are those to continue with, after
    InitProducerId and after EndTxn under transaction version 2; -1 where there are none."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class ListFilter(NamedTuple):
    """The filters of ListTransactions: states and producer ids (empty: all), the least age in ms of
    a transaction (-1: any) and a test of the transactional id (None: all)."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1
    matches: Callable[[str], bool] | None = None


def append_error(code: ErrorCode) -> ErrorCode:
    """Map an append error to the code a producer expects of its coordinator (Kafka:
    TransactionStateManager.appendTransactionToLog)."""
    # Others: MESSAGE_TOO_LARGE, of a transaction with too many partitions, and defects.
    return _APPEND.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


_APPEND = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}
