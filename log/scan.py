"""Scanning one journal: every frame that was written there, and every gap between them.

Pure but for the journal's bytes. The scan takes each valid frame whose run is not older than those
before it and notes where bytes are bad; whether such a gap is the torn end of the log or damage to
acknowledged data is decided by log.recovery, which knows all journals.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from crc32c import crc32c

from kafkawire.codec.batches import CRC_AT, CRC_FROM, HEAD
from log.frame import (
    HEAD_BYTES,
    HEADER_BYTES,
    KIND_BATCH,
    KIND_NAMING,
    FormatError,
    Head,
    Naming,
    check,
    find_frame,
    padded,
    read_head,
    read_naming,
)
from log.hotindex import Columns, empty_columns
from log.journal import PLACE_BITS


@dataclass(slots=True)
class Gap:
    """Bad bytes in [start, end) (positions).

    If the frame's head is sound: the partition `number` and its offsets [first, last).
    """

    journal: int
    start: int
    end: int
    number: int = -1
    first: int = -1
    last: int = -1

    @property
    def place(self) -> int:
        """Where it begins."""
        return self.journal << PLACE_BITS | self.start


@dataclass(slots=True)
class Scanned:
    """What a journal holds from some position on.

    `rows` per partition number, `named` the first naming frame of each with its position,
    `claimed` the greatest committed place any frame knew of; `end` the position after the last
    valid frame, `run` the greatest run number, `frames` their count without naming frames.
    """

    number: int
    end: int
    run: int
    frames: int = 0
    rows: dict[int, Columns] = field(default_factory=dict)
    named: dict[int, tuple[int, Naming]] = field(default_factory=dict)
    claimed: int = 0
    gaps: list[Gap] = field(default_factory=list)


def scan(buf: memoryview, number: int, start: int, stop: int | None, run: int) -> Scanned:
    """All frames of journal `number` from `start` on; `run` is the least run number to accept.

    `stop` is where the journal is known to end; None if that is not known, and then what follows
    the last valid frame is no gap: most journals are longer than what was written to them.
    """
    result = Scanned(number, start, run)
    end = len(buf) if stop is None else min(stop, len(buf))
    buf = buf[:end]
    position = max(start, HEADER_BYTES)
    while position < end:
        head = read_head(buf, position)
        starts = None
        if head is not None and head.run >= result.run:
            starts = check(buf, position, head, number)
        if head is None or starts is None:
            found = _next(buf, position, number, result.run)
            if found < 0:
                if stop is not None:
                    result.gaps.append(Gap(number, position, end))
                break
            result.gaps.append(Gap(number, position, found))
            position = found
            continue
        after = position + padded(HEAD_BYTES + head.length)
        _take(buf, position, after, head, starts, result)
        position = result.end = after
    return result


def _next(buf: memoryview, position: int, number: int, run: int) -> int:
    """Where the next frame begins that is not of an older run, or -1."""
    while True:
        position = find_frame(buf, (position + 8) & ~7, len(buf), number)
        if position < 0:
            return -1
        head = read_head(buf, position)
        assert head is not None, "it was just found"
        if head.run >= run:
            return position


def _take(
    buf: memoryview, position: int, after: int, head: Head, starts: list[int], result: Scanned
) -> None:
    """Enter one valid frame."""
    result.run = head.run
    result.claimed = max(result.claimed, head.committed)
    if head.kind == KIND_BATCH:
        result.frames += 1
        _take_batches(buf, position, after, head, starts, result)
    elif head.kind == KIND_NAMING:
        try:
            naming = read_naming(buf[position + HEAD_BYTES : position + HEAD_BYTES + head.length])
        except FormatError:
            return  # its checksum holds: whoever wrote it knew more names than this program
        result.named.setdefault(head.number, (position, naming))
    else:
        result.frames += 1


def _take_batches(
    buf: memoryview, position: int, after: int, head: Head, starts: list[int], result: Scanned
) -> None:
    newest = -1
    base = end_offset = 0
    stops = [*starts[1:], position + HEAD_BYTES + head.length]
    sound = True
    for at, stop in zip(starts, stops, strict=True):
        fields = HEAD.unpack_from(buf, at)
        if at == starts[0]:
            base = fields[0]
        end_offset = fields[0] + fields[6] + 1
        newest = max(newest, fields[8])
        if crc32c(buf[at + CRC_FROM : stop]) != fields[4]:
            sound = False
    if not sound:
        gap = Gap(result.number, position, after, head.number, base, end_offset)
        result.gaps.append(gap)
        return
    rows = result.rows.get(head.number)
    if rows is None:
        rows = result.rows[head.number] = empty_columns()
    rows.base.append(base)
    rows.place.append(head.place + HEAD_BYTES)
    rows.length.append(head.length)
    rows.count.append(end_offset - base)
    rows.newest.append(newest)


assert CRC_AT + 4 == CRC_FROM, "a batch's CRC ends where what it covers begins"
