"""The job `scrub`: check every byte of a segment.

Header, trailer, section table and each section have checksums; each block of batches has one in the
index, and each batch one of its own. In addition everything that is stored twice is compared:
counts, offsets, timestamps, order. No byte is left out, so a single flipped bit is always found.
Memory: the directory, the index of the current partition, and a piece of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from kafkawire.codec.batches import CRC_FROM, HEAD_BYTES, PREFIX_BYTES
from kafkawire.codec.damage import bad_batches
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import KEYS, STATE, PartitionEntry, SparseIndex
from kafkawire.codec.segment.keys import PartitionKeys, check_keys
from kafkawire.crc32c import crc32c
from kafkawire.log.io.mapped_file import PIECE_BYTES
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import DamagedRange, Pace, ScrubArguments, ScrubResult
from kafkawire.log.segments.file.open import SegmentFile

MAX_PROBLEMS = 1000
"""Most sentences for one segment. With more problems it is lost or restored as a whole."""

_BATCH = Struct(">qi4xbI2xi8xq14xi")
"""Base offset, length, magic, CRC, last delta, max timestamp, count."""


class _Enough(Exception):
    """The limit of problems is reached."""


class _Problems(list[str]):
    """Collects at most MAX_PROBLEMS sentences; `damaged` has the batches, which come last."""

    def __init__(self) -> None:
        self.damaged: list[DamagedRange] = []

    def add_text(self, text: object) -> None:
        self.append(str(text))
        self._check_room()

    def add_damage(self, found: DamagedRange) -> None:
        """Add a damaged batch; adjacent ones become one range."""
        last = self.damaged[-1] if self.damaged else None
        # Adjacent batches are one sentence for the operator.
        if last is not None and last.number == found.number and last.stop == found.start:
            last.end, last.stop = max(last.end, found.end), found.stop
            return
        self.damaged.append(found)
        self._check_room()

    def _check_room(self) -> None:
        if len(self) + len(self.damaged) >= MAX_PROBLEMS:
            raise _Enough


def run(fs: FileSystem, arguments: ScrubArguments, pace: Pace) -> ScrubResult:
    """Run the job. OSError only if the file cannot be opened."""
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
    sentences = [*problems, *(f"{arguments.path}: {each.text}" for each in problems.damaged)]
    return ScrubResult(file.trailer.file_size, sentences, problems.damaged)


def _scrub(file: SegmentFile, pace: Pace, problems: _Problems) -> None:
    known = {entry.number for entry in file.directory}
    try:
        strangers = sorted(file.states(pace).keys() - known)
        if strangers:
            problems.add_text(
                f"{file.path}: its state has partition {strangers[0]}, its directory not"
            )
    except (FormatError, OSError) as failure:
        problems.add_text(failure)
    for section in file.trailer.sections:
        if section.kind != STATE:  # the directory was read; those unknown are checked as well
            try:
                body = file.read_section(section, pace)
                if section.kind == KEYS and section.known:
                    _check_keys(file, check_keys(body), problems)
            # The other sections and partitions are checked all the same.
            except (FormatError, OSError) as failure:
                problems.add_text(failure)
    for entry in file.directory:
        _Scrubbed(file, entry, problems).run(pace)


def _check_keys(
    file: SegmentFile, indexed: Mapping[int, PartitionKeys], problems: _Problems
) -> None:
    entries = {entry.number: entry for entry in file.directory}
    for number, keys in indexed.items():
        entry = entries.get(number)
        if entry is None:
            problems.add_text(
                f"{file.path}: its key index has partition {number}, its directory not"
            )
        elif keys.positions and (
            keys.positions[0] or keys.positions[-1] >= entry.length or keys.keys > entry.records
        ):
            problems.add_text(f"{file.path}: its key index does not fit partition {number}")


class _Scrubbed:
    """The scrub of one partition."""

    __slots__ = ("_entry", "_file", "_problems", "batches", "following", "newest", "records")

    def __init__(self, file: SegmentFile, entry: PartitionEntry, problems: _Problems) -> None:
        self._file = file
        self._entry = entry
        self._problems = problems
        self.batches = self.records = 0
        # Below every offset: the first batch may begin below the base offset.
        self.following = -1 << 63
        self.newest = -1

    def add_text(self, text: str) -> None:
        entry = self._entry
        self._problems.add_text(
            f"{self._file.path}: of {entry.topic}-{entry.index} (partition {entry.number}), {text}"
        )

    def run(self, pace: Pace) -> None:
        entry, file = self._entry, self._file
        try:
            index = file.index(entry, pace)
        except (FormatError, OSError) as failure:
            self._problems.add_text(failure)
            return
        stop = entry.start + entry.length
        for position, length in index.runs(entry.start, stop, PIECE_BYTES):
            # Through the mapping what the disk cannot read would end the process.
            bad = file.read_ahead(position, position + length, pace)
            for at, end in bad:
                self.add_text(f"the disk cannot read bytes {at}-{end - 1}")
            self._blocks(index, position, length, bad)
        self._compare()

    def _blocks(
        self, index: SparseIndex, position: int, length: int, unread: list[tuple[int, int]]
    ) -> None:
        """Check a run of whole blocks; `unread`: the bytes that the disk cannot read."""
        at = index.find(position)
        view = self._file.view
        while at < len(index):
            start, size, first, newest, checksum = index.block(at)
            if start >= position + length:
                break
            end = index.block(at + 1)[2] if at + 1 < len(index) else self._entry.end_offset
            at += 1
            if any(one < start + size and start < other for one, other in unread):
                self._damage(start, start + size, first, end)
                continue
            data = view[start : start + size]
            # The block is bad: find out which of its batches are.
            if crc32c(data) != checksum:
                for bad in bad_batches(data, first, end):
                    self._damage(start + bad.start, start + bad.stop, bad.first, bad.end)
            # The block is what was written, but that is no sequence of batches: a fault of the
            # writer.
            elif not self._batches(data, start, first):
                self._damage(start, start + size, first, end)
            # Readers by time trust the index.
            elif self.newest != newest:
                self.add_text(f"the index has another timestamp for the block at {start}")

    def _damage(self, start: int, stop: int, first: int, end: int) -> None:
        """Note bytes that are not what was written; the next block can be read."""
        entry = self._entry
        found = DamagedRange(entry.number, entry.topic, entry.index, first, end, start, stop)
        self._problems.add_damage(found)
        # The offsets of what was lost are not known.
        self.following = -1 << 63

    def _batches(self, data: memoryview, start: int, first: int) -> bool:
        """Check that the batches of one block are intact and in order. Hot."""
        head, checksum = _BATCH.unpack_from, crc32c
        at, size = 0, len(data)
        following, newest = self.following, self.newest
        while at < size:
            if size - at < HEAD_BYTES:
                return False
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
                return False
            following = base + delta + 1
            # An emptied batch names the time of a record that is gone.
            if stamp > newest and count:
                newest = stamp
            self.batches += 1
            self.records += count
            at = stop
        self.following, self.newest = following, newest
        return True

    def _compare(self) -> None:
        entry = self._entry
        if self.following > entry.end_offset:
            self.add_text(f"batches reach to {self.following}, the entry to {entry.end_offset}")
        found = self.batches, self.records, self.newest
        said = entry.batches, entry.records, entry.max_timestamp
        # Damaged batches were not counted: totals are compared only without damage.
        if found != said and not (self._problems or self._problems.damaged):
            self.add_text(
                f"batches, records and newest timestamp are {found}, its entry says {said}"
            )
