"""Result of recovery: each journal with its rows, and the valid state of all of them.

Values only, so that users of the result (kafkawire.log.recovery.restore, kafkawire.log.manager,
kafkawire.fsck, kafkawire.log.recovery.unknown_topics, kafkawire.restore) needs no recovery.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kafkawire.log.io.ports import FileSystem, LogError
from kafkawire.log.journal.directory import SpareFile
from kafkawire.log.journal.file import Journal
from kafkawire.log.journal.format import HEADER_BYTES, JournalHeader, Naming
from kafkawire.log.journal.index_columns import IndexColumns
from kafkawire.log.journal.index_file import Extent, JournalIndex, read_index
from kafkawire.log.journal.losses import Damage, DamagedEnds, Loss, names
from kafkawire.log.journal.scan import Gap, Scanned
from kafkawire.log.partition.damaged_ranges import Range, find_uncovered, lost_ranges
from kafkawire.log.partition.partition import Partition
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import SegmentCatalog

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RecoveredJournal:
    """One journal: what its index file covers, what the scan found after that.

    `least_end` is a position that the journal must reach according to its index file or the ledger.
    """

    journal: Journal
    header: JournalHeader | None
    covered: Extent | None
    indexed: set[int]
    scanned: Scanned
    least_end: int = 0

    def previous_end(self) -> int:
        """Return the log position where the journal before ended; 0 if that is not known, or there
        was none."""
        return self.header.previous_end if self.header is not None else 0

    def extent(self) -> Extent:
        """Return the extent that its index file should have."""
        before = self.covered or Extent(0, 0, 0, 0)
        scanned = self.scanned
        # What the scan found is after what the index covers, so each maximum is of both.
        return Extent(
            self.journal.end,
            max(before.run, scanned.run),
            max(before.claimed, scanned.claimed),
            before.frames + scanned.frames,
        )

    def numbers(self) -> set[int]:
        """Return the partitions with rows."""
        return self.indexed | self.scanned.rows.keys()

    def index(self, fs: FileSystem) -> JournalIndex | None:
        """Return its index file, if it has one."""
        if self.covered is None:
            return None
        # Not kept open: with its mapping and its journal's, a thousand journals would need more
        # file descriptors than a process may have.
        index = read_index(fs, self.journal.folder, self.journal.number)
        if index is None:
            raise LogError(
                f"the index of {self.journal.path} was damaged during recovery: start again"
            )
        return index

    def rows_by_partition(
        self, index: JournalIndex | None, numbers: Iterable[int]
    ) -> Iterator[tuple[int, list[IndexColumns]]]:
        """Yield (partition number, its rows in order) for each of the partitions."""
        for number in numbers:
            parts = [index.rows(number)] if index is not None else []
            if number in self.scanned.rows:
                parts.append(self.scanned.rows[number])
            yield number, [part for part in parts if len(part)]


@dataclass(slots=True)
class Recovered:
    """The valid state after recovery. `run` is the greatest run number found, `damage` the
    acknowledged gaps, `examined` what is known of each, `ends` what follows from it for the ends of
    partitions. `discarded`: journals without valid content, which become spares once the ledger
    does not name them. `checkpoint`: the log position of the checkpoint; `reached`: where
    the log ends, -1 if anything but the checkpoint shows that more was written.
    """

    found: list[RecoveredJournal] = field(default_factory=list)
    discarded: list[Journal] = field(default_factory=list)
    spares: list[SpareFile] = field(default_factory=list)
    next_number: int = 1
    written: int = 0
    run: int = 0
    damage: list[Gap] = field(default_factory=list)
    examined: list[Damage] = field(default_factory=list)
    ends: DamagedEnds = field(default_factory=DamagedEnds)
    namings: dict[int, Naming] = field(default_factory=dict)
    checkpoint: int = 0
    reached: int = -1

    def contradicts(self, log_position: int) -> bool:
        """Return whether a checkpoint with this log position cannot have been stored."""
        # A checkpoint is stored after everything before its position was committed, and a commit is
        # in the ledger.
        return 0 <= self.reached < log_position

    def numbers(self) -> set[int]:
        """Return the partitions with batches in the journals."""
        return set(self.namings).union(*(found.numbers() for found in self.found))

    def last_log_position(self, number: int) -> int:
        """Return roughly where the last frame of a partition is: after all damage before it, and
        before all damage after it; -1 if there is none."""
        for found in reversed(self.found):
            rows = found.scanned.rows.get(number)
            if rows is not None:
                return rows.log_position[-1]
            if number in found.indexed:
                # Damage is only found after what the index covers.
                return found.journal.log_position + HEADER_BYTES
        return -1


# Reports what a start found damaged, and which offsets are lost.


MAX_REPORTED = 100
"""Partitions with lost offsets that get a log line each."""


async def report(
    recovered: Recovered,
    losses: Sequence[Loss],
    catalog: Catalog,
    partitions: Mapping[int, Partition],
    storage: SegmentCatalog,
    node_id: int,
) -> None:
    """Log what is damaged and which offsets are lost, one line each. Raises what the storage
    raises."""
    name = catalog.name_of
    for damage in recovered.examined:
        logger.critical(
            "journal %d %s. All other records are served.",
            damage.gap.journal,
            damage.description(name),
        )
    for loss in losses[:MAX_REPORTED]:
        logger.critical(
            "%s continues at offset %d: offsets %d-%d may have been acknowledged and cannot be "
            "read",
            name(loss.number),
            loss.last,
            loss.first,
            loss.last - 1,
        )
    if len(losses) > MAX_REPORTED:
        logger.critical(
            "%d more partitions may have lost offsets: `kafkawire fsck` lists them",
            len(losses) - MAX_REPORTED,
        )
    # Damaged bytes may not say whose records they were, and missing ones cannot: what is lost shows
    # as a gap between the offsets that are there, in any partition.
    if recovered.damage:
        numbers = range(catalog.last_number() + 1)
        led = (number for number in numbers if catalog.leader_of(number) == node_id)
        named: dict[int, list[Range]] = defaultdict(list)
        for loss in (*losses, *(loss for damage in recovered.examined for loss in damage.losses)):
            named[loss.number].append((loss.first, loss.last))
        lost = [
            Loss(gap.number, first, end)
            for gap in await lost_ranges(led, partitions, storage)
            for first, end in find_uncovered(gap.first, gap.last, sorted(named[gap.number]))
        ]
        if lost:
            logger.critical(
                "lost offsets, found in no journal and no segment: %s", names(lost, name)
            )
