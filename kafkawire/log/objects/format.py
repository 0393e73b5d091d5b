"""The byte layout of log objects: header, names of partitions, frames of journals.

Pure: bytes in, values out. Keys are in kafkawire.manifest.keys.

A log object (all integers big-endian):

    +--------+--------------------------------------------------------------------+
    |      0 | header, 96 bytes                                                   |
    |     96 | names, padded with zeros to a multiple of 8                        |
    |    ... | frames, each padded with zeros to a multiple of 8                  |
    +--------+--------------------------------------------------------------------+

The header:

    0  magic 8s "KWLOGOB\\0"     8  format version u32     12  checksum u32
    16 node id i64             24  broker epoch i64       32  sequence number i64
    40 nonce 16s               56  kind u32               60  names length u32
    64 frame count u32         68  zeros                  72  frames length i64
    80 created, ms since 1970  88  fenced by i64

The checksum is the CRC-32C of all other bytes of the header. Node id and broker epoch name the log,
the nonce the process that stored the object. The names length is that of the names without their
padding, the frames length that of the frames with theirs. `fenced by` is 0, except in a fence: the
broker epoch of the life that ended the log. A fence is the header alone.

The names, one entry for each partition of the frames, then the CRC-32C (u32) of all entries:

    0  partition number i64      8  length u32     12  payload of a naming frame

The frames are those of journals, byte for byte, in the order in which they were appended
(kafkawire.log.journal.format). They are of the kind "batch", from any journals and positions.

Format version 1. A change of the layout raises VERSION and describes here how the older one is
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, NamedTuple

from kafkawire.codec import batches
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c
from kafkawire.log.journal.format import (
    HEAD_BYTES,
    KIND_BATCH,
    PADDING,
    JournalFormatError,
    Naming,
    check_frame,
    check_version,
    pad_length,
    read_head,
    read_naming,
    write_naming,
)
from kafkawire.manifest.keys import log_object_key, parse_log_object_key
from kafkawire.objectstore.port import MAX_GET_BYTES

VERSION = 1
MAGIC: Final = b"KWLOGOB\0"
HEADER_BYTES: Final = 96
NONCE_BYTES: Final = 16
KIND_RECORDS: Final = 1
KIND_FENCE: Final = 2
MAX_OBJECT_BYTES: Final = MAX_GET_BYTES
"""Maximum size of an object, which is read into memory at once: log.object.bytes is at most 64 MiB,
and one frame more may be as large as a request, 100 MiB by default."""

_HEADER = Struct(">8sIIqqq16sIII4xqqq")
_ENTRY = Struct(">qI")
_CHECKSUM = Struct(">I")
_MIN_FRAME_BYTES: Final = pad_length(HEAD_BYTES + batches.HEAD_BYTES)


class LogObjectError(JournalFormatError):
    """A log object that is damaged or incomplete; the text is a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """The header of a log object.

    `frame_count` and `frames_length`: of its frames, padding included; `names_length` is set by
    `write_head`; `fenced_by`: in a fence, the broker epoch that ended the log.
    """

    node_id: int
    broker_epoch: int
    sequence: int
    nonce: bytes
    frame_count: int
    frames_length: int
    created_ms: int
    kind: int = KIND_RECORDS
    fenced_by: int = 0
    names_length: int = 0

    @property
    def key(self) -> str:
        """The key of the object, relative to the tier of its broker."""
        return log_object_key(self.broker_epoch, self.sequence)

    @property
    def is_fence(self) -> bool:
        return self.kind == KIND_FENCE

    @property
    def frames_start(self) -> int:
        """The position of the first frame in the object."""
        return HEADER_BYTES + pad_length(self.names_length)

    @property
    def size_bytes(self) -> int:
        return self.frames_start + self.frames_length


class StoredFrame(NamedTuple):
    """A frame of a log object, checked: the partition number, the log position of the frame's head
    in the journal it was written to, its run number, and views of its batches."""

    number: int
    log_position: int
    run: int
    batches: list[memoryview]


def write_head(head: ObjectHead, names: Mapping[int, Naming]) -> bytes:
    """Return header and names of an object, which its frames follow. `names`: by partition number,
    of all partitions in the frames. Raises ValueError if the object would be too large."""
    block = _write_names(names)
    whole = replace(head, names_length=len(block))
    if whole.size_bytes > MAX_OBJECT_BYTES:
        raise ValueError(
            f"a log object of {whole.size_bytes} bytes: at most {MAX_OBJECT_BYTES} are allowed"
        )
    return _write_header(whole) + block + PADDING[-len(block) & 7]


def write_fence(
    node_id: int, broker_epoch: int, sequence: int, nonce: bytes, fenced_by: int, created_ms: int
) -> bytes:
    """Return the fence that ends the log of a node id and broker epoch at a sequence number.
    `nonce` and `fenced_by`: of the life that stores it."""
    return _write_header(
        ObjectHead(node_id, broker_epoch, sequence, nonce, 0, 0, created_ms, KIND_FENCE, fenced_by)
    )


def copy_into(data: bytes, key: str, node_id: int, broker_epoch: int, sequence: int) -> bytes:
    """Return an object, whose key is `key`, as one of another log. Raises LogObjectError."""
    head = read_header(data, key)
    head = replace(head, node_id=node_id, broker_epoch=broker_epoch, sequence=sequence)
    return _write_header(head) + data[HEADER_BYTES:]


def _write_header(head: ObjectHead) -> bytes:
    if len(head.nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce of {len(head.nonce)} bytes: it must have {NONCE_BYTES}")
    data = bytearray(
        _HEADER.pack(
            MAGIC, VERSION, 0, head.node_id, head.broker_epoch, head.sequence, head.nonce,
            head.kind, head.names_length, head.frame_count, head.frames_length, head.created_ms,
            head.fenced_by,
        )
    )  # fmt: skip
    _CHECKSUM.pack_into(data, 12, _header_checksum(data))
    return bytes(data)


def _header_checksum(data: Buffer) -> int:
    view = memoryview(data)
    return crc32c(view[16:HEADER_BYTES], crc32c(view[:12]))


def _write_names(names: Mapping[int, Naming]) -> bytes:
    parts: list[bytes] = []
    for number, naming in names.items():
        payload = write_naming(naming)
        parts += (_ENTRY.pack(number, len(payload)), payload)
    entries = b"".join(parts)
    return entries + _CHECKSUM.pack(crc32c(entries))


def read_header(buf: Buffer, key: str) -> ObjectHead:
    """Read the header at the start of `buf`, which need not have the rest of the object.

    Raises LogObjectError, naming `key`, if it is incomplete, damaged, or that of an object with
    another key; JournalFormatError if a newer program wrote it.
    """
    if len(buf) < HEADER_BYTES:
        raise _damage(key, f"it has {len(buf)} bytes, less than a header")
    (
        magic, version, checksum, node_id, epoch, sequence, nonce, kind, names_length, frames,
        frames_length, created_ms, fenced_by,
    ) = _HEADER.unpack_from(buf, 0)  # fmt: skip
    if magic != MAGIC:
        raise _damage(key, "it does not begin as a log object")
    check_version(f"the log object {key}", version, VERSION)
    if version < 1 or checksum != _header_checksum(buf):
        raise _damage(key, "the checksum of its header is wrong")
    head = ObjectHead(
        node_id, epoch, sequence, nonce, frames, frames_length, created_ms, kind, fenced_by,
        names_length,
    )  # fmt: skip
    # An object under a wrong key, such as a copy, would take the place of another one.
    if parse_log_object_key(key) not in (None, (epoch, sequence)):
        raise _damage(key, f"its header is that of {head.key}")
    # The checksum holds, so a wrong length is a defect of the writer; checked before memory is
    # taken for it.
    _check_lengths(head, key)
    return head


def _check_lengths(head: ObjectHead, key: str) -> None:
    """Raise LogObjectError unless the lengths in a header are possible."""
    length = head.frames_length
    if head.kind == KIND_FENCE:
        # A fence is the header alone.
        possible = not (head.names_length or head.frame_count or length)
    elif head.kind == KIND_RECORDS:
        fitting = 0 <= length <= MAX_OBJECT_BYTES and head.size_bytes <= MAX_OBJECT_BYTES
        # Frames are padded, and each has at least one batch.
        possible = fitting and not length & 7 and head.frame_count * _MIN_FRAME_BYTES <= length
    else:
        raise _damage(key, f"there is no kind {head.kind} of log objects")
    if not possible:
        raise _damage(
            key,
            f"its header names {head.frame_count} frames of {length} bytes and {head.names_length} "
            "bytes of names",
        )


def read_names(buf: Buffer, head: ObjectHead) -> dict[int, Naming]:
    """Read the names of an object by partition number; a fence has none. `buf` must have the object
    up to the first frame. Raises LogObjectError."""
    names: dict[int, Naming] = {}
    if head.is_fence:
        return names
    # The checksum of the names is after the last entry.
    end = HEADER_BYTES + head.names_length - _CHECKSUM.size
    if end < HEADER_BYTES or head.frames_start > len(buf):
        raise _damage(head.key, f"its names do not fit into {len(buf)} bytes")
    block = memoryview(buf)[HEADER_BYTES:end]
    if _CHECKSUM.unpack_from(buf, end)[0] != crc32c(block):
        raise _damage(head.key, "the checksum of its names is wrong")
    # Without records of a partition it is not named: complete for the frames of this object only.
    at = 0
    while at < len(block):
        number, naming, at = _read_entry(block, at, head)
        if number in names:
            raise _damage(head.key, f"it names partition {number} twice")
        names[number] = naming
    return names


def _read_entry(block: memoryview, at: int, head: ObjectHead) -> tuple[int, Naming, int]:
    """Return partition number and naming of the entry at `at`, and where it ends."""
    start = at + _ENTRY.size
    if start > len(block):
        raise _damage(head.key, "an entry of its names is cut off")
    number, length = _ENTRY.unpack_from(block, at)
    if start + length > len(block):
        raise _damage(head.key, f"the name of partition {number} is cut off")
    try:
        return number, read_naming(block[start : start + length]), start + length
    except JournalFormatError as failure:
        raise _damage(head.key, f"partition {number}: {failure}") from failure


def read_frames(buf: memoryview, head: ObjectHead) -> Iterator[StoredFrame]:
    """Yield the frames of a whole object in the order in which they were appended, as views of
    `buf`; a fence has none.

    The checksums of each frame and of its batches are compared before it is yielded. Raises
    LogObjectError, naming frame and partition number.
    """
    # Objects are stored whole, so a shorter one is damage.
    if len(buf) != head.size_bytes:
        raise _damage(head.key, f"it has {len(buf)} bytes, its header says {head.size_bytes}")
    position = head.frames_start
    for index in range(head.frame_count):
        frame, position = _read_frame(buf, position, index, head)
        yield frame
    if position != len(buf):
        rest = len(buf) - position
        raise _damage(head.key, f"{rest} bytes follow the last of its {head.frame_count} frames")


def _read_frame(
    buf: memoryview, position: int, index: int, head: ObjectHead
) -> tuple[StoredFrame, int]:
    """Return the frame at `position`, the one with this index, and where the next one begins."""
    found = read_head(buf, position)
    if found is None:
        raise _damage(head.key, f"frame {index} is missing at byte {position}")
    where = f"frame {index}, of partition {found.number} at log position {found.log_position}"
    # Not `check`: frames come from any journals and positions, and are checked against those that
    # they name themselves.
    starts = check_frame(buf, position, found) if found.kind == KIND_BATCH else None
    if not starts:
        raise _damage(head.key, f"{where}, is not whole")
    # The frame's checksum covers the heads of its batches; each CRC the rest.
    views: list[memoryview] = []
    end = position + HEAD_BYTES + found.length
    for start, stop in zip(starts, [*starts[1:], end], strict=True):
        view = buf[start:stop]
        batch = batches.read_head(view)
        if crc32c(view[batches.CRC_FROM :]) != batch.crc:
            raise _damage(
                head.key, f"{where}: the CRC of the batch at offset {batch.base_offset} is wrong"
            )
        views.append(view)
    return StoredFrame(found.number, found.log_position, found.run, views), pad_length(end)


def _damage(key: str, why: str) -> LogObjectError:
    return LogObjectError(f"the log object {key} is damaged: {why}")
