"""Native offsets of one partition: which numbers the next records get.

A batch is assigned its offsets when it is queued, and they count only when its write has succeeded
whole (`apply`); when a write fails, everything assigned since goes back (`rollback`), also what
was assigned after the failed batch, since its numbers stand in no file. So an applied offset is
never given twice and none is left out. Pure, and on the path of every produce: no locks, two
numbers. Used by kafkawire.log.partition.partition; the offset is Kafka's offset, nothing is mapped.
"""

from __future__ import annotations

from collections.abc import Iterable

FIRST_OFFSET = 0


class PartitionOffsetManager:
    """`next_offset`: the applied end, the first offset no stored record has. `pending`: the end
    with what is assigned and not yet written. Always 0 <= next_offset <= pending. After a start
    `next_offset` is the further of what SQL and the journals know
    (kafkawire.log.recovery.restore)."""

    __slots__ = ("next_offset", "pending")

    def __init__(self, next_offset: int = FIRST_OFFSET) -> None:
        assert next_offset >= 0, next_offset
        self.next_offset = next_offset
        self.pending = next_offset

    def assign(self, count: int) -> int:
        """The first of `count` >= 1 offsets for the next batch; the rest follow it."""
        base = self.pending
        assert count > 0, count
        self.pending = base + count
        return base

    def assign_each(self, counts: Iterable[int]) -> list[int]:
        """The first offsets of several batches with so many records each, one after the other."""
        bases = []
        end = self.pending
        for count in counts:
            assert count > 0, count
            bases.append(end)
            end += count
        self.pending = end
        return bases

    def apply(self, end: int) -> None:
        """All offsets below `end` are written. In order: never back, never past `pending`."""
        assert self.next_offset <= end <= self.pending, (self.next_offset, end, self.pending)
        self.next_offset = end

    def rollback(self) -> int:
        """Revoke assigned offsets that were not applied; returns how many."""
        count = self.pending - self.next_offset
        self.pending = self.next_offset
        return count

    def __repr__(self) -> str:
        return f"PartitionOffsetManager(next_offset={self.next_offset}, pending={self.pending})"
