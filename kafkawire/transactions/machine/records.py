"""The records of `__transaction_state`: what they mean here, and their bytes as Kafka has them.

A key begins with its type, 0 for a transactional id, and a value with its version, int16 each; a
null value is a tombstone. Written: value version 1, or 0 while the feature transaction.version is
0. Kafka's TransactionLogMessageFormatter prints both. Read: both. Pure.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from heapq import merge
from itertools import islice
from struct import Struct, pack
from typing import NamedTuple

from kafkawire.codec.compile import decode_versioned, version_of
from kafkawire.codec.types import Buffer, DecodeError
from kafkawire.codec.varint import put_uvarint
from kafkawire.coordination import batches
from kafkawire.messages.stored import TransactionLogKey, TransactionLogValue
from kafkawire.transactions.machine.transaction import (
    EMPTY,
    NO_PRODUCER_ID,
    TopicPartition,
    Transaction,
    TransactionState,
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
_COUNT = Struct(">i")
_TIMES = Struct(">qq")  # last update, start
_PRODUCER_ID_TAG = Struct(">BBq")  # number, size, value
_VERSION_TAG = Struct(">BBh")
_USUAL_TAGS = Struct(">BBBqBBh")  # their number, and the two that nearly all records have
_NO_PARTITIONS_V0, _NO_PARTITIONS_V1 = b"\xff\xff\xff\xff", b"\0"  # null

MAX_ENCODED_AT_ONCE = 500
"""Partitions encoded in one step: about a millisecond, if each is of another topic. Most
transactions have fewer than ten; the record of a larger one is prepared in steps."""


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
    record: TransactionRecord, transaction_version: int, partitions: bytes | None = None
) -> tuple[bytes, bytes | None]:
    """Key and value for the log. `transaction_version`: the level of the cluster's feature;
    `partitions`: the result of `partition_steps` for the partitions, if it is known."""
    # By hand, because a transaction is three records. The bytes are those of
    # kafkawire.messages.stored, which a test compares.
    name = record.transactional_id.encode()
    key = _KEY.pack(KEY_TYPE, len(name)) + name
    at = record.value
    if at is None:
        return key, None
    flexible = is_flexible(transaction_version)
    # Null in Empty, an empty list in the other states: Kafka's bytes are the same.
    if at.state is EMPTY:
        partitions = _NO_PARTITIONS_V1 if flexible else _NO_PARTITIONS_V0
    elif partitions is None:
        partitions = _partitions_of(at.partitions, flexible=flexible)
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


def is_flexible(transaction_version: int) -> bool:
    return transaction_version >= FLEXIBLE_VALUES_FROM


def _tags(at: Transaction) -> bytes:
    """The tagged fields of a value: those that have not their default."""
    # One call for the two that nearly all records have.
    if at.next_producer_id == NO_PRODUCER_ID != at.previous_producer_id and at.client_version:
        return _USUAL_TAGS.pack(
            2, PREVIOUS_PRODUCER_ID_TAG, 8, at.previous_producer_id,
            CLIENT_VERSION_TAG, 2, at.client_version,
        )  # fmt: skip
    tags = []
    if at.previous_producer_id != NO_PRODUCER_ID:
        tags.append(_PRODUCER_ID_TAG.pack(PREVIOUS_PRODUCER_ID_TAG, 8, at.previous_producer_id))
    if at.next_producer_id != NO_PRODUCER_ID:
        tags.append(_PRODUCER_ID_TAG.pack(NEXT_PRODUCER_ID_TAG, 8, at.next_producer_id))
    if at.client_version:
        tags.append(_VERSION_TAG.pack(CLIENT_VERSION_TAG, 2, at.client_version))
    return bytes((len(tags),)) + b"".join(tags)


def _partitions_of(partitions: frozenset[TopicPartition], *, flexible: bool) -> bytes:
    if not partitions:  # of a completed transaction
        return b"\x01" if flexible else _COUNT.pack(0)
    if len(partitions) == 1:
        ((topic, index),) = partitions
        one = topic, [index]
        return b"\x02" + _topic_v1(*one) if flexible else _COUNT.pack(1) + _topic_v0(*one)
    steps = partition_steps(partitions, flexible=flexible)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def partition_steps(
    partitions: frozenset[TopicPartition], *, flexible: bool
) -> Generator[None, None, bytes]:
    """Encode the partitions of a value by topic. Yields after each MAX_ENCODED_AT_ONCE partitions
    or so; returns the bytes."""
    topics: dict[str, list[int]] = {}
    for number, (topic, index) in enumerate(partitions, 1):
        topics.setdefault(topic, []).append(index)
        if not number % MAX_ENCODED_AT_ONCE:
            yield
    # Sorted, so that the same state is the same bytes; in runs that are merged, because one call
    # that sorts all names would hold the event loop.
    runs: list[list[str]] = []
    names = iter(topics)
    while run := sorted(islice(names, MAX_ENCODED_AT_ONCE)):
        runs.append(run)
        yield
    out = bytearray()
    if flexible:
        put_uvarint(out, len(topics) + 1)
    else:
        out += _COUNT.pack(len(topics))
    pack_topic = _topic_v1 if flexible else _topic_v0
    since = 0
    for topic in merge(*runs):
        # Popped: freeing all of them at once at the end would take long, too.
        indexes = topics.pop(topic)
        indexes.sort()  # 20,000 in two milliseconds: no steps needed
        out += pack_topic(topic, indexes)
        since += len(indexes)
        if since >= MAX_ENCODED_AT_ONCE:
            since = 0
            yield
    return bytes(out)


def _topic_v1(topic: str, indexes: list[int]) -> bytes:
    name = topic.encode()
    out = bytearray()
    put_uvarint(out, len(name) + 1)
    out += name
    put_uvarint(out, len(indexes) + 1)
    out += pack(f">{len(indexes)}ix", *indexes)  # x: no tags
    return bytes(out)


def _topic_v0(topic: str, indexes: list[int]) -> bytes:
    name = topic.encode()
    count = len(indexes)
    return pack(f">h{len(name)}si{count}i", len(name), name, count, *indexes)


def decode_record(key: Buffer | None, value: Buffer | None) -> TransactionRecord | None:
    """The record. Raises DecodeError for a missing key, an unknown value version or status, and
    damaged bytes."""
    if key is None:
        raise DecodeError("no key")
    # Of a type that this program does not know: it stays in the log.
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
    records: Sequence[TransactionRecord],
    limit_bytes: int,
    transaction_version: int,
    now_ms: int,
    partitions: bytes | None = None,
) -> list[bytearray]:
    """The records as few batches of at most `limit_bytes` each. `partitions`: those of the only
    record, encoded. Raises MESSAGE_TOO_LARGE for a record that fits into none."""
    encoded = [encode_record(record, transaction_version, partitions) for record in records]
    return batches.batches_of(encoded, limit_bytes, now_ms)
