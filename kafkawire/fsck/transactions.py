"""Check transactions: the batches of each partition against what is stored of its transactions.

The batches in segments and journals show which transactions were aborted and which are open. The
lists of aborted transactions in segments and in index files of journals must agree with them: a
transaction that is missing there would be shown to readers of committed records, one too many would
hide records from them.

Checked are the offsets from the first on that can be read without a gap up to the end. Blocks:
nothing else runs.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkawire.codec.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    COUNT,
    HEAD,
    LAST_DELTA,
    LENGTH,
    PREFIX_BYTES,
    PRODUCER_ID,
    TRANSACTIONAL,
)
from kafkawire.codec.control import ABORT, Aborted
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import PartitionState
from kafkawire.fsck.offsets import cut_end
from kafkawire.fsck.report import Fix, FsckReport
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.journal.index_file import JournalIndex
from kafkawire.log.journal.scan import Fact, Scanned, marker_of
from kafkawire.log.segments.file.open import SegmentFile
from kafkawire.offsets.catalog.port import PartitionRow, SegmentRange

MAX_FILES = 32
"""Segments kept open: partitions of neighbouring numbers share theirs, and each is a mapping."""
MAX_NAMED = 20
"""Differences of one partition that are reported; more would say nothing else."""

DATA = -3
"""Kind of a batch that is no marker."""
JOURNALS = -1
"""Stands for the number of a mapping where batches are in the journals."""


class AbortedFound(NamedTuple):
    """An aborted transaction as its batches show it. `batches`: the offset of its first batch in
    each mapping, by the mapping's number, in their order; `exact`: it has none before the
    checked offsets."""

    producer_id: int
    batches: dict[int, int]
    marker: int
    exact: bool


class JournalTransactionFacts:
    """Transactional batches in the journals by partition number: base offset, producer ID and kind
    of each; and what the index files of journals list: by marker, and in which journal."""

    def __init__(self) -> None:
        self._events: dict[int, array[int]] = {}
        self.listed: dict[int, dict[int, Aborted]] = {}
        self.markers: dict[int, dict[int, int]] = {}

    def add_facts(self, scanned: Scanned) -> None:
        for number, facts in scanned.facts.items():
            for _, fields, marker in facts:
                if fields[ATTRIBUTES] & TRANSACTIONAL:
                    kind = DATA if marker is None else marker.kind
                    columns = self._events.setdefault(number, array("q"))
                    columns.extend((fields[BASE_OFFSET], fields[PRODUCER_ID], kind))

    def compare_later(self, index: JournalIndex, scanned: Scanned, journal: int) -> None:
        """Note the aborted transactions of an index file, and the markers in its frames."""
        listed = index.transactions.aborted if index.transactions is not None else {}
        for number in scanned.facts.keys() | listed.keys():
            if number not in index:
                continue
            entries = {entry.marker: entry for entry in listed.get(number, ())}
            self.listed.setdefault(number, {}).update(entries)
            ends = {*entries, *_abort_markers(scanned.facts.get(number, ()))}
            self.markers.setdefault(number, {}).update(dict.fromkeys(ends, journal))

    def events(self, number: int, start: int) -> Iterator[tuple[int, int, int]]:
        """Yield (base offset, producer ID, kind) of the batches from `start` on, in their order."""
        columns = self._events.get(number, array("q"))
        for at in range(0, len(columns), 3):
            if columns[at] >= start:
                yield columns[at], columns[at + 1], columns[at + 2]


def _abort_markers(facts: Iterable[Fact]) -> Iterator[int]:
    for _, fields, marker in facts:
        if marker is not None and marker.kind == ABORT:
            yield fields[BASE_OFFSET]


@dataclass(slots=True)
class _History:
    """Transactions of one partition, from its batches in their order. `whole`: nothing is before
    the first of them; `dense`: no offset was left out; `part`: number of the mapping that is read;
    `opened`: by producer ID the first offset in each mapping."""

    whole: bool
    checkpoint_end: int
    dense: bool = True
    part: int = JOURNALS
    opened: dict[int, dict[int, int]] = field(default_factory=dict)
    at_checkpoint: dict[int, int] | None = None
    aborted: list[AbortedFound] = field(default_factory=list)
    lone_markers: int = 0
    settled: set[int] = field(default_factory=set)

    def add_batch(self, base: int, producer_id: int, kind: int) -> None:
        self.reach(base)
        if kind == DATA:
            self.opened.setdefault(producer_id, {}).setdefault(self.part, base)
            return
        # No marker of a transaction, or one whose record compaction has removed.
        if kind < 0:
            return
        # Otherwise the transaction may have begun before the offsets that are checked.
        known = self.whole or producer_id in self.settled
        self.settled.add(producer_id)
        batches = self.opened.pop(producer_id, None)
        if batches is None:
            self.lone_markers += known
        if kind == ABORT and (batches is not None or not known):
            self.aborted.append(AbortedFound(producer_id, batches or {}, base, known))

    def reach(self, offset: int) -> None:
        """Note what is open at the end of the checkpoint, once it is passed."""
        if self.at_checkpoint is None and offset >= self.checkpoint_end:
            self.at_checkpoint = {
                producer_id: next(iter(batches.values()))
                for producer_id, batches in self.opened.items()
            }

    def knows_first(self, producer_id: int) -> bool:
        return self.whole or producer_id in self.settled


class TransactionCheck:
    """The check of all partitions of one broker. `paths`: the intact segment files by id;
    `without_index`: the repair of a journal's index file."""

    def __init__(
        self,
        fs: FileSystem,
        paths: Mapping[int, str],
        journals: JournalTransactionFacts,
        report: FsckReport,
        without_index: Callable[[int], Fix],
    ) -> None:
        self._fs = fs
        self._paths = paths
        self._journals = journals
        self._report = report
        self._without_index = without_index
        self._files: OrderedDict[int, tuple[SegmentFile, dict[int, PartitionState]]] = OrderedDict()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1][0].close()

    def run(self, name: str, row: PartitionRow) -> None:
        """Check a partition, of which no offset is missing in the journals."""
        mappings = self._readable(row.mappings)
        cut = cut_end(row)
        start = mappings[0].base_offset if mappings else cut
        checkpoint_end = row.checkpoint.next_offset if row.checkpoint is not None else 0
        history = _History(start == 0, checkpoint_end)
        for history.part, mapping in enumerate(mappings):
            self._walk(mapping, history)
        history.part = JOURNALS
        for base, producer_id, kind in self._journals.events(row.number, cut):
            history.add_batch(base, producer_id, kind)
        # Perhaps no batch is beyond the checkpoint.
        history.reach(max(checkpoint_end, cut))
        self._report.open_transactions += len(history.opened)
        self._report.aborted_transactions += len(history.aborted)
        self._report.lone_markers += history.lone_markers
        problems = list(_compare_checkpoint(row, history, start))
        if history.dense:
            for part, mapping in enumerate(mappings):
                problems += self._compare_segment(part, mapping, row, history)
        for text in problems[:MAX_NAMED]:
            self._report.add(name, text)
        self._compare_indexes(name, row.number, cut, history)

    def _readable(self, mappings: Sequence[SegmentRange]) -> list[SegmentRange]:
        """Return the last mappings that follow one another without a gap and have a local file."""
        kept: list[SegmentRange] = []
        for mapping in reversed(mappings):
            gap = bool(kept) and mapping.end_offset != kept[-1].base_offset
            if gap or self._open(mapping.segment_id) is None:
                break
            kept.append(mapping)
        return kept[::-1]

    def _open(self, segment_id: int) -> tuple[SegmentFile, dict[int, PartitionState]] | None:
        found = self._files.get(segment_id)
        if found is not None:
            self._files.move_to_end(segment_id)
            return found
        path = self._paths.get(segment_id)
        if path is None:
            return None
        try:
            file = SegmentFile(self._fs, path)
            found = self._files[segment_id] = file, file.states()
        # Reported by the check of the segments.
        except (FormatError, OSError):
            return None
        if len(self._files) > MAX_FILES:
            self._files.popitem(last=False)[1][0].close()
        return found

    def _walk(self, mapping: SegmentRange, history: _History) -> None:
        """Take the batches of one partition in one segment, whose checksums were checked."""
        opened = self._open(mapping.segment_id)
        if opened is None:
            history.dense = False
            return
        file, states = opened
        state = states.get(mapping.number)
        if state is not None and state.lost:
            history.dense = False
        view, at = file.view, mapping.start
        following = mapping.base_offset
        while at < mapping.start + mapping.length:
            fields = HEAD.unpack_from(view, at)
            # Compaction has removed records, and perhaps the first batch of a transaction: the
            # lists are not compared.
            if fields[BASE_OFFSET] > following or fields[COUNT] != fields[LAST_DELTA] + 1:
                history.dense = False
            following = fields[BASE_OFFSET] + fields[LAST_DELTA] + 1
            if fields[ATTRIBUTES] & TRANSACTIONAL:
                marker = marker_of(view, at, fields)
                kind = DATA if marker is None else marker.kind
                history.add_batch(fields[BASE_OFFSET], fields[PRODUCER_ID], kind)
            at += fields[LENGTH] + PREFIX_BYTES

    def _compare_segment(
        self, part: int, mapping: SegmentRange, row: PartitionRow, history: _History
    ) -> Iterator[str]:
        """Yield the differences between the list of a segment and its batches."""
        opened = self._open(mapping.segment_id)
        if opened is None:
            return
        state = opened[1].get(mapping.number, PartitionState())
        listed = {entry.marker: entry for entry in state.aborted}
        log_start = row.checkpoint.log_start if row.checkpoint is not None else 0
        where = f"the segment of offsets {mapping.base_offset}-{mapping.end_offset - 1}"
        known = {each.marker: each for each in history.aborted}
        for each in history.aborted:
            if each.marker >= log_start:
                yield from _difference(where, each, listed.get(each.marker), part)
        start = mapping.base_offset
        for entry in state.aborted:
            if start <= entry.marker < mapping.end_offset and entry.marker not in known:
                yield _too_many(where, entry)

    def _compare_indexes(self, name: str, number: int, cut: int, history: _History) -> None:
        """Report index files whose lists differ from the batches in the journals."""
        listed = self._journals.listed.get(number, {})
        known = {each.marker: each for each in history.aborted}
        for marker, journal in self._journals.markers.get(number, {}).items():
            if marker < cut:
                continue
            found, entry = known.get(marker), listed.get(marker)
            texts: Iterable[str] = ()
            if found is not None:
                texts = _difference("its index", found, entry, JOURNALS)
            elif entry is not None:
                texts = (_too_many("its index", entry),)
            for text in texts:
                repair = "it is removed; the next start makes it again"
                where = f"journal {journal}"
                self._report.add(where, f"of {name}, {text}", repair, self._without_index(journal))


def _difference(where: str, found: AbortedFound, entry: Aborted | None, part: int) -> Iterator[str]:
    """Yield what is wrong with the entry in the list of one mapping."""
    text = (
        f"the aborted transaction of producer {found.producer_id} that ends at offset "
        f"{found.marker}"
    )
    first = found.batches.get(part)
    if entry is None:
        if first is not None:
            yield f"{where} leaves out {text}: readers of committed records would get its records"
        return
    # A list may name a transaction from its first batch in that mapping on: after a start of the
    # broker no more of it may be known, and readers need no more.
    begun = next(iter(found.batches.values()), None)
    early = found.exact and begun is not None and entry.first < begun
    late = first is not None and entry.first > first
    if entry.producer_id != found.producer_id or early or late:
        yield (
            f"{where} says that {text} began at offset {entry.first} of producer "
            f"{entry.producer_id}, its batches at {begun}"
        )


def _too_many(where: str, entry: Aborted) -> str:
    producer_id, first, marker = entry
    return (
        f"{where} lists an aborted transaction of producer {producer_id} at offsets "
        f"{first}-{marker}, which the log does not have"
    )


def _compare_checkpoint(row: PartitionRow, history: _History, start: int) -> Iterator[str]:
    """Yield the differences between the open transactions of the checkpoint and the batches."""
    if row.checkpoint is None:
        return
    # One that is missing there is not open after the next start, which lets readers pass it.
    stored = {
        entry.producer_id: entry.open_offset
        for entry in row.checkpoint.producers
        if entry.open_offset >= start
    }
    found = history.at_checkpoint or {}
    for producer_id, first in found.items():
        if producer_id not in stored and history.knows_first(producer_id):
            yield (
                f"the checkpoint leaves out the transaction that producer {producer_id} has open "
                f"since offset {first}"
            )
    for producer_id, first in stored.items():
        if found.get(producer_id) != first:
            yield (
                f"the checkpoint has a transaction of producer {producer_id} open since offset "
                f"{first}, its batches do not"
            )
