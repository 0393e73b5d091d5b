"""The ledger: how far the journals must reach, stored separately so that a loss is detected.

Before a commit is acknowledged, the ledger durably names every journal it wrote to, and for every
partition a bound above all acknowledged offsets.

The ledger never claims more than was committed and may claim less: a second line of defence. Owned
by kafkawire.log.append.commit_log; kafkawire.log.recovery.recover reads it at the next start.
"""

from __future__ import annotations

import logging
import os.path
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from kafkawire.crc32c import crc32c
from kafkawire.log.io.atomic_file import read_whole_file
from kafkawire.log.io.ports import Buffer, Env, File, FileSystem
from kafkawire.log.journal.file import Journal
from kafkawire.log.journal.format import check_version

if TYPE_CHECKING:
    from kafkawire.log.journal.run_file import RunState

logger = logging.getLogger(__name__)


# The format of the ledger: what the journals must contain, stored outside of them.
#
# Two files, `ledger.0` and `ledger.1`, of which the one with the greater generation counts. Each is
#
#     0     slot       the committed log position, overwritten after each commit; two slots
#     512   slot       alternately, so that a torn write leaves the other one
#     1024  records    the first one is the whole state, each of the others a change of it; zeros as
#                      long as a record's head follow the last one
#
#     a slot (big-endian):
#     0  magic 4s "KWLS"  4  checksum u32 (of the rest)  8  generation u64  16  sequence u64
#     24 committed log position i64
#
#     a record:
#     0  magic 4s         4  checksum u32 (of the rest)  8  payload length u32   12  version u16
#     14 zero u16        16  generation u64             24  sequence u64, from 0 in each generation
#     32 committed log position i64
# 40 payload: four counts u32 (begun, retired, bounded, freed); for each begun journal its number
#        and end position i64, -1 while it is written to; the numbers i64 of retired journals; for
#        each bounded partition its number and bound i64; the numbers i64 of freed partitions
#
# A bound is an offset that no acknowledged record of the partition has reached. Partitions without
# one end where the checkpoint in SQL says. Format version 1.


VERSION = 1
NAMES = ("ledger.0", "ledger.1")
SLOT_BYTES = 512
"""One sector, which disks write atomically."""
RECORDS_AT = 2 * SLOT_BYTES
SLOT_MAGIC = b"KWLS"
RECORD_MAGIC = b"\xf5KL\x01"

_SLOT = Struct(">4sIQQq")
_RECORD = Struct(">4sIIHHQQq")
_COUNTS = Struct(">IIII")
RECORD_HEAD_BYTES = _RECORD.size
END = bytes(RECORD_HEAD_BYTES)
"""Marker after the last record: without it, a damaged record would look like the end."""


@dataclass(slots=True)
class Change:
    """One ledger record. `begun`: journal number -> end position, or -1; `bounds`: partition
    number -> bound; `freed`: partitions that end where SQL says."""

    begun: dict[int, int] = field(default_factory=dict)
    retired: list[int] = field(default_factory=list)
    bounds: dict[int, int] = field(default_factory=dict)
    freed: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.begun or self.retired or self.bounds or self.freed)


@dataclass(slots=True)
class LedgerContents:
    """Contents of a ledger: `committed`, a log position up to which everything was committed;
    `journals`, number -> end position or -1; `bounds` by partition number. `damaged`: some of its
    records cannot be read, so `journals` and `bounds` cannot be trusted."""

    generation: int
    committed: int = 0
    journals: dict[int, int] = field(default_factory=dict)
    bounds: dict[int, int] = field(default_factory=dict)
    damaged: bool = False

    def apply(self, change: Change) -> None:
        self.journals.update(change.begun)
        for number in change.retired:
            self.journals.pop(number, None)
        self.bounds.update(change.bounds)
        for number in change.freed:
            self.bounds.pop(number, None)


def pack_slot(generation: int, sequence: int, committed: int) -> bytes:
    """Pack a slot; it belongs at `sequence % 2 * SLOT_BYTES`."""
    slot = bytearray(_SLOT.pack(SLOT_MAGIC, 0, generation, sequence, committed))
    slot[4:8] = crc32c(slot[8:]).to_bytes(4, "big")
    return bytes(slot)


def pack_record(generation: int, sequence: int, committed: int, change: Change) -> bytes:
    counts = len(change.begun), len(change.retired), len(change.bounds), len(change.freed)
    values = [value for pair in change.begun.items() for value in pair]
    values += change.retired
    values += [value for pair in change.bounds.items() for value in pair]
    values += change.freed
    payload = _COUNTS.pack(*counts) + Struct(f">{len(values)}q").pack(*values)
    record = bytearray(
        _RECORD.pack(RECORD_MAGIC, 0, len(payload), VERSION, 0, generation, sequence, committed)
    )
    record += payload
    record[4:8] = crc32c(record[8:]).to_bytes(4, "big")
    return bytes(record)


def parse_ledger(data: bytes, name: str) -> LedgerContents | None:
    """Read one ledger file; None if it is not one. JournalFormatError if a newer version wrote
    it."""
    # The first record has the whole state (sequence 0): without it changes mean nothing.
    first = _record_at(data, RECORDS_AT, name)
    if first is None or first[1] != 0:
        return None
    generation, sequence, committed, change, at = first
    contents = LedgerContents(generation, committed)
    contents.apply(change)
    while (found := _next(data, at, generation, sequence, name)) is not None:
        _, later, committed, change, stop = found
        # A record between the two is damaged, and with it a journal or a bound.
        if later != sequence + 1:
            contents.damaged = True
        contents.committed = max(contents.committed, committed)
        contents.apply(change)
        sequence, at = later, stop
    # The last record is followed by zeros. Anything else is a damaged record; without this it would
    # look like a missing one, and the journal that it retired like a lost one.
    if data[at : at + len(END)].strip(b"\0"):
        contents.damaged = True
    # Two slots, since the write of one may be torn.
    for position in (0, SLOT_BYTES):
        contents.committed = max(contents.committed, _slot_at(data, position, generation))
    return contents


_Record = tuple[int, int, int, Change, int]
"""Generation, sequence, committed log position, content, and where the record ends."""


def _next(data: bytes, at: int, generation: int, sequence: int, name: str) -> _Record | None:
    """Return the next record of the same generation from `at` on, after damaged ones if
    necessary."""
    # After a damaged record the next one is found by its magic.
    for hit in re.compile(re.escape(RECORD_MAGIC)).finditer(data, at):
        found = _record_at(data, hit.start(), name)
        # An older generation is what this file had before it was written whole again.
        if found is not None and found[0] == generation and found[1] > sequence:
            return found
    return None


def _record_at(data: bytes, at: int, name: str) -> _Record | None:
    if at + RECORD_HEAD_BYTES > len(data):
        return None
    magic, checksum, length, version, _, generation, sequence, committed = _RECORD.unpack_from(
        data, at
    )
    stop = at + RECORD_HEAD_BYTES + length
    if magic != RECORD_MAGIC or stop > len(data) or crc32c(data[at + 8 : stop]) != checksum:
        return None
    # After the checksum: a damaged version must not look like a newer program.
    check_version(name, version, VERSION)
    change = _unpack(data[at + RECORD_HEAD_BYTES : stop])
    return None if change is None else (generation, sequence, committed, change, stop)


def _unpack(payload: Buffer) -> Change | None:
    if len(payload) < _COUNTS.size:
        return None
    begun, retired, bounds, freed = _COUNTS.unpack_from(payload, 0)
    count = 2 * begun + retired + 2 * bounds + freed
    # Counts are believed only if they fill the payload exactly.
    if len(payload) != _COUNTS.size + 8 * count:
        return None
    values = Struct(f">{count}q").unpack_from(payload, _COUNTS.size)
    ends = [2 * begun, 2 * begun + retired, count - freed]
    return Change(
        dict(_pairs(values[: ends[0]])),
        list(values[ends[0] : ends[1]]),
        dict(_pairs(values[ends[1] : ends[2]])),
        list(values[ends[2] :]),
    )


def _pairs(values: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(values[::2], values[1::2], strict=True))


def _slot_at(data: bytes, at: int, generation: int) -> int:
    if at + _SLOT.size > len(data):
        return 0
    magic, checksum, found, _, committed = _SLOT.unpack_from(data, at)
    sound = magic == SLOT_MAGIC and crc32c(data[at + 8 : at + _SLOT.size]) == checksum
    # A slot of another generation belongs to an earlier state of this file.
    return int(committed) if sound and found == generation else 0


MIN_RESERVE = 1024
"""Offsets by which a partition's bound is raised ahead: so many offsets may be skipped after the
loss of a whole journal. A busy partition's reserve grows with what it uses in a second."""
MAX_CHANGES_BYTES = 32 << 10
"""Changes that follow the whole state; after so many the state is written again, into the other
file."""
ALLOCATED_BYTES = 40 << 10
"""Space allocated at the start, so that a ledger of usual size can be written on a full disk."""
SLICE = 1000
"""Partitions checked between two iterations of the event loop: a fraction of a millisecond."""
TICK_MS = 1000
"""How often the committed log position is made durable while it moves."""
MAX_FILE_BYTES = 256 << 20
"""Largest ledger that is read: bounds of ten million partitions."""


class BoundedOffsets(Protocol):
    """The part of a partition that the ledger is about: `bound` is above all its acknowledged
    offsets, last raised by `reserve`."""

    bound: int
    reserve: int

    @property
    def number(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def dirty(self) -> bool: ...
    @property
    def removed(self) -> bool: ...


class LedgerWrite:
    """A write that must be durable before a commit is acknowledged."""

    __slots__ = ("data", "failure", "file", "position", "stale")

    def __init__(self, file: File, position: int, data: bytes, stale: File | None = None) -> None:
        self.file = file
        self.position = position
        self.data = data
        self.stale = stale
        self.failure: OSError | None = None

    def write(self) -> None:
        """Write and sync it; a failure is noted. Runs in the commit thread."""
        try:
            if self.file.pwritev([self.data], self.position) != len(self.data):
                raise OSError("short write")
            self.file.sync()
            # Only after the sync: until then it is the last intact one. A start must not use it if
            # the new one is damaged later.
            if self.stale is not None:
                self.stale.pwritev([bytes(RECORDS_AT)], RECORDS_AT)
        except OSError as failure:
            self.failure = failure


class Ledger:
    """The ledger of one log. Until `start` it does nothing."""

    def __init__(self, env: Env, home: str) -> None:
        self._env = env
        self._home = home
        self._files: list[File] = []
        self._state = LedgerContents(0)
        # Partitions with a bound in the ledger.
        self._active: dict[int, BoundedOffsets] = {}
        # Journals that the ledger has without an end.
        self._open: dict[int, Journal] = {}
        # Partitions that the last checkpoint has, and their next offsets then.
        self._settled: dict[int, int] = {}
        self._position = 0
        self._whole_bytes = 0
        self._sequence = 0
        self._marks = 0
        self._marked = False
        # An entry failed: the state in the file is not what it should be.
        self._broken = False
        # That entry was a whole state: the file with it may be broken.
        self._whole_failed = False

    def start(
        self, journals: Iterable[Journal], committed: int, start: int, before: LedgerContents | None
    ) -> None:
        """Write the whole state: everything is in the journals and in SQL. `start` is the number of
        this start, `before` the ledger that was read. Blocks. Raises OSError if the files cannot be
        created."""
        fs = self._env.fs
        self._files = [fs.open(os.path.join(self._home, name), create=True) for name in NAMES]
        for file in self._files:
            file.allocate(ALLOCATED_BYTES)
        fs.sync_dir(self._home)
        # A generation above all before it, in the other file: the old one counts until this one is
        # durable. The number of the start is in the upper half.
        generation = start << 32
        self._state = LedgerContents(generation + before.generation % 2 if before else generation)
        self._state.committed = committed
        for journal in journals:
            # A journal without a header is not missed if it is gone.
            if journal.end:
                self._state.journals[journal.number] = journal.end if journal.rolled else -1
                if not journal.rolled:
                    self._open[journal.number] = journal
        entry = self._whole()
        entry.write()
        self.note_written(entry)

    def entry(
        self, touched: Sequence[BoundedOffsets], journals: list[Journal]
    ) -> LedgerWrite | None:
        """Return the ledger entry that must be durable before a commit of these is acknowledged;
        None if there is none. Hot."""
        # Bounds are raised far ahead, so nearly all commits find nothing to do.
        beyond = [partition for partition in touched if partition.next_offset > partition.bound]
        # Named once, with the first commit that syncs it.
        new = [journal for journal in journals if journal.number not in self._state.journals]
        if not self._files or not (beyond or new):
            return None
        change = Change()
        for journal in new:
            # -1: being written, its end is not known yet.
            change.begun[journal.number] = journal.end if journal.rolled else -1
            if not journal.rolled:
                self._open[journal.number] = journal
        for partition in beyond:
            change.bounds[partition.number] = self._raise(partition)
        self._end_rolled(change)
        return self._append(change)

    def note_written(self, entry: LedgerWrite) -> None:
        """Note whether an entry was written; if not, the whole state is written at the next
        tick."""
        if entry.failure is not None:
            # Only a whole state has a stale file.
            self._whole_failed = self._whole_failed or entry.stale is not None
            self._fail(entry.failure)

    def mark(self, committed: int) -> None:
        """Note that everything before a log position is committed. Hot: one small write without a
        sync."""
        self._state.committed = committed
        if self._broken or not self._files:
            return
        # Two slots in turn: a torn write leaves the other one.
        self._marks += 1
        slot = pack_slot(self._state.generation, self._marks, committed)
        try:
            # Without a sync it survives a crash of the process; the sync of `tick` limits what a
            # crash of the machine undoes.
            self._file().pwritev([slot], self._marks % 2 * SLOT_BYTES)
            self._marked = True
        except OSError as failure:
            self._fail(failure)

    def note_checkpoint(self) -> None:
        """Note that a checkpoint is stored: partitions without writes since then need no bound."""
        self._settled = {
            # A partition that was written since is not settled: the checkpoint lacks its last
            # records.
            number: partition.next_offset
            for number, partition in self._active.items()
            if not partition.dirty
        }

    async def tick(self) -> None:
        """Make what is written durable, raise bounds in advance, remove those that are no longer
        needed."""
        if not self._files:
            return
        # A copy: commits add partitions while this waits.
        numbers = list(self._active)
        for start in range(0, len(numbers), SLICE):
            change = self._ahead(numbers[start : start + SLICE])
            if change:
                await self._write(self._append(change))
        self._settled.clear()
        change = Change()
        self._end_rolled(change)
        if change:
            await self._write(self._append(change))
        # A whole state when the changes become long, or one of them failed.
        if self._broken or self._position > self._whole_bytes + MAX_CHANGES_BYTES:
            broken = self._broken
            await self._write(self._whole())
            if broken and not self._broken:
                logger.warning("the ledger in %s can be written again", self._home)
        elif self._marked:
            self._marked = False
            await self._env.offload.submit("files", self._file().sync)

    async def retire(self, numbers: list[int]) -> bool:
        """Remove journals durably; False if that is not possible now."""
        # Before their files are recycled: the ledger would miss them after a crash in between.
        # While it cannot be written they are kept.
        if self._files and not self._broken:
            await self._write(self._append(Change(retired=numbers)))
        return not self._broken

    def finish(self) -> None:
        """Record that the log ends cleanly and that SQL knows where all partitions end. Blocks."""
        if self._files:
            self._end_rolled(Change())
            # SQL knows where all partitions end: no bound is needed.
            self._state.bounds.clear()
            entry = self._whole()
            entry.write()
            self.note_written(entry)

    def close(self) -> None:
        files, self._files = self._files, []
        for file in files:
            file.close()

    def _ahead(self, numbers: Iterable[int]) -> Change:
        """Return new bounds for partitions that need one soon, and those that need none any
        more."""
        change = Change()
        for number in numbers:
            partition = self._active[number]
            # Not written since a checkpoint that has it: SQL knows where it ends.
            idle = self._settled.get(number) == partition.next_offset and not partition.dirty
            if idle or partition.removed:
                del self._active[number]
                # The next commit of this partition has to write the ledger again.
                partition.bound, partition.reserve = partition.next_offset, 0
                change.freed.append(number)
            # Half used up: raised here, so that its commits need not.
            elif (partition.bound - partition.next_offset) * 2 < partition.reserve:
                change.bounds[number] = self._raise(partition)
        return change

    def _raise(self, partition: BoundedOffsets) -> int:
        """Return a new bound for a partition."""
        # The last raise was at bound - reserve.
        used = partition.next_offset - (partition.bound - partition.reserve)
        partition.reserve = max(MIN_RESERVE, 2 * used)
        partition.bound = partition.next_offset + partition.reserve
        self._active[partition.number] = partition
        self._settled.pop(partition.number, None)
        return partition.bound

    def _end_rolled(self, change: Change) -> None:
        for number, journal in list(self._open.items()):
            if journal.rolled:
                del self._open[number]
                change.begun[number] = self._state.journals[number] = journal.end

    def _append(self, change: Change) -> LedgerWrite:
        """Write a record of a change after those before it in the same file."""
        state = self._state
        state.apply(change)
        for number in change.retired:
            self._open.pop(number, None)
        self._sequence += 1
        data = pack_record(state.generation, self._sequence, state.committed, change)
        # Zeros after it, which the next record overwrites.
        entry = LedgerWrite(self._file(), self._position, data + END)
        self._position += len(data)
        return entry

    def _whole(self) -> LedgerWrite:
        """Write the whole state into the other file, which counts from then on."""
        state = self._state
        # +2 keeps the parity, which chooses the file: after a failure the other file may be the
        # last intact one.
        state.generation += 2 if self._whole_failed else 1
        # The whole state repairs whatever failed before; note_written sets it again.
        self._broken = self._whole_failed = False
        self._sequence = 0
        change = Change(begun=dict(state.journals), bounds=dict(state.bounds))
        data = pack_record(state.generation, 0, state.committed, change)
        self._position = self._whole_bytes = RECORDS_AT + len(data)
        # Its first record is overwritten with zeros once this one is durable.
        stale = self._files[(state.generation + 1) % len(self._files)]
        return LedgerWrite(self._file(), RECORDS_AT, data + END, stale)

    def _fail(self, failure: OSError) -> None:
        if not self._broken:
            logger.warning(
                "cannot write the ledger in %s (%s), retrying: until it is written, the loss of a "
                "journal might not be noticed",
                self._home,
                failure,
            )
        self._broken = True

    async def _write(self, entry: LedgerWrite) -> None:
        # In the commit thread, in order with the entries of commits.
        await self._env.offload.submit("commit", entry.write)
        self.note_written(entry)

    def _file(self) -> File:
        return self._files[self._state.generation % len(self._files)]


def read_ledger(fs: FileSystem, home: str) -> LedgerContents | None:
    """Read the ledger of a folder; None if there is none, or none of it can be read.

    FormatError if a newer version wrote it; OSError."""
    found = []
    for name in NAMES:
        path = os.path.join(home, name)
        data = read_whole_file(fs, path, MAX_FILE_BYTES)
        contents = None if data is None else parse_ledger(data, path)
        if contents is not None:
            found.append(contents)
    # Both are intact after a crash between the new state and the end of the old one.
    return max(found, key=lambda contents: contents.generation, default=None)


def expected_ledger(
    fs: FileSystem, home: str, run: RunState | None
) -> tuple[LedgerContents | None, str]:
    """Return the ledger, None if it cannot be trusted; and what is wrong with it, "" if nothing.

    `run` is what the last start left; an older version kept no ledger."""
    # Files of an earlier start, which an older version has not updated.
    if run is not None and not run.ledger:
        return None, ""
    contents = read_ledger(fs, home)
    if contents is None:
        return None, "is missing or damaged" if run is not None else ""
    return contents, "is damaged" if contents.damaged else ""


def bounds_of(contents: LedgerContents | None) -> Mapping[int, int] | None:
    """Return the bounds, if all of them are known."""
    # A bound may be in the damaged record: without all of them none helps.
    return None if contents is None or contents.damaged else contents.bounds
