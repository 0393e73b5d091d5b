"""Records of a coordinator as batches of its log. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.codec.batches import HEAD_BYTES, build, build_one
from kafkawire.codec.errors import ErrorCode, KafkaError

StoredRecord = tuple[bytes, bytes | None]
"""Key and value; None: a tombstone."""

RECORD_OVERHEAD_BYTES = 32
"""Maximum overhead of a record in a batch besides key and value: seven varints and an attribute."""


def batches_of(records: Sequence[StoredRecord], limit_bytes: int, now_ms: int) -> list[bytearray]:
    """Return the records as few batches of at most `limit_bytes` each. Raises MESSAGE_TOO_LARGE for
    a record that does not fit into a batch. Hot for one record."""
    # Most appends of a coordinator are one record, for which there is a faster encoder.
    if len(records) == 1:
        key, value = records[0]
        batches = [build_one(key, value, now_ms)]
    else:
        batches = _build_batches(records, limit_bytes, now_ms)
    for batch in batches:
        if len(batch) > limit_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                "The record of the coordinator is larger than the largest batch of its topic.",
            )
    return batches


def _build_batches(
    records: Sequence[StoredRecord], limit_bytes: int, now_ms: int
) -> list[bytearray]:
    batches: list[bytearray] = []
    part: list[StoredRecord] = []
    size_bytes = HEAD_BYTES
    for key, value in records:
        more = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if part and size_bytes + more > limit_bytes:
            batches.append(build(part, timestamp_ms=now_ms))
            part, size_bytes = [], HEAD_BYTES
        part.append((key, value))
        size_bytes += more
    if part:
        batches.append(build(part, timestamp_ms=now_ms))
    return batches
