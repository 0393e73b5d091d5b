"""Guarantees given to clients of a tiered broker, and checks of them: in the broker, in its rows,
in the bucket.

Every record has a unique key and value, so any record can be identified. Acknowledged records must
be there above the log start; in a compacted topic a record may be missing if a later one of its key
was stored. The record at an offset never changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from kafkawire.codec.batches import CONTROL, Record, iter_batches, pack, records

Row = tuple[bytes, bytes | None]
KEYS = 12


@dataclass
class Expected:
    """One partition. `acked`: records that must be there; `seen`: records found when a reader
    checked; `log_start`: as answered; `asked`: how far unanswered deletions may have moved it;
    `shrinks`: retention, or the end of tiering, may move it too; `switched`: it was not tiered all
    the time; `doubtful`: keys with tombstones that were not guaranteed to any reader;
    `deleted_below`: below this the manifest may have nothing any more."""

    number: int
    topic: str
    index: int
    compacted: bool = False
    shrinks: bool = False
    switched: bool = False
    acked: dict[int, Row] = field(default_factory=dict)
    seen: dict[int, Row] = field(default_factory=dict)
    doubtful: set[bytes] = field(default_factory=set)
    log_start: int = 0
    asked: int = 0
    deleted_below: int = 0

    def see(self, offset: int, row: Row) -> None:
        """Record that this offset holds this record from now on, or nothing."""
        known = self.seen.setdefault(offset, row)
        assert known == row, f"{self} has two records at {offset}"

    def ack(self, base: int, rows: list[Row]) -> None:
        """Record these as acknowledged and committed."""
        for at, row in enumerate(rows):
            self.see(base + at, row)
            self.acked[base + at] = row

    def __str__(self) -> str:
        return f"partition {self.number} ({self.topic}-{self.index})"


@dataclass
class Promises:
    """The guarantees of all partitions. `deleted`: numbers of partitions of deleted topics."""

    rng: random.Random
    partitions: dict[int, Expected] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    sent: set[Row] = field(default_factory=set)
    counter: int = 0

    def fresh(self) -> Row:
        """A record that no producer sent before, unless it is a tombstone."""
        self.counter += 1
        value = b"%d:" % self.counter + bytes(self.rng.choice((0, 20, 200, 1200)))
        row = b"k%d" % self.rng.randrange(KEYS), None if self.rng.random() < 0.05 else value
        self.sent.add(row)
        return row

    def check(self, number: int, start: int, end: int, found: list[tuple[int, Row]]) -> None:
        """Check a partition whose whole content in [start, end) is `found`."""
        expected = self.partitions[number]
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets)), f"{expected}: offsets are not in order"
        for offset, row in found:
            assert start <= offset < end, f"{expected}: {offset} is outside of [{start}, {end})"
            assert row in self.sent, f"{expected}: no producer sent the record at {offset}"
            expected.see(offset, row)
        there = set(offsets)
        newest: dict[bytes, int] = {}
        if expected.compacted:
            for offset, (key, _) in expected.seen.items():
                newest[key] = max(newest.get(key, -1), offset)
        for offset, (key, value) in expected.acked.items():
            if not start <= offset < end or offset in there:
                continue
            assert expected.compacted, f"{expected} lost offset {offset} of [{start}, {end})"
            lost = newest[key] == offset and value is not None and key not in expected.doubtful
            assert not lost, f"{expected} lost {key!r}, whose last value is at {offset}"

    def check_start(self, number: int, log_start: int) -> None:
        """Check that a partition begins where a request moved its log start."""
        expected = self.partitions[number]
        assert log_start >= expected.log_start, f"{expected}: deleted records can be read again"
        if not expected.shrinks:
            most = max(expected.asked, expected.log_start)
            assert log_start <= most, (
                f"{expected} begins at {log_start}, which no request asked for"
            )


def batch_of(rows: list[Row], now_ms: int, codec: int = 0) -> memoryview:
    """One batch of these records, as a producer sends it."""
    items = [Record(at, now_ms, key, value) for at, (key, value) in enumerate(rows)]
    return memoryview(pack(items, codec=codec))


def rows_in(buffers: Iterable[bytes | bytearray | memoryview], start: int) -> list[tuple[int, Row]]:
    """(offset, record) of every data record from `start` on."""
    found: list[tuple[int, Row]] = []
    for buffer in buffers:
        data = bytes(buffer)
        for position, head in iter_batches(data):
            if head.attributes & CONTROL:
                continue
            for record in records(data, position):
                if record.offset >= start:
                    assert record.key is not None
                    found.append((record.offset, (bytes(record.key), record.value)))
    return found


def end_of(buffers: Iterable[bytes | bytearray | memoryview]) -> int:
    """The offset after the last batch; -1 if there is none."""
    end = -1
    for buffer in buffers:
        for _, head in iter_batches(bytes(buffer)):
            end = head.last_offset + 1
    return end
