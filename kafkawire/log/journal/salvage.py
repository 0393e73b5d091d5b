"""Salvage of damaged frames: their partition and offsets, read from the intact bytes.

A damaged frame is never served, but its offsets must not be assigned again, so recovery needs its
partition and offsets. Bytes that cannot be explained are returned as such. Pure; called by
kafkawire.log.journal.losses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from kafkawire.codec.batches import (
    COUNT,
    CRC,
    HEAD,
    LAST_DELTA,
)
from kafkawire.crc32c import crc32c
from kafkawire.log.journal.file import POSITION_BITS
from kafkawire.log.journal.format import (
    BATCH_HEAD_BYTES,
    BATCH_LENGTH_OVERHEAD,
    BATCH_PREFIX_BYTES,
    HEAD_BYTES,
    KIND_BATCH,
    KIND_NAMES,
    pad_length,
)

POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), bit-reversed."""


def _step(byte: int) -> int:
    """Return what the CRC's register is after this byte, from zero."""
    for _ in range(8):
        byte = byte >> 1 ^ POLYNOMIAL if byte & 1 else byte >> 1
    return byte


_TABLE = tuple(map(_step, range(256)))
_INDEX = {value >> 24: byte for byte, value in enumerate(_TABLE)}
"""The highest bytes of the table are all different, so a step can be undone."""
BODY_AT = 8
"""Position in a frame from which on its checksum covers it."""
MAX_SEARCHED_BYTES = 1 << 20
"""The most covered bytes in which an error is searched for: a fraction of a second of Python. A
frame of batches has 21 of them for each batch."""

MAX_LAYOUTS = 8
"""How many counts of batches are tried for one frame, since each costs a search."""

MAX_BATCH_SEARCHED = 64 << 10
"""How far after a batch with a wrong length the next one is searched for; of a frame with larger
batches only the head is used."""
BATCH_VERSION_AT = 16
BATCH_VERSION = 2

_CHECKSUM = Struct(">I")
_BODY = Struct(">IHHqqqq")
_OFFSET = Struct(">q")


@dataclass(frozen=True, slots=True)
class DamagedFrame:
    """A frame in the bytes [start, end) of a journal whose records cannot be read.

    `number` is its partition, 0 for frames without records; [first, last) are its offsets, both -1
    where they are unreadable."""

    start: int
    end: int
    number: int
    first: int = -1
    last: int = -1


@dataclass(frozen=True, slots=True)
class Unexplained:
    """Bytes [start, end) of a journal that may have held frames of any partition."""

    start: int
    end: int


def explain(
    buf: memoryview, journal: int, start: int, end: int
) -> list[DamagedFrame | Unexplained]:
    """Explain all of the damaged bytes [start, end) of a journal, in order.

    `end` may lie beyond the end of `buf`: a journal that was cut short."""
    found: list[DamagedFrame | Unexplained] = []
    at = unknown_from = start
    limit = min(end, len(buf))
    while at < limit:
        frame = _identify(buf, journal, at, limit)
        if frame is None:
            # Only heads that match their position are tried: each try costs a search.
            at = find_head(buf, journal, at + 1, limit)
            continue
        if unknown_from < at:
            found.append(Unexplained(unknown_from, at))
        found.append(frame)
        at = unknown_from = frame.end
    if unknown_from < end:
        found.append(Unexplained(unknown_from, end))
    return found


def repair_one_byte(covered: bytes, checksum: int) -> bytes | None:
    """Return `covered` as it was when its CRC-32C was `checksum`, if at most one byte has changed
    since, in it or in the stored checksum; None if more have."""
    # A CRC is linear: the difference between the stored and the computed value depends only on the
    # error and on how many bytes follow it.
    syndrome = crc32c(covered) ^ checksum
    # The wrong byte is in the stored checksum itself.
    if syndrome == 0 or any(syndrome & ~(0xFF << shift) == 0 for shift in (0, 8, 16, 24)):
        return covered
    if len(covered) > MAX_SEARCHED_BYTES:
        return None
    for at in range(len(covered) - 1, -1, -1):
        # Undo one step of the CRC: afterwards `syndrome` is the effect of an error in this byte.
        index = _INDEX[syndrome >> 24]
        syndrome = ((syndrome ^ _TABLE[index]) << 8 | index) & 0xFFFFFFFF
        if syndrome < 256:
            repaired = bytearray(covered)
            repaired[at] ^= syndrome
            return bytes(repaired) if crc32c(bytes(repaired)) == checksum else None
    return None


def _identify(buf: memoryview, journal: int, at: int, end: int) -> DamagedFrame | None:
    """Read the frame at `at`, which ends at or before `end`; None if its head is unreadable."""
    start = at + HEAD_BYTES
    # Without this check a megabyte of zeros would be searched for a minute.
    if start > end or not _may_begin(buf, journal, at):
        return None
    # From the most exact to the least: offsets, no offsets at all, only the partition.
    return (
        _batches(buf, journal, at, end)
        or _without_records(buf, journal, at, end)
        or _by_its_head(buf, journal, at, end)
    )


def _may_begin(buf: memoryview, journal: int, at: int) -> bool:
    """Return whether at most one byte of the log position in a head at `at` is wrong."""
    expected = (journal << POSITION_BITS | at).to_bytes(8, "big")
    return sum(a != b for a, b in zip(buf[at + 16 : at + 24], expected, strict=True)) <= 1


def _batches(buf: memoryview, journal: int, at: int, end: int) -> DamagedFrame | None:
    """Read a frame of batches with one wrong byte in its head or in bytes that the batches' CRCs do
    not cover."""
    for starts, stop in _layouts(buf, at, end):
        covered = bytes(buf[at + BODY_AT : at + HEAD_BYTES]) + b"".join(
            bytes(buf[start : start + BATCH_PREFIX_BYTES]) for start in starts
        )
        whole = repair_one_byte(covered, _CHECKSUM.unpack_from(buf, at + 4)[0])
        if whole is None:
            continue
        length, kind, batches, log_position, _, number, _ = _BODY.unpack_from(whole)
        # The repaired head must agree with the layout that was assumed.
        fits = at + HEAD_BYTES + length == stop and batches == len(starts)
        if not fits or kind != KIND_BATCH or log_position != journal << POSITION_BITS | at:
            continue
        prefix = HEAD_BYTES - BODY_AT
        (first,) = _OFFSET.unpack_from(whole, prefix)
        (base,) = _OFFSET.unpack_from(whole, prefix + (len(starts) - 1) * BATCH_PREFIX_BYTES)
        # The last batch says how many offsets it took: its base offset alone is not the end.
        last = base + offsets_of(buf[starts[-1] : stop])
        return DamagedFrame(at, at + pad_length(HEAD_BYTES + length), number, first, last)
    return None


def _layouts(buf: memoryview, at: int, end: int) -> Iterator[tuple[list[int], int]]:
    """Yield where the batches of the frame at `at` may begin, and where the last one ends: by their
    lengths, with fewer of them, and with one whose own length is wrong."""
    start = at + HEAD_BYTES
    starts, position = _walk(buf, start, end)
    if starts:
        yield starts, position
    # The frame may have fewer batches than the bytes after its head suggest.
    for count in range(len(starts) - 1, max(0, len(starts) - MAX_LAYOUTS), -1):
        yield starts[:count], starts[count]
    # Then the head's length is believed, and one batch's is not.
    stop = start + int(_BODY.unpack_from(buf, at + BODY_AT)[0])
    if stop > end:
        return
    wrong = [*starts, position]  # which batch's length may be wrong
    for count in range(len(wrong) - 1, max(-1, len(wrong) - 1 - MAX_LAYOUTS), -1):
        first = wrong[count] + BATCH_HEAD_BYTES
        if first <= stop:
            yield wrong[: count + 1], stop
        # The next batch after it is found by its version byte.
        for other in range(first, min(first + MAX_BATCH_SEARCHED, stop - BATCH_HEAD_BYTES + 1)):
            if buf[other + BATCH_VERSION_AT] == BATCH_VERSION:
                # Believed only if its batches end where the frame does.
                others, last = _walk(buf, other, stop)
                if others and last == stop:
                    yield [*wrong[: count + 1], *others], stop


def _walk(buf: memoryview, at: int, end: int) -> tuple[list[int], int]:
    """Return where batches begin from `at` on, by their lengths, and where the last one ends."""
    starts: list[int] = []
    while at + BATCH_HEAD_BYTES <= end:
        size = HEAD.unpack_from(buf, at)[1] + BATCH_LENGTH_OVERHEAD
        if size < BATCH_HEAD_BYTES or at + size > end:
            break
        starts.append(at)
        at += size
    return starts, at


def offsets_of(batch: memoryview) -> int:
    """Return how many offsets a batch took, which may be damaged; at least 1."""
    fields = HEAD.unpack_from(batch)
    by_delta, by_count = fields[LAST_DELTA] + 1, fields[COUNT]
    # The head has the number twice, as last offset delta and as count.
    if by_delta == by_count:
        return int(max(1, by_delta))
    # They differ: the batch's CRC tells which one is right.
    for count in (by_delta, by_count):
        tried = bytearray(batch)
        tried[23:27] = ((count - 1) & 0xFFFFFFFF).to_bytes(4, "big")
        tried[57:61] = (count & 0xFFFFFFFF).to_bytes(4, "big")
        if crc32c(bytes(tried[BATCH_PREFIX_BYTES:])) == fields[CRC]:
            return int(max(1, count))
    # Neither: a gap is better than an offset that is assigned twice.
    return int(max(1, by_delta, by_count))


def _without_records(buf: memoryview, journal: int, at: int, end: int) -> DamagedFrame | None:
    """Read a naming or catalog frame with one wrong byte, which contained no offsets."""
    length, kind = _BODY.unpack_from(buf, at + BODY_AT)[:2]
    stops = {at + HEAD_BYTES + length}
    if kind != KIND_BATCH:
        # Its length may be the wrong byte: it ends up to 7 bytes of padding before `end`. Of a
        # frame of batches the wrong byte is that of the kind, and its length is right.
        stops.update(range(end - 7, end + 1))
    for stop in stops:
        if not at + HEAD_BYTES <= stop <= end or stop - at > MAX_SEARCHED_BYTES:
            continue
        whole = repair_one_byte(
            bytes(buf[at + BODY_AT : stop]), _CHECKSUM.unpack_from(buf, at + 4)[0]
        )
        if whole is None:
            continue
        length, kind, batches, log_position, _, _, _ = _BODY.unpack_from(whole)
        fits = at + HEAD_BYTES + length == stop and batches == 0
        if fits and kind in KIND_NAMES and log_position == journal << POSITION_BITS | at:
            return DamagedFrame(at, at + pad_length(HEAD_BYTES + length), 0)
    return None


def _by_its_head(buf: memoryview, journal: int, at: int, end: int) -> DamagedFrame | None:
    """Read a frame whose head matches its position, although its checksum is wrong."""
    length, kind, batches, log_position, run, number, _ = _BODY.unpack_from(buf, at + BODY_AT)
    after = at + pad_length(HEAD_BYTES + length)
    if (
        log_position != journal << POSITION_BITS | at
        or kind not in KIND_NAMES
        or run <= 0
        or after > end
    ):
        return None
    if kind != KIND_BATCH:
        return DamagedFrame(at, after, 0)
    return DamagedFrame(at, after, number) if number > 0 and batches > 0 else None


def find_head(buf: memoryview, journal: int, at: int, end: int) -> int:
    """Return the next position from `at` on at which a head has exactly this log position, or
    `end`."""
    pattern = journal.to_bytes(4, "big")
    data = bytes(buf[at:end])
    hit = data.find(pattern)
    while hit >= 0:
        # The journal number is at byte 16 of a head, its position after that.
        position = at + hit - 16
        inside = position >= at and position % 8 == 0 and position + HEAD_BYTES <= end
        if inside and data[hit + 4 : hit + 8] == position.to_bytes(4, "big"):
            return position
        hit = data.find(pattern, hit + 1)
    return end
