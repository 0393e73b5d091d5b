"""Appending the records of decisions to one partition of `__consumer_offsets`: all or nothing.

Counts the appended bytes. Owned by kafkawire.groups.coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.records import Record, batches_of
from kafkawire.groups.request import append_error
from kafkawire.groups.transactional import (
    PendingBatch,
    TransactionStep,
    encode_batch,
)

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

MARKER_BYTES = 78
"""Size of a control batch with a marker."""

LOGGED_CHARS = 500
"""Maximum length of group names in one log line: a batch may have hundreds of groups."""


class Appender:
    """Appends to one partition. `next_offset`: the end of appended records; `log_bytes`: bytes
    appended or read since the last snapshot."""

    __slots__ = ("_partition", "log_bytes", "next_offset")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.next_offset = 0
        self.log_bytes = 0

    def begin(self, next_offset: int, log_bytes: int) -> None:
        """Start to append at this offset, after loading what is below."""
        self.next_offset = next_offset
        self.log_bytes = log_bytes

    def snapshot_stored(self, covered_bytes: int) -> None:
        """Count only bytes that are not in the stored snapshot."""
        self.log_bytes -= covered_bytes

    def append(self, records: Sequence[Record], now_ms: int) -> ErrorCode | None:
        """Append the records. Return the error for the group's client, in which case nothing was
        appended. Records that cannot be encoded are a defect, which is logged and answered with
        UNKNOWN_SERVER_ERROR."""
        partition = self._partition
        try:
            batches = batches_of(records, partition.config.max_message_bytes, now_ms)
        except KafkaError as error:
            return self._refused(error)
        except Exception:
            self.log_defect(f"encoding {len(records)} records of {names_of(records)}")
            return ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            for batch in batches:  # only the first can fail, because there is no await in between
                partition.append_records(memoryview(batch), now_ms)
                self.log_bytes += len(batch)
        except KafkaError as error:
            return self._refused(error)
        self.next_offset += len(records)
        return None

    def append_transactional(self, step: TransactionStep, now_ms: int) -> ErrorCode | None:
        """Append the batch of a transaction's step; like `append`."""
        try:
            if not isinstance(step, PendingBatch):
                self._partition.append_marker(step, now_ms)
                self.log_bytes += MARKER_BYTES
                self.next_offset += 1
                return None
            batch = encode_batch(step, now_ms)
            self._partition.append_offsets(memoryview(batch), step.guard, now_ms)
        except KafkaError as error:
            return self._refused(error)
        self.log_bytes += len(batch)
        self.next_offset += len(step.records)
        return None

    def log_defect(self, what: str) -> None:
        """Log the exception that is being handled, with the interrupted operation."""
        where = f"{self._partition.topic}-{self._partition.index}"
        logger.exception("%s: %s failed, its clients receive an error", where, what)

    def _refused(self, error: KafkaError) -> ErrorCode:
        logger.warning(
            "%s-%d: append failed: %s", self._partition.topic, self._partition.index, error
        )
        return append_error(error.code)


def names_of(records: Sequence[Record]) -> str:
    """Return the groups of some records, for a log line."""
    names = sorted({record.group_id for record in records})
    return f"groups {', '.join(names)[:LOGGED_CHARS]}"
