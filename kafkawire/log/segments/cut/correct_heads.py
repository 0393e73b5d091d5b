"""Correct the newest timestamps in the heads of batches, before a segment is built from them.

A producer computes the newest timestamp of its batch, and for a batch with more than
MAX_WALKED_RECORDS the broker may have stored it unchecked. Segments are deleted, searched by time
and merged by that number alone, so the cut computes it from the records: a third of a millisecond
for 1000 of them, and the decompression. Wrong heads are rewritten with their checksums. What cannot
be read (of an earlier version) stays as it is. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.codec.batches import CRC_FROM, BatchHead, iter_batches, payload, stamp
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.walk import MAX_WALKED_RECORDS, has_exact_time, newest_time
from kafkawire.crc32c import crc32c


def corrected(parts: Sequence[memoryview], counts: Sequence[int]) -> list[memoryview] | None:
    """Return the parts, whole batches each, with copies in place of those with a wrong head; None
    if all are right. `counts`: how many records each part has at most."""
    made: list[memoryview] | None = None
    for number, count in enumerate(counts):
        if count > MAX_WALKED_RECORDS:
            part = _corrected_part(parts[number])
            if part is not parts[number]:
                made = list(parts) if made is None else made
                made[number] = part
    return made


def _corrected_part(part: memoryview) -> memoryview:
    copy: bytearray | None = None
    try:
        for position, head in iter_batches(part):
            newest = _newest(part, position, head)
            if newest != head.max_timestamp:
                copy = bytearray(part) if copy is None else copy
                batch = memoryview(copy)[position : position + head.size_bytes]
                stamp(batch, newest, log_append=False)
    except KafkaError:
        pass  # damaged: the writer finds it
    return part if copy is None else memoryview(copy)


def _newest(part: memoryview, position: int, head: BatchHead) -> int:
    """Return the newest timestamp of the records of a batch, as its head says if they or the batch
    cannot be read."""
    body = part[position + CRC_FROM : position + head.size_bytes]
    if has_exact_time(head) or crc32c(body) != head.crc:
        return head.max_timestamp
    try:
        data = bytes(payload(part, position, head))
        return newest_time(data, head.count, head.base_timestamp)
    except (KafkaError, IndexError):
        return head.max_timestamp
