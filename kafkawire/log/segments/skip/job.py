"""The job `skip`: write a segment again without its damaged batches.

Used by --skip-lost, when no other copy is left. What cannot be read is left out, and the new
segment lists its offsets and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, empty_batches, iter_batches
from kafkawire.codec.control import ABORT, COMMIT, Aborted, read_marker
from kafkawire.codec.damage import BadBatches, bad_batches, search
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import PartitionEntry, PartitionState, SparseIndex
from kafkawire.codec.segment.lost import DAMAGED, GONE, LostRange
from kafkawire.crc32c import crc32c
from kafkawire.log.io.mapped_file import PIECE_BYTES, MappedFile
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import Lost, Pace, SkipArguments, SkipResult, pack, unpack_all
from kafkawire.log.segments.file.open import SegmentFile
from kafkawire.log.segments.file.writer import JobOrigins, SegmentWriter

Stretch = tuple[memoryview, list[BadBatches]]
"""Bytes of a partition, and which of them are left out."""


def run(fs: FileSystem, arguments: SkipArguments, pace: Pace) -> SkipResult:
    """Run the job. OSError if the new segment cannot be written."""
    source = _Source(fs, arguments.path, pace)
    lost: list[Lost] = []
    made_by = arguments.node_id, arguments.created_ms, JobOrigins(arguments.origin)
    try:
        states = source.states()
        with SegmentWriter(fs, arguments.output, *made_by) as writer:
            # The rows of the metadata, not the file's directory: damage to one section affects
            # nothing else.
            for entry in unpack_all(arguments.entries):
                state = (states or {}).get(entry.number) or PartitionState()
                outcomes = Outcomes()
                # The state is damaged, which says what was aborted: read the batches once before,
                # and leave out those of transactions whose end is not in the segment.
                if states is None:
                    for stretch in source.stretches(entry):
                        outcomes.add(*stretch)
                    outcomes.finish()
                    state.aborted = outcomes.aborted
                topic = (entry.topic_id, entry.topic, entry.index)
                writer.start_partition(entry.number, topic, entry.base_offset, state)
                gaps = _copy(writer, source, entry, outcomes)
                reason = GONE if source.gone else DAMAGED
                new = [LostRange(*gap, arguments.created_ms, reason) for gap in gaps]
                # Also ranges that were lost before.
                state.lost = sorted([*state.lost, *new])
                writer.end_partition(entry.end_offset)
                lost += [Lost(entry.number, entry.topic, entry.index, *gap) for gap in gaps]
            made = writer.finish()
    finally:
        source.close()
    return SkipResult(made, pack(lost))


def _copy(
    writer: SegmentWriter, source: _Source, entry: PartitionEntry, outcomes: Outcomes
) -> list[tuple[int, int]]:
    """Write the intact batches of a partition, and empty ones in place of the others; return the
    offsets [first, end) of these."""
    gaps: list[tuple[int, int]] = []
    for data, damaged in source.stretches(entry):
        bad = outcomes.with_unknown(data, damaged) if outcomes.unknown else damaged
        at = 0
        for one in bad:
            if one.start > at:
                writer.write([data[at : one.start]])
            # Within the entry, and after what was written: a damaged head may state any offset.
            first = max(one.first, entry.base_offset, writer.next_offset)
            end = min(one.end, entry.end_offset)
            if first < end:
                gaps.append((first, end))
                writer.write([memoryview(empty_batches(first, end))])
            at = one.stop
        if at < len(data):
            writer.write([data[at:]])
    return _join_ranges(gaps)


def _join_ranges(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, end in gaps:
        if joined and joined[-1][1] == first:
            first = joined.pop()[0]
        joined.append((first, end))
    return joined


class _Source:
    """The damaged segment. `gone`: it has no file."""

    __slots__ = ("_fs", "_mapped", "_pace", "_path", "gone")

    def __init__(self, fs: FileSystem, path: str, pace: Pace) -> None:
        self._fs = fs
        self._path = path
        self._pace = pace
        self._mapped: MappedFile | None = None
        if path:
            # Missing since the caller saw it.
            with suppress(FileNotFoundError):
                self._mapped = MappedFile(fs, path)
        self.gone = self._mapped is None

    def states(self) -> dict[int, PartitionState] | None:
        """Return the states of its partitions; None if they cannot be read."""
        if self.gone:
            return {}
        try:
            file = SegmentFile(self._fs, self._path)
        except (FormatError, OSError):
            return None
        try:
            return file.states()
        except (FormatError, OSError):
            return None
        finally:
            file.close()

    def stretches(self, entry: PartitionEntry) -> Iterator[Stretch]:
        """Yield all batches of a partition, block by block, with the bad ones."""
        nothing = memoryview(b"")
        if self.gone:
            yield nothing, [BadBatches(0, 0, entry.base_offset, entry.end_offset)]
            return
        index = self._index(entry)
        # Without the index the batches are found by their heads, from the start on; believed only
        # if they are in order.
        if index is None:
            data, unread = self._read(entry.start, entry.length)
            whole = [BadBatches(0, len(data), entry.base_offset, entry.end_offset)]
            runs, in_order = ([], False) if unread else search(data, 0, entry.end_offset)
            yield data, runs if in_order else whole
            return
        stop = entry.start + entry.length
        for position, length in index.runs(entry.start, stop, PIECE_BYTES):
            data, unread = self._read(position, length)
            at = index.find(position)
            while at < len(index) and index.block(at)[0] < position + length:
                start, size, first, _, checksum = index.block(at)
                end = index.block(at + 1)[2] if at + 1 < len(index) else entry.end_offset
                at += 1
                # Reading these through the mapping would end the process.
                if any(one < start + size and start < other for one, other in unread):
                    yield nothing, [BadBatches(0, 0, first, end)]
                    continue
                block = data[start - position : start - position + size]
                yield block, [] if crc32c(block) == checksum else bad_batches(block, first, end)

    def _index(self, entry: PartitionEntry) -> SparseIndex | None:
        """Return the sparse index; None if it is damaged."""
        body, unread = self._read(entry.index_start, entry.index_length)
        try:
            index = SparseIndex(
                body, entry.start, entry.length, entry.base_offset, entry.index_checksum
            )
        except FormatError:
            return None
        return None if unread else index

    def _read(self, start: int, length: int) -> tuple[memoryview, list[tuple[int, int]]]:
        """Return bytes of the file, zeros after its end, and the ranges that the disk cannot
        read."""
        assert self._mapped is not None
        view = self._mapped.view
        stop = min(start + length, len(view))
        unread = self._mapped.read_ahead(start, stop, self._pace) if start < stop else []
        data = view[start:stop]
        # Zeros are no batch, so what is missing counts as damaged.
        if len(data) < length and not unread:
            data = memoryview(bytes(data).ljust(length, b"\0"))
        return data, unread

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()


# For a segment whose state cannot be read, which says what was aborted. A batch of a transaction
# counts as committed or aborted if the next marker of its producer is in the segment and nothing
# between the two is damaged. Otherwise its outcome is unknown: it must not be served.


class Outcomes:
    """Outcomes of one partition; `add` takes its batches in order. `aborted`: transactions that
    were aborted, in the order of their markers; `unknown`: base offsets of batches whose outcome is
    unknown, complete after `finish`."""

    def __init__(self) -> None:
        self.aborted: list[Aborted] = []
        self.unknown: set[int] = set()
        self._open: dict[int, list[int]] = {}

    def add(self, data: memoryview, bad: Sequence[BadBatches]) -> None:
        """Take bytes of the partition with their damaged ranges."""
        for run, (start, stop) in _intact(data, bad):
            for position, head in iter_batches(data[start:stop]):
                self._add(data, start + position, head)
            if run is not None:
                self.finish()  # a marker may have been in the damaged range

    def _add(self, data: memoryview, position: int, head: BatchHead) -> None:
        if head.attributes & CONTROL:
            kind = read_marker(data, position, head).kind
            if kind in (ABORT, COMMIT):
                batches = self._open.pop(head.producer_id, [])
                if batches and kind == ABORT:
                    aborted = Aborted(head.producer_id, batches[0], head.base_offset)
                    self.aborted.append(aborted)
        elif head.attributes & TRANSACTIONAL:
            self._open.setdefault(head.producer_id, []).append(head.base_offset)

    def finish(self) -> None:
        """Note that no marker can follow for what is open."""
        for batches in self._open.values():
            # They must not be served: they may have been aborted.
            self.unknown.update(batches)
        self._open.clear()

    def with_unknown(self, data: memoryview, bad: Sequence[BadBatches]) -> list[BadBatches]:
        """Return the damaged ranges of `data`, and those of batches whose outcome is unknown."""
        found: list[BadBatches] = []
        for run, (start, stop) in _intact(data, bad):
            for position, head in iter_batches(data[start:stop]):
                if head.base_offset in self.unknown and head.attributes & TRANSACTIONAL:
                    at = start + position
                    end = head.last_offset + 1
                    found.append(BadBatches(at, at + head.size_bytes, head.base_offset, end))
            if run is not None:
                found.append(run)
        return found


def _intact(
    data: memoryview, bad: Sequence[BadBatches]
) -> Iterator[tuple[BadBatches | None, tuple[int, int]]]:
    """Yield the intact ranges of `data`, each with the damaged one that follows it, if any."""
    at = 0
    for run in bad:
        yield run, (at, max(at, run.start))
        at = run.stop
    yield None, (at, len(data))
