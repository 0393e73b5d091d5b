"""The states of a transactional id, and which may follow which (Kafka: TransactionState).

Kafka has two more, PrepareEpochFence and Dead: it enters them while a record is being appended.
Here a record is appended and applied in one step, so no id is ever in them; they remain as names
that ListTransactions accepts in its filters. Pure.
"""

from __future__ import annotations

from enum import IntEnum


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
    EMPTY: AT_REST,
    ONGOING: AT_REST | {ONGOING},
    PREPARE_COMMIT: frozenset({ONGOING}),
    PREPARE_ABORT: AT_REST | {ONGOING},  # transaction version 2 aborts without a transaction
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
}


def may_follow(before: TransactionState, after: TransactionState) -> bool:
    """Return True if a transactional id can go from one state to the other."""
    return before in _BEFORE[after]
