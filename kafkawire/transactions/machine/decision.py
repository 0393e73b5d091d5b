"""Decisions of the transaction machine: steps to apply and effects to perform, as plain data.

A decision changes nothing. Its `steps` are what will be true: records, which have to be in
`__transaction_state`, and the progress of markers, which is kept in memory only. All are applied
by the one mutator of the machine, in this order, and only after the records have been appended.
Then the answer and the effects wait for the commit that covers the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kafkawire.codec.control import ABORT, COMMIT, TransactionMarker
from kafkawire.transactions.machine.records import TransactionRecord
from kafkawire.transactions.machine.request import Answer
from kafkawire.transactions.machine.transaction import TopicPartition


class MarkersWritten(NamedTuple):
    """Partitions that need no marker of this transaction any more."""

    transactional_id: str
    partitions: frozenset[TopicPartition]


Step = TransactionRecord | MarkersWritten


class SendMarkers(NamedTuple):
    """Write the marker of a decided transaction to `partitions`, wherever they are led, and report
    the results to `TransactionShard.decide_markers`.

    Its other fields identify the work: a result for work that is not the current one of its id is
    ignored. `transaction_version` is the one of WriteTxnMarkers 2 (KIP-1228).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: frozenset[TopicPartition]

    @property
    def marker(self) -> TransactionMarker:
        kind = COMMIT if self.commit else ABORT
        return TransactionMarker(
            self.producer_id,
            self.producer_epoch,
            self.coordinator_epoch,
            kind,
            self.transaction_version,
        )


class DropMarkers(NamedTuple):
    """A partition has seen a newer epoch of the producer or of the coordinator: send nothing more
    for `work`. The id stays as it is until its coordinator partition is loaded again."""

    work: SendMarkers
    partitions: frozenset[TopicPartition]


Effect = SendMarkers | DropMarkers


@dataclass(slots=True)
class TransactionDecision:
    """Steps, effects and the answer of one request or task.

    With `needs_producer_id` there is nothing else: decide again with a fresh id.
    """

    answer: Answer | None = None
    steps: list[Step] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    needs_producer_id: bool = False

    @property
    def records(self) -> list[TransactionRecord]:
        """The steps that have to be in the log, in the order to append them."""
        return [step for step in self.steps if isinstance(step, TransactionRecord)]
