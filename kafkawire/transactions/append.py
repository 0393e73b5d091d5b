"""Appending the records of decisions to one partition of `__transaction_state`: all or nothing.

Counts what has been appended. Owned by kafkawire.transactions.coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.transactions.machine.records import TransactionRecord, batches_of
from kafkawire.transactions.machine.request import append_error
from kafkawire.transactions.machine.states import ONGOING

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

SPARE_BYTES = 64
"""Left free in the record of an open transaction: the record that ends it has the same partitions
and may have a producer id more, and must always fit."""


class TransactionAppender:
    """Appends to one partition. `next_offset` follows everything appended; `log_bytes` were
    appended or read since the last snapshot."""

    __slots__ = ("_partition", "log_bytes", "next_offset")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.next_offset = 0
        self.log_bytes = 0

    def begin(self, next_offset: int, log_bytes: int) -> None:
        """Append from here on: what is below has been loaded."""
        self.next_offset = next_offset
        self.log_bytes = log_bytes

    def snapshot_stored(self, covered_bytes: int) -> None:
        """Count only what is not in the snapshot that has been stored."""
        self.log_bytes -= covered_bytes

    def append(
        self, records: Sequence[TransactionRecord], transaction_version: int, now_ms: int
    ) -> ErrorCode | None:
        """Append the records; the error as a producer understands it (nothing is appended then).
        Records that cannot be encoded are a defect: it is logged and answered with
        UNKNOWN_SERVER_ERROR."""
        partition = self._partition
        limit_bytes = partition.config.max_message_bytes
        if any(record.value and record.value.state is ONGOING for record in records):
            limit_bytes -= SPARE_BYTES
        try:
            batches = batches_of(records, limit_bytes, transaction_version, now_ms)
        except KafkaError as error:
            return self._refused(error)
        except Exception:
            self.log_defect(f"encoding records of {_names(records)}")
            return ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            for batch in batches:  # only the first can fail: nothing happens in between
                partition.append_records(memoryview(batch), now_ms)
                self.log_bytes += len(batch)
        except KafkaError as error:
            return self._refused(error)
        self.next_offset += len(records)
        return None

    def log_defect(self, what: str) -> None:
        """Log the exception that is being handled, with the work that it stopped."""
        where = f"{self._partition.topic}-{self._partition.index}"
        logger.exception("%s: %s failed; producers that wait for it receive an error", where, what)

    def _refused(self, error: KafkaError) -> ErrorCode:
        logger.warning(
            "%s-%d: append failed: %s", self._partition.topic, self._partition.index, error
        )
        return append_error(error.code)


def _names(records: Sequence[TransactionRecord]) -> str:
    return ", ".join(sorted({record.transactional_id for record in records})[:20])
