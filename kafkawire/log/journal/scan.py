"""Scanning one journal: every frame that was written there, and every gap between them.

Pure, except that it reads the journal's bytes. The scan takes each valid frame whose run is not
older than those before it and notes bad ranges; kafkawire.log.recovery.recover, which knows all
journals, decides whether such a gap is the torn end of the log or damage to acknowledged data.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL,
    CRC,
    CRC_AT,
    CRC_FROM,
    HEAD,
    LAST_DELTA,
    LEADER_EPOCH,
    LENGTH,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    BatchHead,
)
from kafkawire.codec.control import ControlContent, read_marker
from kafkawire.crc32c import crc32c
from kafkawire.log.journal.file import POSITION_BITS
from kafkawire.log.journal.format import (
    BATCH_HEAD_BYTES,
    BATCH_LENGTH_OVERHEAD,
    HEAD_BYTES,
    HEADER_BYTES,
    KIND_BATCH,
    KIND_NAMING,
    Head,
    JournalFormatError,
    Naming,
    check,
    find_frame,
    pad_length,
    read_head,
    read_naming,
)
from kafkawire.log.journal.index_columns import IndexColumns, empty_columns
from kafkawire.log.journal.salvage import offsets_of

Fact = tuple[int, tuple[Any, ...], ControlContent | None]
"""The log position of a frame, the fields of the head of a batch in it (batches.HEAD), and the
content of a control batch."""


@dataclass(slots=True)
class Gap:
    """Bad bytes in [start, end) (positions).

    If the frame's head is intact: the partition `number` and its offsets [first, last). `missing`:
    the whole journal is missing. `cut_short`: its file ends at `start`. `open`: nothing is known to
    follow it, so more than [start, end) may be lost.
    """

    journal: int
    start: int
    end: int
    number: int = -1
    first: int = -1
    last: int = -1
    missing: bool = False
    cut_short: bool = False
    open: bool = False

    @property
    def log_position(self) -> int:
        """The log position where the range begins."""
        return self.journal << POSITION_BITS | self.start


@dataclass(slots=True)
class Scanned:
    """The frames of a journal from a position on.

    `rows` per partition number, `named` the first naming frame of each with its position, `claimed`
    the greatest committed log position any frame knew of; `end` the position after the last valid
    frame, `run` the greatest run number, `frames` their count without naming frames. `facts` per
    partition number: the batches of producers with an ID, markers among them, and those whose
    leader epoch is not that of the batch before (`epochs`: of its last one).
    """

    number: int
    end: int
    run: int
    frames: int = 0
    rows: dict[int, IndexColumns] = field(default_factory=dict)
    named: dict[int, tuple[int, Naming]] = field(default_factory=dict)
    claimed: int = 0
    gaps: list[Gap] = field(default_factory=list)
    facts: dict[int, list[Fact]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)


def scan(buf: memoryview, number: int, start: int, stop: int | None, run: int) -> Scanned:
    """Scan all frames of journal `number` from `start` on; `run` is the least run number to accept.

    `stop` is where the journal is known to end; None: what follows the last valid frame is no gap.
    """
    result = Scanned(number, start, run)
    # A stop that is beyond the file is reported by the caller: it was cut short.
    end = len(buf) if stop is None else min(stop, len(buf))
    buf = buf[:end]
    position = max(start, HEADER_BYTES)
    while position < end:
        head = read_head(buf, position)
        # A frame of an older run was left by a failed write, and is no part of the log.
        if head is None or head.run < result.run or not _take(buf, position, head, result):
            found = _next(buf, position, number, result.run)
            if found < 0:
                # Where the end is not known nothing is missing: most journals are longer than what
                # was written to them.
                if stop is not None:
                    result.gaps.append(Gap(number, position, end))
                break
            result.gaps.append(Gap(number, position, found))
            position = found
            continue
        position = result.end = position + pad_length(HEAD_BYTES + head.length)
    return result


def _next(buf: memoryview, position: int, number: int, run: int) -> int:
    """Return where the next frame begins that is not of an older run, or -1."""
    while True:
        position = find_frame(buf, (position + 8) & ~7, len(buf), number)
        if position < 0:
            return -1
        head = read_head(buf, position)
        assert head is not None, "it was just found"
        if head.run >= run:
            return position


def _take(buf: memoryview, position: int, head: Head, result: Scanned) -> bool:
    """Add the frame at `position` if it is valid."""
    if head.kind == KIND_BATCH:
        if not _take_batches(buf, position, head, result):
            return False
        result.frames += 1
    elif check(buf, position, head, result.number) is None:
        return False
    elif head.kind == KIND_NAMING:
        # Its checksum holds, so if it does not decode its writer knew more about names.
        with suppress(JournalFormatError):
            naming = read_naming(buf[position + HEAD_BYTES : position + HEAD_BYTES + head.length])
            result.named.setdefault(head.number, (position, naming))
    else:
        result.frames += 1
    result.run = head.run
    result.claimed = max(result.claimed, head.committed)
    return True


def _take_batches(  # noqa: C901 (hot: no calls)
    buf: memoryview, position: int, head: Head, result: Scanned
) -> bool:
    """Add a frame of batches if its checksum is right; as a gap if the CRC of one of the batches
    is wrong."""
    at = position + HEAD_BYTES
    end = at + head.length
    # The checks of format.check, and the CRCs of the batches, in one pass without calls: nothing at
    # a start takes longer.
    if head.log_position != (result.number << POSITION_BITS) | position or end > len(buf):
        return False
    unpack = HEAD.unpack_from
    checksum = crc32c(buf[position + 8 : at])
    newest = -1
    base = next_offset = -1
    batches = 0
    sound = True
    facts: list[Fact] = []
    epoch = result.epochs.get(head.number)
    while at < end:
        if at + BATCH_HEAD_BYTES > end:
            return False
        fields = unpack(buf, at)
        stop = at + fields[LENGTH] + BATCH_LENGTH_OVERHEAD
        if stop < at + BATCH_HEAD_BYTES or stop > end:
            return False
        # The frame's checksum covers what the batch's own CRC does not.
        checksum = crc32c(buf[at : at + CRC_FROM], checksum)
        # Not returned at once: the frame's checksum may hold, and then its offsets are known.
        if crc32c(buf[at + CRC_FROM : stop]) != fields[CRC]:
            sound = False
        if not batches:
            base = fields[BASE_OFFSET]
        batches += 1
        next_offset = fields[BASE_OFFSET] + fields[LAST_DELTA] + 1
        if fields[MAX_TIMESTAMP] > newest:
            newest = fields[MAX_TIMESTAMP]
        # Facts are rare: batches with a producer id, and each first one of a leader epoch.
        if fields[PRODUCER_ID] >= 0 or fields[LEADER_EPOCH] != epoch:
            epoch = fields[LEADER_EPOCH]
            marker = marker_of(buf, at, fields) if fields[ATTRIBUTES] & CONTROL else None
            facts.append((head.log_position, fields, marker))
        at = stop
    if checksum != head.checksum or batches != head.batches:
        return False
    if not sound:
        # Head and offsets are intact: a gap with a partition and offsets, which are lost.
        after = position + pad_length(HEAD_BYTES + head.length)
        last_size = fields[LENGTH] + BATCH_LENGTH_OVERHEAD
        # Both counts are under the batch's CRC, which is wrong.
        last = fields[BASE_OFFSET] + offsets_of(buf[end - last_size : end])
        gap = Gap(result.number, position, after, head.number, base, last)
        result.gaps.append(gap)
        return True
    rows = result.rows.get(head.number)
    if rows is None:
        rows = result.rows[head.number] = empty_columns()
    rows.base.append(base)
    rows.log_position.append(head.log_position + HEAD_BYTES)
    rows.length.append(head.length)
    rows.count.append(next_offset - base)
    rows.newest.append(newest)
    if facts:
        # Only for frames that count: the epoch of a damaged one is not replayed.
        result.epochs[head.number] = facts[-1][1][2]
        result.facts.setdefault(head.number, []).extend(facts)
    return True


def marker_of(buf: memoryview, at: int, fields: tuple[Any, ...]) -> ControlContent | None:
    """The content of the batch at `at`, whose head has these fields, if it is a control batch."""
    return read_marker(buf, at, BatchHead(fields)) if fields[ATTRIBUTES] & CONTROL else None


assert CRC_AT + 4 == CRC_FROM, "a batch's CRC ends where what it covers begins"
