"""Filling a TransactionShard from disk, and writing its records: snapshot plus the log after it.

Records that cannot be parsed are skipped with a warning, as are unknown record types. Damaged
ranges of the log are skipped: an id whose newest record was in one is forgotten. Its producer is
answered INVALID_PRODUCER_ID_MAPPING and has to begin again; data of an open transaction stays open
until an operator ends it (kafka-transactions find-hanging).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.codec.batches import HEAD_BYTES, BatchHead, read_head, records
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer, DecodeError
from kafkawire.coordination import snapshot
from kafkawire.coordination.appender import RecordAppender
from kafkawire.coordination.loader import PartitionLoader
from kafkawire.coordination.snapshot import Contents, PendingPair, SnapshotLocation
from kafkawire.log.io.ports import Env
from kafkawire.log.io.slices import Slices
from kafkawire.transactions.machine.records import (
    MAX_ENCODED_AT_ONCE,
    TransactionRecord,
    batches_of,
    decode_record,
    encode_record,
    is_flexible,
    partition_steps,
)
from kafkawire.transactions.machine.request import TransactionConfig, append_error
from kafkawire.transactions.machine.shard import TransactionShard
from kafkawire.transactions.machine.transaction import ONGOING, TopicPartition, Transaction

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)


SLICE_RECORDS = 300
"""Taken from or put into a snapshot at a time: under ten milliseconds."""

SNAPSHOT_MAGIC = b"KWTRANSA"

MAX_LOGGED_RANGES = 10
"""Damaged ranges named in one line of the log; all are in the report of the start."""


def snapshot_place(folder: str, partition: Partition) -> SnapshotLocation:
    return SnapshotLocation(
        folder, partition.topic_id, partition.index, SNAPSHOT_MAGIC, "transactions"
    )


class TransactionLoader(PartitionLoader):
    """The transactional ids of one partition while they are loaded. `large`: those of which a
    record had more partitions than are encoded at once."""

    contents = "transactions"
    slice_records = SLICE_RECORDS

    def __init__(
        self,
        env: Env,
        settings: TransactionConfig,
        partition: Partition,
        commit_log: CommitLog,
        place: SnapshotLocation,
    ) -> None:
        super().__init__(env, partition, commit_log, place)
        self.shard = TransactionShard(settings, partition.leader_epoch)
        self.large: dict[str, None] = {}
        self._damaged: list[tuple[int, int]] = []
        self._forgotten: dict[str, None] = {}
        self._unreadable = False

    async def load(self, *, gained: bool = False) -> None:
        await super().load(gained=gained)
        # Only now is known which of the damaged ids have a newer record, and are not affected.
        if self._damaged:
            self._report_damage()

    def apply_record(self, key: Buffer | None, value: Buffer | None, producer_id: int) -> None:
        record = decode_record(key, value)
        if record is None:
            return
        self.shard.apply(record)
        if self._forgotten:
            self._forgotten.pop(record.transactional_id, None)
        if record.value is not None and len(record.value.partitions) > MAX_ENCODED_AT_ONCE:
            self.large[record.transactional_id] = None

    def take_pending(self, stored: PendingPair) -> None:
        """Ignore pending offsets: only groups have them."""

    def take_marker(self, buffer: Buffer, position: int, head: BatchHead) -> None:
        """Ignore control batches: only groups have them in their log."""

    async def pass_damage(self, first: int, end: int) -> None:
        payloads = await self.partition.damaged_payloads(first, end)
        found = {name for payload in payloads for name in stored_ids(payload)}
        # Forgotten: the outcome of the transaction may have been decided there, and the state of an
        # older record would decide it again, perhaps differently.
        for transactional_id in found:
            self.shard.apply(TransactionRecord(transactional_id, None))
            self._forgotten[transactional_id] = None
        self._damaged.append((first, end - 1))
        self._unreadable = self._unreadable or not found

    def _report_damage(self) -> None:
        ranges = ", ".join(f"{first}-{last}" for first, last in self._damaged[:MAX_LOGGED_RANGES])
        where = f"{self.partition.topic}-{self.partition.index}: offsets {ranges} are damaged"
        lost = sorted(self._forgotten)
        if lost:
            logger.critical(
                "%s; %d transactional ids whose newest records were there are forgotten, their "
                "producers have to start again, and open transactions of them have to be ended "
                "with kafka-transactions find-hanging and abort: %s",
                where, len(lost), ", ".join(lost[:MAX_LOGGED_IDS]),
            )  # fmt: skip
        if self._unreadable:
            logger.critical(
                "%s; not all transactional ids of the records there can be read: an id whose "
                "newest record was there has the state of the record before, and a transaction "
                "that was committed there may be aborted; compare `kafkawire transactions list` "
                "with what the producers have committed",
                where,
            )
        elif not lost:
            logger.warning(
                "%s; each transactional id there has a newer record, so no state is lost", where
            )


def stored_ids(payload: Buffer) -> set[str]:
    """Transactional ids in the batches of a damaged frame, as far as they can be read."""
    found: set[str] = set()
    at = 0
    while at + HEAD_BYTES <= len(payload):
        size = read_head(payload, at).size_bytes
        # Before the damage there may be sound records.
        with suppress(KafkaError, DecodeError):
            for record in records(payload, at):
                decoded = decode_record(record.key, None)
                if decoded is not None:
                    found.add(decoded.transactional_id)
        # A damaged length: where the next batch begins is unknown.
        if size < HEAD_BYTES:
            break
        at += size
    return found


async def encode(
    env: Env,
    next_offset: int,
    transaction_version: int,
    live: Iterable[tuple[str, Transaction]],
) -> Contents:
    """Return `live`, the state after the records below `next_offset`, as a snapshot's contents."""
    pairs: list[snapshot.Pair] = []
    flexible = is_flexible(transaction_version)
    for number, (transactional_id, at) in enumerate(live):
        encoded = None
        if len(at.partitions) > MAX_ENCODED_AT_ONCE:
            encoded = await env.slices.run(partition_steps(at.partitions, flexible=flexible))
        record = TransactionRecord(transactional_id, at)
        key, value = encode_record(record, transaction_version, encoded)
        assert value is not None, "tombstones are not live"
        pairs.append((key, value))
        if number % SLICE_RECORDS == SLICE_RECORDS - 1:
            await env.slices.pause()
    return Contents(next_offset, pairs, [])


# Appending the records of decisions to one partition of `__transaction_state`: all or nothing.
#
# Owned by kafkawire.transactions.coordinator.


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

    def start_appending(self, next_offset: int, log_bytes: int) -> None:
        super().start_appending(next_offset, log_bytes)
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

    def _find_encoded(self, records: Sequence[TransactionRecord], version: int) -> bytes | None:
        """The encoded partitions of the only record, where they were prepared."""
        known = self._large.get(records[0].transactional_id)
        after = records[0].value
        if known is None or after is None or len(records) > 1:
            return None
        # Since then the feature may have changed, or the transaction got more partitions.
        usable = known.flexible == is_flexible(version) and known.partitions == after.partitions
        return known.content if usable else None

    def encode(self, records: Sequence[TransactionRecord], now_ms: int) -> list[bytearray]:
        limit_bytes = self.partition.config.max_message_bytes
        for record in records:
            # The record that ends this transaction must fit, too: otherwise it could never end.
            if record.value is not None and record.value.state is ONGOING:
                limit_bytes = self.partition.config.max_message_bytes - SPARE_BYTES
        version = self._settings.transaction_version
        encoded = self._find_encoded(records, version) if self._large else None
        return batches_of(records, limit_bytes, version, now_ms, encoded)

    def names_of(self, records: Sequence[TransactionRecord]) -> str:
        return ", ".join(sorted({record.transactional_id for record in records})[:MAX_LOGGED_IDS])

    def error_of(self, code: ErrorCode) -> ErrorCode:
        return append_error(code)
