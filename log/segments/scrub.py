"""The job `scrub`: is every byte of a segment as it was written?

Header, trailer, section table and each section have checksums; each block of batches has one in
the index, and each batch one of its own. On top of that all that is said twice is compared:
counts, offsets, timestamps, order. No byte is left out, so a single flipped bit is always found.
Memory: the directory, the index of the partition at hand, and a piece of the file.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

from kafkawire.codec.batches import CRC_FROM, HEAD_BYTES, PREFIX_BYTES
from kafkawire.codec.segment import STATE, FormatError, PartitionEntry, SparseIndex
from log.env import FileSystem
from log.segments.files import PIECE_BYTES, SegmentFile
from log.segments.jobs import Pace, ScrubArguments, ScrubResult

PROBLEMS_AT_MOST = 100
"""More do not help: the segment is lost, or restored."""

_BATCH = Struct(">qi4xbI2xi8xq14xi")
"""Base offset, length, magic, CRC, last delta, max timestamp, count."""


class _Enough(Exception):
    """There are as many problems as anybody wants to read."""


class _Problems(list[str]):
    """Sentences, PROBLEMS_AT_MOST of them."""

    def note(self, text: object) -> None:
        """One more."""
        self.append(str(text))
        if len(self) >= PROBLEMS_AT_MOST:
            raise _Enough


def run(fs: FileSystem, arguments: ScrubArguments, pace: Pace) -> ScrubResult:
    """See the module. OSError only if the file cannot be opened."""
    problems = _Problems()
    try:
        file = SegmentFile(fs, arguments.path, arguments.uuid, pace)
    except FormatError as failure:
        return ScrubResult(0, [str(failure)])
    try:
        _scrub(file, pace, problems)
    except _Enough:
        pass
    finally:
        file.close()
    return ScrubResult(file.trailer.file_size, list(problems))


def _scrub(file: SegmentFile, pace: Pace, problems: _Problems) -> None:
    known = {entry.number for entry in file.directory}
    try:
        strangers = sorted(file.states(pace).keys() - known)
        if strangers:
            problems.note(f"{file.path}: its state has partition {strangers[0]}, its directory not")
    except (FormatError, OSError) as failure:
        problems.note(failure)
    for section in file.trailer.sections:
        if section.kind != STATE:  # the directory was read; those unknown are checked as well
            try:
                file.checked(section, pace)
            except (FormatError, OSError) as failure:
                problems.note(failure)
    for entry in file.directory:
        _Scrubbed(file, entry, problems).run(pace)


class _Scrubbed:
    """One partition on its way through a scrub."""

    __slots__ = ("_entry", "_file", "_problems", "batches", "following", "newest", "records")

    def __init__(self, file: SegmentFile, entry: PartitionEntry, problems: _Problems) -> None:
        self._file = file
        self._entry = entry
        self._problems = problems
        self.batches = self.records = 0
        self.following = -1 << 63
        self.newest = -1

    def note(self, text: str) -> None:
        """A problem of this partition."""
        entry = self._entry
        self._problems.note(
            f"{self._file.path}: of {entry.topic}-{entry.index} (partition {entry.number}), {text}"
        )

    def run(self, pace: Pace) -> None:
        """All batches, block by block."""
        entry, file = self._entry, self._file
        try:
            index = file.index(entry, pace)
        except (FormatError, OSError) as failure:
            self._problems.note(failure)
            return
        stop = entry.start + entry.length
        for position, length in index.runs(entry.start, stop, PIECE_BYTES):
            bad = file.read_ahead(position, position + length, pace)
            for at, end in bad:
                self.note(f"the disk cannot read bytes {at}-{end - 1}")
            if not bad:
                self._blocks(index, position, length)
            else:
                self.following = -1 << 63
        self._compare()

    def _blocks(self, index: SparseIndex, position: int, length: int) -> None:
        """A run of whole blocks."""
        at = index.find(position)
        view = self._file.view
        while at < len(index):
            start, size, first, newest, checksum = index.block(at)
            if start >= position + length:
                break
            data = view[start : start + size]
            sound = self._batches(data, start, first)
            if crc32c(data) != checksum and sound:
                self.note(
                    f"a batch head in bytes {start}-{start + size - 1} (from offset {first} on) "
                    "is damaged"
                )
            elif sound and self.newest != newest:
                self.note(f"the index has another timestamp for the block at {start}")
            at += 1

    def _batches(self, data: memoryview, start: int, first: int) -> bool:
        """The batches of one block; whether each is sound and in order. Hot."""
        head, checksum = _BATCH.unpack_from, crc32c
        at, size = 0, len(data)
        following, newest = self.following, self.newest
        while at < size:
            if size - at < HEAD_BYTES:
                return self._bad(start + at, following)
            base, length, magic, crc, delta, stamp, count = head(data, at)
            stop = at + length + PREFIX_BYTES
            if (
                length < HEAD_BYTES - PREFIX_BYTES
                or stop > size
                or magic != 2
                or base < following
                or delta < 0
                or (at == 0 and base != first)
                or checksum(data[at + CRC_FROM : stop]) != crc
            ):
                return self._bad(start + at, following if at else first)
            following = base + delta + 1
            if stamp > newest and count:
                newest = stamp
            self.batches += 1
            self.records += count
            at = stop
        self.following, self.newest = following, newest
        return True

    def _bad(self, position: int, offset: int) -> bool:
        """The rest of the block cannot be walked; the next one can."""
        self.note(f"the batch at {position}, offset {offset} or next after it, is damaged")
        self.following = -1 << 63
        return False

    def _compare(self) -> None:
        entry = self._entry
        if self.following > entry.end_offset:
            self.note(f"batches reach to {self.following}, the entry to {entry.end_offset}")
        found = self.batches, self.records, self.newest
        said = entry.batches, entry.records, entry.max_timestamp
        if found != said and not self._problems:
            self.note(f"batches, records and newest timestamp are {found}, its entry says {said}")
