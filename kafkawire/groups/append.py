"""Appending the records of decisions to one partition of `__consumer_offsets`: all or nothing.

Owned by kafkawire.groups.coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination.appender import RecordAppender
from kafkawire.groups.model.records import Record, batches_of
from kafkawire.groups.model.request import append_error
from kafkawire.groups.model.transactional import (
    PendingBatch,
    TransactionStep,
    encode_batch,
)

MARKER_BYTES = 78
"""Size of a control batch with a marker."""

LOGGED_CHARS = 500
"""Maximum length of group names in one log line: a batch may have hundreds of groups."""


class Appender(RecordAppender[Record]):
    """Appends to one partition of `__consumer_offsets`."""

    def encode(self, records: Sequence[Record], now_ms: int) -> list[bytearray]:
        """Return the records as batches. Raises MESSAGE_TOO_LARGE."""
        return batches_of(records, self.partition.config.max_message_bytes, now_ms)

    def names_of(self, records: Sequence[Record]) -> str:
        """Name the groups of some records."""
        return names_of(records)

    def error_of(self, code: ErrorCode) -> ErrorCode:
        """Map an append error to the code that members of groups expect."""
        return append_error(code)

    def append_transactional(self, step: TransactionStep, now_ms: int) -> ErrorCode | None:
        """Append the batch of a transaction's step; like `append`."""
        try:
            if not isinstance(step, PendingBatch):
                self.partition.append_marker(step, now_ms)
                self.log_bytes += MARKER_BYTES
                self.next_offset += 1
                return None
            batch = encode_batch(step, now_ms)
            self.partition.append_offsets(memoryview(batch), step.guard, now_ms)
        except KafkaError as error:
            return self.refused(error)
        self.log_bytes += len(batch)
        self.next_offset += len(step.records)
        return None


def names_of(records: Sequence[Record]) -> str:
    """Return the groups of some records, for a log line."""
    names = sorted({record.group_id for record in records})
    return f"groups {', '.join(names)[:LOGGED_CHARS]}"
