"""The records of `__transaction_state`: what they mean here, and their bytes as Kafka has them.

A key begins with its type, 0 for a transactional id, and a value with its version, int16 each; a
null value is a tombstone. Written: value version 1, or 0 while the feature transaction.version is
0. Kafka's TransactionLogMessageFormatter prints both. Read: both; keys of another type decode to
None and stay in the log.

Pure; used by the machine (which speaks in these classes) and by those who move the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, pack
from typing import NamedTuple

from kafkawire.codec.compile import decode_versioned, version_of
from kafkawire.codec.types import Buffer, DecodeError
from kafkawire.codec.varint import put_uvarint
from kafkawire.coordination import batches
from kafkawire.messages.stored import TransactionLogKey, TransactionLogValue
from kafkawire.transactions.machine.states import EMPTY, TransactionState
from kafkawire.transactions.machine.transaction import (
    NO_PRODUCER_ID,
    TopicPartition,
    Transaction,
)

KEY_TYPE = 0
FLEXIBLE_VALUE = 1
FLEXIBLE_VALUES_FROM = 1
"""The level of transaction.version from which on value version 1 is written (KIP-890 part 1)."""

STRING_BYTES = 32_767
"""The longest transactional id of a record: its length is an int16. A flexible request can carry a
longer one, so the length is checked before anything is stored."""

PREVIOUS_PRODUCER_ID_TAG, NEXT_PRODUCER_ID_TAG, CLIENT_VERSION_TAG = 0, 1, 2
_KEY = Struct(">hh")  # type, length of the transactional id
_HEAD = Struct(">hqhib")  # version, producer id, epoch, timeout, status
_TIMES = Struct(">qq")  # last update, start
_PRODUCER_ID_TAG = Struct(">BBq")  # number, size, value
_VERSION_TAG = Struct(">BBh")
_NO_PARTITIONS_V0, _NO_PARTITIONS_V1 = b"\xff\xff\xff\xff", b"\0"  # null


class TransactionRecord(NamedTuple):
    """A transactional id after a step; None: there is no such id any more."""

    transactional_id: str
    value: Transaction | None


def fits(transactional_id: str) -> bool:
    """True if a record can hold this id."""
    return (
        len(transactional_id) * 4 <= STRING_BYTES or len(transactional_id.encode()) <= STRING_BYTES
    )


def encode_record(
    record: TransactionRecord, transaction_version: int
) -> tuple[bytes, bytes | None]:
    """Key and value for the log. `transaction_version`: the level of the cluster's feature.

    Hot: a transaction is three records. The bytes are those of kafkawire.messages.stored, which a
    test compares.
    """
    name = record.transactional_id.encode()
    key = _KEY.pack(KEY_TYPE, len(name)) + name
    at = record.value
    if at is None:
        return key, None
    flexible = transaction_version >= FLEXIBLE_VALUES_FROM
    if at.state is EMPTY:
        partitions = _NO_PARTITIONS_V1 if flexible else _NO_PARTITIONS_V0
    else:
        partitions = _partitions_v1(at.partitions) if flexible else _partitions_v0(at.partitions)
    head = _HEAD.pack(
        FLEXIBLE_VALUE if flexible else 0,
        at.producer_id,
        at.producer_epoch,
        at.timeout_ms,
        at.state,
    )
    times = _TIMES.pack(at.updated_ms, at.started_ms)
    if not flexible:
        return key, head + partitions + times
    return key, b"".join((head, partitions, times, _tags(at)))


def _tags(at: Transaction) -> bytes:
    """The tagged fields of a value: those that have not their default."""
    tags = []
    if at.previous_producer_id != NO_PRODUCER_ID:
        tags.append(_PRODUCER_ID_TAG.pack(PREVIOUS_PRODUCER_ID_TAG, 8, at.previous_producer_id))
    if at.next_producer_id != NO_PRODUCER_ID:
        tags.append(_PRODUCER_ID_TAG.pack(NEXT_PRODUCER_ID_TAG, 8, at.next_producer_id))
    if at.client_version:
        tags.append(_VERSION_TAG.pack(CLIENT_VERSION_TAG, 2, at.client_version))
    return bytes((len(tags),)) + b"".join(tags)


def _partitions_v1(partitions: frozenset[TopicPartition]) -> bytes:
    topics = _by_topic(partitions)
    out = bytearray()
    put_uvarint(out, len(topics) + 1)
    for topic, indexes in topics:
        name = topic.encode()
        put_uvarint(out, len(name) + 1)
        out += name
        put_uvarint(out, len(indexes) + 1)
        out += pack(f">{len(indexes)}ix", *indexes)  # x: no tags
    return bytes(out)


def _partitions_v0(partitions: frozenset[TopicPartition]) -> bytes:
    topics = _by_topic(partitions)
    out = bytearray(pack(">i", len(topics)))
    for topic, indexes in topics:
        name = topic.encode()
        out += pack(">h", len(name)) + name
        out += pack(f">i{len(indexes)}i", len(indexes), *indexes)
    return bytes(out)


def _by_topic(partitions: frozenset[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partitions by topic, sorted: the same state is the same bytes."""
    if len(partitions) == 1:
        ((topic, index),) = partitions
        return [(topic, [index])]
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes = topics.get(topic)
        if indexes is None:
            topics[topic] = [index]
        else:
            indexes.append(index)
    # Sorting within topics: a quarter of the time of sorting all, which counts from 5,000 on.
    for indexes in topics.values():
        indexes.sort()
    return sorted(topics.items())


def decode_record(key: Buffer | None, value: Buffer | None) -> TransactionRecord | None:
    """The record, or None if its key is of a type that this program does not know.

    Raises DecodeError for a missing key, an unknown value version or status, and damaged bytes.
    """
    if key is None:
        raise DecodeError("no key")
    if version_of(key) != KEY_TYPE:
        return None
    transactional_id = decode_versioned(TransactionLogKey, key).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    stored = decode_versioned(TransactionLogValue, value)
    try:
        state = TransactionState(stored.transaction_status)
    except ValueError:
        raise DecodeError(f"transaction status {stored.transaction_status}") from None
    partitions = frozenset(
        (topic.topic, index)
        for topic in stored.transaction_partitions or ()
        for index in topic.partition_ids
    )
    found = Transaction(
        producer_id=stored.producer_id,
        producer_epoch=stored.producer_epoch,
        timeout_ms=stored.transaction_timeout_ms,
        state=state,
        partitions=partitions,
        started_ms=stored.transaction_start_timestamp_ms,
        updated_ms=stored.transaction_last_update_timestamp_ms,
        previous_producer_id=stored.previous_producer_id,
        next_producer_id=stored.next_producer_id,
        client_version=stored.client_transaction_version,
    )
    return TransactionRecord(transactional_id, found)


def batches_of(
    records: Sequence[TransactionRecord], limit_bytes: int, transaction_version: int, now_ms: int
) -> list[bytearray]:
    """The records as few batches of at most `limit_bytes` each. Raises MESSAGE_TOO_LARGE for a
    record that fits into none."""
    encoded = [encode_record(record, transaction_version) for record in records]
    return batches.batches_of(encoded, limit_bytes, now_ms)
