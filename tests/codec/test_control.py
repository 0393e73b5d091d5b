"""Transaction markers, compared with Kafka's format byte by byte."""

from __future__ import annotations

import struct

import crc32c
import pytest

from kafkawire.codec.batches import CONTROL, build, empty_batches, pack, read_head, resum
from kafkawire.codec.batches import Record as BatchRecord
from kafkawire.codec.control import (
    ABORT,
    COMMIT,
    EMPTY,
    OTHER,
    ControlContent,
    pack_marker,
    read_marker,
)


def read(batch: bytearray, position: int = 0) -> ControlContent:
    return read_marker(batch, position, read_head(batch, position))


@pytest.mark.parametrize(("kind", "code"), [(ABORT, 0), (COMMIT, 1)])
def test_a_marker_has_the_78_bytes_of_kafka(kind: int, code: int) -> None:
    batch = pack_marker(4_000_000_001, 32_767, 9, kind, 1_700_000_000_000)
    record = (
        b"\x00"  # attributes
        + b"\x00\x00"  # timestamp and offset delta
        + b"\x08" + struct.pack(">hh", 0, code)
        + b"\x0c" + struct.pack(">hi", 0, 9)
        + b"\x00"  # headers
    )  # fmt: skip
    body = (
        struct.pack(">hiqqqhii", 0x30, 0, 1_700_000_000_000, 1_700_000_000_000, 4_000_000_001,
                    32_767, -1, 1)
        + bytes([2 * len(record)])
        + record
    )  # fmt: skip
    expected = (
        struct.pack(">qi", 0, len(body) + 9)
        + struct.pack(">ibI", -1, 2, crc32c.crc32c(body))
        + body
    )
    assert bytes(batch) == expected
    assert len(batch) == 78
    head = read_head(batch)
    assert (head.producer_id, head.producer_epoch) == (4_000_000_001, 32_767)
    assert read(batch) == ControlContent(kind, 9)


def control(key: bytes | None, value: bytes | None) -> bytearray:
    return build([(key, value)], timestamp_ms=1, producer_id=5, producer_epoch=6, attributes=0x30)


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        (b"\0\3\0\1", b"\0\4\0\0\0\2", (COMMIT, 2)),  # newer versions
        (b"\0\0\0\0more", b"\0\0\0\0\0\2more", (ABORT, 2)),
        (b"\0\0\0\1", None, (COMMIT, -1)),
        (b"\0\0\0\1", b"\0\0\0", (COMMIT, -1)),
        (b"\0\0\0\2", b"\0\0\0\0\0\0", (OTHER, -1)),  # KRaft's
        (b"\0\0\0", b"\0\0\0\0\0\0", (OTHER, -1)),
        (None, b"\0\0\0\0\0\0", (OTHER, -1)),
    ],
)
def test_other_control_records(
    key: bytes | None, value: bytes | None, found: tuple[int, int]
) -> None:
    assert read(control(key, value)) == found


def test_an_empty_batch_is_no_marker() -> None:
    empty = empty_batches(0, 1)
    struct.pack_into(">h", empty, 21, CONTROL)
    resum(empty, 0, len(empty))
    assert read_head(empty).count == 0
    assert read(empty) == (EMPTY, -1)


def test_a_marker_is_found_at_its_position() -> None:
    first = pack([BatchRecord(0, 1, b"k", b"v")])
    batches = first + pack_marker(1, 2, 3, COMMIT, 4)
    assert read(batches, len(first)) == (COMMIT, 3)
    head = read_head(batches, len(first))
    assert read_marker(batches[: len(first) + 70], len(first), head) == (OTHER, -1)
