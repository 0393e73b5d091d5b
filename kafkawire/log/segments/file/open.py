"""Segment files as the broker and jobs open them.

Jobs and tools read them through kafkawire.log.io.mapped_file.
"""

from __future__ import annotations

import logging
import os.path
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment.format import (
    DIRECTORY,
    HEADER_BYTES,
    LOST,
    STATE,
    STORED,
    TAIL_BYTES,
    LostRange,
    PartitionEntry,
    PartitionState,
    Section,
    SparseIndex,
    Trailer,
    check_directory,
    read_directory,
    read_header,
    read_lost,
    read_state,
    read_stored,
    read_trailer,
    section_body,
)
from kafkawire.codec.segment.layout import SECTION_NAMES
from kafkawire.codec.segment.stored import Step
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c
from kafkawire.log.io.mapped_file import PIECE_BYTES, MappedFile
from kafkawire.log.io.ports import File, FileSystem
from kafkawire.log.io.worker_jobs import Pace, no_pace
from kafkawire.offsets.catalog.port import SegmentRow

logger = logging.getLogger(__name__)

T = TypeVar("T")

SUFFIX = ".segment"


LostRanges: TypeAlias = dict[int, list[LostRange]]
"""Lost ranges by partition number."""
StoreTimes: TypeAlias = dict[int, list[Step]]
"""Steps of store times by partition number."""


class OtherSegment(FormatError):
    """An intact file, but of another segment than expected."""


def segment_path(folder: str, uuid: bytes) -> str:
    return os.path.join(folder, uuid.hex() + SUFFIX)


def check_file(fs: FileSystem, path: str, row: SegmentRow) -> File:
    """Open a segment for reading with the mappings of SQL.

    Refused with CORRUPT_MESSAGE: another length than in the row, another segment, a newer format.

    Reads all sections (about a hundredth of the file), so it may block. OSError from the disk.
    """
    file = fs.open(path)
    name = f"segment {row.uuid.hex()}"
    try:
        size = file.size()
        # The row's size was stored in the transaction that made it LIVE.
        if size != row.size_bytes:
            raise OtherSegment(f"it has {size} bytes, its row says {row.size_bytes}")
        # Only logged: the mappings of SQL have all that a reader needs, and indexes and batches are
        # checked when they are read. One bad byte in a shared segment must not make the other
        # partitions unreadable.
        for damage in _damage(file, row.uuid):
            logger.critical("%s: %s. The undamaged parts of it are served", name, damage)
    # With these the positions of the mappings may mean something else.
    except (OtherSegment, NewerFormatError) as failure:
        file.close()
        text = f"{name} cannot be read: {failure}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text) from failure
    except BaseException:
        file.close()
        raise
    return file


def _damage(file: File, uuid: bytes) -> Iterator[FormatError]:
    try:
        trailer = _read_ends(file, uuid)
    # Refused by the caller, not damage.
    except (OtherSegment, NewerFormatError):
        raise
    except FormatError as failure:
        yield failure
        return
    for section in trailer.sections:
        try:
            _check_section(file, section)
        except FormatError as failure:
            yield failure


def _read_ends(file: File, uuid: bytes) -> Trailer:
    """Read header and trailer; `uuid` empty: of any segment. FormatError."""
    size = file.size()
    header = read_header(file.pread(HEADER_BYTES, 0))
    # Trailer and section table in one read.
    at = max(0, size - TAIL_BYTES)
    trailer = read_trailer(file.pread(size - at, at), size)
    if trailer.uuid != header.uuid:
        raise OtherSegment("its header and its trailer are of two segments")
    if uuid and uuid != header.uuid:
        raise OtherSegment(f"it is the segment {header.uuid.hex()}")
    return trailer


def refuse_newer(fs: FileSystem, path: str) -> None:
    """Raise NewerFormatError, with the path, if a newer program wrote a segment. Raises OSError,
    FormatError."""
    file = fs.open(path)
    try:
        _read_ends(file, b"")
    except NewerFormatError as failure:
        raise NewerFormatError(f"{path} cannot be read: {failure}") from None
    finally:
        file.close()


def read_lost_ranges(fs: FileSystem, path: str) -> LostRanges:
    """Return the lost ranges of the partitions of a segment; none if they cannot be read: readers
    then treat gaps as those of compaction."""
    return _read_optional(fs, path, LOST, read_lost)


def read_store_times(fs: FileSystem, path: str) -> StoreTimes:
    """Return the store times of the partitions of a segment; none if they cannot be read."""
    return _read_optional(fs, path, STORED, read_stored)


def _read_optional(
    fs: FileSystem, path: str, kind: int, decode: Callable[[Buffer], dict[int, list[T]]]
) -> dict[int, list[T]]:
    try:
        file = fs.open(path)
    except OSError:
        return {}
    try:
        section = _read_ends(file, b"").optional(kind)
        if section is None:
            return {}
        data = file.pread(section.stop - section.start, section.start)
        return decode(section_body(section, data))
    except (FormatError, OSError) as failure:
        name = SECTION_NAMES[kind]
        logger.warning("%s: cannot read its section %s: %s", path, name, failure)
        return {}
    finally:
        file.close()


def read_aborted(file: File) -> dict[int, list[Aborted]]:
    """The aborted transactions of each partition that has some in a segment. May block.
    FormatError if its state cannot be read, OSError from the disk."""
    section = _read_ends(file, b"").optional(STATE)
    if section is None:
        return {}
    data = file.pread(section.stop - section.start, section.start)
    states = read_state(section_body(section, data))
    return {number: state.aborted for number, state in states.items() if state.aborted}


def read_aborted_of(fs: FileSystem, path: str) -> dict[int, list[Aborted]]:
    """As `read_aborted`, of the segment at a path."""
    file = fs.open(path)
    try:
        return read_aborted(file)
    finally:
        file.close()


def _check_section(file: File, section: Section) -> None:
    checksum = 0
    for at in range(section.start, section.stop, PIECE_BYTES):
        checksum = crc32c(file.pread(min(PIECE_BYTES, section.stop - at), at), checksum)
    if checksum != section.checksum:
        raise FormatError(f"its {section.name} is damaged")


class DamagedBlock(FormatError):
    """A block of batches is not what was written: its position, and the offsets in it."""

    def __init__(self, entry: PartitionEntry, index: SparseIndex, position: int) -> None:
        at = index.find(position)
        length, first = index.block(at)[1:3]
        after = index.block(at + 1)[2] if at + 1 < len(index) else entry.end_offset
        super().__init__(
            f"of {entry.topic}-{entry.index} (partition {entry.number}), the offsets "
            f"{first}-{after - 1} are damaged: bytes {position}-{position + length - 1}"
        )
        self.position = position
        self.offset = first


class SegmentFile:
    """A segment opened by a job or a tool. FormatError, with the path in it, if it is none.

    `directory`: its entries, checked against the trailer. Batches and indexes are not checked.
    """

    __slots__ = ("_mapped", "directory", "path", "trailer", "view")

    def __init__(self, fs: FileSystem, path: str, uuid: bytes = b"", pace: Pace = no_pace) -> None:
        self.path = path
        # Checked with plain reads first: reading a mapping beyond the end of a file that is cut
        # short ends the process.
        file = fs.open(path)
        try:
            self.trailer = _read_ends(file, uuid)
        except FormatError as failure:
            raise self.wrong(failure) from failure
        finally:
            file.close()
        # From here on through the mapping, whose pages are read ahead.
        self._mapped = MappedFile(fs, path)
        self.view = self._mapped.view
        try:
            self.directory = read_directory(self.body(DIRECTORY, pace))
            check_directory(self.directory, self.trailer)
        except FormatError as failure:
            self.close()
            raise self.wrong(failure) from failure

    def wrong(self, failure: FormatError) -> FormatError:
        """Return the failure with the file's name."""
        kind = NewerFormatError if isinstance(failure, NewerFormatError) else FormatError
        return kind(f"{self.path} cannot be read: {failure}")

    def body(self, kind: int, pace: Pace = no_pace) -> memoryview:
        """Return the body of the section of this type, checked. FormatError without the path."""
        section = self.trailer.section(kind)
        return section_body(section, self._mapped.need(section.start, section.stop, pace))

    def read_section(self, section: Section, pace: Pace = no_pace) -> memoryview:
        """Return the body of a section, checked. FormatError with the path."""
        try:
            return section_body(section, self._mapped.need(section.start, section.stop, pace))
        except FormatError as failure:
            raise self.wrong(failure) from failure

    def states(self, pace: Pace = no_pace) -> dict[int, PartitionState]:
        """Return the state of each partition, with its lost ranges."""
        try:
            states = read_state(self.body(STATE, pace))
        except FormatError as failure:
            raise self.wrong(failure) from failure
        for number, ranges in self.read_lost_ranges(pace).items():
            states.setdefault(number, PartitionState()).lost = ranges
        for number, steps in self.read_store_times(pace).items():
            states.setdefault(number, PartitionState()).stored = steps
        return states

    def read_store_times(self, pace: Pace = no_pace) -> StoreTimes:
        if self.trailer.optional(STORED) is None:
            return {}
        try:
            return read_stored(self.body(STORED, pace))
        except FormatError as failure:
            raise self.wrong(failure) from failure

    def read_lost_ranges(self, pace: Pace = no_pace) -> LostRanges:
        if self.trailer.optional(LOST) is None:
            return {}
        try:
            return read_lost(self.body(LOST, pace))
        except FormatError as failure:
            raise self.wrong(failure) from failure

    def index(self, entry: PartitionEntry, pace: Pace = no_pace) -> SparseIndex:
        """Return the sparse index of an entry, checked."""
        stop = entry.index_start + entry.index_length
        body = self._mapped.need(entry.index_start, stop, pace)
        try:
            return SparseIndex(
                body, entry.start, entry.length, entry.base_offset, entry.index_checksum
            )
        except FormatError as failure:
            raise FormatError(f"{self.path}: of partition {entry.number}, {failure}") from failure

    def read_ahead(self, start: int, stop: int, pace: Pace) -> list[tuple[int, int]]:
        """Read the bytes [start, stop) into the page cache; return the ranges that cannot be
        read."""
        return self._mapped.read_ahead(start, stop, pace)

    def need(self, start: int, stop: int, pace: Pace) -> memoryview:
        """Return the bytes [start, stop), read ahead."""
        return self._mapped.need(start, stop, pace)

    def sound(
        self, entry: PartitionEntry, index: SparseIndex, start: int, stop: int, pace: Pace
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield (position, batches) of the bytes [start, stop) of an entry, which begin and end
        with whole batches: about PIECE_BYTES at a time, read ahead and compared with the index's
        checksums.

        Raises DamagedBlock for bytes that are not what was written, OSError from the disk.
        """
        for position, length in index.runs(start, stop, PIECE_BYTES):
            # Read ahead with errors reported; a page that the disk cannot read would end the
            # process.
            data = self.need(position, position + length, pace)
            bad = index.find_damaged_block(position, data)
            if bad is not None:
                raise DamagedBlock(entry, index, bad)
            # Blocks are checked whole, and given without the part before and after.
            first, last = max(start, position), min(stop, position + length)
            yield first, data[first - position : last - position]

    def close(self) -> None:
        self._mapped.close()


def read_entries(fs: FileSystem, path: str) -> list[PartitionEntry]:
    """Return the partitions in a finished segment file; none for a file that is missing or
    unfinished. Raises OSError from the disk; runs in a thread."""
    try:
        file = SegmentFile(fs, path)
    except (FileNotFoundError, FormatError):
        return []
    try:
        return list(file.directory)
    finally:
        file.close()
