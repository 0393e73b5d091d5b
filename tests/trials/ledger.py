"""The guarantees a broker gave its clients: a ledger of what was sent, acknowledged, read and
committed.

Pure: no I/O, no clock. The actors of a trial report what they sent and which responses they got; a
full read of a partition is compared with it by `Partition.check`, which returns one sentence for
each broken guarantee. A record is known by a unique id in its header, so a record at the wrong
offset, a duplicate, and one that was never sent are all detected.

These records may be missing: those below the log start, where the log start is explained by a
DeleteRecords; in a compacted partition, a record for whose key a newer record is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.trials.records import Outgoing, Record

SHOWN = 5
"""Examples of one kind in a report: more would add no information."""


@dataclass(slots=True)
class Partition:
    """One partition of one incarnation of a topic."""

    name: str
    compacted: bool = False
    sent: dict[int, tuple[bytes | None, int]] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)
    """Offset -> id: acknowledged with a known offset, or seen by a reader."""
    acked_somewhere: set[int] = field(default_factory=set)
    """Ids acknowledged without an offset (a duplicate's answer)."""
    at: dict[int, int] = field(default_factory=dict)
    """Id -> offset, the reverse of `acked`."""
    delete_asked: int = 0
    """The highest offset of a DeleteRecords that was sent."""
    delete_acked: int = 0
    """The highest low watermark that a DeleteRecords answered."""

    def send(self, rows: Iterable[Outgoing]) -> None:
        """Note that these records are about to be sent."""
        for row in rows:
            self.sent[row.uid] = (row.key, row.digest)

    def ack(self, base: int, rows: Sequence[Outgoing]) -> list[str]:
        """Note that the broker acknowledged `rows` from offset `base` on; -1: at unknown
        offsets."""
        if base < 0:
            self.acked_somewhere.update(row.uid for row in rows)
            return []
        found = []
        for offset, row in enumerate(rows, base):
            found += self._place(offset, row.uid, "acknowledged")
        return found

    def _place(self, offset: int, uid: int, how: str) -> list[str]:
        """Note that a record is at an offset, according to a response or a reader."""
        known = self.acked.setdefault(offset, uid)
        if known != uid:
            return [f"{self.name}: offset {offset} given twice: record {known}, now {uid} ({how})"]
        before = self.at.setdefault(uid, offset)
        if before != offset:
            return [f"{self.name}: record {uid} at offset {before} and again at {offset} ({how})"]
        return []

    def see(self, records: Iterable[Record]) -> list[str]:
        """Note that a consumer read these records; under flush=commit they must remain."""
        found = []
        for record in records:
            found += self._known(record) or self._place(record.offset, record.uid, "read")
        return found

    def _known(self, record: Record) -> list[str]:
        """Whether the record is one that was sent here, unchanged."""
        sent = self.sent.get(record.uid)
        if sent is None:
            return [f"{self.name}: offset {record.offset} has record {record.uid}, never sent here"]
        if sent != (record.key, record.digest):
            return [f"{self.name}: offset {record.offset}: key or value of {record.uid} changed"]
        return []

    def check(self, log_start: int, high_watermark: int, records: Sequence[Record]) -> list[str]:
        """Compare a full read from `log_start` to `high_watermark`; return what is wrong."""
        found = self._ends(log_start, high_watermark)
        found += _few(self.see(records))
        found += self._order(log_start, high_watermark, records)
        found += self._missing(log_start, records)
        return found

    def _ends(self, log_start: int, high_watermark: int) -> list[str]:
        found = []
        if not self.delete_acked <= log_start <= max(self.delete_asked, self.delete_acked):
            found.append(
                f"{self.name}: the log starts at {log_start}; records below {self.delete_acked} "
                f"were deleted for certain, none from {self.delete_asked} on"
            )
        newest = max(self.acked, default=-1)
        if high_watermark <= newest:
            found.append(
                f"{self.name}: the high watermark is {high_watermark}, "
                f"offset {newest} was acknowledged or read before"
            )
        return found

    def _order(self, start: int, end: int, records: Sequence[Record]) -> list[str]:
        """Check that offsets rise and, without compaction, that none is missing between the
        ends."""
        offsets = [record.offset for record in records]
        if any(a >= b for a, b in itertools.pairwise(offsets)):
            return [f"{self.name}: a read returned offsets that do not rise"]
        if self.compacted or len(offsets) == end - start:
            return []
        have = set(offsets)
        gaps = [offset for offset in range(start, end) if offset not in have]
        return [f"{self.name}: of offsets {start}-{end - 1}, {len(gaps)} are missing: {some(gaps)}"]

    def _missing(self, log_start: int, records: Sequence[Record]) -> list[str]:
        """Check that every acknowledged record from the log start on is there, or lawfully
        compacted."""
        there = {record.offset: record.uid for record in records}
        newest: dict[bytes | None, int] = {}
        for record in records:
            newest[record.key] = record.offset
        lost = []
        for offset, uid in self.acked.items():
            if offset < log_start or there.get(offset) == uid or offset in there:
                continue  # another record at the offset was reported by `see`
            key = self.sent[uid][0] if uid in self.sent else None
            if not (self.compacted and newest.get(key, -1) > offset):
                lost.append(offset)
        found = []
        if lost:
            found.append(f"{self.name}: {len(lost)} acknowledged records lost: {some(lost)}")
        if not self.compacted and not log_start:
            gone = [uid for uid in self.acked_somewhere if uid not in self.at]
            if gone:
                found.append(
                    f"{self.name}: {len(gone)} records acknowledged as duplicates are nowhere: "
                    f"ids {some(gone)}"
                )
        return found


@dataclass(slots=True)
class Commits:
    """Committed offsets of one group: `acked` and `sent` by (topic id, partition)."""

    group: str
    acked: dict[tuple[bytes, int], int] = field(default_factory=dict)
    sent: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def send(self, key: tuple[bytes, int], offset: int) -> None:
        """Note that a commit is about to be sent; commits of a partition rise."""
        self.sent[key] = max(offset, self.sent.get(key, -1))

    def ack(self, key: tuple[bytes, int], offset: int) -> None:
        """Note that the broker acknowledged a commit."""
        self.acked[key] = max(offset, self.acked.get(key, -1))

    def check(self, key: tuple[bytes, int], found: int, name: str) -> list[str]:
        """Compare with the response to OffsetFetch (-1: nothing)."""
        acked, sent = self.acked.get(key, -1), self.sent.get(key, -1)
        if found < acked:
            return [f"group {self.group}, {name}: committed offset {found}, {acked} was acked"]
        if found > sent:
            return [f"group {self.group}, {name}: committed offset {found}, never sent ({sent})"]
        return []


def some(numbers: Iterable[int]) -> str:
    """Some of many numbers, as ranges: `3-7, 12, 15-16`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    words = [f"{a}-{b}" if a != b else str(a) for a, b in ranges[:SHOWN]]
    more = len(ranges) - SHOWN
    return ", ".join(words) + (f" and {more} more ranges" if more > 0 else "")


def _few(sentences: list[str]) -> list[str]:
    rest = len(sentences) - SHOWN
    return sentences[:SHOWN] + ([f"... and {rest} more like it"] if rest > 0 else [])
