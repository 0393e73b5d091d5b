"""Records in the journals of a term of this broker that has ended: another broker has led since.

A planned move cuts everything into segments first. After another change of the leader the journals
of the old leader may have records that no segment has, and the next leader may have assigned their
offsets again. Such records must not be read as those of a later term of this broker. A frame at
offset o, in leader epoch e, counts if no later epoch begins at or below o, according to the epochs
in SQL; each leader stores its epoch before its first append (kafkawire.log.partition.loader).

Records that do not count, and those of partitions that another broker leads, are *left*: no reader
gets them, their journals are kept (kafkawire.log.leadership).

Used at a start, if several brokers share the metadata.
"""

from __future__ import annotations

import logging
import os.path
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafkawire.codec.batches import HEAD
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.journal.file import POSITION_MASK
from kafkawire.log.journal.format import Naming
from kafkawire.log.journal.index_columns import IndexColumns, empty_columns
from kafkawire.log.journal.run_file import read_json_line, write_json_line
from kafkawire.log.recovery.result import Recovered, RecoveredJournal
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import PartitionRow, SegmentCatalog

logger = logging.getLogger(__name__)


# Records that are only in journals of this broker, and that no reader gets: another broker has led
# their partition since, and it was not cut before.
#
# The file `<home>/left` lists them by partition, so that their journals are kept over restarts
# (kafkawire.log.leadership). A journal's index file need not have them.
#
# One line of JSON and its checksum, replaced atomically at each change. Format version 1.


NAME = "left"
VERSION = 1
MAX_FILE_BYTES = 64 << 20
"""The largest file that is read: about a million partitions."""


@dataclass(slots=True)
class LeftRecords:
    """Of one partition: the offsets [first, end), and the numbers of the journals. An offset among
    them may have another record in a segment."""

    first: int
    end: int
    journals: list[int] = field(default_factory=list)

    def add(self, first: int, end: int, journal: int) -> None:
        self.first, self.end = min(self.first, first), max(self.end, end)
        if journal not in self.journals:
            self.journals.append(journal)


def read_left(fs: FileSystem, home: str) -> dict[int, LeftRecords]:
    """Read the file; empty if there is none or it is damaged, which is logged.

    JournalFormatError if a newer version wrote it; OSError."""
    path = os.path.join(home, NAME)
    try:
        body = read_json_line(fs, path, VERSION, MAX_FILE_BYTES)
        rows = [] if body is None else body["partitions"]
        return {
            int(row["number"]): LeftRecords(
                int(row["first"]), int(row["end"]), [int(each) for each in row["journals"]]
            )
            for row in rows
        }
    # The start continues: at worst journals are recycled whose records no reader gets.
    except (ValueError, KeyError, TypeError) as failure:
        logger.warning(
            "%s is damaged (%s): journals with records of partitions that other brokers lead may "
            "be recycled, if their index files do not name the records",
            path,
            failure,
        )
        return {}


def write_left(fs: FileSystem, home: str, left: Mapping[int, LeftRecords]) -> None:
    """Replace the file, durably. If it raises OSError the old one is still there."""
    rows = [
        {"number": number, "first": each.first, "end": each.end, "journals": each.journals}
        for number, each in sorted(left.items())
    ]
    write_json_line(fs, os.path.join(home, NAME), VERSION, {"partitions": rows})


EPOCH = 2
"""The leader epoch among the fields of a batch's head."""


class EarlierTerms:
    """The rows of SQL of the partitions in the journals. `left`: the records that do not count, by
    partition number."""

    __slots__ = ("_fs", "_rows", "left")

    def __init__(self, fs: FileSystem, rows: Iterable[PartitionRow]) -> None:
        """`rows` are those of all partitions in the journals, whichever broker leads them."""
        self._fs = fs
        self._rows = {row.number: row for row in rows}
        self.left: dict[int, LeftRecords] = {}

    def may_be_old(self, number: int) -> bool:
        """Return whether the journals may have records of a partition that do not count."""
        row = self._rows.get(number)
        state = row.checkpoint if row is not None else None
        # All frames of a partition that was never led in another epoch are of this term.
        return state is not None and any(epoch for epoch, _ in state.leader_epochs)

    def take_all(self, recovered: Recovered, led: Iterable[int]) -> None:
        """Note what is left of partitions that other brokers lead, and remove namings that do not
        count of the others."""
        mine = set(led)
        for found in recovered.found:
            numbers = [each for each in sorted(found.numbers() - mine) if each in self._rows]
            index = found.index(self._fs) if numbers else None
            for number, parts in found.rows_by_partition(index, numbers):
                for part in parts:
                    self._leave(found, number, part, self._counting(found, number, part, True))
        namings = recovered.namings
        # A naming frame of an earlier term may name a next offset that the next leader has used.
        for number in [each for each in namings if not self._names(each, namings[each])]:
            del namings[number]

    def current(self, found: RecoveredJournal, number: int, rows: IndexColumns) -> IndexColumns:
        """Return the rows of a partition led here, if all of them count. Otherwise all are left
        and none is returned."""
        keeps = self._counting(found, number, rows, False)
        if all(keeps):
            return rows
        # All or none: a cut finds records in a journal by their offsets, of which there are then
        # two.
        self._leave(found, number, rows, [False] * len(rows))
        return empty_columns()

    def left_in(self, journal: int) -> bool:
        """Return whether something was left in a journal."""
        return any(journal in each.journals for each in self.left.values())

    def _counting(
        self, found: RecoveredJournal, number: int, rows: IndexColumns, elsewhere: bool
    ) -> Sequence[bool]:
        """Return which rows count; `elsewhere`: another broker leads the partition."""
        row = self._rows.get(number)
        if row is None:
            return [True] * len(rows)
        state = row.checkpoint
        start = state.log_start if state is not None else 0
        cut = max([start, *(mapping.end_offset for mapping in row.mappings[-1:])])
        epochs = state.leader_epochs if state is not None else []
        starts = [begin for _, begin in epochs]

        # The epoch in which an offset was assigned, according to SQL: each leader stores its epoch
        # there before its first append.
        def find_required_epoch(base: int) -> int:
            at = bisect_right(starts, base) - 1
            return epochs[at][0] if at >= 0 else 0

        # Epochs in a journal rise, so if the first frame is new enough all are. Reading an epoch
        # opens the journal.
        most = max(map(find_required_epoch, rows.base))
        old = most > 0 and self._epoch(found, rows, 0) < most
        keeps = []
        for at, base in enumerate(rows.base):
            end = base + rows.count[at]
            # What is below the log start is not needed. Beyond the segments the other broker's
            # records count, whatever the epoch.
            keep = end <= start or not (elsewhere and end > cut)
            if keep and old and end > start:
                keep = self._epoch(found, rows, at) >= find_required_epoch(base)
            keeps.append(keep)
        return keeps

    def _epoch(self, found: RecoveredJournal, rows: IndexColumns, at: int) -> int:
        """Return the leader epoch of a frame, from its first batch."""
        journal = found.journal
        closed = journal.file is None
        position = rows.log_position[at] & POSITION_MASK
        fields: Sequence[int] = HEAD.unpack_from(journal.warm(self._fs), position)
        if closed and journal.rolled:
            journal.cool()  # a process may not have a thousand journals open
        return fields[EPOCH]

    def _names(self, number: int, naming: Naming) -> bool:
        """Return whether the next offset of a naming frame counts."""
        row = self._rows.get(number)
        if row is None or row.checkpoint is None:
            return True
        later = [s for e, s in row.checkpoint.leader_epochs if e > naming.leader_epoch]
        return not later or naming.next_offset <= later[0]

    def _leave(
        self, found: RecoveredJournal, number: int, rows: IndexColumns, keeps: Sequence[bool]
    ) -> None:
        gone = [at for at, keep in enumerate(keeps) if not keep]
        if gone:
            first = min(rows.base[at] for at in gone)
            end = max(rows.base[at] + rows.count[at] for at in gone)
            left = self.left.setdefault(number, LeftRecords(first, end))
            left.add(first, end, found.journal.number)


async def earlier_terms(
    fs: FileSystem,
    catalog: Catalog,
    storage: SegmentCatalog,
    recovered: Recovered,
    rows: Sequence[PartitionRow],
) -> EarlierTerms | None:
    """Compare the journals with the terms in SQL; `rows` are those of the partitions led here. None
    if there is only one broker. Raises what the storage raises."""
    if len(catalog.brokers) < 2:
        return None
    led = {row.number for row in rows}
    others = [n for n in sorted(recovered.numbers() - led) if catalog.locate(n) is not None]
    terms = EarlierTerms(fs, [*rows, *await storage.load_partitions(others)])
    terms.take_all(recovered, led)
    return terms
