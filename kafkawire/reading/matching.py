"""The records of one batch that match a selection. Pure.

A batch is decompressed and searched for the bytes of the keys, each with its length in front, as in
a record; its records are decoded only if they occur, which is many times as fast.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from kafkawire.codec.batches import CRC_FROM, BatchHead, Record, payload, records_in
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.codec.varint import put_varint
from kafkawire.codec.walk import has_exact_time, newest_time
from kafkawire.crc32c import crc32c
from kafkawire.reading.model.records import RecordConditions

MAX_NEEDLES = 16
"""Keys searched in the bytes of a batch, one pass each; with more, decoding the records once takes
less time."""


def matching(
    data: Buffer, position: int, head: BatchHead, wanted: RecordConditions
) -> list[Record]:
    """Return the records of the batch at `position` that match, whose CRC the caller has checked.
    KafkaError for invalid bytes."""
    since_ms, needles = wanted.since_ms, None
    if since_ms is not None and head.max_timestamp < since_ms and has_exact_time(head):
        return []
    body = bytes(payload(data, position, head))
    if wanted.keys is not None:
        needles = _needles(wanted.keys)
    if needles is not None and not any(needle in body for needle in needles):
        return []
    if since_ms is not None and head.max_timestamp < since_ms:
        with suppress(IndexError):  # reported where it is read
            if newest_time(body, head.count, head.base_timestamp) < since_ms:
                return []
    return [record for record in records_in(body, head) if _matches(record, wanted)]


def verified_matching(
    data: Buffer, position: int, head: BatchHead, wanted: RecordConditions
) -> list[Record]:
    """Check the CRC of the batch, too."""
    verify_checksum(data, position, head)
    return matching(data, position, head, wanted)


def verify_checksum(data: Buffer, position: int, head: BatchHead) -> None:
    """Raise KafkaError if the CRC of the batch at `position` does not match."""
    body = memoryview(data)[position + CRC_FROM : position + head.size_bytes]
    if crc32c(body) != head.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "its checksum is wrong")


def _matches(record: Record, wanted: RecordConditions) -> bool:
    if wanted.keys is not None and record.key not in wanted.keys:
        return False
    if wanted.since_ms is not None and record.timestamp < wanted.since_ms:
        return False
    return wanted.until_ms is None or record.timestamp < wanted.until_ms


@lru_cache(maxsize=8)
def _needles(keys: frozenset[bytes | None]) -> tuple[bytes, ...] | None:
    """Return keys as they occur in records; None if decoding is faster: there are many, or records
    without a key are wanted."""
    if None in keys or len(keys) > MAX_NEEDLES:
        return None
    found = []
    for key in keys:
        assert key is not None
        needle = bytearray()
        put_varint(needle, len(key))
        found.append(bytes(needle + key))
    return tuple(found)
