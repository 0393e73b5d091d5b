"""Recovery: read all journals after any end, and decide which of it is valid.

1. List the folder. A file without a header and without a frame of its number was only prepared: it
   becomes a spare.
2. Oldest first, take each journal's rows from its index file, and scan what that does not cover:
   usually all of the last journal. A journal ends where the next one's header says so.
3. Every gap is classified. If any frame after it (or the checkpoint, or the mark of a clean end)
   claims a committed log position beyond the gap, acknowledged bytes are damaged there: they are
   logged and skipped, and what follows counts. Otherwise nothing after it was ever acknowledged as
   committed: the log is cut there, in this journal and all later ones. A journal that the ledger
   names and that is missing, or ends too early, is damage too.
4. What is left is written again from the last committed log position on, and synced.
5. (kafkawire.log.manager) The partitions take their rows; next offset = max(checkpoint, scan, what
   damage may have taken). The ledger is written; then journals after a cut become spares, durably,
   and only then is anything written to the log.

Crash assumptions: a write may be torn at any byte and reordered with others until an fsync that
succeeded; sectors may be damaged later; a successful fsync is honest. Reads block, since nothing
else runs yet.
"""

from __future__ import annotations

import logging
import os.path
import re
from bisect import bisect_left
from collections.abc import Mapping

from kafkawire.log.io.atomic_file import NEW
from kafkawire.log.io.gathered_write import write_whole
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.journal.directory import SPARE_PREFIX, SpareFile
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK, Journal
from kafkawire.log.journal.format import HEADER_BYTES, check, find_frame, read_head, read_header
from kafkawire.log.journal.index_file import read_index
from kafkawire.log.journal.ledger import LedgerContents
from kafkawire.log.journal.losses import ends, examine, examine_index
from kafkawire.log.journal.salvage import find_head
from kafkawire.log.journal.scan import Gap, Scanned, scan
from kafkawire.log.recovery.result import Recovered, RecoveredJournal

logger = logging.getLogger(__name__)

REWRITE_BYTES = 4 << 20
"""Bytes read and written again at a time: large enough for the disk, small in memory."""

_JOURNAL = re.compile(r"(\d{10})\.journal")
_SPARE = re.compile(SPARE_PREFIX + r"(\d{10})")


def recover(
    env: Env, folder: str, log_position: int, clean_end: int, ledger: LedgerContents | None = None
) -> Recovered:
    """Read all journals of a folder. Blocks.

    `log_position`: the checkpoint's, up to which everything is committed. `clean_end`: where the
    log ended cleanly, or -1. `ledger`: the contents of the ledger, if there is one.
    """
    result = Recovered(checkpoint=log_position)
    # A damaged ledger may miss journals and bounds; what it has as committed is still true.
    listed = ledger.journals if ledger is not None and not ledger.damaged else {}
    claimed = max(clean_end, ledger.committed if ledger is not None else 0)
    # 1. Which journals there are.
    _list(env, folder, result, listed)
    # 2. Their rows, oldest first: the run number of each is needed by the next.
    for at, found in enumerate(result.found):
        _read(env.fs, found, result.found[at + 1 :], result, clean_end)
    # Before gaps are judged: a checkpoint that is beyond the log must not make them damage.
    _reach(env.fs, result, listed, claimed, log_position)
    if result.contradicts(log_position):
        log_position = 0  # reported by the caller; the journals are judged without it
    claimed = max(claimed, log_position)
    # 3. Damage, or the end of the log.
    dropped = _judge(result, claimed, listed)
    result.discarded += [found.journal for found in dropped]
    # 4. Make durable what is left.
    if result.found:
        _settle(env.fs, result, claimed)
    _miss(result, listed, claimed)
    _examine(env.fs, folder, result, log_position)
    return result


def _reach(
    fs: FileSystem, result: Recovered, listed: Mapping[int, int], claimed: int, log_position: int
) -> None:
    """Note where the log ends if nothing but the checkpoint says that it was longer: the ledger
    shows that all journals are there, none of them, nor the ledger, `claimed` what comes after the
    last frame, and nothing is left there of a frame."""
    there = {found.journal.number for found in result.found}
    # Without a ledger, or with a journal missing, the log may have been longer.
    if not listed or listed.keys() - there:
        return
    last = result.found[-1].journal
    end = last.end_log_position
    if max([claimed, *(found.extent().claimed for found in result.found)]) > end:
        return
    if log_position > end:
        # Remains of a frame after the end: it may have been damaged.
        left = find_head(last.warm(fs), last.number, last.end, last.capacity)
        if left < last.capacity:
            return
    result.reached = end


def _miss(result: Recovered, listed: Mapping[int, int], claimed: int) -> None:
    """Note the journals that must exist and are missing or empty."""
    last = claimed >> POSITION_BITS
    there = {found.journal.number for found in result.found}
    newest = max(there, default=0)
    # An empty journal is no loss if nothing was committed in it.
    there |= {journal.number for journal in result.discarded if claimed <= journal.log_position}
    there |= {gap.journal for gap in result.damage if gap.missing}
    missing = dict(listed)
    # Without a ledger only a claim shows a missing journal: the last one.
    if not listed and result.found and last > result.found[-1].journal.number:
        missing[last] = -1  # the checkpoint or the mark of a clean end proves that
    for number in sorted(missing.keys() - there):
        end = claimed & POSITION_MASK if number == last else HEADER_BYTES
        # Nothing says how long it was, as the header of a later one would: more than its range may
        # be lost, also after the checkpoint. One that was only prepared says nothing.
        open_ended = number >= newest and missing[number] < 0
        end = max(end, missing[number])
        result.damage.append(Gap(number, 0, end, missing=True, open=open_ended))
    result.damage.sort(key=lambda gap: gap.log_position)
    result.next_number = max([result.next_number, last + 1, *(number + 1 for number in listed)])
    if result.found and result.damage:
        journal = result.found[-1].journal
        # The log continues in a new journal, at log positions that were never used.
        if claimed > journal.end_log_position or result.damage[-1].journal > journal.number:
            journal.rolled = True


def _examine(fs: FileSystem, folder: str, result: Recovered, log_position: int) -> None:
    """Examine the damaged bytes of a journal, or its index if the journal is missing."""
    journals = {found.journal.number: found.journal for found in result.found}
    for gap in result.damage:
        journal = journals.get(gap.journal)
        # The index file may be left when the journal's bytes are not.
        index = read_index(fs, folder, gap.journal) if gap.missing or gap.cut_short else None
        if index is not None and index.extent.end >= gap.end:
            rows = {number: index.rows(number) for number in index.numbers()}
            result.examined.append(examine_index(gap, rows))
        else:
            view = journal.warm(fs) if journal is not None else None
            result.examined.append(examine(gap, view))
    result.ends = ends(result.examined, log_position)


def _list(env: Env, folder: str, result: Recovered, listed: Mapping[int, int]) -> None:
    fs = env.fs
    for name in fs.listdir(folder):
        path = os.path.join(folder, name)
        if name.endswith(NEW):
            # Left by a write that a crash interrupted before its rename.
            fs.remove(path)
        match = _JOURNAL.fullmatch(name) or _SPARE.fullmatch(name)
        if match is None:
            continue
        number = int(match[1])
        # Above every number that any file here ever had, so that no frame found under a number can
        # be left from an earlier use of that number.
        result.next_number = max(result.next_number, number + 1)
        file = fs.open(path)
        journal = Journal(number, path, file, file.size())
        if name.startswith(SPARE_PREFIX):
            result.spares.append(SpareFile(path, journal.capacity))
            journal.cool()
            continue
        view = journal.warm(fs)
        # No header, or one of the number it had before: renamed and never written to, so only
        # prepared, unless a frame of this number follows.
        header = read_header(view, path)
        if header is None or header.journal != number:
            if find_frame(view, HEADER_BYTES, journal.capacity, number) < 0:
                result.discarded.append(journal)
                continue
            logger.error("%s has a damaged header, reading its frames anyway", path)
            header = None
        index = read_index(fs, folder, number)
        found = RecoveredJournal(
            journal, header, None, set(), Scanned(number, 0, 0), listed.get(number, -1)
        )
        # Its index is written once it is complete: the file must have reached that end.
        if index is not None and index.extent.end > journal.capacity:
            found.least_end = max(found.least_end, index.extent.end)  # it was cut short
        # Without its transactions the index does not suffice: the journal is scanned.
        elif index is not None and index.complete:
            found.covered, found.indexed = index.extent, set(index.numbers())
            # Only the last journal is written further.
            if result.found:
                result.found[-1].journal.stored = []
            journal.stored = index.stored
            journal.cool()
        result.found.append(found)


def _read(
    fs: FileSystem,
    found: RecoveredJournal,
    later: list[RecoveredJournal],
    result: Recovered,
    end: int,
) -> None:
    """Scan what the index does not cover. `end`: the log position of a clean end, or -1."""
    journal = found.journal
    # Where the journal ends says the header of the next, or its index file, or the ledger.
    # Otherwise the log may end anywhere in it.
    stop: int | None = None
    if later and later[0].previous_end() >> POSITION_BITS == journal.number:
        stop = later[0].previous_end() & POSITION_MASK
    elif found.least_end > 0:
        stop = found.least_end
    start = HEADER_BYTES
    if found.covered is not None:
        start = found.covered.end
        result.run = max(result.run, found.covered.run)
        # The last journal after a clean end: nothing follows, so its free space is not searched.
        if end == journal.log_position | start and not later and not _follows(fs, journal, start):
            stop = start
    if (
        stop is not None
        and later
        and later[0].header
        and _begun_in_vain(fs, found, later[0], start, stop)
    ):
        # The next journal was begun by a write that failed: its header knows an older end.
        stop = None
    # The usual case of a rolled journal: its index covers all of it.
    if start == stop:
        found.scanned = Scanned(journal.number, start, result.run)
    else:
        found.scanned = scan(journal.warm(fs), journal.number, start, stop, result.run)
    journal.end = found.scanned.end
    result.run = found.scanned.run
    stop = max(stop or 0, found.least_end)
    # The file is shorter than what was in it. A gap up to its end is part of that loss.
    if stop > journal.capacity:
        gaps = found.scanned.gaps
        if gaps and gaps[-1].end == journal.capacity:
            del gaps[-1]
        gaps.append(Gap(journal.number, journal.end, stop, cut_short=True))


def _begun_in_vain(
    fs: FileSystem, found: RecoveredJournal, later: RecoveredJournal, start: int, stop: int
) -> bool:
    """Return whether a journal was written further after the next one was begun."""
    assert later.header is not None, "it said where this journal ended"
    journal = found.journal
    # The next one has an index file, so it was used.
    if later.covered is not None or (start == stop and not _follows(fs, journal, start)):
        return False
    # The write batch that began the next one failed, under the older run; later ones fitted into
    # this journal. So the end in the next one's header is not this one's.
    return scan(journal.warm(fs), journal.number, start, None, 0).run > later.header.run


def _follows(fs: FileSystem, journal: Journal, position: int) -> bool:
    """Return whether a frame is at the position of a clean end, which then was none."""
    view = journal.warm(fs)
    head = read_head(view, position)
    return head is not None and check(view, position, head, journal.number) is not None


def _judge(result: Recovered, claimed: int, listed: Mapping[int, int]) -> list[RecoveredJournal]:
    """Find the first gap after which nothing claims that it was committed, and cut there.

    Returns the journals after the cut.
    """
    # Per journal, last first: the greatest committed position that it, those after it, or anything
    # outside of the journals claims.
    behind: list[int] = []
    for found in reversed(result.found):
        claimed = max(claimed, found.extent().claimed)
        behind.append(claimed)
    before = -1
    for at, (found, claim) in enumerate(zip(result.found, reversed(behind), strict=True)):
        missing = _missing(found, before)
        # A journal that the ledger names is damage in any case (_miss).
        if missing is not None and missing.journal not in listed:
            # Nothing of it was committed: the log ended before it, and what follows never counted.
            if claim <= missing.log_position:
                return _drop(result, at)
            # Committed, but not to its end: a recycled journal had been committed completely.
            if claim < found.previous_end():
                result.damage.append(missing)
        before = found.journal.number
        for gap in found.scanned.gaps:
            # The decision. A frame states the committed position of its time, so any claim beyond
            # the gap proves that the gap's bytes were acknowledged.
            if claim <= gap.log_position:
                _cut(found, gap)
                # An empty journal goes too, to be prepared again.
                begun = found.header is not None or found.journal.end > HEADER_BYTES
                return _drop(result, at + 1 if begun else at)
            result.damage.append(gap)
    return []


def _missing(found: RecoveredJournal, before: int) -> Gap | None:
    """Return the journal that is missing before this one, if there is one."""
    number = found.previous_end() >> POSITION_BITS
    if number in (0, before):
        return None
    return Gap(number, 0, found.previous_end() & POSITION_MASK, missing=True)


def _drop(result: Recovered, at: int) -> list[RecoveredJournal]:
    dropped = result.found[at:]
    del result.found[at:]
    return dropped


def _cut(found: RecoveredJournal, gap: Gap) -> None:
    """Forget everything of a journal from a gap on."""
    journal, scanned = found.journal, found.scanned
    logger.info(
        "journal %d ends at byte %d: the bytes after it were never committed",
        journal.number,
        gap.start,
    )
    # New frames are written from here on, over what is left.
    journal.end = scanned.end = gap.start
    for number, rows in list(scanned.rows.items()):
        keep = bisect_left(rows.log_position, gap.log_position)
        for column in (rows.base, rows.log_position, rows.length, rows.count, rows.newest):
            del column[keep:]
        if not keep:
            del scanned.rows[number]
    for number, facts in scanned.facts.items():
        scanned.facts[number] = [fact for fact in facts if fact[0] < gap.log_position]
    scanned.frames = sum(len(rows) for rows in scanned.rows.values())
    scanned.named = {
        number: (position, naming)
        for number, (position, naming) in scanned.named.items()
        if position < gap.start
    }


def _harden(fs: FileSystem, journal: Journal, committed: int) -> None:
    """Write what was not known as committed again, and sync it."""
    journal.warm(fs)
    file = journal.require_file()
    # After a crash of the process it may be in the page cache only; after a failed fsync the kernel
    # may treat it as clean although the disk never got it. Writing the same bytes makes them dirty.
    position = 0
    if committed > journal.log_position:
        position = min(committed - journal.log_position, journal.end)
    while position < journal.end:
        part = file.pread(min(REWRITE_BYTES, journal.end - position), position)
        write_whole(file, [part], position, len(part))
        position += len(part)
    file.sync()


def _settle(fs: FileSystem, result: Recovered, claimed: int) -> None:
    """Make what is left durable and find where writing continues."""
    last = result.found[-1].journal
    # Committed bytes are missing at the end, after the last frame.
    if claimed > last.end_log_position and claimed >> POSITION_BITS == last.number:
        end = claimed & POSITION_MASK
        fits = end <= last.capacity
        # One gap to the claimed end replaces those of the same bytes.
        result.damage = [gap for gap in result.damage if gap.log_position < last.end_log_position]
        result.damage.append(Gap(last.number, last.end, end, cut_short=not fits, open=True))
        if fits:
            # Writing continues after the lost bytes.
            last.end = end
    claimed = max([claimed, *(found.extent().claimed for found in result.found)])
    for found in result.found:
        journal = found.journal
        journal.rolled = journal is not last
        extent = found.extent()
        journal.entries = extent.frames
        # What an index file covers was not read by this start.
        journal.unverified = found.covered.end if found.covered is not None else 0
        journal.numbers = found.numbers() | found.scanned.named.keys()
        journal.indexed = found.covered is not None and found.covered.end == journal.end
        if not journal.indexed:
            # A journal with a complete index was durable before its index was written.
            _harden(fs, journal, claimed)
        for number, (_, naming) in found.scanned.named.items():
            # Oldest first: the newest naming of a partition stays.
            result.namings[number] = naming
    result.written = last.end_log_position
