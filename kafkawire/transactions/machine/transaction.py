"""The state of one transactional id as an immutable value, and the steps from one to the next.

A step returns the next value and changes nothing; the coordinator appends it to
`__transaction_state` and makes it current by `TransactionShard.apply`. Steps assume that the
decision has checked the request (Kafka: TransactionMetadata.prepare*). Times are milliseconds since
1970.

Pure.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

# The states of a transactional id, and which may follow which (Kafka: TransactionState).
#
# Kafka has two more, PrepareEpochFence and Dead: it enters them while a record is being appended.
# Here a record is appended and applied in one step, so no id is ever in them; they remain as names
# that ListTransactions accepts in its filters.


class TransactionState(IntEnum):
    """A state; its value is the status in a record of `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """The name on the wire, as in PrepareCommit."""
        return self.name.title().replace("_", "")


STATE_NAMES = frozenset(
    [state.label for state in TransactionState] + ["Dead", "PrepareEpochFence"]
)  # accepted by ListTransactions

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT

PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
"""The outcome is decided; markers are written to the partitions."""
AT_REST = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""No transaction is open: one may begin, and the id may expire."""

_BEFORE: dict[TransactionState, frozenset[TransactionState]] = {
    # InitProducerId. That of an open transaction aborts it first, and is repeated by the client.
    EMPTY: AT_REST,
    # A partition is added: the first one begins the transaction.
    ONGOING: AT_REST | {ONGOING},
    PREPARE_COMMIT: frozenset({ONGOING}),
    # Transaction version 2 aborts without a transaction, to raise the epoch.
    PREPARE_ABORT: AT_REST | {ONGOING},
    # Every partition has its marker: once decided, the outcome never changes.
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
}


def may_follow(before: TransactionState, after: TransactionState) -> bool:
    return before in _BEFORE[after]


TopicPartition = tuple[str, int]

NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_TIME = -1

LAST_EPOCH = 32_767
"""Never given to a client: kept so that the producer with the highest epoch can be fenced."""
EXHAUSTED_FROM = LAST_EPOCH - 1
"""The highest epoch of a client: after it a new producer id is needed."""
NO_TIMEOUT_MS = 2**31 - 1
"""Timeout of a transaction under two-phase commit, which never times out (KIP-939)."""

EPOCH_BUMPS_FROM = 2
"""The transaction version that raises the epoch with each transaction (KIP-890 part 2)."""

NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class Transaction(NamedTuple):
    """A transactional id between two records of the log.

    `producer_epoch` is -1 before the first record. `started_ms` is -1 if no transaction was begun
    since InitProducerId. `client_version`: the transaction version of the request that last changed
    the transaction; it is sent with the markers.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = EMPTY
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    # Before the last step, of whatever kind, so mostly equal to `producer_id`. It differs after a
    # step that changed the id, which is how a repeated request with the old id is recognized.
    previous_producer_id: int = NO_PRODUCER_ID
    # Taken when the outcome is decided and no epoch is left; in use once every partition has its
    # marker, since markers carry the old id.
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0
    # Not in the log: after a reload an InitProducerId that repeats the epoch before is fenced
    # (KIP-360).
    last_producer_epoch: int = NO_EPOCH

    @property
    def exhausted(self) -> bool:
        """True if no epoch is left that a client may own."""
        return self.producer_epoch >= EXHAUSTED_FROM

    @property
    def is_open(self) -> bool:
        """True from its begin until every partition has its marker."""
        return self.state not in AT_REST

    @property
    def commits(self) -> bool:
        return self.state in (PREPARE_COMMIT, COMPLETE_COMMIT)


def initialize_producer(
    before: Transaction, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> Transaction:
    """The id after InitProducerId: Empty, at `epoch` of the same producer id."""
    return before._replace(
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        state=EMPTY,
        partitions=NO_PARTITIONS,
        started_ms=NO_TIME,
        updated_ms=now_ms,
        previous_producer_id=before.producer_id,
    )


def rotate_producer_id(
    before: Transaction, producer_id: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> Transaction:
    """The id after InitProducerId with a new producer id, whose first epoch is 0."""
    after = initialize_producer(before, 0, last_epoch, timeout_ms, now_ms)
    return after._replace(producer_id=producer_id)


def with_partitions(
    before: Transaction, added: frozenset[TopicPartition], client_version: int, now_ms: int
) -> Transaction:
    """The id with an open transaction that has these partitions too."""
    begins = before.state in AT_REST
    # By position, in the order of the fields, here and in the other steps that every transaction
    # takes: a fifth of the time of `_replace`.
    return Transaction(
        before.producer_id,
        before.producer_epoch,
        before.timeout_ms,
        ONGOING,
        before.partitions | added if before.partitions else added,
        now_ms if begins else before.started_ms,
        now_ms,
        before.producer_id,
        before.next_producer_id,
        client_version,
        before.last_producer_epoch,
    )


def decide_outcome(
    before: Transaction, *, commit: bool, client_version: int, next_producer_id: int, now_ms: int
) -> Transaction:
    """The id with the outcome decided, by EndTxn. `next_producer_id` is the id to continue with
    where no epoch is left, or -1."""
    # So that a late request of this transaction cannot reach the next one (KIP-890).
    bumps = client_version >= EPOCH_BUMPS_FROM
    return Transaction(
        before.producer_id,
        _bump_epoch(before.producer_epoch) if bumps else before.producer_epoch,
        before.timeout_ms,
        PREPARE_COMMIT if commit else PREPARE_ABORT,
        before.partitions,
        now_ms if before.state in AT_REST else before.started_ms,
        now_ms,
        before.producer_id,
        next_producer_id,
        client_version,
        before.producer_epoch if bumps else before.last_producer_epoch,
    )


def fence_producer(
    before: Transaction, *, transaction_version: int, next_producer_id: int, now_ms: int
) -> Transaction:
    """The id with its transaction aborted by the broker, and its producer fenced.
    `transaction_version` is the cluster's."""
    # From 2 on the decided outcome raises the epoch, which fences the producer. It must not rise
    # twice (KAFKA-19367).
    bumps = transaction_version >= EPOCH_BUMPS_FROM
    aborted = decide_outcome(
        before,
        commit=False,
        client_version=transaction_version if bumps else 0,
        next_producer_id=next_producer_id if bumps else NO_PRODUCER_ID,
        now_ms=now_ms,
    )
    # With its old epoch, which is remembered, the producer can continue by InitProducerId.
    if bumps:
        return aborted
    return aborted._replace(
        producer_epoch=_bump_epoch(before.producer_epoch), last_producer_epoch=NO_EPOCH
    )


def complete_transaction(before: Transaction, now_ms: int) -> Transaction:
    """The id after all markers were written."""
    rolls = before.client_version >= EPOCH_BUMPS_FROM and before.next_producer_id != NO_PRODUCER_ID
    return Transaction(
        before.next_producer_id if rolls else before.producer_id,
        0 if rolls else before.producer_epoch,
        before.timeout_ms,
        COMPLETE_COMMIT if before.commits else COMPLETE_ABORT,
        NO_PARTITIONS,
        before.started_ms,
        now_ms,
        before.producer_id,
        NO_PRODUCER_ID,
        before.client_version,
        before.last_producer_epoch,
    )


def _bump_epoch(epoch: int) -> int:
    # Never above the last one: an id that got there by an old defect must still be able to abort
    # (KAFKA-20090).
    return min(epoch + 1, LAST_EPOCH)
