"""Contents of a journal, frame by frame, for display: the reading side of `kafkawire dump`.

Pure: bytes in, values out, lazily, so a journal of half a million frames costs no memory. Unlike
kafkawire.log.journal.scan it stores nothing, shows every kind of frame with its content, and does
not classify gaps: a gap here is bytes between two frames that are no frame, however recovery would
treat them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.batches import CRC_FROM, BatchHead, read_head
from kafkawire.codec.types import uuid_text
from kafkawire.crc32c import crc32c
from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.format import HEAD_BYTES, HEADER_BYTES, Head, pad_length


@dataclass(frozen=True, slots=True)
class BatchShown:
    """A batch in a frame; `sound`: its own CRC matches its records."""

    head: BatchHead
    sound: bool


@dataclass(slots=True)
class FrameShown:
    """A whole frame at `position`. `says`: the content of a naming or catalog frame."""

    position: int
    head: Head
    batches: list[BatchShown] = field(default_factory=list)
    says: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return journal_format.KIND_NAMES[self.head.kind]


@dataclass(frozen=True, slots=True)
class GapShown:
    """Bytes [start, end) that are no frame. `last`: no frame of this journal comes after them,
    so this is where the log ended when the file was the newest journal."""

    start: int
    end: int
    last: bool


def walk(buf: memoryview, number: int) -> Iterator[FrameShown | GapShown]:
    """Yield the frames of journal `number` in their order, and the gaps between them.

    Raises FormatError for a catalog frame of a newer program.
    """
    position, run, end = HEADER_BYTES, 0, len(buf)
    while position < end:
        head = journal_format.read_head(buf, position)
        starts = None
        # As in recovery: a frame of an older run than one before it is what a failed write left.
        if head is not None and head.run >= run:
            starts = journal_format.check(buf, position, head, number)
        if head is None or starts is None:
            found = _next(buf, position, number, run)
            yield GapShown(position, end if found < 0 else found, found < 0)
            # No frame follows: here the log ended when this was the newest journal.
            if found < 0:
                return
            position = found
            continue
        yield _show_frame(buf, position, head, starts)
        run = head.run
        position += pad_length(HEAD_BYTES + head.length)


def _next(buf: memoryview, position: int, number: int, run: int) -> int:
    while True:
        position = journal_format.find_frame(buf, (position + 8) & ~7, len(buf), number)
        head = journal_format.read_head(buf, position) if position >= 0 else None
        if head is None or head.run >= run:
            return position


def _show_frame(buf: memoryview, position: int, head: Head, starts: list[int]) -> FrameShown:
    shown = FrameShown(position, head)
    start = position + HEAD_BYTES
    payload = buf[start : start + head.length]
    if head.kind == journal_format.KIND_BATCH:
        for at in starts:
            batch = read_head(buf, at)
            sound = crc32c(buf[at + CRC_FROM : at + batch.size_bytes]) == batch.crc & 0xFFFFFFFF
            shown.batches.append(BatchShown(batch, sound))
    elif head.kind == journal_format.KIND_NAMING:
        naming = journal_format.read_naming(payload)
        shown.says = {
            "topic": naming.topic,
            "index": naming.index,
            "topic_id": uuid_text(naming.topic_id),
            "leader_epoch": naming.leader_epoch,
            "next_offset": naming.next_offset,
            "log_start": naming.log_start,
        }
    else:
        shown.says = journal_format.read_catalog(payload)
    return shown
