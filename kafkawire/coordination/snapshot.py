"""Snapshots of a coordinator partition: its live records in one checksummed file.

    0  magic          8 bytes  by the kind of coordinator
    8  version        u16      3; of earlier programs 1, or 2 with pending offsets
   10  topic id       16 bytes of the coordinator's topic
   26  partition      i32      its index
   30  next offset    i64      the records are those below it that still count
   38  record count   u32
   42  leader epoch   i32      version 3: of the partition when the snapshot was taken
   46  taken          i64      version 3: when that was, ms since 1970
       records        key length u32, key, value length u32, value; as in the log
       pending count  u32      version 2 and 3: offsets of open transactions, in log order
       pending        producer id i64, flags u8 (1: superseded), then as a record
       CRC-32C        u32      of everything before it

All numbers are big-endian. A snapshot only saves time: one that is missing, damaged or of another
topic is ignored, as is one that does not fit the log (kafkawire.coordination.loader), and the log
is read instead; a broker does not start with one of a newer version
(kafkawire.broker.stored_formats). A change of the format needs a new version and a reader for the
old ones.

Blocking; called through the offload pools. The format of groups and of transactions, which have no
pending offsets.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kafkawire.codec.format_errors import check_version
from kafkawire.crc32c import crc32c
from kafkawire.log.io.atomic_file import read_whole_file
from kafkawire.log.io.ports import FileSystem

logger = logging.getLogger(__name__)

Pair = tuple[bytes, bytes]

_VERSION = 1
_VERSION_WITH_PENDING = 2
_VERSION_WITH_TERM = 3
_PENDING = struct.Struct(">qB")
_SUPERSEDED = 1
_HEAD = struct.Struct(">8sH16siqI")
_TERM = struct.Struct(">iq")
_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 1 << 20  # bytes per write: few calls, and no second copy of a large snapshot


class PendingPair(NamedTuple):
    """A pending offset: its producer, whether a later commit is current already, and its record."""

    producer_id: int
    superseded: bool
    key: bytes
    value: bytes


class Term(NamedTuple):
    """When a snapshot was taken: the leader epoch of the partition, and the time."""

    leader_epoch: int
    taken_ms: int


class Contents(NamedTuple):
    """The contents of a snapshot: the live records and pending offsets of the records below
    `next_offset`. `term`: None in snapshots of backups and of earlier programs."""

    next_offset: int
    pairs: list[Pair]
    pending: list[PendingPair]
    term: Term | None = None


@dataclass(frozen=True, slots=True)
class SnapshotLocation:
    """The location of the snapshot of one coordinator partition, and the topic it must be of.
    `magic`, 8 bytes, and `name`, in the name of the file, are those of the kind of coordinator."""

    folder: str
    topic_id: bytes
    partition: int
    magic: bytes
    name: str

    @property
    def path(self) -> str:
        return os.path.join(self.folder, f"{self.name}-{self.partition}.snapshot")


def write(fs: FileSystem, place: SnapshotLocation, contents: Contents) -> int:
    """Write a snapshot; durable on return. Return the size in bytes. Raises OSError; the previous
    snapshot is then unchanged."""
    fs.makedirs(place.folder)
    # Synced under a temporary name, then renamed, then the folder is synced: after a crash at any
    # point there is a complete new or old snapshot.
    temporary = place.path + ".new"
    file = fs.open(temporary, create=True)
    try:
        # A crash may have left a longer one.
        file.truncate(0)
        size_bytes, crc = 0, 0
        for chunk in _chunks(place, contents):
            _put(file.pwritev([chunk], size_bytes), chunk)
            crc = crc32c(chunk, crc)
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


def _chunks(place: SnapshotLocation, contents: Contents) -> Iterable[bytes]:
    chunk = bytearray()
    for part in _parts(place, contents):
        chunk += part
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def _parts(place: SnapshotLocation, contents: Contents) -> Iterable[bytes]:
    next_offset, pairs, pending, term = contents
    # Backups are of no leader epoch, and written in the oldest version that can store them.
    version = _VERSION_WITH_PENDING if pending else _VERSION
    if term is not None:
        version = _VERSION_WITH_TERM
    yield _HEAD.pack(place.magic, version, place.topic_id, place.partition, next_offset, len(pairs))
    if term is not None:
        yield _TERM.pack(*term)
    for key, value in pairs:
        yield _LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value
    if version < _VERSION_WITH_PENDING:
        return
    yield _LENGTH.pack(len(pending))
    for producer_id, superseded, key, value in pending:
        yield _PENDING.pack(producer_id, _SUPERSEDED if superseded else 0)
        yield _LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value


def read(fs: FileSystem, place: SnapshotLocation) -> Contents | None:
    """Return the contents, or None if there is no usable snapshot; the reason is logged
    if the file exists."""
    try:
        data = read_whole_file(fs, place.path)
    except OSError as error:
        logger.warning("cannot read snapshot %s, replaying the log instead: %s", place.path, error)
        return None
    if data is None:
        return None
    try:
        return _parse(data, place)
    except (struct.error, ValueError) as error:
        logger.warning("ignoring snapshot %s, replaying the log instead: %s", place.path, error)
        return None


def refuse_newer(fs: FileSystem, path: str) -> None:
    """Raise NewerFormatError if a newer program wrote the snapshot `path`. Raises OSError, and
    ValueError or struct.error if it is none."""
    file = fs.open(path)
    try:
        version = _HEAD.unpack(file.pread(_HEAD.size, 0))[1]
        # A flipped bit may make a version that never was: only a sound file is of a newer program.
        if version > _VERSION_WITH_TERM and _is_sound(file.pread(file.size(), 0)):
            check_version(path, version, _VERSION_WITH_TERM)
    finally:
        file.close()


def _is_sound(data: bytes) -> bool:
    end = len(data) - _LENGTH.size
    checksum = crc32c(memoryview(data)[:end])
    return end >= _HEAD.size and checksum == _LENGTH.unpack_from(data, end)[0]


def remove(fs: FileSystem, place: SnapshotLocation) -> None:
    """Delete the snapshot, durable on return; the log has all records."""
    fs.remove(place.path)
    fs.sync_dir(place.folder)


def _parse(data: bytes, place: SnapshotLocation) -> Contents:
    magic, version, topic_id, partition, next_offset, count = _HEAD.unpack_from(data)
    if magic != place.magic:
        raise ValueError("it has another kind of contents")
    if not _VERSION <= version <= _VERSION_WITH_TERM:
        raise ValueError(f"it has format {version}, this program knows {_VERSION_WITH_TERM}")
    end = len(data) - _LENGTH.size
    if not _is_sound(data):
        raise ValueError("it is damaged")
    if (topic_id, partition) != (place.topic_id, place.partition):
        raise ValueError("it belongs to another topic")
    pairs: list[Pair] = []
    at = _HEAD.size
    term = None
    if version >= _VERSION_WITH_TERM:
        term = Term(*_TERM.unpack_from(data, at))
        at += _TERM.size
    for _ in range(count):
        key, at = _field(data, at, end)
        value, at = _field(data, at, end)
        pairs.append((key, value))
    pending: list[PendingPair] = []
    if version >= _VERSION_WITH_PENDING:
        pending, at = _parse_pending(data, at, end)
    if at != end:
        raise ValueError("it has extra bytes after its last record")
    return Contents(next_offset, pairs, pending, term)


def _parse_pending(data: bytes, at: int, end: int) -> tuple[list[PendingPair], int]:
    (count,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    pending: list[PendingPair] = []
    for _ in range(count):
        producer_id, flags = _PENDING.unpack_from(data, at)
        key, at = _field(data, at + _PENDING.size, end)
        value, at = _field(data, at, end)
        pending.append(PendingPair(producer_id, bool(flags & _SUPERSEDED), key, value))
    return pending, at


def _field(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length > end - at:
        raise ValueError("a record is longer than the file")
    return data[at : at + length], at + length
