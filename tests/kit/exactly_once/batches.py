"""Transactional record batches, built and read by code of the checker's own.

The checker judges the product's batches, so nothing here imports its codec. Values are short texts
without keys, headers or compression. `committed` filters like a Java consumer: batches of a
producer are left out from the first offset of its aborted transaction to its ABORT marker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

HEAD = struct.Struct(">qiibIhiqqqhii")
"""base offset, length, leader epoch, magic, crc, attributes, last offset delta, first and max
timestamp, producer id, producer epoch, base sequence, record count."""
CRC_FROM = 21
TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT = 0

Row = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as read. `marker`: the type of a control record, None for data."""

    base: int
    last: int
    producer_id: int
    transactional: bool
    marker: int | None
    rows: list[Row]


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    shift = found = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at


def build(
    values: Sequence[str], producer_id: int, epoch: int, sequence: int, timestamp_ms: int
) -> bytes:
    """A transactional batch as a producer sends it."""
    body = bytearray()
    for number, value in enumerate(values):
        text = value.encode()
        one = b"\0" + _varint(0) + _varint(number) + _varint(-1) + _varint(len(text)) + text
        one += _varint(0)
        body += _varint(len(one)) + one
    count = len(values)
    tail = struct.pack(
        ">hiqqqhii", TRANSACTIONAL, count - 1, timestamp_ms, timestamp_ms, producer_id, epoch,
        sequence, count,
    )  # fmt: skip
    crc = crc32c(tail + body)
    return struct.pack(">qiibI", 0, 9 + len(tail) + len(body), -1, 2, crc) + tail + body


def read(data: bytes) -> Iterator[Batch]:
    """All whole batches of a Fetch answer. Raises AssertionError for a wrong checksum."""
    at = 0
    while len(data) - at >= HEAD.size:
        head = HEAD.unpack_from(data, at)
        base, length, _, magic, crc, attributes, delta = head[:7]
        end = at + 12 + length
        if end > len(data):
            return
        assert magic == 2, f"magic {magic} at offset {base}"
        assert crc32c(data[at + CRC_FROM : end]) == crc, f"checksum of the batch at offset {base}"
        marker, rows = None, []
        if attributes & CONTROL:
            marker = _marker(data[at + HEAD.size : end]) if head[12] else None
        else:
            rows = list(_rows(data[at + HEAD.size : end], base, head[12]))
        control = bool(attributes & CONTROL)
        transactional = bool(attributes & TRANSACTIONAL) and not control
        yield Batch(base, base + delta, head[9], transactional, marker, rows)
        at = end


def _rows(body: bytes, base: int, count: int) -> Iterator[Row]:
    at = 0
    for _ in range(count):
        size, at = _read_varint(body, at)
        record = body[at : at + size]
        at += size
        _, pos = _read_varint(record, 1)
        delta, pos = _read_varint(record, pos)
        key, pos = _read_varint(record, pos)
        pos += max(key, 0)
        length, pos = _read_varint(record, pos)
        yield base + delta, record[pos : pos + length].decode()


def _marker(body: bytes) -> int:
    """The type in the key of a control record: version, type."""
    _, at = _read_varint(body, 0)
    _, at = _read_varint(body, at + 1)
    _, at = _read_varint(body, at)
    _, at = _read_varint(body, at)
    kind: int = struct.unpack_from(">hh", body, at)[1]
    return kind


def committed(batches: Iterable[Batch], aborted: Iterable[tuple[int, int]]) -> list[Row]:
    """The rows that a read_committed consumer delivers. `aborted`: producer id and first offset."""
    waiting = sorted(aborted, key=lambda entry: entry[1])
    dropped: set[int] = set()
    found: list[Row] = []
    for batch in batches:
        while waiting and waiting[0][1] <= batch.last:
            dropped.add(waiting.pop(0)[0])
        if batch.marker == ABORT:
            dropped.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in dropped):
            found += batch.rows
    return found
