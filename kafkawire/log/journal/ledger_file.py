"""The format of the ledger: what the journals must contain, stored outside of them.

Two files, `ledger.0` and `ledger.1`, of which the one with the greater generation counts. Each is

    0     slot       the committed log position, overwritten after each commit; two slots
    512   slot       alternately, so that a torn write leaves the other one
    1024  records    the first one is the whole state, each of the others a change of it; zeros as
                     long as a record's head follow the last one

    a slot (big-endian):
    0  magic 4s "KWLS"  4  checksum u32 (of the rest)  8  generation u64  16  sequence u64
    24 committed log position i64

    a record:
    0  magic 4s         4  checksum u32 (of the rest)  8  payload length u32   12  version u16
    14 zero u16        16  generation u64             24  sequence u64, from 0 in each generation
    32 committed log position i64
    40 payload: four counts u32 (begun, retired, bounded, freed); for each begun journal its number
       and end position i64, -1 while it is written to; the numbers i64 of retired journals; for
       each bounded partition its number and bound i64; the numbers i64 of freed partitions

A bound is an offset that no acknowledged record of the partition has reached. Partitions without
one end where the checkpoint in SQL says. Format version 1. Pure; kafkawire.log.journal.ledger
writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from struct import Struct

from kafkawire.crc32c import crc32c
from kafkawire.log.io.ports import Buffer
from kafkawire.log.journal.format import check_version

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
        """Apply one record."""
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
    first = _record_at(data, RECORDS_AT, name)
    if first is None or first[1] != 0:
        return None
    generation, sequence, committed, change, at = first
    contents = LedgerContents(generation, committed)
    contents.apply(change)
    while (found := _next(data, at, generation, sequence, name)) is not None:
        _, later, committed, change, stop = found
        if later != sequence + 1:
            contents.damaged = True
        contents.committed = max(contents.committed, committed)
        contents.apply(change)
        sequence, at = later, stop
    if data[at : at + len(END)].strip(b"\0"):
        contents.damaged = True
    for position in (0, SLOT_BYTES):
        contents.committed = max(contents.committed, _slot_at(data, position, generation))
    return contents


_Record = tuple[int, int, int, Change, int]
"""Generation, sequence, committed log position, content, and where the record ends."""


def _next(data: bytes, at: int, generation: int, sequence: int, name: str) -> _Record | None:
    """Return the next record of the same generation from `at` on, after damaged ones if
    necessary."""
    for hit in re.compile(re.escape(RECORD_MAGIC)).finditer(data, at):
        found = _record_at(data, hit.start(), name)
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
    check_version(name, version, VERSION)
    change = _unpack(data[at + RECORD_HEAD_BYTES : stop])
    return None if change is None else (generation, sequence, committed, change, stop)


def _unpack(payload: Buffer) -> Change | None:
    if len(payload) < _COUNTS.size:
        return None
    begun, retired, bounds, freed = _COUNTS.unpack_from(payload, 0)
    count = 2 * begun + retired + 2 * bounds + freed
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
    return int(committed) if sound and found == generation else 0
