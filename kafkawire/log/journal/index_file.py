"""The index file next to a rolled journal: its rows of every partition's hot index, in columns.

    0  magic 8s "KWINDEX\0"     8  format version u32    12  checksum u32 (everything from 16)
    16 journal number u64      24  end position u64     32  greatest run u64
    40 greatest committed log position claimed u64      48  rows u32   52  partitions u32
    56 frames u32              60  bytes of the section transactions u32
    64 directory, sorted by number: (partition number u64, first row u32, rows u32) * partitions
    .. base offset u64 * rows | log position u64 * rows | newest timestamp i64 * rows
    .. length u32 * rows      | offset count u32 * rows
    .. transactions: aborted u32, open u32, then (partition number u64, producer id i64, first
       offset i64, offset of the marker i64) of each aborted one whose marker is in the journal,
       then (partition number u64, producer id i64, first offset i64) of each that is open at its
       end and was not committed since

The rows of partition 0, which does not exist, are store times instead: log position and, as base
offset, the time at which frames from it on were written, in ms since 1970. Only version 3 has them.

Integers are little-endian, so that columns are used in place, without copying. Recovery reads the
file instead of scanning its journal up to `end`; readers bisect it when the rows are no longer in
memory. It can be rebuilt from the journal at any time.

Format version 1 has no transactions, nor has version 2 where their bytes are 2^32-1: the file was
made from the journal alone, and recovery scans that. Where the partitions of a journal have no
transactions version 1 is written.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Literal

from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import DamagedOffsets, ErrorCode, KafkaError
from kafkawire.codec.segment.stored import Step
from kafkawire.crc32c import crc32c
from kafkawire.log.io.atomic_file import write_whole_file
from kafkawire.log.io.ports import Env, FileSystem, WorkerError
from kafkawire.log.io.worker_jobs import JournalFile
from kafkawire.log.journal.directory import Journals
from kafkawire.log.journal.file import index_name
from kafkawire.log.journal.format import JournalFormatError
from kafkawire.log.journal.index_columns import MAX_RUNS, IndexColumns
from kafkawire.log_lines import reason_of

logger = logging.getLogger(__name__)


# The section transactions of a journal's index file.


_COUNTS = Struct("<II")
_ABORTED = Struct("<Qqqq")
_OPENED = Struct("<Qqq")


@dataclass(frozen=True, slots=True)
class JournalTransactions:
    """Transactions of the partitions of a journal, by partition number: `aborted`, whose markers
    are in it, and `opened`, by producer ID the first offset of those that were open at its end."""

    aborted: dict[int, list[Aborted]] = field(default_factory=dict)
    opened: dict[int, dict[int, int]] = field(default_factory=dict)


def pack_transactions(transactions: JournalTransactions) -> bytes:
    aborted = [(key, *entry) for key, found in transactions.aborted.items() for entry in found]
    opened = [(key, *entry) for key, some in transactions.opened.items() for entry in some.items()]
    parts = [_COUNTS.pack(len(aborted), len(opened))]
    parts += [_ABORTED.pack(*entry) for entry in aborted]
    parts += [_OPENED.pack(*entry) for entry in opened]
    return b"".join(parts)


def read_transactions(section: memoryview) -> JournalTransactions:
    """Decode a section that was checked; JournalFormatError if its counts do not fit."""
    found = JournalTransactions()
    ended, begun = _COUNTS.unpack_from(section) if len(section) >= _COUNTS.size else (0, 0)
    middle = _COUNTS.size + ended * _ABORTED.size
    if middle + begun * _OPENED.size != len(section):
        raise JournalFormatError("damaged index file")
    for key, *entry in _ABORTED.iter_unpack(section[_COUNTS.size : middle]):
        producer_id, first, last = entry
        found.aborted.setdefault(key, []).append(Aborted(producer_id, first, last))
    for key, producer_id, first in _OPENED.iter_unpack(section[middle:]):
        found.opened.setdefault(key, {})[producer_id] = first
    return found


VERSION = 3
MAGIC = b"KWINDEX\0"
STORE_TIMES = 0
"""The number of the rows with store times; partitions have numbers from 1 on."""
HEADER_BYTES = 64
_HEADER = Struct("<8sIIQQQQIIII")
_ENTRY = Struct("<QII")
_COLUMNS: tuple[tuple[Literal["q", "I"], int], ...] = (
    ("q", 8),  # base offset
    ("q", 8),  # log position
    ("q", 8),  # newest timestamp
    ("I", 4),  # length
    ("I", 4),  # offset count
)

_UNKNOWN = (1 << 32) - 1

CACHED_INDEXES = 4
"""Index files kept open for lookups: consumers of old data read forward, each within one journal at
a time, and the largest file maps 16 MB."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the rows of an index reach, and what the scan that built it found."""

    end: int
    run: int
    claimed: int
    frames: int


def pack_index(
    number: int,
    extent: Extent,
    rows: Mapping[int, IndexColumns],
    transactions: JournalTransactions | None = None,
    stored: Sequence[Step] = (),
    *,
    complete: bool = True,
) -> bytes:
    """The bytes of an index file. `transactions` None: its partitions have none. Not `complete`:
    there are some, which are not known. `stored`: positions and times of Journal.stored."""
    if stored:
        rows = {**rows, STORE_TIMES: _time_rows(stored)}
    directory = bytearray()
    columns: list[array[int]] = [array(code) for code, _ in _COLUMNS]
    for partition in sorted(rows):
        part = rows[partition]
        directory += _ENTRY.pack(partition, len(columns[0]), len(part))
        for column, more in zip(
            columns,
            (part.base, part.log_position, part.newest, part.length, part.count),
            strict=True,
        ):
            column.extend(more)
    if sys.byteorder == "big":
        for column in columns:
            column.byteswap()
    total = len(columns[0])
    body = directory + b"".join(column.tobytes() for column in columns)
    section = b"" if transactions is None else pack_transactions(transactions)
    body += section
    front = _HEADER.pack(
        MAGIC,
        # An older version where there is nothing that an older program could not read.
        VERSION if stored else 2 if section or not complete else 1,
        0,
        number,
        extent.end,
        extent.run,
        extent.claimed,
        total,
        len(rows),
        extent.frames,
        # A journal scanned alone does not show where its transactions began.
        len(section) if complete else _UNKNOWN,
    )
    # Magic and version are outside of the checksum.
    checksum = crc32c(body, crc32c(front[16:]))
    return front[:12] + checksum.to_bytes(4, "little") + front[16:] + body


def _time_rows(stored: Sequence[Step]) -> IndexColumns:
    positions, times = zip(*stored, strict=True)
    zeros = array("I", bytes(4 * len(stored)))
    return IndexColumns(array("q", times), array("q", positions), zeros, zeros, array("q", times))


class JournalIndex:
    """An index file, used in place in memory; raises JournalFormatError if it is not one.

    `transactions`: None in version 1. `complete`: False if transactions are left out. `stored`: as
    Journal.stored, empty before version 3.
    """

    __slots__ = (
        "_columns", "_firsts", "_numbers", "_sizes", "complete", "extent", "number", "stored",
        "transactions",
    )  # fmt: skip

    def __init__(self, data: memoryview, number: int) -> None:
        if len(data) < HEADER_BYTES or data[:8] != MAGIC:
            raise JournalFormatError("no index file")
        _, version, checksum, found, end, run, claimed, rows, partitions, frames, more = (
            _HEADER.unpack_from(data)
        )
        # Before the checksum, which does not cover the version.
        if not 1 <= version <= VERSION:
            raise JournalFormatError(f"index format {version} is not 1 to {VERSION}")
        more = more if version >= 2 else 0
        self.complete = more != _UNKNOWN
        columns_end = HEADER_BYTES + partitions * _ENTRY.size + rows * sum(w for _, w in _COLUMNS)
        size = columns_end + (more if self.complete else 0)
        if found != number or size > len(data) or crc32c(data[16:size]) != checksum:
            raise JournalFormatError("damaged index file")
        self.number = number
        self.extent = Extent(end, run, claimed, frames)
        self.transactions: JournalTransactions | None = None
        if size > columns_end:
            self.transactions = read_transactions(data[columns_end:size])
        at = HEADER_BYTES + partitions * _ENTRY.size
        directory = data[HEADER_BYTES:at]
        self._numbers: Sequence[int]
        self._firsts: Sequence[int]
        self._sizes: Sequence[int]
        if sys.byteorder == "big":
            entries = list(_ENTRY.iter_unpack(directory))
            self._numbers, self._firsts, self._sizes = (
                [entry[field] for entry in entries] for field in range(3)
            )
        else:  # used in place: a start opens every index
            self._numbers = directory.cast("Q")[::2]
            self._firsts = directory.cast("I")[2::4]
            self._sizes = directory.cast("I")[3::4]
        self._columns: list[memoryview | array[int]] = []
        for code, width in _COLUMNS:
            part = data[at : at + rows * width]
            at += rows * width
            if sys.byteorder == "big":
                column: array[int] = array(code)
                column.frombytes(part)
                column.byteswap()
                self._columns.append(column)
            else:
                self._columns.append(part.cast(code))
        self.stored: list[Step] = []
        if len(self._numbers) and self._numbers[0] == STORE_TIMES:
            times = self.rows(STORE_TIMES)
            self.stored = list(zip(times.log_position, times.base, strict=True))
            self._numbers, self._firsts = self._numbers[1:], self._firsts[1:]
            self._sizes = self._sizes[1:]

    def numbers(self) -> list[int]:
        return list(self._numbers)

    def __contains__(self, partition: int) -> bool:
        start, stop = self._range(partition)
        return stop > start

    def singles(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield (partition, base offset, log position, newest timestamp, length, offset count) of
        each partition with one row here; the others are in `multiples`."""
        base, log_position, newest, length, count = self._columns
        for number, first, size in zip(self._numbers, self._firsts, self._sizes, strict=True):
            if size == 1:
                yield (
                    number,
                    base[first],
                    log_position[first],
                    newest[first],
                    length[first],
                    count[first],
                )

    def multiples(self) -> list[int]:
        """Return the partitions with more than one row."""
        return [n for n, size in zip(self._numbers, self._sizes, strict=True) if size > 1]

    def rows(self, partition: int) -> IndexColumns:
        """Return a copy of one partition's rows."""
        # Copies: a view would keep the mapping of the file alive.
        start, stop = self._range(partition)
        parts = [
            array(code, column[start:stop].tobytes())
            for (code, _), column in zip(_COLUMNS, self._columns, strict=True)
        ]
        base, log_position, newest, length, count = parts
        return IndexColumns(base, log_position, length, count, newest)

    def runs(
        self, partition: int, offset: int, end: int, max_bytes: int, first: bool
    ) -> list[tuple[int, int]]:
        """Return (log position, length) of the rows from `offset` on, as Partition.plan does."""
        start, stop = self._range(partition)
        base, log_position, _, length, count = self._columns
        # The last row that begins at or below the offset; the offset is damaged if that row ends
        # before it, since recovery leaves out rows of damaged frames.
        row = bisect_right(base, offset, start, stop) - 1
        if row < start or offset >= base[row] + count[row]:
            following = base[row + 1] if start <= row + 1 < stop else offset + 1
            raise DamagedOffsets(following, f"damaged at offset {offset}")
        runs: list[tuple[int, int]] = []
        room = max_bytes
        # A bound for the event loop: each run costs time to send.
        stop = min(stop, row + MAX_RUNS)
        while row < stop and base[row] < end and (length[row] <= room or (first and not runs)):
            runs.append((log_position[row], length[row]))
            room -= length[row]
            row += 1
            # After a gap the next read begins, and gets the error.
            if row < stop and base[row] != base[row - 1] + count[row - 1]:
                break
        return runs

    def _range(self, partition: int) -> tuple[int, int]:
        at = bisect_left(self._numbers, partition)
        if at == len(self._numbers) or self._numbers[at] != partition:
            return 0, 0
        return self._firsts[at], self._firsts[at] + self._sizes[at]


def read_index(fs: FileSystem, folder: str, number: int) -> JournalIndex | None:
    """Read the index file of a journal; None if there is none or it is damaged. May block."""
    try:
        file = fs.open(os.path.join(folder, index_name(number)))
    except FileNotFoundError:
        return None
    try:
        return JournalIndex(file.map(file.size()), number)
    # Damage costs time, not data: the index is rebuilt from the journal.
    except JournalFormatError:
        return None
    finally:
        file.close()


def write_index(fs: FileSystem, folder: str, number: int, data: bytes) -> None:
    """Write an index file atomically and durably. May block."""
    write_whole_file(fs, os.path.join(folder, index_name(number)), data)


class IndexCache:
    """A cache of the index files that lookups used last."""

    __slots__ = ("_cached", "_env", "_journals", "_rebuilding")

    def __init__(self, env: Env, journals: Journals) -> None:
        self._env = env
        self._journals = journals
        self._cached: dict[int, JournalIndex] = {}
        self._rebuilding: dict[int, asyncio.Task[None]] = {}

    async def get(self, number: int) -> JournalIndex:
        """Return the index of a journal whose rows were evicted from memory; a damaged one is
        rebuilt. OSError if the journal cannot be read, KAFKA_STORAGE_ERROR for a WorkerError."""
        # Taken out and put in again: the dictionary is in order of use.
        index = self._cached.pop(number, None)
        if index is None:
            index = await self._read(number)
        if index is None:
            index = await self._rebuild(number)
        self._cached[number] = index
        while len(self._cached) > CACHED_INDEXES:
            del self._cached[next(iter(self._cached))]
        return index

    async def _read(self, number: int) -> JournalIndex | None:
        env = self._env
        # A caller that is cancelled must not cancel the thread's work for the others.
        return await asyncio.shield(
            env.offload.submit("read", read_index, env.fs, self._journals.folder, number)
        )

    async def _rebuild(self, number: int) -> JournalIndex:
        task = self._rebuilding.get(number)
        if task is None:
            task = self._env.spawn(self._run(number), f"index journal {number}")
            self._rebuilding[number] = task
            task.add_done_callback(lambda _: self._rebuilding.pop(number, None))
        await asyncio.shield(task)
        index = await self._read(number)
        if index is None:
            text = f"the index of journal {number} is damaged and was not made again"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)
        return index

    async def _run(self, number: int) -> None:
        journal = self._journals.by_number[number]
        logger.warning("the index of journal %d is damaged, rebuilding it", number)
        order = JournalFile(number, journal.path, journal.end)
        try:
            await self._env.worker.run("index", order, -1)
        except WorkerError as failure:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason_of(failure)) from failure

    def remove_journal(self, number: int) -> None:
        self._cached.pop(number, None)
