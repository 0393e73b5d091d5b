"""Snapshots of a coordinator partition: its live records in one checksummed file.

    0  magic          8 bytes  "KWGROUPS"
    8  version        u16      1
   10  topic id       16 bytes of __consumer_offsets
   26  partition      i32      its index
   30  next offset    i64      the records are the live ones below it
   38  record count   u32
   42  records        key length u32, key, value length u32, value; as in the log
       CRC-32C        u32      of everything before it

All numbers are big-endian. The file is written under a temporary name, synced, renamed into place,
and its folder synced: after a crash there is a complete new or old snapshot. A snapshot only saves
time: one that is missing, damaged, of another topic or (with a warning) of a newer version is
ignored, and the log is read instead. A change of the format needs a new version and a reader for
the old one.

Blocking; kafkawire.groups.load calls it through the offload pools.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import crc32c

from kafkawire.log.io.atomic_file import read_whole_file
from kafkawire.log.io.ports import FileSystem

logger = logging.getLogger(__name__)

Pair = tuple[bytes, bytes]

_MAGIC = b"KWGROUPS"
_VERSION = 1
_HEAD = struct.Struct(">8sH16siqI")
_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 1 << 20  # bytes per write: few calls, and no second copy of a large snapshot


@dataclass(frozen=True, slots=True)
class SnapshotLocation:
    """The location of the snapshot of one coordinator partition, and the topic it must be of."""

    folder: str
    topic_id: bytes
    partition: int

    @property
    def path(self) -> str:
        """The file."""
        return os.path.join(self.folder, f"offsets-{self.partition}.snapshot")


def write(fs: FileSystem, place: SnapshotLocation, next_offset: int, pairs: list[Pair]) -> int:
    """Write the records; durable on return. Return the size in bytes. Raises OSError; the previous
    snapshot is then unchanged."""
    fs.makedirs(place.folder)
    temporary = place.path + ".new"
    file = fs.open(temporary, create=True)
    try:
        file.truncate(0)
        head = _HEAD.pack(
            _MAGIC, _VERSION, place.topic_id, place.partition, next_offset, len(pairs)
        )
        size_bytes, crc = 0, 0
        for chunk in _chunks(head, pairs):
            _put(file.pwritev([chunk], size_bytes), chunk)
            crc = crc32c.crc32c(chunk, crc)
            size_bytes += len(chunk)
        tail = _LENGTH.pack(crc)
        _put(file.pwritev([tail], size_bytes), tail)
        file.sync()
    finally:
        file.close()
    fs.rename(temporary, place.path)
    fs.sync_dir(place.folder)
    return size_bytes + len(tail)


def _put(written: int, chunk: bytes) -> None:
    if written != len(chunk):
        raise OSError("short write of a group snapshot")


def _chunks(head: bytes, pairs: Iterable[Pair]) -> Iterable[bytes]:
    chunk = bytearray(head)
    for key, value in pairs:
        chunk += _LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def read(fs: FileSystem, place: SnapshotLocation) -> tuple[int, list[Pair]] | None:
    """Return (next offset, records), or None if there is no usable snapshot; the reason is logged
    if the file exists."""
    try:
        data = read_whole_file(fs, place.path)
    except OSError as error:
        logger.warning(
            "cannot read group snapshot %s, replaying the log instead: %s", place.path, error
        )
        return None
    if data is None:
        return None
    try:
        return _parse(data, place)
    except (struct.error, ValueError) as error:
        logger.warning(
            "ignoring group snapshot %s, replaying the log instead: %s", place.path, error
        )
        return None


def remove(fs: FileSystem, place: SnapshotLocation) -> None:
    """Delete the snapshot, durable on return; the log has all records."""
    fs.remove(place.path)
    fs.sync_dir(place.folder)


def _parse(data: bytes, place: SnapshotLocation) -> tuple[int, list[Pair]]:
    magic, version, topic_id, partition, next_offset, count = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("it is not a group snapshot")
    if version != _VERSION:
        raise ValueError(f"it has format {version}, this program knows {_VERSION}")
    end = len(data) - _LENGTH.size
    if (
        end < _HEAD.size
        or crc32c.crc32c(memoryview(data)[:end]) != _LENGTH.unpack_from(data, end)[0]
    ):
        raise ValueError("it is damaged")
    if (topic_id, partition) != (place.topic_id, place.partition):
        raise ValueError("it belongs to another topic")
    pairs: list[Pair] = []
    at = _HEAD.size
    for _ in range(count):
        key, at = _field(data, at, end)
        value, at = _field(data, at, end)
        pairs.append((key, value))
    if at != end:
        raise ValueError("it has extra bytes after its last record")
    return next_offset, pairs


def _field(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length > end - at:
        raise ValueError("a record is longer than the file")
    return data[at : at + length], at + length
