"""Records of a coordinator as batches of its log. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.codec.batches import HEAD_BYTES, build, build_one
from kafkawire.codec.errors import ErrorCode, KafkaError

StoredRecord = tuple[bytes, bytes | None]
"""Key and value; None: a tombstone."""

RECORD_OVERHEAD_BYTES = 32
"""Maximum overhead of a record in a batch besides key and value: seven varints and an attribute."""


def batches_of(records: Iterable[StoredRecord], limit_bytes: int, now_ms: int) -> list[bytearray]:
    """Return the records as few batches of at most `limit_bytes` each. Raises MESSAGE_TOO_LARGE for
    a record that does not fit into a batch."""
    batches: list[bytearray] = []
    part: list[StoredRecord] = []
    size_bytes = HEAD_BYTES
    for key, value in records:
        more = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if part and size_bytes + more > limit_bytes:
            batches.append(_batch(part, now_ms))
            part, size_bytes = [], HEAD_BYTES
        part.append((key, value))
        size_bytes += more
    if part:
        batches.append(_batch(part, now_ms))
    if max(map(len, batches), default=0) > limit_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            "The record of the coordinator is larger than the largest batch of its topic.",
        )
    return batches


def _batch(records: list[StoredRecord], now_ms: int) -> bytearray:
    if len(records) == 1:
        return build_one(*records[0], now_ms)
    return build(records, timestamp_ms=now_ms)
