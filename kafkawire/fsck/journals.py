"""Check of the journals: every frame and batch, and whether their index files agree.

The evidence of the folder has what the next start will find, with the same end of the log. In
addition the frames that recovery takes from index files are read. Blocks: nothing else runs.
"""

from __future__ import annotations

import os.path
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kafkawire.fsck.report import Fix, FsckReport, GiveUp
from kafkawire.fsck.transactions import JournalTransactionFacts
from kafkawire.log.io.ports import Env
from kafkawire.log.io.read_only_disk import ReadOnlyFileSystem
from kafkawire.log.journal.file import index_name
from kafkawire.log.journal.format import HEADER_BYTES
from kafkawire.log.journal.index_columns import IndexColumns
from kafkawire.log.journal.index_file import read_index
from kafkawire.log.journal.ledger import expected_ledger
from kafkawire.log.journal.losses import Damage, Name, examine
from kafkawire.log.journal.run_file import NAME, read_run
from kafkawire.log.journal.scan import Scanned, scan
from kafkawire.log.partition.damaged_ranges import Range
from kafkawire.log.recovery.result import Recovered, RecoveredJournal
from kafkawire.log.recovery.unknown_topics import contradiction, not_deleted
from kafkawire.progress import Progress
from kafkawire.restore.evidence import FolderEvidence

REBUILD = "the start is refused until the metadata is rebuilt with `kafkawire restore --from-log`"


@dataclass(slots=True)
class JournalContents:
    """By partition number: the offset ranges [first, end) in the journals, in their order, and the
    topics (id -> name) of its naming frames; the result of recovery; `bounds` are the ledger's;
    `transactions` what the journals have of them."""

    ranges: dict[int, list[Range]] = field(default_factory=lambda: defaultdict(list))
    recovered: Recovered = field(default_factory=Recovered)
    names: dict[int, dict[bytes, str]] = field(default_factory=lambda: defaultdict(dict))
    bounds: Mapping[int, int] | None = None
    transactions: JournalTransactionFacts = field(default_factory=JournalTransactionFacts)

    def next_offset(self, number: int, stored: int) -> int:
        """Return the offset at which a partition continues at the next start; `stored` follows from
        the checkpoint and the segments."""
        naming = self.recovered.namings.get(number)
        known = max([stored, *(end for _, end in self.ranges.get(number, ()))])
        known = max(known, naming.next_offset if naming is not None else 0)
        log_position = self.recovered.last_log_position(number)
        return self.recovered.ends.at_least(number, known, log_position, self.bounds)


class JournalCheck:
    """One check of `<home>/journals`."""

    def __init__(
        self,
        env: Env,
        home: str,
        name: Name,
        report: FsckReport,
        progress: Progress,
        give_up: GiveUp,
        seen: FolderEvidence,
    ) -> None:
        self._env = replace(env, fs=ReadOnlyFileSystem(env.fs))
        self._disk = env.fs
        self._home = home
        self._name = name
        self._folder = os.path.join(home, "journals")
        self._report = report
        self._progress = progress
        self._give_up = give_up
        self.held = JournalContents(recovered=seen.recovered, bounds=seen.bounds)

    def run(self) -> JournalContents:
        last = read_run(self._env.fs, self._home)
        names = self._disk.listdir(self._home)
        if last is None and NAME in names:
            self._report.add(
                "run file",
                f"{os.path.join(self._home, NAME)} is damaged; the next start does without it",
                harmless=True,
            )
        _, wrong = expected_ledger(self._env.fs, self._home, last)
        if wrong:
            self._report.add("ledger", f"it {wrong}; the next start writes it again", harmless=True)
        recovered = self.held.recovered
        if recovered.contradicts(recovered.checkpoint):
            text = contradiction(os.path.basename(self._home), recovered)
            self._report.add("table checkpoints", f"{text}; {REBUILD}")
        for damage in recovered.examined:
            self._damage(damage)
        for at, found in enumerate(recovered.found):
            self._progress("journals", at, len(recovered.found))
            self._scan(found)
        self._progress("journals", len(recovered.found), len(recovered.found))
        return self.held

    def not_deleted(self, numbers: set[int]) -> set[str]:
        """Return the topics of these partitions, without those that a journal has as deleted."""
        return not_deleted(self._env.fs, self.held.recovered.found, numbers)

    def _scan(self, found: RecoveredJournal) -> None:
        journal, report = found.journal, self._report
        report.journals += 1
        report.size_bytes += journal.end
        number = journal.number
        # Recovery takes the rows of an index file as they are; here its frames are read, too.
        if found.covered is not None:
            whole = scan(journal.warm(self._env.fs), number, HEADER_BYTES, found.covered.end, 0)
            for gap in whole.gaps:
                self._damage(examine(gap, journal.warm(self._env.fs)))
            self._compare(found, whole)
            self._take(whole)
        elif self._index_there(number) and found.least_end <= journal.capacity:
            report.add(
                f"journal {number}",
                f"its index {index_name(number)} is damaged",
                "it is removed; the next start makes it again",
                self.without_index(number),
            )
        self._take(found.scanned)
        journal.cool()

    def _take(self, scanned: Scanned) -> None:
        self.held.transactions.add_facts(scanned)
        for number, rows in scanned.rows.items():
            ends = (base + count for base, count in zip(rows.base, rows.count, strict=True))
            self.held.ranges[number] += zip(rows.base, ends, strict=True)
        for number, (_, naming) in scanned.named.items():
            self.held.names[number][naming.topic_id] = naming.topic

    def _compare(self, found: RecoveredJournal, whole: Scanned) -> None:
        """Check that the index file has the rows of all frames."""
        index = read_index(self._env.fs, found.journal.folder, found.journal.number)
        # It may have the rows of damaged frames, too.
        if index is None or whole.gaps:
            return
        stored = {number: index.rows(number) for number in index.numbers()}
        # Log starts and deleted topics remove rows from an index; nothing adds one.
        wrong = [
            number
            for number, rows in stored.items()
            if number not in whole.rows or not _ends_with(whole.rows[number], rows)
        ]
        if wrong:
            self._report.add(
                f"journal {found.journal.number}",
                f"its index says something else than its frames, of partition {wrong[0]}",
                "it is removed; the next start makes it again",
                self.without_index(found.journal.number),
            )
        self.held.transactions.compare_later(index, whole, found.journal.number)

    def _damage(self, damage: Damage) -> None:
        gap = damage.gap
        repair = "the next start continues after what is lost"
        if gap.missing or gap.cut_short:
            repair = f"put the file back if there is a copy; {repair}"
        where, text = f"journal {gap.journal}", damage.description(self._name)
        if self._give_up.damage(gap):
            self._report.add(where, f"{text}, and were given up before", harmless=True)
        else:
            self._report.add(where, text, repair, skip=self._give_up.fix)

    def _index_there(self, number: int) -> bool:
        return index_name(number) in self._disk.listdir(self._folder)

    def without_index(self, number: int) -> Fix:
        """Return a repair that removes the index file of a journal."""

        async def fix() -> None:
            self._disk.remove(os.path.join(self._folder, index_name(number)))
            self._disk.sync_dir(self._folder)

        return fix


def _ends_with(rows: IndexColumns, tail: IndexColumns) -> bool:
    cut = len(rows) - len(tail)
    return cut >= 0 and all(
        getattr(rows, name)[cut:] == getattr(tail, name)
        for name in ("base", "log_position", "length", "count", "newest")
    )
