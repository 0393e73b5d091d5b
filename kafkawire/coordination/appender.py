"""Appending the records of a coordinator to its partition: all or nothing."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

RecordT = TypeVar("RecordT")


class RecordAppender(ABC, Generic[RecordT]):
    """Appends to one partition. `next_offset`: the end of appended records; `log_bytes`: bytes
    appended or read since the last snapshot."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.next_offset = 0
        self.log_bytes = 0

    @abstractmethod
    def encode(self, records: Sequence[RecordT], now_ms: int) -> list[bytearray]:
        """Return the records as batches. Raises MESSAGE_TOO_LARGE."""

    @abstractmethod
    def names_of(self, records: Sequence[RecordT]) -> str:
        """Name the groups or transactional ids of some records, for a log line."""

    @abstractmethod
    def error_of(self, code: ErrorCode) -> ErrorCode:
        """Map an append error to the error code that the coordinator's clients expect."""

    def start_appending(self, next_offset: int, log_bytes: int) -> None:
        self.next_offset = next_offset
        self.log_bytes = log_bytes

    def snapshot_stored(self, covered_bytes: int) -> None:
        """Count only bytes that are not in the stored snapshot."""
        self.log_bytes -= covered_bytes

    def append(self, records: Sequence[RecordT], now_ms: int) -> ErrorCode | None:
        """Append the records. Return the error for the client, in which case nothing was appended.
        Hot."""
        try:
            batches = self.encode(records, now_ms)
        except KafkaError as error:
            return self.log_refusal(error)
        # A defect: requests are checked so that a record can store what they bring.
        except Exception:
            self.log_defect(f"encoding {len(records)} records of {self.names_of(records)}")
            return ErrorCode.UNKNOWN_SERVER_ERROR
        partition = self.partition
        try:
            # All or nothing: only the first can fail, because there is no await in between.
            for batch in batches:
                partition.append_records(memoryview(batch), now_ms)
                self.log_bytes += len(batch)
        except KafkaError as error:
            return self.log_refusal(error)
        self.next_offset += len(records)
        return None

    def log_defect(self, what: str) -> None:
        where = f"{self.partition.topic}-{self.partition.index}"
        logger.exception("%s: %s failed, its clients receive an error", where, what)

    def log_refusal(self, error: KafkaError) -> ErrorCode:
        where = self.partition.topic, self.partition.index
        logger.warning("%s-%d: append failed, clients will retry: %s", *where, error)
        return self.error_of(error.code)
