"""InitProducerId for a transactional id: checks, epoch bumps, new producer ids (KIP-98, KIP-360).

Kafka: TransactionCoordinator.handleInitProducerId. Pure; called by `shard`.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.records import fits
from kafkawire.transactions.machine.request import Answer, InitProducer, TransactionConfig
from kafkawire.transactions.machine.transaction import (
    EXHAUSTED_FROM,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    ONGOING,
    Transaction,
    initialize_producer,
    rotate_producer_id,
)


def check_request(ask: InitProducer, settings: TransactionConfig) -> ErrorCode:
    """The error of a request that is wrong whatever the state of its id."""
    if (ask.producer_id == NO_PRODUCER_ID) != (ask.producer_epoch == NO_EPOCH):
        return ErrorCode.INVALID_REQUEST
    # A flexible request may have a longer id than a record can store.
    if not ask.transactional_id or not fits(ask.transactional_id):
        return ErrorCode.INVALID_REQUEST
    if ask.two_phase_commit and not settings.transaction_two_phase_commit_enable:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    # KIP-939: Kafka 4.3 has not got it either.
    if ask.keep_prepared:
        return ErrorCode.UNSUPPORTED_VERSION
    # Under two-phase commit a transaction never times out, so the value is not used.
    if not ask.two_phase_commit and not _valid_timeout(ask.timeout_ms, settings):
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def _valid_timeout(timeout_ms: int, settings: TransactionConfig) -> bool:
    return 0 < timeout_ms <= settings.transaction_max_timeout_ms


def check_producer(at: Transaction, ask: InitProducer) -> ErrorCode:
    """PRODUCER_FENCED if the client's producer id is not one this id has or had."""
    if ask.producer_id in (NO_PRODUCER_ID, at.producer_id):
        return ErrorCode.NONE
    # A producer without an epoch left got a new id, but the answer with it may be lost.
    if ask.producer_id == at.previous_producer_id and ask.producer_epoch >= EXHAUSTED_FROM:
        return ErrorCode.NONE
    return ErrorCode.PRODUCER_FENCED


def needs_producer_id(at: Transaction | None, ask: InitProducer, transaction_version: int) -> bool:
    """True if `initialize`, or fencing an open transaction, takes a fresh producer id."""
    if at is None:
        return True
    if not at.exhausted:
        return False
    # Below version 2 fencing takes the last epoch, which no client gets; the id is replaced by the
    # InitProducerId that follows.
    if at.state is ONGOING:
        return transaction_version >= 2
    # Any other epoch is refused by `initialize`.
    return ask.producer_id == NO_PRODUCER_ID or ask.producer_epoch == at.producer_epoch


def initialize(
    at: Transaction | None, ask: InitProducer, fresh_id: int, now_ms: int
) -> Transaction | ErrorCode:
    """The id after the request; or why it is refused. `fresh_id`: see `needs_producer_id`."""
    # Here no transaction is open and none is being ended.
    timeout_ms = NO_TIMEOUT_MS if ask.two_phase_commit else ask.timeout_ms
    if at is None:
        first = Transaction(fresh_id, NO_EPOCH, timeout_ms)
        return initialize_producer(first, 0, NO_EPOCH, timeout_ms, now_ms)
    known = ask.producer_id != NO_PRODUCER_ID
    current = not known or ask.producer_epoch == at.producer_epoch
    # Remembered for a producer that continues: it may repeat this request with its epoch. A new
    # process has none, and must fence the one that has.
    last_epoch = at.producer_epoch if known else NO_EPOCH
    if at.exhausted:
        if not current:  # Kafka answers an IllegalStateException so
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return rotate_producer_id(at, fresh_id, last_epoch, timeout_ms, now_ms)
    if current:
        return initialize_producer(at, at.producer_epoch + 1, last_epoch, timeout_ms, now_ms)
    # The answer to the same request was lost: no second bump (KIP-360).
    if ask.producer_epoch == at.last_producer_epoch:
        return initialize_producer(
            at, at.producer_epoch, at.last_producer_epoch, timeout_ms, now_ms
        )
    return ErrorCode.PRODUCER_FENCED


def answer_of(after: Transaction) -> Answer:
    return Answer(ErrorCode.NONE, after.producer_id, after.producer_epoch)
