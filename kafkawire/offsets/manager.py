"""Assigns the native offsets of one partition.

A batch is assigned its offsets when it is queued; they become valid when its write has succeeded
(`apply`). When a write fails, all offsets assigned since are revoked (`rollback`). So an applied
offset is never assigned twice, and none is skipped. Pure, and called for every produce: two
integers, no locks. Used by kafkawire.log.partition.partition; Kafka clients see these offsets.
"""

from __future__ import annotations

from collections.abc import Iterable

FIRST_OFFSET = 0


class PartitionOffsetManager:
    """Assigns the offsets of one partition.

    `next_offset`: the end of applied offsets, the first that no stored record has. `pending`: the
    end of assigned offsets, which are not all written yet. Always 0 <= next_offset <= pending.
    After a start `next_offset` is the maximum of what SQL and the journals have
    (kafkawire.log.recovery.restore).
    """

    __slots__ = ("next_offset", "pending")

    def __init__(self, next_offset: int = FIRST_OFFSET) -> None:
        assert next_offset >= 0, next_offset
        self.next_offset = next_offset
        self.pending = next_offset

    def assign(self, count: int) -> int:
        """Assign `count` >= 1 offsets to the next batch; return the first."""
        base = self.pending
        assert count > 0, count
        self.pending = base + count
        return base

    def assign_each(self, counts: Iterable[int]) -> list[int]:
        """Assign offsets to batches with so many records each; return their first offsets."""
        bases = []
        end = self.pending
        for count in counts:
            assert count > 0, count
            bases.append(end)
            end += count
        self.pending = end
        return bases

    def apply(self, end: int) -> None:
        """All offsets below `end` are written. Never decreasing, never above `pending`."""
        assert self.next_offset <= end <= self.pending, (self.next_offset, end, self.pending)
        self.next_offset = end

    def rollback(self) -> int:
        """Revoke assigned offsets that were not applied; return how many."""
        # Those of later batches, too, which are in no file: the next batch continues where the log
        # ends.
        count = self.pending - self.next_offset
        self.pending = self.next_offset
        return count

    def __repr__(self) -> str:
        return f"PartitionOffsetManager(next_offset={self.next_offset}, pending={self.pending})"
