"""Transaction markers, compared with Kafka's format byte by byte."""

from __future__ import annotations

import struct

import crc32c
import pytest

from kafkawire.codec.batches import CONTROL, build, empty_batches, pack, read_head, resum
from kafkawire.codec.batches import Record as BatchRecord
from kafkawire.codec.control import TransactionMarker, marker_batch, read_marker
from kafkawire.codec.errors import KafkaError


@pytest.mark.parametrize(("commit", "kind"), [(False, 0), (True, 1)])
def test_a_marker_is_78_bytes_of_kafkas(commit: bool, kind: int) -> None:
    batch = marker_batch(TransactionMarker(4_000_000_001, 32_767, commit, 9), 1_700_000_000_000)
    record = (
        b"\x00"  # attributes
        + b"\x00\x00"  # timestamp and offset delta
        + b"\x08" + struct.pack(">hh", 0, kind)
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
    assert read_marker(batch) == TransactionMarker(4_000_000_001, 32_767, commit, 9)


def control(key: bytes | None, value: bytes | None) -> bytearray:
    return build([(key, value)], timestamp_ms=1, producer_id=5, producer_epoch=6, attributes=0x30)


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        (
            b"\0\3\0\1",
            b"\0\4\0\0\0\2",
            TransactionMarker(5, 6, True, 2),
        ),  # newer versions
        (b"\0\0\0\0more", b"\0\0\0\0\0\2more", TransactionMarker(5, 6, False, 2)),
        (b"\0\0\0\1", None, TransactionMarker(5, 6, True, -1)),
        (b"\0\0\0\1", b"\0\0\0", TransactionMarker(5, 6, True, -1)),
        (b"\0\0\0\2", b"\0\0\0\0\0\0", None),  # KRaft's
        (b"\0\0\0", b"\0\0\0\0\0\0", None),
        (None, b"\0\0\0\0\0\0", None),
    ],
)
def test_other_control_records(key: bytes | None, value: bytes | None, found: object) -> None:
    assert read_marker(control(key, value)) == found


def test_data_and_empty_batches_are_no_markers() -> None:
    assert read_marker(build([(b"\0\0\0\1", None)], timestamp_ms=1)) is None
    empty = empty_batches(0, 1)
    struct.pack_into(">h", empty, 21, CONTROL)
    resum(empty, 0, len(empty))
    assert read_head(empty).count == 0
    assert read_marker(empty) is None


def test_a_marker_is_found_where_it_is() -> None:
    first = pack([BatchRecord(0, 1, b"k", b"v")])
    marker = marker_batch(TransactionMarker(1, 2, True, 3), 4)
    assert read_marker(first + marker, len(first)) == TransactionMarker(1, 2, True, 3)
    with pytest.raises(KafkaError):
        read_marker(marker[:60])
    with pytest.raises(KafkaError):
        read_marker(marker[:-1])
