"""Snapshots of a coordinator partition: its live records in one checksummed file.

    0  magic          8 bytes  by the kind of coordinator
    8  version        u16      1
   10  topic id       16 bytes of the coordinator's topic
   26  partition      i32      its index
   30  next offset    i64      the records are those below it that still count
   38  record count   u32
   42  records        key length u32, key, value length u32, value; as in the log
       CRC-32C        u32      of everything before it

All numbers are big-endian. The file is written under a temporary name, synced, renamed into
place, and its folder synced: there is a whole snapshot or the one before it, never a part.
A snapshot only saves time. One that is missing, damaged, or of another topic is as good as
none; one of a newer version is refused in a warning and not used, and the log is read instead.

Blocking; called through the offload pools. It is the format of kafkawire.groups.snapshot, for any
kind of coordinator.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import crc32c

from kafkawire.log.io.ports import FileSystem

logger = logging.getLogger(__name__)

Pair = tuple[bytes, bytes]

_VERSION = 1
_HEAD = struct.Struct(">8sH16siqI")
_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 1 << 20  # written at once: few calls, and no second copy of a large snapshot


@dataclass(frozen=True, slots=True)
class RecordSnapshot:
    """Where the snapshot of one coordinator partition is, and what it must be of: `magic`, 8 bytes,
    and `name` are those of the kind of coordinator."""

    folder: str
    topic_id: bytes
    partition: int
    magic: bytes
    name: str

    @property
    def path(self) -> str:
        """The file."""
        return os.path.join(self.folder, f"{self.name}-{self.partition}.snapshot")


def write(fs: FileSystem, place: RecordSnapshot, next_offset: int, pairs: list[Pair]) -> int:
    """Store the records and return the size in bytes; durable on return. Raises OSError, and
    then the snapshot before is still there."""
    fs.makedirs(place.folder)
    temporary = place.path + ".new"
    file = fs.open(temporary, create=True)
    try:
        file.truncate(0)
        head = _HEAD.pack(
            place.magic, _VERSION, place.topic_id, place.partition, next_offset, len(pairs)
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
        raise OSError("short write of a snapshot")


def _chunks(head: bytes, pairs: Iterable[Pair]) -> Iterable[bytes]:
    chunk = bytearray(head)
    for key, value in pairs:
        chunk += _LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def read(fs: FileSystem, place: RecordSnapshot) -> tuple[int, list[Pair]] | None:
    """(next offset, records), or None where there is nothing to be used, with the reason in the
    log unless there simply is no file."""
    try:
        file = fs.open(place.path)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("cannot open snapshot %s, replaying the log instead: %s", place.path, error)
        return None
    try:
        data = file.pread(file.size(), 0)
    except OSError as error:
        logger.warning("cannot read snapshot %s, replaying the log instead: %s", place.path, error)
        return None
    finally:
        file.close()
    try:
        return _parse(data, place)
    except (struct.error, ValueError) as error:
        logger.warning("ignoring snapshot %s, replaying the log instead: %s", place.path, error)
        return None


def remove(fs: FileSystem, place: RecordSnapshot) -> None:
    """Forget the snapshot, for good when this returns; the log has everything."""
    fs.remove(place.path)
    fs.sync_dir(place.folder)


def _parse(data: bytes, place: RecordSnapshot) -> tuple[int, list[Pair]]:
    magic, version, topic_id, partition, next_offset, count = _HEAD.unpack_from(data)
    if magic != place.magic:
        raise ValueError("it has another kind of contents")
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
