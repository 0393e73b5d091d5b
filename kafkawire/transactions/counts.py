"""Counters of one coordinator, plain integers that the metrics page reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.records import TransactionRecord
from kafkawire.transactions.machine.request import Answer
from kafkawire.transactions.machine.states import PREPARE_ABORT, PREPARE_COMMIT


class TransactionCounts:
    """Since the start: transactions `committed` and `aborted` (also by timeout, or because a new
    producer took over the id), and requests refused because their producer was `fenced`."""

    __slots__ = ("aborted", "committed", "fenced")

    def __init__(self) -> None:
        self.committed = 0
        self.aborted = 0
        self.fenced = 0

    def add(self, answer: Answer | None, records: Sequence[TransactionRecord]) -> None:
        """Count a decision that is carried out. An abort without any partition is not counted:
        there was no transaction."""
        if answer is not None and answer.code is ErrorCode.PRODUCER_FENCED:
            self.fenced += 1
        for record in records:
            after = record.value
            if after is None:
                continue
            if after.state is PREPARE_COMMIT:
                self.committed += 1
            elif after.state is PREPARE_ABORT and after.partitions:
                self.aborted += 1
