"""The port to a source of records: segments of a bucket or folder, or a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from kafkawire.progress import Progress
from kafkawire.reading.files.traffic import ReadCost
from kafkawire.reading.model.records import PartitionBounds, RecordConditions, TopicRecord
from kafkawire.reading.model.source import DamagedData, PartitionRange

OnDamage = Callable[[DamagedData], None]
"""Called for offsets that cannot be read; reading continues after them."""

WIDER = 4
"""Each step of a search from the end covers this many times the offsets of the one before, so a
whole partition takes few steps and a recent record little more than one request."""


class Backend(Protocol):
    """A source of records. All methods raise SourceError; those with a topic UnknownName."""

    def topics(self) -> dict[str, int]:
        """Return all topics with their number of partitions."""

    def bounds(self, topic: str) -> list[PartitionBounds]:
        """Return the offsets of each partition of a topic."""

    def offsets_for_time(
        self, topic: str, partitions: Sequence[int], ms: int
    ) -> dict[int, int | None]:
        """Return per partition the first offset whose record has this timestamp or a later one;
        None if there is none."""

    def offsets_for_stored_time(
        self, topic: str, partitions: Sequence[int], ms: int
    ) -> dict[int, int | None]:
        """Return per partition the first offset that was stored at this time or later; None if
        there is none."""

    def scan(
        self,
        ranges: Sequence[PartitionRange],
        wanted: RecordConditions,
        on_damage: OnDamage | None,
        progress: Progress,
    ) -> Iterator[TopicRecord]:
        """Yield the matching records of ranges, in their order, by offset. Unreadable offsets are
        passed to `on_damage`; without it DamagedData is raised."""

    def tail_offsets(self, wanted: PartitionRange) -> tuple[int, int]:
        """Return how many offsets at the end of a range a search from the end reads first, which
        is about one request, and how many next."""

    def unread(self, topic: str) -> list[PartitionBounds]:
        """Return the offsets that exist but are not in this source, as far as it knows."""

    def traffic(self) -> list[ReadCost]:
        """Return requests and bytes since the source was opened."""

    def close(self) -> None:
        """Close all connections."""
