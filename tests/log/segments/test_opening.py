"""Opening a segment file: checks that fail the open, and checks that only report."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from kafkawire.codec.errors import KafkaError
from kafkawire.codec.format_errors import FormatError
from kafkawire.log.segments.file.open import SegmentFile, check_file
from kafkawire.offsets.catalog.port import SegmentRow
from tests.kit.log.segment_jobs import (
    files_in_memory,  # noqa: F401  (a fixture, by name)
    put,
)
from tests.kit.log.segments import UUID, Part, batch, everything, read, segment, write
from tests.kit.memfs import MemFileSystem


def row(uuid: bytes, size: int) -> SegmentRow:
    return SegmentRow(uuid, 1, 0, size_bytes=size)


def test_segment_is_checked_when_opened(
    fs: MemFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    data, uuid = read(fs, path), bytes([1]) * 16
    check_file(fs, path, row(uuid, len(data))).close()
    assert caplog.records == []
    with pytest.raises(KafkaError, match=r"0101.*its row says"):
        check_file(fs, path, row(uuid, len(data) - 1))
    with pytest.raises(KafkaError, match="it is the segment"):
        check_file(fs, path, row(UUID, len(data)))
    write(fs, path, data[:64] + segment([Part(3, [batch(0)])], UUID)[64:])
    with pytest.raises(KafkaError, match="of two segments"):
        check_file(fs, path, row(uuid, len(data)))
    with pytest.raises(FileNotFoundError):
        check_file(fs, path + "x", row(uuid, len(data)))


def test_damage_outside_batches_is_only_reported(
    fs: MemFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    data, uuid = read(fs, path), bytes([1]) * 16
    trailer = everything(data).trailer
    places = [(section.start + 1, section.name) for section in trailer.sections]
    for at, name in [*places, (20, "header"), (len(data) - 50, "trailer"), (len(data) - 100, "")]:
        hurt = bytearray(data)
        hurt[at] ^= 1
        write(fs, path, bytes(hurt))
        caplog.clear()
        check_file(fs, path, row(uuid, len(data))).close()
        (said,) = caplog.records
        assert said.levelname == "CRITICAL"
        assert uuid.hex() in said.getMessage()
        assert f"its {name}" in said.getMessage()


def test_newer_segment_is_not_served(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    data = bytearray(read(fs, path))
    struct.pack_into("<I", data, 8, 2)
    struct.pack_into("<I", data, 12, crc32c(data[16:64], crc32c(data[:12])))
    write(fs, path, bytes(data))
    with pytest.raises(KafkaError, match="start the newer version that wrote it"):
        check_file(fs, path, row(bytes([1]) * 16, len(data)))


def test_header_and_trailer_must_match(fs: MemFileSystem) -> None:
    path = put(fs, 1, [Part(3, [batch(0)])])
    other = segment([Part(3, [batch(0)])], UUID)
    write(fs, path, read(fs, path)[:64] + other[64:])
    with pytest.raises(FormatError, match="of two segments"):
        SegmentFile(fs, path)
