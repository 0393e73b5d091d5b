"""Responses to clients of a broker and records that they read, over all lives; see `Recorded`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

Row = tuple[bytes, int]
"""A value and the leader epoch of its batch."""


@dataclass
class Recorded:
    """By partition number and offset. `acked`: acknowledged values; `seen`: rows that any reader
    got, from any process; `deleted`: offsets below may be deleted, by partition; `epochs`: the
    newest leader epoch of each."""

    acked: dict[int, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    seen: dict[int, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    deleted: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    epochs: dict[int, int] = field(default_factory=dict)

    def lead(self, number: int, epoch: int, *, rises: bool) -> None:
        """A process leads a partition in this epoch. `rises`: it must be above all before."""
        known = self.epochs.get(number, -1)
        assert epoch >= known + rises, f"{number}: leader epoch {epoch} after {known}"
        self.epochs[number] = epoch

    def ack(self, number: int, offset: int, value: bytes) -> None:
        """A producer was answered."""
        known = self.acked[number].setdefault(offset, value)
        assert known == value, f"{number}: offset {offset} answered for {known!r} and {value!r}"
        self._same(number, offset, value)

    def see(self, number: int, rows: list[tuple[int, Row]]) -> None:
        """A reader got rows below the high watermark."""
        for offset, row in rows:
            known = self.seen[number].setdefault(offset, row)
            assert known == row, f"{number}: {known} and {row} were read at {offset}"
            self._same(number, offset, row[0])

    def _same(self, number: int, offset: int, value: bytes) -> None:
        acked, seen = self.acked[number].get(offset), self.seen[number].get(offset)
        if acked is not None and seen is not None:
            assert acked == seen[0], f"{number}: {acked!r} answered, {seen[0]!r} read at {offset}"
        assert acked in (None, value), f"{number}: {acked!r} answered at {offset}, not {value!r}"

    def check(self, number: int, start: int, end: int, rows: list[tuple[int, Row]]) -> None:
        """Check the whole contents of a partition, all of [start, end)."""
        self.see(number, rows)
        offsets = [offset for offset, _ in rows]
        assert offsets == list(range(start, end)), f"{number}: gaps in [{start}, {end}): {offsets}"
        assert start <= self.deleted[number], f"{number}: begins at {start}"
        for known in (self.acked[number], self.seen[number]):
            most = max(known, default=-1)
            assert most < end, f"{number}: ends at {end}, offset {most} was answered or read"
        epochs = [row[1] for _, row in rows]
        assert epochs == sorted(epochs), f"{number}: leader epochs go back: {epochs}"
        self._check_values([row[0] for _, row in rows], number)

    def _check_values(self, values: list[bytes], number: int) -> None:
        """Values of an idempotent producer are in order, each once, without a gap."""
        last: dict[bytes, int] = {}
        for value in values:
            name, _, sequence = value.partition(b":")
            at = int(sequence.split(b" ")[0])
            if name.startswith(b"plain"):
                continue
            before = last.get(name)
            assert before is None or at == before + 1, f"{number}: {value!r} after {before}"
            last[name] = at
