"""EndTxn: what each state answers, under both transaction versions, as tables.

Kafka: TransactionCoordinator.endTransaction. Pure; called by kafkawire.transactions.machine.shard.
"""

from __future__ import annotations

from enum import Enum

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.request import EndTransaction
from kafkawire.transactions.machine.transaction import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    EPOCH_BUMPS_FROM,
    EXHAUSTED_FROM,
    LAST_EPOCH,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    Transaction,
    TransactionState,
)


class EndOutcome(Enum):
    """The effect of an EndTxn that passed the checks of producer id and epoch."""

    END = "end the transaction"
    DONE = "it ended so before"
    WAIT = "its markers are being written"
    REFUSE = "the state does not allow it"


END, DONE, WAIT, REFUSE = EndOutcome.END, EndOutcome.DONE, EndOutcome.WAIT, EndOutcome.REFUSE

_CODES = {
    DONE: ErrorCode.NONE,
    WAIT: ErrorCode.CONCURRENT_TRANSACTIONS,
    REFUSE: ErrorCode.INVALID_TXN_STATE,
}

# state -> (commit, abort)
VERSION_1: dict[TransactionState, tuple[EndOutcome, EndOutcome]] = {
    EMPTY: (REFUSE, REFUSE),
    ONGOING: (END, END),
    PREPARE_COMMIT: (WAIT, REFUSE),
    PREPARE_ABORT: (REFUSE, WAIT),
    # One epoch for many transactions: whether the request is a repeated one, or an end without a
    # transaction after this one, cannot be known. Its outcome decides.
    COMPLETE_COMMIT: (DONE, REFUSE),
    COMPLETE_ABORT: (REFUSE, DONE),
}
# state -> (commit, abort) with the current epoch. An abort without a transaction raises the epoch:
# after an error a client cannot know whether it has begun one (KIP-890).
VERSION_2_CURRENT: dict[TransactionState, tuple[EndOutcome, EndOutcome]] = {
    EMPTY: (REFUSE, END),
    ONGOING: (END, END),
    COMPLETE_COMMIT: (REFUSE, END),
    COMPLETE_ABORT: (REFUSE, END),
}
# state -> (commit, abort) with the epoch, or the producer id, before: a repeated request. Each
# transaction has its own epoch, so it cannot be the end of another one.
VERSION_2_RETRY: dict[TransactionState, tuple[EndOutcome, EndOutcome]] = {
    PREPARE_COMMIT: (WAIT, REFUSE),
    PREPARE_ABORT: (REFUSE, WAIT),
    COMPLETE_COMMIT: (DONE, REFUSE),
    COMPLETE_ABORT: (REFUSE, DONE),
}


def check(at: Transaction | None, ask: EndTransaction, *, pending: bool) -> ErrorCode | EndOutcome:
    """END, DONE, or the error of an EndTxn. `pending`: markers of this id are outstanding."""
    if not ask.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if at is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if ask.transaction_version >= EPOCH_BUMPS_FROM:
        found = _check_version_2(at, ask, pending)
    else:
        found = _check_version_1(at, ask, pending)
    if found in (END, DONE) or isinstance(found, ErrorCode):
        return found
    return _CODES[found]


def _check_version_1(at: Transaction, ask: EndTransaction, pending: bool) -> ErrorCode | EndOutcome:
    if ask.producer_id != at.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if ask.producer_epoch != at.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return VERSION_1[at.state][0 if ask.commit else 1]


def _check_version_2(at: Transaction, ask: EndTransaction, pending: bool) -> ErrorCode | EndOutcome:
    # First of all: while a new producer id is about to take over, the old one is still stored, and
    # the client that has got the new one must not be fenced (KAFKA-18464).
    if pending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    rolled = _rolled_over(at, ask)
    if ask.producer_id != at.producer_id and not rolled:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    retry = rolled or at.producer_epoch == ask.producer_epoch + 1
    current = ask.producer_epoch == at.producer_epoch and ask.producer_id == at.producer_id
    if not _valid_epoch(at.state, current=current, retry=retry):
        return ErrorCode.PRODUCER_FENCED
    # No client may own this epoch; an abort repairs it.
    if current and ask.commit and at.producer_epoch == LAST_EPOCH and at.state is ONGOING:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    table = VERSION_2_RETRY if retry else VERSION_2_CURRENT
    return table[at.state][0 if ask.commit else 1]


def _rolled_over(at: Transaction, ask: EndTransaction) -> bool:
    """True if this ended the last transaction of the producer id before, at its last epoch."""
    return (
        ask.producer_id == at.previous_producer_id
        and ask.producer_epoch == EXHAUSTED_FROM
        and at.producer_epoch == 0
    )


def _valid_epoch(state: TransactionState, *, current: bool, retry: bool) -> bool:
    # The outcome is decided and has raised the epoch.
    if state in PREPARED:
        return retry
    # Repeated, or an abort of the next transaction, which may not have begun.
    if state in AT_REST and state is not EMPTY:
        return current or retry
    return current


def needs_producer_id(at: Transaction, ask: EndTransaction) -> bool:
    """True if ending the transaction takes a fresh producer id: the next epoch is kept back."""
    return ask.transaction_version >= EPOCH_BUMPS_FROM and at.exhausted
