"""The job `compact`: clean partitions. It reads the dirty part of each twice and its clean part
once; with transactions, it reads the dirty part once more before.

It indexes the keys of the dirty part until the offset map is full, then writes what remains of
everything up to there. A partition with a bad byte is left out and reported, the others continue.
Memory: the offset map, one piece of a segment and the unpacked records of one batch, and the
buffers of SegmentWriter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from struct import Struct

from kafkawire.codec.batches import HEAD_BYTES, LENGTH_AT, PREFIX_BYTES
from kafkawire.codec.control import Aborted
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import DamagedBatch, PartitionState
from kafkawire.codec.segment.lost import LostRange, select_overlapping
from kafkawire.codec.segment.stored import Step, add_step, select_steps
from kafkawire.log.io.ports import File, FileSystem
from kafkawire.log.io.worker_jobs import Made, Pace, SegmentOutput, StoredDamage, unpack_all
from kafkawire.log.segments.compact.messages import (
    CleanedShare,
    CompactArguments,
    CompactResult,
    CompactSource,
    PartitionToClean,
)
from kafkawire.log.segments.compact.offset_map import OffsetMap
from kafkawire.log.segments.compact.retain import (
    OFFSET_MAX,
    Cleaner,
    LastBatch,
    OffsetMapBuilder,
    Scanner,
    UnknownFate,
    head_at,
)
from kafkawire.log.segments.file.open import (
    LostRanges,
    StoreTimes,
    read_aborted_of,
    read_lost_ranges,
    read_store_times,
)
from kafkawire.log.segments.file.writer import JobOrigins, SegmentWriter
from kafkawire.metadata.checkpoint import unpack_producers

PIECE_BYTES = 1 << 20
"""Bytes read and cleaned at a time, unless one batch is larger."""

_LENGTH = Struct(">i")


def run(fs: FileSystem, arguments: CompactArguments, pace: Pace) -> CompactResult:
    """Run the job. OSError if a file cannot be opened, read or written."""
    outputs = Outputs(fs, arguments)
    cleaned: list[CleanedShare] = []
    damaged: list[StoredDamage] = []
    lost_in: dict[str, LostRanges] = {}
    stored_in: dict[str, StoreTimes] = {}
    try:
        for share in unpack_all(arguments.shares):
            # One partition at a time: memory has one offset map.
            cleaning = _Cleaning(fs, arguments, share, pace, lost_in, stored_in)
            try:
                cleaned.append(cleaning.run(outputs))
            except DamagedBatch as failure:
                outputs.abandon()
                damaged.append(cleaning.damage(failure))
            finally:
                cleaning.close()
        made, rest = outputs.finish()
    except BaseException:
        outputs.discard()
        raise
    return CompactResult(made, rest, cleaned, damaged)


class _Cleaning:
    """Clean one share."""

    def __init__(
        self,
        fs: FileSystem,
        arguments: CompactArguments,
        share: PartitionToClean,
        pace: Pace,
        lost_in: dict[str, LostRanges],
        stored_in: dict[str, StoreTimes],
    ) -> None:
        """`lost_in`, `stored_in`: lost ranges and store times of the segments read so far, by
        path."""
        self._lost_in = lost_in
        self._stored_in = stored_in
        self._fs = fs
        self._arguments = arguments
        self._share = share
        self._pace = pace
        self._opened: dict[str, File] = {}
        self._transactional = False
        # A source begins where the clean part ends, so each is clean or dirty as a whole.
        self._dirty = [source for source in share.sources if source.base_offset >= share.dirty_from]
        # The source that is being read, and the position of the current piece.
        self._reading = share.sources[0], 0

    def run(self, outputs: Outputs) -> CleanedShare:
        """Clean the share. After DamagedBatch some of it may be in the outputs."""
        share = self._share
        aborted = self._index()
        clean_end, touched_end = self._ends()
        if clean_end <= share.dirty_from:
            return CleanedShare(share.number, share.dirty_from, share.dirty_from)
        cleaner = Cleaner(
            self._offsets,
            aborted,
            self._producers(),
            self._indexer.end,
            self._arguments.created_ms,
            share.delete_retention_ms,
        )
        share.state.lost = self._read_lost_ranges()
        share.state.stored = self._read_store_times()
        outputs.start_output(share, cleaner.cleaned.kept)
        # The map was full inside of a source: its rest is copied unchanged, to be cleaned the next
        # time, since a source is replaced whole.
        if touched_end > clean_end:
            outputs.begin_rest(share, clean_end, self._aborted_after(clean_end, aborted))
            for rest in self._rest(clean_end):
                outputs.write_rest(rest)
        for piece, end in self._pieces(share.sources):
            parts = cleaner.clean(piece, end)
            if parts:
                outputs.write(parts)
            if cleaner.done:
                break
        outputs.end_output(clean_end, touched_end)
        return CleanedShare(share.number, clean_end, touched_end, cleaner.stats)

    def _index(self) -> list[Aborted]:
        """Check the dirty part; return its aborted transactions."""
        try:
            # Without transactions, which is usual, one pass is enough.
            self._index_as(None, OFFSET_MAX)
        except UnknownFate:
            # A first pass finds out which were aborted; then the keys of the others count.
            self._transactional = True
            scanner = Scanner()
            for piece, end in self._pieces(self._dirty):
                scanner.scan(piece, end)
            # Nothing after the first offset of an open transaction: its fate is not known.
            self._index_as(scanner.fates.aborted, scanner.stable())
            return scanner.fates.aborted
        return []

    def _index_as(self, aborted: list[Aborted] | None, stop: int) -> None:
        share, arguments = self._share, self._arguments
        records = sum(source.records for source in self._dirty)
        self._offsets = OffsetMap(
            share.dirty_from, records, arguments.buffer_bytes, arguments.load_factor
        )
        self._indexer = OffsetMapBuilder(self._offsets, aborted, stop)
        # False: the map is full, or a transaction is open.
        self._all = all(self._indexer.index(*piece) for piece in self._pieces(self._dirty))

    def _ends(self) -> tuple[int, int]:
        """Return up to where it will be clean, and where the source with this offset ends."""
        sources, end = self._share.sources, self._indexer.end
        if self._all:
            return sources[-1].end_offset, sources[-1].end_offset
        return end, next(source.end_offset for source in sources if source.end_offset >= end)

    def _producers(self) -> dict[int, LastBatch]:
        entries = unpack_producers(self._share.state.producers)
        return {
            entry.producer_id: (entry.epoch, entry.batches[-1][2] if entry.batches else -1)
            for entry in entries
        }

    def _aborted_after(self, offset: int, scanned: list[Aborted]) -> list[Aborted]:
        """The aborted transactions that readers of the source with this offset have to know, and
        that end at or after it. DamagedBatch if they cannot be read."""
        found = {(entry.producer_id, entry.marker): entry for entry in scanned}
        # A marker may come after all sources: the source's state knows more than the scan.
        for source in self._share.sources if self._transactional else ():
            if source.base_offset <= offset < source.end_offset:
                try:
                    entries = read_aborted_of(self._fs, source.path).get(self._share.number, [])
                except (FormatError, OSError) as failure:
                    # Without the state aborted records would be returned to readers of committed
                    # ones.
                    raise DamagedBatch(0, 0, source.base_offset) from failure
                found.update({(entry.producer_id, entry.marker): entry for entry in entries})
        later = [entry for entry in found.values() if entry.marker >= offset]
        return sorted(later, key=lambda entry: entry.marker)

    def _read_lost_ranges(self) -> list[LostRange]:
        """Return the lost ranges of the partition listed in the sources; none if they cannot be
        read."""
        found: list[LostRange] = []
        for source in self._share.sources:
            known = self._lost_in.get(source.path)
            if known is None:
                known = self._lost_in[source.path] = read_lost_ranges(self._fs, source.path)
            found += known.get(self._share.number, [])
        return select_overlapping(found, self._share.sources[0].base_offset, OFFSET_MAX)

    def _read_store_times(self) -> list[Step]:
        """Return when the batches of the sources were stored, as far as they list it."""
        found: list[Step] = []
        for source in self._share.sources:
            known = self._stored_in.get(source.path)
            if known is None:
                known = self._stored_in[source.path] = read_store_times(self._fs, source.path)
            steps = known.get(self._share.number, [])
            for step in select_steps(steps, source.base_offset, source.end_offset):
                add_step(found, *step)
        return found

    def _rest(self, offset: int) -> Iterator[memoryview]:
        """Yield the batches from `offset` on of the source that contains it."""
        sources = [
            source
            for source in self._share.sources
            if source.base_offset <= offset < source.end_offset
        ]
        for piece, end in self._pieces(sources):
            at = 0
            while at < end:
                head = head_at(piece, at, end, 0)
                if head.base_offset >= offset:
                    yield memoryview(piece)[at:end]
                    break
                at += head.size_bytes

    def _pieces(self, sources: list[CompactSource]) -> Iterator[tuple[bytes, int]]:
        """Yield the batches of sources in pieces: bytes, and how many of them are whole batches.

        DamagedBatch where the disk cannot read them.
        """
        for source in sources:
            at, stop = source.start, source.start + source.length
            size = PIECE_BYTES
            while at < stop:
                self._reading = source, at
                piece = self._read(source, at, min(size, stop - at))
                # A piece ends anywhere: what is not a whole batch is read again with the next one.
                end = _whole(piece)
                if not end and at + size < stop:
                    size = _batch_bytes(piece, 0)  # a batch that is larger than a piece
                    if not len(piece) < size <= stop - at:
                        raise DamagedBatch(0, 0, source.base_offset)
                    continue
                # The end of the source within a batch: checked as one, and found damaged.
                end = end or len(piece)
                yield piece, end
                at += end
                size = PIECE_BYTES

    def _read(self, source: CompactSource, at: int, size: int) -> bytes:
        file = self._opened.get(source.path)
        if file is None:
            file = self._opened[source.path] = self._fs.open(source.path)
        try:
            piece = file.pread(size, at)
        except OSError as failure:
            raise DamagedBatch(0, 0, source.base_offset) from failure
        if len(piece) != size:
            raise DamagedBatch(0, 0, source.base_offset)
        self._pace(size)
        return piece

    def damage(self, failure: DamagedBatch) -> StoredDamage:
        """Return where the bad batch in the current piece is."""
        source, position = self._reading
        at = position + failure.at
        text = f"the batch at {at} is damaged"
        offset = max(failure.offset, source.base_offset)
        return StoredDamage(self._share.number, offset, source.path, at, text)

    def close(self) -> None:
        for file in self._opened.values():
            file.close()


def _batch_bytes(piece: bytes, at: int) -> int:
    size: int = _LENGTH.unpack_from(piece, at + LENGTH_AT)[0] + PREFIX_BYTES
    return size


def _whole(piece: bytes) -> int:
    """Return how many bytes the whole batches of a piece have."""
    at, size = 0, len(piece)
    while size - at >= HEAD_BYTES:
        after = at + _batch_bytes(piece, at)
        if after > size:
            return at
        # A length that no batch can have: these bytes are checked as a batch, and found damaged.
        if after < at + HEAD_BYTES:
            return at or size
        at = after
    return at


class Outputs:
    """The segments that a compaction writes: those of cleaned batches, and one for the rests of
    sources. Partition by partition: `start_output`, perhaps `begin_rest` and `write_rest`,
    `write`..., then `end_output` or `abandon`; finally `finish` or `discard`. OSError from the
    disk."""

    __slots__ = ("_arguments", "_first", "_fs", "_in_rest", "_kept", "_made", "_noted", "_origins",
                 "_rest", "_share", "_size", "_state", "_waiting", "_writers")  # fmt: skip

    def __init__(self, fs: FileSystem, arguments: CompactArguments) -> None:
        self._fs = fs
        self._arguments = arguments
        self._origins = JobOrigins(arguments.origin)
        self._waiting = list(arguments.outputs)
        self._writers: list[SegmentWriter] = []
        self._rest: SegmentWriter | None = None
        self._share: PartitionToClean | None = None
        self._in_rest = False

    def start_output(self, share: PartitionToClean, kept: list[Aborted]) -> None:
        """Begin the next partition, from its first source on. `kept` is filled with the aborted
        transactions that readers of the output must know."""
        if not self._writers:
            self._open_next()
        self._share, self._kept, self._noted = share, kept, 0
        self._first = len(self._writers) - 1
        self._begin_part(share.sources[0].base_offset)

    def _open(self, output: SegmentOutput) -> SegmentWriter:
        arguments = self._arguments
        made_by = arguments.node_id, arguments.created_ms, self._origins
        return SegmentWriter(self._fs, output, *made_by)

    def _open_next(self) -> None:
        self._writers.append(self._open(self._waiting.pop(0)))
        self._size = 0

    def _begin_part(self, base_offset: int) -> None:
        share = self._share
        assert share is not None, "no partition was begun"
        # Filled when the part ends: each part has the transactions that end in it.
        self._state = replace(share.state, aborted=[])
        _begin(self._writers[-1], share, base_offset, self._state)

    def _end_part(self, end_offset: int) -> None:
        # The state is written when the segment is finished, so it may still be filled.
        self._state.aborted = self._kept[self._noted :]
        self._noted = len(self._kept)
        self._writers[-1].end_partition(end_offset)

    def write(self, parts: list[memoryview]) -> None:
        if self._waiting and self._size >= self._arguments.segment_bytes:
            end = self._writers[-1].next_offset
            self._end_part(end)
            self._open_next()
            self._begin_part(end)
        self._writers[-1].write(parts)
        self._size += sum(map(len, parts))

    def begin_rest(self, share: PartitionToClean, base_offset: int, aborted: list[Aborted]) -> None:
        if self._rest is None:
            self._rest = self._open(self._arguments.rest)
        _begin(self._rest, share, base_offset, replace(share.state, aborted=aborted))
        self._in_rest = True

    def write_rest(self, part: memoryview) -> None:
        """Write whole batches, as they were in the source."""
        assert self._rest is not None, "no rest was begun"
        self._rest.write([part])

    def end_output(self, clean_end: int, touched_end: int) -> None:
        """End the partition: cleaned below `clean_end`, then its rest."""
        self._end_part(clean_end)
        if self._in_rest:
            assert self._rest is not None
            self._rest.end_partition(touched_end)
        self._share, self._in_rest = None, False

    def abandon(self) -> None:
        if self._share is None:
            return
        # It has begun in an earlier output, which it has alone.
        if self._first < len(self._writers) - 1:
            assert self._first == 0, "only a single share is in more than one output"
            self._discard(self._writers)
        else:
            self._writers[-1].abandon()
        if self._in_rest:
            assert self._rest is not None
            self._rest.abandon()
        self._share, self._in_rest = None, False

    @staticmethod
    def _discard(writers: list[SegmentWriter]) -> None:
        for writer in writers:
            writer.discard()
        writers.clear()

    def discard(self) -> None:
        self._discard(self._writers)
        if self._rest is not None:
            self._rest.discard()

    def finish(self) -> tuple[list[Made], Made]:
        """Make everything durable; return the contents of each output, size 0 where there is no
        file."""
        arguments = self._arguments
        made = [writer.finish() for writer in self._writers]
        made += [_nothing(output) for output in arguments.outputs[len(made) :]]
        rest = _nothing(arguments.rest) if self._rest is None else self._rest.finish()
        return made, rest


def _begin(
    writer: SegmentWriter, share: PartitionToClean, base: int, state: PartitionState
) -> None:
    writer.start_partition(share.number, (share.topic_id, share.topic, share.index), base, state)


def _nothing(output: SegmentOutput) -> Made:
    return Made(output.path, output.uuid, 0, [])
