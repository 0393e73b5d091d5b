"""The job `cut`: write the batches of partitions in rolled journals as sorted segments.

Every frame's and every batch's checksum is checked; a partition with a bad byte is left out and
reported, the others continue. Store times come from the index files of the journals. Offsets that
were given up (kafkawire.log.recovery.given_up) are not read: an empty batch replaces them, and the
segment's section `lost` lists them.

Memory: an index row for each frame (40 bytes) of the current partition, the sparse index of the
current segment (a hundredth of it), and the buffers of SegmentWriter; the journals are read in the
page cache.
"""

from __future__ import annotations

import os.path
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct

from kafkawire.codec.batches import CRC_FROM, BatchHead, empty_batches, iter_batches, payload, stamp
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.segment.format import DamagedBatch
from kafkawire.codec.segment.stored import Step, add_step, select_steps
from kafkawire.codec.walk import MAX_WALKED_RECORDS, has_exact_time, newest_time
from kafkawire.crc32c import crc32c
from kafkawire.log.io.mapped_file import MappedFile
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import (
    CutArguments,
    JobResult,
    JournalFile,
    Pace,
    PartitionToCut,
    SegmentOutput,
    StoredDamage,
    unpack_all,
)
from kafkawire.log.journal.file import POSITION_MASK
from kafkawire.log.journal.format import (
    BATCH_PREFIX_BYTES,
    HEAD_BYTES,
    HEADER_BYTES,
    KIND_BATCH,
    batch_starts,
    read_header,
)
from kafkawire.log.journal.index_columns import IndexColumns, empty_columns
from kafkawire.log.journal.index_file import JournalIndex, read_index
from kafkawire.log.journal.scan import Scanned, scan
from kafkawire.log.segments.file.key_port import PartSpans
from kafkawire.log.segments.file.writer import JobOrigins, SegmentWriter

ROWS_AT_ONCE = 480
BYTES_AT_ONCE = 4 << 20
"""Frames passed on at once: a hundred KiB of the smallest, a few MiB of large ones."""
SMALL_BYTES = 4096
"""Frames smaller than this on average are copied together: that is less work than separate
buffers."""

_FRAME = Struct(">4xIIHH")
"""Fields of a frame's head: checksum, payload length, kind, batch count."""
_SUMMED = HEAD_BYTES - 8
"""Bytes of a head that its checksum covers, at its end, followed by the prefix of each batch."""


def run(fs: FileSystem, arguments: CutArguments, pace: Pace) -> JobResult:
    """Run the job. OSError if a file cannot be opened or written."""
    wanted: dict[int, PartitionToCut] = {item.number: item for item in unpack_all(arguments.wanted)}
    journals: list[_Journal] = []
    result = JobResult([])
    try:
        for file in arguments.journals:
            # Added one by one, so that `finally` closes those that were opened.
            journals.append(_Journal(fs, file, pace, arguments.trusts_heads))
        origins = JobOrigins(arguments.origin)
        made_by = arguments.node_id, arguments.created_ms, origins
        for output in arguments.outputs:
            # One file after the other: memory holds the sparse index of one segment.
            with SegmentWriter(fs, output, *made_by) as writer:
                _fill(writer, output, wanted, journals, result)
                result.made.append(writer.finish())
    finally:
        for journal in journals:
            journal.mapped.close()
    return result


class _Journal:
    """A journal that was read ahead, and its rows; `bad`: what the disk could not read; `trusted`:
    the heads of its batches need no correction."""

    __slots__ = ("_rows", "bad", "mapped", "number", "stored", "trusted")

    def __init__(self, fs: FileSystem, file: JournalFile, pace: Pace, trusted: bool) -> None:
        self.number = file.number
        self.trusted = trusted
        self.mapped = MappedFile(fs, file.path, file.end)
        # Before any byte is read through the mapping: what the disk cannot read would end the
        # process.
        self.bad = self.mapped.read_ahead(0, file.end, pace)
        try:
            index = read_index(fs, os.path.dirname(file.path), file.number)
        except OSError:
            index = None  # it will be rebuilt
        # When frames of an earlier start than that of the index were written is not known: they
        # count as written when the journal was begun.
        header = None if self.bad else read_header(self.mapped.view, file.path)
        self.stored: list[Step] = []
        if header is not None:
            add_step(self.stored, 0, header.created_ms)
        for step in [] if index is None else index.stored:
            add_step(self.stored, *step)
        self._rows: JournalIndex | Scanned
        if index is not None and index.extent.end == file.end:
            self._rows = index
        elif self.bad:
            # Scanning them through the mapping would end the process.
            self._rows = Scanned(file.number, 0, 0)
        else:
            # The index file is damaged: the rows come from the journal itself.
            self._rows = scan(self.mapped.view, file.number, HEADER_BYTES, file.end, 0)

    def cannot_read(self, start: int, stop: int) -> bool:
        """Return whether the disk failed to read some of these bytes."""
        return any(one < stop and start < other for one, other in self.bad)

    def rows(self, number: int) -> IndexColumns:
        """The rows of a partition in these journals."""
        if isinstance(self._rows, JournalIndex):
            return self._rows.rows(number)
        return self._rows.rows.get(number) or empty_columns()


def _fill(
    writer: SegmentWriter,
    output: SegmentOutput,
    wanted: dict[int, PartitionToCut],
    journals: list[_Journal],
    result: JobResult,
) -> None:
    for number in sorted(output.numbers):
        item = wanted[number]
        topic = (item.topic_id, item.topic, item.index)
        writer.start_partition(number, topic, item.from_offset, item.state)
        damage = _copy(writer, item, journals)
        if damage is None:
            writer.end_partition(item.to_offset)
        else:
            writer.abandon()
            result.damaged.append(damage)


def _copy(
    writer: SegmentWriter, item: PartitionToCut, journals: list[_Journal]
) -> StoredDamage | None:
    """Write all batches of one partition, and empty ones for what was given up, or return the
    damage."""
    start = item.from_offset
    # Between the lost ranges the journals have everything.
    for lost in item.state.lost:
        damage = _copy_span(writer, item, journals, (start, lost.first))
        if damage is not None:
            return damage
        writer.write([memoryview(empty_batches(lost.first, lost.end))])
        start = lost.end
    return _copy_span(writer, item, journals, (start, item.to_offset))


def _copy_span(
    writer: SegmentWriter, item: PartitionToCut, journals: list[_Journal], span: tuple[int, int]
) -> StoredDamage | None:
    """Write the batches with the offsets [first, upto) of one partition, or return the damage."""
    following, upto = span
    if following == upto:
        return None
    for journal in journals:
        rows = journal.rows(item.number)
        # The row may begin before: a log start within a frame.
        start = max(0, bisect_right(rows.base, following) - 1)
        if start < len(rows) and rows.base[start] + rows.count[start] <= following:
            start += 1
        stop = bisect_left(rows.base, upto)
        while start < stop:
            # So many frames that their overhead is small, and so few bytes that they fit in the
            # cache.
            sizes = list(accumulate(rows.length[start : min(start + ROWS_AT_ONCE, stop)]))
            end = start + max(1, bisect_right(sizes, BYTES_AT_ONCE))
            damage = _copy_rows(writer, item, journal, rows, (start, end), following)
            if damage is not None:
                return damage
            following = rows.base[end - 1] + rows.count[end - 1]
            start = end
    # Every offset must be there: a gap here is damage that was not given up.
    if following != upto:
        path = journals[-1].mapped.path if journals else ""
        text = f"the journals end at offset {following} of it, not at {upto}"
        return StoredDamage(item.number, following, path, -1, text)
    return None


def _copy_rows(
    writer: SegmentWriter,
    item: PartitionToCut,
    journal: _Journal,
    rows: IndexColumns,
    part: tuple[int, int],
    following: int,
) -> StoredDamage | None:
    """Write rows [start, stop) of one journal, which must begin at or (the first) before
    `following`."""
    start, stop = part
    view = journal.mapped.view
    positions = [log_position & POSITION_MASK for log_position in rows.log_position[start:stop]]
    lengths = rows.length[start:stop]
    # Only the first of all may begin before it: the log start can be within a batch.
    hole = _hole(rows, part, following, following == item.from_offset)
    if hole is not None:
        row, following = hole
        text = f"offset {following} is missing in the journals, the next is {rows.base[row]}"
        return StoredDamage(
            item.number, following, journal.mapped.path, positions[row - start], text
        )
    following = rows.base[stop - 1] + rows.count[stop - 1]
    parts = [view[at : at + length] for at, length in zip(positions, lengths, strict=True)]
    # Checksums of the frames first; the writer checks those of the batches.
    bad, at = _bad_frame(journal, positions, parts), 0
    if bad is None:
        changed = None if journal.trusted else correct_heads(parts, rows.count[start:stop])
        # Copied together: less work than separate buffers.
        small = sum(lengths) < SMALL_BYTES * len(parts)
        try:
            if small:
                writer.write([memoryview(b"".join(changed or parts))])
            else:
                spans = None if changed else PartSpans(view, positions, lengths)
                writer.write(changed or parts, spans)
        except DamagedBatch as failure:
            bad, at = failure.part, failure.at
            # The position is in the joined buffer: find the frame.
            if small:
                ends = list(accumulate(lengths))
                bad = bisect_right(ends, at)
                at -= ends[bad] - lengths[bad]
        else:
            # Fewer offsets than the rows say: the head of the last batch is wrong.
            if writer.next_offset == following:
                for at, ms in select_steps(journal.stored, positions[0], positions[-1] + 1):
                    row = start + bisect_left(positions, at)
                    add_step(item.state.stored, rows.base[row], ms)
                return None
            bad = len(parts) - 1
    offset, position = rows.base[start + bad], positions[bad] + at
    text = f"the batch in journal {journal.number} at {position} is damaged"
    return StoredDamage(item.number, offset, journal.mapped.path, position, text)


def _hole(
    rows: IndexColumns, part: tuple[int, int], following: int, first: bool
) -> tuple[int, int] | None:
    """Return (row, offset) of the first row that does not begin where the one before ends.

    `following`: where the row before these ends. The `first` of all may begin before it.
    """
    start, stop = part
    base = rows.base[start]
    if base != following and not (first and base < following):
        return start, following
    # The usual case needs one comparison of sums instead of one per row.
    if base + sum(rows.count[start:stop]) == rows.base[stop - 1] + rows.count[stop - 1]:
        return None
    for row in range(start + 1, stop):
        following = rows.base[row - 1] + rows.count[row - 1]
        if rows.base[row] != following:
            return row, following
    return None


def _bad_frame(
    journal: _Journal, positions: Sequence[int], parts: Sequence[memoryview]
) -> int | None:
    """Return the first frame whose checksum is wrong, or that the disk could not read. Hot."""
    view = journal.mapped.view
    head, checksum = _FRAME.unpack_from, crc32c
    for number, (at, part) in enumerate(zip(positions, parts, strict=True)):
        # First: reading it here would end the process.
        if journal.bad and journal.cannot_read(at - HEAD_BYTES, at + len(part)):
            return number
        named, length, kind, batches = head(view, at - HEAD_BYTES)
        total = checksum(view[at - _SUMMED : at + BATCH_PREFIX_BYTES])
        # One batch is the usual case, of which the prefix follows the head directly.
        if batches != 1:
            starts = batch_starts(part, 0, len(part))
            if starts is None or len(starts) != batches:
                return number
            for start in starts[1:]:
                total = checksum(part[start : start + BATCH_PREFIX_BYTES], total)
        if total != named or length != len(part) or kind != KIND_BATCH:
            return number
    return None


# A producer computes the newest timestamp of its batch, and for a batch with more than
# MAX_WALKED_RECORDS the broker may have stored it unchecked. Segments are deleted, searched by time
# and merged by that number alone, so the cut computes it from the records: a third of a millisecond
# for 1000 of them, and the decompression. Wrong heads are rewritten with their checksums. What
# cannot be read (of an earlier version) stays as it is.


def correct_heads(parts: Sequence[memoryview], counts: Sequence[int]) -> list[memoryview] | None:
    """Return the parts, whole batches each, with copies in place of those with a wrong head; None
    if all are right. `counts`: how many records each part has at most."""
    made: list[memoryview] | None = None
    for number, count in enumerate(counts):
        # Smaller batches were walked when they were appended.
        if count > MAX_WALKED_RECORDS:
            part = _corrected_part(parts[number])
            if part is not parts[number]:
                made = list(parts) if made is None else made
                made[number] = part
    return made


def _corrected_part(part: memoryview) -> memoryview:
    copy: bytearray | None = None
    try:
        for position, head in iter_batches(part):
            newest = _newest(part, position, head)
            if newest != head.max_timestamp:
                # The mapped journal is not changed.
                copy = bytearray(part) if copy is None else copy
                batch = memoryview(copy)[position : position + head.size_bytes]
                stamp(batch, newest, log_append=False)
    except KafkaError:
        pass  # damaged: the writer finds it
    return part if copy is None else memoryview(copy)


def _newest(part: memoryview, position: int, head: BatchHead) -> int:
    """Return the newest timestamp of the records of a batch, as its head says if they or the batch
    cannot be read."""
    body = part[position + CRC_FROM : position + head.size_bytes]
    # Damaged records have no times to trust, and the writer reports the batch.
    if has_exact_time(head) or crc32c(body) != head.crc:
        return head.max_timestamp
    try:
        data = bytes(payload(part, position, head))
        return newest_time(data, head.count, head.base_timestamp)
    except (KafkaError, IndexError):
        return head.max_timestamp
