"""Counts of a broker's share partitions since its start, in plain integers that the metrics page
reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.share.partition import Acknowledge, Acquired
from kafkawire.share.states import AcknowledgeType


class ShareCounts:
    """`acquired`: deliveries of records; `acknowledged`: records by type; `expired`: records whose
    lock has expired; `letters_written`, `letters_lost`: dead letters that were written, and could
    not be."""

    __slots__ = ("acknowledged", "acquired", "expired", "letters_lost", "letters_written")

    def __init__(self) -> None:
        self.acquired = 0
        self.acknowledged = dict.fromkeys(AcknowledgeType, 0)
        self.expired = 0
        self.letters_written = 0
        self.letters_lost = 0

    def count_acquired(self, runs: Iterable[Acquired]) -> None:
        """Count what a member has acquired."""
        self.acquired += sum(run.last - run.first + 1 for run in runs)

    def count_expired(self, records: int) -> None:
        """Count records whose lock has expired."""
        self.expired += records

    def count_letters(self, *, written: int = 0, lost: int = 0) -> None:
        """Count dead letters."""
        self.letters_written += written
        self.letters_lost += lost

    def count_acknowledged(self, batches: Iterable[Acknowledge]) -> None:
        """Count what a member has acknowledged, as it says."""
        counts = self.acknowledged
        for batch in batches:
            if len(batch.types) == 1:
                counts[AcknowledgeType(batch.types[0])] += batch.last - batch.first + 1
                continue
            for kind in AcknowledgeType:
                counts[kind] += batch.types.count(kind)
