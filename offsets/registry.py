"""The offset managers of all partitions a broker leads, by partition number.

A partition is entered once in its life: when it is made, or at a start from what the checkpoint
and the journals say. Numbers are never reused, so one that was removed cannot come back with
lower offsets. Used by log.manager; who needs the offsets of one partition holds its manager.
"""

from __future__ import annotations

from collections.abc import Iterator

from offsets.manager import PartitionOffsetManager


class OffsetRegistry:
    """Managers by partition number."""

    __slots__ = ("_managers",)

    def __init__(self) -> None:
        self._managers: dict[int, PartitionOffsetManager] = {}

    def add(self, number: int, checkpoint: int = 0, scanned: int = 0) -> PartitionOffsetManager:
        """Enters a partition, from what SQL and the journals know of it. ValueError if known."""
        if number in self._managers:
            raise ValueError(f"partition {number} has its offsets already")
        manager = PartitionOffsetManager.recovered(checkpoint, scanned)
        self._managers[number] = manager
        return manager

    def remove(self, number: int) -> None:
        """Forgets a partition. KeyError if unknown."""
        del self._managers[number]

    def __getitem__(self, number: int) -> PartitionOffsetManager:
        return self._managers[number]

    def __contains__(self, number: int) -> bool:
        return number in self._managers

    def __iter__(self) -> Iterator[int]:
        return iter(self._managers)

    def __len__(self) -> int:
        return len(self._managers)

    def unwritten(self) -> int:
        """How many offsets are assigned and not yet applied, over all partitions."""
        return sum(each.pending - each.next_offset for each in self._managers.values())
