"""Schedule of journals: when one is rolled although it is not full, and cut although it is hot.

It is rolled when it has held something for the least of `journal.roll.ms` and of the `segment.ms`
of the topics in it (for a compacted topic that is at most its `max.compaction.lag.ms`), and cut
when it has been rolled for as long again. A partition with `segment.bytes` in the journals has them
rolled and cut at once, as a full segment of Kafka's is rolled.

A journal with records of a tiered partition is rolled and cut within half of the least
`tiering.max.lag.ms` in it, counted from its first such record: the other half is left for the
upload. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.journal.file import Journal
from kafkawire.log.partition.partition import Partition

SLICE = 1024
"""Partitions checked per event-loop iteration: a fraction of a millisecond."""
CUT_PART = 0.5
"""The part of the lag within which records are cut into segments."""
SCANS_PER_LAG = 20
"""Checks of the journals in the shortest lag: the time until the next check is lost."""
MIN_SCAN_INTERVAL_S = 0.1
ROLLS_PER_CHECK = 4
"""Rolls of a journal by a short `retention.ms` between two checks of retention: more would free
nothing sooner."""
SCANS_AHEAD = 2
"""A journal is rolled so many checks before its time, to be indexed and cut by then."""
NEVER = float("inf")
UNBOUNDED_BYTES = 1 << 62


@dataclass(slots=True)
class JournalAge:
    """One journal: since when it is not empty, since when it may have had tiered records, and
    since when it has been rolled (None: not)."""

    since: float
    tiered_since: float = NEVER
    rolled_since: float | None = None
    # The number of partitions for which the least times below were computed.
    known: int = -1
    # Of `segment.ms` and `retention.ms`.
    roll_s: float = NEVER
    # Of `segment.ms`.
    cut_s: float = NEVER
    lag_s: float = NEVER
    # A start found it with tiered records.
    found: bool = False
    # Partitions whose `segment.bytes` a journal may exceed; `full`: one of them has that many.
    limited: list[int] = field(default_factory=list)
    full: bool = False


class Timing:
    """Decides when a journal is rolled early and cut."""

    __slots__ = (
        "_commit_log",
        "_counted_at",
        "_env",
        "_held",
        "_partitions",
        "_room",
        "_scanned_at",
    )

    def __init__(self, commit_log: CommitLog, partitions: Mapping[int, Partition]) -> None:
        self._commit_log = commit_log
        self._env = commit_log.env
        self._partitions = partitions
        self._held: dict[int, JournalAge] = {}
        self._scanned_at: float | None = None
        # one could take then.
        self._counted_at = 0  # bytes appended when partitions were last counted, and how many
        self._room = 0

    async def scan(self) -> None:
        """Update the state of all journals."""
        now = self._env.clock.monotonic()
        journals = [each for each in self._commit_log.journals if each.numbers]
        held = {each.number: self._held.get(each.number) or JournalAge(now) for each in journals}
        before = self._scanned_at
        for journal in journals:
            one = held[journal.number]
            # Partitions are only added to a journal, so their number shows a change.
            if one.known != len(journal.numbers):
                await self._measure(journal, one)
            if one.lag_s == NEVER:
                one.tiered_since = NEVER
            elif one.tiered_since == NEVER:
                # A record may have come just after the check before: the time counts from there.
                # What a start finds may have any age, and is cut at once.
                one.tiered_since = now if before is None else before
                one.found = before is None
        # Journals that are gone are dropped here.
        self._held = held
        await self._find_full(journals)
        self._scanned_at = now

    async def _measure(self, journal: Journal, held: JournalAge) -> None:
        held.known = len(journal.numbers)
        config = self._commit_log.config
        checked_ms = config.log_retention_check_interval_ms // ROLLS_PER_CHECK
        cut_ms = roll_ms = config.journal_roll_ms
        lag_ms, limited = 0, []
        # A copy: appends add numbers during the pauses.
        for at, number in enumerate(list(journal.numbers), 1):
            partition = self._partitions.get(number)
            if partition is not None:
                topic = partition.config
                cut_ms = min(cut_ms, topic.segment_ms)
                # Records expire by rolled journals: a short retention rolls them, but does not cut.
                if topic.cleanup_delete and topic.retention_ms >= 0:
                    roll_ms = min(roll_ms, max(topic.retention_ms, checked_ms))
                if topic.segment_bytes < journal.capacity:
                    limited.append(number)
                    # A new partition may be full sooner than the fullest one so far.
                    self._room = min(self._room, topic.segment_bytes)
                if topic.copies:
                    lag_ms = min(lag_ms or topic.tier_lag_ms, topic.tier_lag_ms)
            if at % SLICE == 0:
                await self._env.slices.pause()
        held.limited = limited
        held.cut_s, held.roll_s = cut_ms / 1000, min(cut_ms, roll_ms) / 1000
        held.lag_s = lag_ms / 1000 if lag_ms else NEVER

    async def _find_full(self, journals: list[Journal]) -> None:
        """Mark the journal with which a partition has a segment's bytes in the journals."""
        held = [self._held[journal.number] for journal in journals]
        appended = self._commit_log.appended_bytes
        # Not before as many bytes were appended as the fullest could take; nor while a full one
        # waits to be cut, whose bytes are counted until then.
        if appended - self._counted_at < self._room or any(each.full for each in held):
            return
        self._counted_at, self._room = appended, UNBOUNDED_BYTES
        for each in held:
            room = await self._room_of(each.limited)
            each.full = room <= 0
            self._room = min(self._room, max(0, room))

    async def _room_of(self, numbers: list[int]) -> int:
        """Return the least number of bytes that one of these partitions can still take in the
        journals before it is full."""
        least = UNBOUNDED_BYTES
        for at, number in enumerate(numbers, 1):
            partition = self._partitions.get(number)
            if partition is not None:
                in_journals = partition.size_bytes - sum(partition.segments.length)
                least = min(least, partition.config.segment_bytes - in_journals)
            if at % SLICE == 0:
                await self._env.slices.pause()
        return least

    def settings_changed(self) -> None:
        # Count and measure again at the next check.
        self._room = 0
        for held in self._held.values():
            held.known = -1

    def scan_interval_s(self) -> float:
        """Return how many seconds to wait until the next check."""
        least = min((held.lag_s for held in self._held.values()), default=NEVER)
        usual = self._commit_log.config.cut_interval_ms / 1000
        return min(usual, max(MIN_SCAN_INTERVAL_S, least / SCANS_PER_LAG))

    def is_old(self, journal: Journal) -> bool:
        """Return whether it should be rolled, or cut if it is rolled."""
        held = self._held.get(journal.number)
        if held is None:
            return False
        now = self._env.clock.monotonic()
        # Some checks early: the journal must be rolled, indexed and cut by then.
        if held.full or now + SCANS_AHEAD * self.scan_interval_s() >= self._cut_by(held):
            return True
        if not journal.rolled:
            return now - held.since >= held.roll_s
        # First seen as rolled.
        if held.rolled_since is None:
            held.rolled_since = now
        return now - held.rolled_since >= held.cut_s

    def will_be_old(self, journal: Journal) -> bool:
        """Return whether it must be rolled soon: for the remote tier, or by a topic's settings."""
        held = self._held.get(journal.number)
        usual_s = self._commit_log.config.journal_roll_ms / 1000
        return held is not None and (held.lag_s != NEVER or held.roll_s < usual_s)

    def held_since(self, journal: int) -> float:
        """Return since when a journal may have had tiered records; infinity if it has none."""
        held = self._held.get(journal)
        return NEVER if held is None else held.tiered_since

    def cut_by(self, journal: int) -> float:
        """Return by when tiered records of a journal must be in segments; infinity if it has
        none."""
        held = self._held.get(journal)
        return NEVER if held is None else self._cut_by(held)

    @staticmethod
    def _cut_by(held: JournalAge) -> float:
        # Any age: due at once.
        return held.tiered_since + (0.0 if held.found else CUT_PART * held.lag_s)

    async def overdue(self) -> list[int]:
        """Return tiered partitions with records here that should be in the remote tier by now."""
        now = self._env.clock.monotonic()
        found: list[int] = []
        for number, held in list(self._held.items()):
            journal = self._commit_log.journals.by_number.get(number)
            if journal is None or held.tiered_since + held.lag_s > now:
                continue
            for at, each in enumerate(list(journal.numbers), 1):
                if self._waits(each, journal, now - held.tiered_since):
                    found.append(each)
                if at % SLICE == 0:
                    await self._env.slices.pause()
        return found

    def _waits(self, number: int, journal: Journal, held_s: float) -> bool:
        partition = self._partitions.get(number)
        if partition is None or not partition.config.copies:
            return False
        there: Iterable[int] = partition.journal_extents.journal
        # In this journal the partition's record is as old as its lag, and not in a segment yet.
        return partition.config.tier_lag_ms <= held_s * 1000 and (
            not journal.rolled or journal.number in there
        )
