"""Appending the records of decisions to one partition of `__transaction_state`: all or nothing.

Owned by kafkawire.transactions.coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode
from kafkawire.coordination.appender import RecordAppender
from kafkawire.transactions.machine.records import TransactionRecord, batches_of
from kafkawire.transactions.machine.request import TransactionConfig, append_error
from kafkawire.transactions.machine.states import ONGOING

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

SPARE_BYTES = 64
"""Left free in the record of an open transaction: the record that ends it has the same partitions
and may have a producer id more, and must always fit."""

MAX_LOGGED_IDS = 20
"""Transactional ids named in one log line."""


class TransactionAppender(RecordAppender[TransactionRecord]):
    """Appends to one partition of `__transaction_state`."""

    def __init__(self, partition: Partition, settings: TransactionConfig) -> None:
        super().__init__(partition)
        self._settings = settings

    def encode(self, records: Sequence[TransactionRecord], now_ms: int) -> list[bytearray]:
        """Return the records as batches. Raises MESSAGE_TOO_LARGE."""
        limit_bytes = self.partition.config.max_message_bytes
        if any(record.value and record.value.state is ONGOING for record in records):
            limit_bytes -= SPARE_BYTES
        return batches_of(records, limit_bytes, self._settings.transaction_version, now_ms)

    def names_of(self, records: Sequence[TransactionRecord]) -> str:
        """Name the transactional ids of some records."""
        return ", ".join(sorted({record.transactional_id for record in records})[:MAX_LOGGED_IDS])

    def error_of(self, code: ErrorCode) -> ErrorCode:
        """Map an append error to the code that producers expect."""
        return append_error(code)
