"""The byte layout of journals: header, frame heads, checksums, naming and catalog payloads.

Pure: bytes in, values out. kafkawire.log.journal.write_batch writes with it,
kafkawire.log.journal.scan and kafkawire.log.journal.dump read with it. It knows nothing of files,
and of batches only where they begin and which bytes their own CRC does not cover.

A journal (all integers big-endian):

    +--------+--------------------------------------------------------------------+
    |      0 | header, 64 bytes                                                   |
    |     64 | frame, padded with zeros to a multiple of 8                        |
    |    ... | frame, ...                                                         |
    |    end | whatever the file held before it was recycled, or zeros            |
    +--------+--------------------------------------------------------------------+

The header:

    0  magic 8s "KWJOURN\\0"     8  format version u32     12  checksum u32 (bytes 16-63)
    16 journal number i64      24  run number i64         32  log position where the last ended
    40 created, ms since 1970  48  zeros

A frame:

    0  magic 4s                4  checksum u32            8  payload length u32
    12 kind u16               14  batch count u16        16  log position i64 (see POSITION_BITS)
    24 run number i64         32  partition number i64   40  committed log position when written
    48 payload: the batches, back to back and byte for byte, or what the kind says

The checksum is the CRC-32C of bytes 8-47 and then of the first 21 bytes of each batch in the frame
(base offset, length, leader epoch, magic and CRC: what the batch's own CRC does not cover); for the
other kinds, of bytes 8-47 and the payload. So a valid frame of this journal, at this position, was
written there, and is not a remnant of what a recycled file held before.

Format version 1. A change of the layout raises VERSION and describes here how the older one is
read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from kafkawire.codec.format_errors import too_new
from kafkawire.crc32c import crc32c
from kafkawire.log.io.ports import Buffer, LogError

VERSION = 1
HEADER_BYTES: Final = 64
HEAD_BYTES: Final = 48
BATCH_PREFIX_BYTES: Final = 21
"""Bytes at the start of a batch that its own CRC does not cover (Kafka:
DefaultRecordBatch.CRC_OFFSET + 4)."""
BATCH_LENGTH_AT = 8
BATCH_LENGTH_OVERHEAD = 12
BATCH_HEAD_BYTES = 61

MAX_FRAME_PAYLOAD: Final = 1 << 20
"""Batches share a frame up to this size: an index entry then never covers more than a Fetch usually
requests, so no reader has to skip more than that. One batch may be larger."""

KIND_BATCH: Final = 1
KIND_NAMING: Final = 2
KIND_TOPIC_CREATED = 3
KIND_CONFIGS = 4
KIND_TOPIC_DELETED = 5
KIND_ROLL = 6
"""A frame without content: the first one of a journal that was begun because the one before was
old."""
KIND_NAMES = {
    KIND_BATCH: "batch",
    KIND_NAMING: "naming",
    KIND_TOPIC_CREATED: "topic created",
    KIND_CONFIGS: "configs",
    KIND_TOPIC_DELETED: "topic deleted",
    KIND_ROLL: "roll",
}

MAGIC: Final = b"\xf5KW\x01"
"""Not valid UTF-8 and rare in data, so that the search for the next frame has few false matches."""
HEADER_MAGIC = b"KWJOURN\0"

_HEADER = Struct(">8sIIqqqq")
pack_front: Final = Struct(">4sI").pack
"""Bytes 0-7 of a frame: magic, checksum."""
pack_body: Final = Struct(">IHHqqqq").pack
"""Bytes 8-47: payload length, kind, batch count, log position, run, partition number, committed log
position."""
_HEAD = Struct(">4sIIHHqqqq")
_BATCH_LENGTH = Struct(">i")
_NAMING = Struct(">16siiqqH")

PADDING: Final = tuple(bytes(n) for n in range(8))


class JournalFormatError(LogError):
    """A stored file that this program cannot read; the text is a sentence for the operator."""


def check_version(name: str, version: int, known: int) -> None:
    """Raise JournalFormatError if a newer program wrote the file `name`."""
    if version > known:
        raise JournalFormatError(f"{name} {too_new(version, known)}")


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """The first 64 bytes of a journal. `previous_end`: the log position where the one before
    ended."""

    journal: int
    run: int
    previous_end: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a frame; `number` is the partition number (0 for catalog frames)."""

    checksum: int
    length: int
    kind: int
    batches: int
    log_position: int
    run: int
    number: int
    committed: int


@dataclass(frozen=True, slots=True)
class Naming:
    """Contents of a naming frame: its partition when the frame was written."""

    topic_id: bytes
    topic: str
    index: int
    leader_epoch: int
    next_offset: int
    log_start: int


def pad_length(length: int) -> int:
    """Return `length` rounded up to a multiple of 8."""
    return (length + 7) & ~7


def write_header(header: JournalHeader) -> bytes:
    body = Struct(">qqqq16x").pack(
        header.journal, header.run, header.previous_end, header.created_ms
    )
    return HEADER_MAGIC + Struct(">II").pack(VERSION, crc32c(body)) + body


def read_header(buf: Buffer, name: str) -> JournalHeader | None:
    """Read the header at the start of `buf`; None if it was never written or is damaged.

    Raises JournalFormatError, naming `name`, if a newer program wrote it.
    """
    if len(buf) < HEADER_BYTES:
        return None
    magic, version, checksum, journal, run, previous_end, created = _HEADER.unpack_from(buf, 0)
    if magic != HEADER_MAGIC:
        return None
    check_version(name, version, VERSION)
    if crc32c(memoryview(buf)[16:HEADER_BYTES]) != checksum:
        return None
    return JournalHeader(journal, run, previous_end, created)


def read_head(buf: Buffer, position: int) -> Head | None:
    """Read the frame head at `position`; None if there is none."""
    if position + HEAD_BYTES > len(buf):
        return None
    magic, checksum, length, kind, batches, log_position, run, number, committed = (
        _HEAD.unpack_from(buf, position)
    )
    # Only that: the callers check position and checksum.
    if magic != MAGIC:
        return None
    return Head(checksum, length, kind, batches, log_position, run, number, committed)


def batch_starts(buf: Buffer, start: int, end: int) -> list[int] | None:
    """Return where each batch of a frame's payload begins; None if they do not fill it exactly."""
    starts: list[int] = []
    while start < end:
        if start + BATCH_HEAD_BYTES > end:
            return None
        (length,) = _BATCH_LENGTH.unpack_from(buf, start + BATCH_LENGTH_AT)
        size = length + BATCH_LENGTH_OVERHEAD
        # A length below a head's would loop forever, a longer one leave the frame.
        if size < BATCH_HEAD_BYTES or start + size > end:
            return None
        starts.append(start)
        start += size
    return starts


def check(buf: memoryview, position: int, head: Head, journal: int) -> list[int] | None:
    """Return where the batches of a frame start, None if it is not a whole frame of `journal`,
    written at this position.

    Not checked here: run numbers (the scan knows which are valid) and the batches' own CRCs.
    """
    # A recycled file is full of whole frames of other journals, whose checksums hold.
    if head.log_position != (journal << 32) | position:
        return None
    return check_frame(buf, position, head)


def check_frame(buf: memoryview, position: int, head: Head) -> list[int] | None:
    """Return where the batches of the frame at `position` start, None if it is not whole. Unlike
    `check`, it may come from any journal."""
    start = position + HEAD_BYTES
    end = start + head.length
    if end > len(buf) or head.kind not in KIND_NAMES:
        return None
    # The head after magic and checksum, then what no CRC of a batch covers.
    checksum = crc32c(buf[position + 8 : start])
    # Naming and catalog frames have no CRC of their own: all of the payload is covered.
    if head.kind != KIND_BATCH:
        return [] if crc32c(buf[start:end], checksum) == head.checksum else None
    starts = batch_starts(buf, start, end)
    if starts is None or len(starts) != head.batches:
        return None
    for at in starts:
        checksum = crc32c(buf[at : at + BATCH_PREFIX_BYTES], checksum)
    return starts if checksum == head.checksum else None


def find_frame(buf: memoryview, position: int, end: int, journal: int) -> int:
    """Return the next position in [position, end) with a whole frame of `journal`, or -1."""
    # Magic, 12 bytes, then the upper half of the log position: the journal number. A recycled file
    # is mostly full of frames of other journals, which C skips this way.
    pattern = re.escape(MAGIC) + b".{12}" + re.escape(journal.to_bytes(4, "big"))
    for hit in re.compile(pattern, re.DOTALL).finditer(buf, position, end):
        at = hit.start()
        # Frames begin at multiples of 8.
        if at % 8 == 0:
            head = read_head(buf, at)
            if head is not None and check(buf, at, head, journal) is not None:
                return at
    return -1


def write_naming(naming: Naming) -> bytes:
    name = naming.topic.encode()
    return (
        _NAMING.pack(
            naming.topic_id,
            naming.index,
            naming.leader_epoch,
            naming.next_offset,
            naming.log_start,
            len(name),
        )
        + name
    )


def read_naming(payload: Buffer) -> Naming:
    """Read the payload of a naming frame; JournalFormatError if it is not one."""
    try:
        topic_id, index, epoch, next_offset, log_start, size = _NAMING.unpack_from(payload, 0)
        name = bytes(payload[_NAMING.size : _NAMING.size + size]).decode()
    except (StructError, UnicodeDecodeError) as failure:
        raise JournalFormatError(f"a naming frame does not decode: {failure}") from failure
    # A slice of a payload that is too short raises nothing.
    if _NAMING.size + size > len(payload):
        raise JournalFormatError(f"a naming frame has no room for a name of {size} bytes")
    return Naming(topic_id, name, index, epoch, next_offset, log_start)


def write_catalog(body: dict[str, Any]) -> bytes:
    """Pack the payload of a catalog frame.

    `body` is a topic, or {"topics": [topic, ...]} (version 2); newer ones also name the cluster.
    """
    # Several topics in a frame came with version 2; one topic is still written as version 1.
    version = 2 if "topics" in body else 1
    # JSON: catalog frames are rare, and people read dumps.
    return json.dumps({"version": version, **body}, separators=(",", ":"), sort_keys=True).encode()


def topics_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the topics in a result of `read_catalog`; a roll frame has none."""
    if "topics" in body:
        return list(body["topics"])
    return [body] if "id" in body else []


def read_catalog(payload: Buffer) -> dict[str, Any]:
    """Read the payload of a catalog frame; JournalFormatError if it is not one or a newer program
    wrote it."""
    try:
        body = json.loads(bytes(payload))
    except ValueError as failure:
        raise JournalFormatError(f"a catalog frame does not decode: {failure}") from failure
    if not isinstance(body, dict) or body.get("version") not in (1, 2):
        raise JournalFormatError("a catalog frame has a format this kafkawire does not know")
    return body
