"""Appending the records of decisions to one partition of `__transaction_state`: all or nothing.

Owned by kafkawire.transactions.coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.codec.errors import ErrorCode
from kafkawire.coordination.appender import RecordAppender
from kafkawire.log.io.slices import Slices
from kafkawire.transactions.machine.records import (
    TransactionRecord,
    batches_of,
    is_flexible,
    partition_steps,
)
from kafkawire.transactions.machine.request import TransactionConfig, append_error
from kafkawire.transactions.machine.states import ONGOING
from kafkawire.transactions.machine.transaction import TopicPartition

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

SPARE_BYTES = 64
"""Left free in the record of an open transaction: the record that ends it has the same partitions
and may have a producer id more, and must always fit."""

MAX_LOGGED_IDS = 20
"""Transactional ids named in one log line."""


class _Encoded(NamedTuple):
    """The partitions of an open transaction, and their bytes in a record of value version 1
    (`flexible`) or 0: bounded by the largest batch of the topic."""

    partitions: frozenset[TopicPartition]
    flexible: bool
    content: bytes


class TransactionAppender(RecordAppender[TransactionRecord]):
    """Appends to one partition of `__transaction_state`."""

    def __init__(self, partition: Partition, settings: TransactionConfig) -> None:
        super().__init__(partition)
        self._settings = settings
        self._large: dict[str, _Encoded] = {}

    def begin(self, next_offset: int, log_bytes: int) -> None:
        """Start to append at this offset; nothing is prepared."""
        super().begin(next_offset, log_bytes)
        self._large.clear()

    def append(self, records: Sequence[TransactionRecord], now_ms: int) -> ErrorCode | None:
        """Append the records, and forget what was prepared for transactions that have ended."""
        failure = super().append(records, now_ms)
        if self._large and failure is None:
            for transactional_id, after in records:
                if after is None or after.state is not ONGOING:
                    self._large.pop(transactional_id, None)
        return failure

    async def prepare(
        self, transactional_id: str, partitions: frozenset[TopicPartition], slices: Slices
    ) -> None:
        """Encode the partitions of a large transaction in slices, before the records that have
        them: when it begins or gets more of them, and when it ends. Kept until it has ended."""
        flexible = is_flexible(self._settings.transaction_version)
        content = await slices.run(partition_steps(partitions, flexible=flexible))
        self._large[transactional_id] = _Encoded(partitions, flexible, content)

    def _known(self, records: Sequence[TransactionRecord], version: int) -> bytes | None:
        """The encoded partitions of the only record, where they were prepared."""
        known = self._large.get(records[0].transactional_id)
        after = records[0].value
        if known is None or after is None or len(records) > 1:
            return None
        usable = known.flexible == is_flexible(version) and known.partitions == after.partitions
        return known.content if usable else None

    def encode(self, records: Sequence[TransactionRecord], now_ms: int) -> list[bytearray]:
        """Return the records as batches. Raises MESSAGE_TOO_LARGE."""
        limit_bytes = self.partition.config.max_message_bytes
        for record in records:
            if record.value is not None and record.value.state is ONGOING:
                limit_bytes = self.partition.config.max_message_bytes - SPARE_BYTES
        version = self._settings.transaction_version
        encoded = self._known(records, version) if self._large else None
        return batches_of(records, limit_bytes, version, now_ms, encoded)

    def names_of(self, records: Sequence[TransactionRecord]) -> str:
        """Name the transactional ids of some records."""
        return ", ".join(sorted({record.transactional_id for record in records})[:MAX_LOGGED_IDS])

    def error_of(self, code: ErrorCode) -> ErrorCode:
        """Map an append error to the code that producers expect."""
        return append_error(code)
