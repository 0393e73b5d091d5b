"""Reading the commit log: spans of files, views of mappings, and the pool for everything else.

Owned by kafkawire.log.append.commit_log.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import DamagedOffsets, KafkaError
from kafkawire.codec.types import Part
from kafkawire.log.io.file_span import FileSpan
from kafkawire.log.io.ports import Buffer, Env
from kafkawire.log.io.read_limits import InFlight, SlowLane
from kafkawire.log.journal.directory import Journals
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK, Journal, Pins
from kafkawire.log.journal.index_file import IndexCache
from kafkawire.log.journal.verification import Verifier, is_bad
from kafkawire.log.partition.read_plan import (
    HotRead,
    JournalRead,
    Plan,
    SegmentRead,
    aborted_in,
    make_plan,
    mapped_views,
    skip_before,
    whole_batches,
)

if TYPE_CHECKING:
    from kafkawire.log.partition.state import LoadedPartition

IN_FLIGHT_BYTES = 64 << 20
"""Cold bytes being read or not yet handed over: a few Fetches of the largest usual size (1 MiB per
partition, 50 MiB per request), so that cold readers cannot use up the broker's memory."""

MAX_GAP_BYTES = 16 << 10
"""Runs closer than this are read in one call: a seek costs more than the bytes between."""


MAPPED_SPAN_BYTES, SPAN_BYTES = 64 << 10, 16 << 10
"""Average length of runs from which on they are sent from the file: each costs two calls. A mapped
one is otherwise sent from its mapping, which takes less for 16 KiB and half as much more for 1 MiB;
another is read into memory and copied."""

MAX_SENDING = 64
"""Journals that are open for spans: those that many readers of old data read at the same time."""

MAX_NAMED = 1000
"""Damaged rows named in the log, so that each is named once."""

logger = logging.getLogger(__name__)

Group = tuple[Journal, list[tuple[int, int]]]
"""A journal and the (position, length) of runs in it."""


class ReadPlan(Protocol):
    """Reads the bytes of a plan; see PartitionReader.read."""

    def __call__(
        self, plan: Plan, patience_s: float | None = None, aborted: list[Aborted] | None = None
    ) -> Awaitable[list[Buffer]]:
        """Return them, whole batches."""
        ...


class SegmentReads(Protocol):
    """The port through which a PartitionReader reads segments: `segments.store.warm_reader`."""

    async def read(
        self,
        plan: SegmentRead,
        read_journals: ReadPlan,
        patience_s: float | None,
        aborted: list[Aborted] | None = None,
    ) -> list[Buffer]:
        """Return the bytes of a plan that begins in a segment; see WarmReader.read."""

    async def read_parts(
        self,
        plan: SegmentRead,
        read_journals: ReadPlan,
        patience_s: float | None,
        aborted: list[Aborted] | None = None,
    ) -> list[Part]:
        """As `read`, with spans of files for long stretches; see WarmReader.read_parts."""

    def ready(self, plan: SegmentRead, aborted: list[Aborted] | None) -> FileSpan | None:
        """Return all of a plan as a span of a file if that needs no wait; see WarmReader.ready."""

    async def first_offset_since(self, partition: LoadedPartition, at: int, timestamp: int) -> int:
        """Return the first offset of segment row `at` that may have a record at or after a time."""

    async def key_ranges(
        self, partition: LoadedPartition, at: int, hashes: frozenset[int]
    ) -> Sequence[tuple[int, int]]:
        """Return the ranges of offsets of segment row `at` that may have a key; see WarmReader."""


class PartitionReader:
    """Reads batches from the commit log; `segments` reads what has been cut."""

    __slots__ = (
        "_env",
        "_in_flight",
        "_journals",
        "_named",
        "_sending",
        "indexes",
        "lane",
        "segments",
        "verifier",
    )

    def __init__(
        self, env: Env, journals: Journals, busy: Callable[[], bool], segments: SegmentReads
    ) -> None:
        self._env = env
        self._journals = journals
        # For work with old data on the event loop.
        self.lane = SlowLane(env, busy)
        # Bytes of older journals are read by threads, since touching a page that is not in memory
        # stops the event loop for as long as the disk takes; so many at a time.
        self._in_flight = InFlight(IN_FLIGHT_BYTES)
        self.indexes = IndexCache(env, journals)
        self.verifier = Verifier(env, journals)
        self._named: set[str] = set()
        self._sending: dict[Journal, None] = {}  # in order of use
        self.segments = segments

    def views(self, plan: HotRead) -> tuple[list[memoryview], Callable[[], None]]:
        """Return views of a hot plan's bytes, in order, and the function to call when they are no
        longer needed."""
        return mapped_views(self._journals.by_number, plan)

    def is_mapped(self, plan: HotRead, committed: bool) -> bool:
        """Return whether `views` may be used for a plan that was not made just now; for a reader of
        `committed` records with the aborted transactions in the journals, as in `read`."""
        partition = plan.partition
        # Below the cut the aborted transactions are known to the segments alone.
        if committed and plan.offset < max(partition.cut_offset, partition.log_start):
            return False
        journals = [
            self._journals.by_number.get(log_position >> POSITION_BITS)
            for log_position, _ in plan.runs
        ]
        # It may have been unmapped since the plan was made.
        return all(journal is not None and journal.view is not None for journal in journals)

    def find_spans(self, plan: HotRead | JournalRead) -> list[FileSpan] | None:
        """Return all of a plan that was made just now as spans, which the caller sends and unpins;
        None if its runs are short, or something has to be read or opened first."""
        if not _is_long(plan):
            return None
        groups = self._by_journal(plan.runs)
        for journal, _ in groups:
            if journal.unverified or journal.bad or not journal.sendable:
                return None
            # The file of a mapped one is in use, so opening it does not wait for the disk.
            if journal.sending is None and journal.view is None:
                return None
        try:
            for journal, _ in groups:
                if journal.sending is None:
                    journal.start_sending(self._env.fs.open(journal.path))
        except OSError:  # such as too many open files: it is read otherwise
            return None
        return self._make_spans(groups)

    def _make_spans(self, groups: list[Group]) -> list[FileSpan]:
        """Return spans of journals that are open for it."""
        spans: list[FileSpan] = []
        for journal, group in groups:
            assert journal.sending is not None, "it was opened"
            pins = Pins()
            pins.add(journal)
            # Until the clients have read it, no matter how long its spans are pinned.
            journal.shared = True
            spans.append(FileSpan(journal.sending, group, pins, _fail_of(journal)))
            self._sending.pop(journal, None)
            self._sending[journal] = None
        if len(self._sending) > MAX_SENDING:
            oldest = next((each for each in self._sending if not each.pins), None)
            if oldest is not None:
                del self._sending[oldest]
                oldest.stop_sending()
        return spans

    async def read_parts(
        self, plan: Plan, patience_s: float | None = None, aborted: list[Aborted] | None = None
    ) -> list[Part]:
        """As `read`, with spans of files for long stretches, which the caller sends and unpins."""
        return await self._read(plan, patience_s, aborted, spans=True)

    async def read(
        self, plan: Plan, patience_s: float | None = None, aborted: list[Aborted] | None = None
    ) -> list[Buffer]:
        """Return the bytes of a plan, cut to the whole batches it covers.

        `patience_s`: how long to wait for a remote tier; None: as long as it takes. `aborted`, if
        given, is extended by the aborted transactions that touch the bytes. Raises OSError from the
        disk, and KafkaError where the plan's journals have been recycled since, or with
        CORRUPT_MESSAGE where they do not contain whole batches at the plan's offset.
        """
        return cast("list[Buffer]", await self._read(plan, patience_s, aborted, spans=False))

    async def _read(
        self,
        plan: Plan,
        patience_s: float | None,
        aborted: list[Aborted] | None,
        *,
        spans: bool,
    ) -> list[Part]:
        if isinstance(plan, SegmentRead):
            return await self._read_segments(plan, patience_s, aborted, spans=spans)
        if aborted is not None:
            # Since the plan was made the journals may have been cut: what lies below the cut is
            # known to the segments alone.
            if plan.offset < max(plan.partition.cut_offset, plan.partition.log_start):
                again = make_plan(plan.partition, plan.offset, plan.max_bytes, plan.end, plan.first)
                return await self._read(again, patience_s, aborted, spans=spans)
            aborted += aborted_in(plan)
        indexed_in = plan.journal if isinstance(plan, JournalRead) else None
        numbers = [indexed_in] if indexed_in is not None else []
        numbers += [log_position >> POSITION_BITS for log_position, _ in plan.runs]
        if any(number not in self._journals.by_number for number in numbers):
            if plan.partition.removed:  # another plan would name the same journals again
                raise plan.partition.refusal()
            # Recycled since the plan was made: cut into segments, or below the log start.
            again = make_plan(plan.partition, plan.offset, plan.max_bytes, plan.end, plan.first)
            return await self._read(again, patience_s, aborted, spans=spans)
        runs = plan.runs if indexed_in is None else await self._look_up(plan, indexed_in)
        groups = self._by_journal(runs)
        # From here on they are not recycled.
        pins = Pins()
        for journal, _ in groups:
            pins.add(journal)
        buffers: list[memoryview] = []
        try:
            groups = await self._sound(plan, groups)
            if spans and _is_long(plan) and all(journal.sendable for journal, _ in groups):
                return [*await self._open_spans(groups)]
            total = sum(length for _, group in groups for _, length in group)
            await self._in_flight.wait_for_room(total)
            try:
                for journal, group in groups:
                    buffers += await self._read_group(journal, group)
            finally:
                self._in_flight.give(total)
        finally:
            pins.release()
        return [*_trim(plan, buffers)]

    async def _read_segments(
        self,
        plan: SegmentRead,
        patience_s: float | None,
        aborted: list[Aborted] | None,
        *,
        spans: bool,
    ) -> list[Part]:
        if spans:
            return await self.segments.read_parts(plan, self.read, patience_s, aborted)
        return [*await self.segments.read(plan, self.read, patience_s, aborted)]

    async def _open_spans(self, groups: list[Group]) -> list[FileSpan]:
        for journal, _ in groups:
            if journal.sending is None:
                opening = self._env.offload.submit("read", self._env.fs.open, journal.path)
                journal.start_sending(await opening)
        return self._make_spans(groups)

    async def _sound(self, plan: Plan, groups: list[Group]) -> list[Group]:
        """Return the runs before the first damaged one. Raises DamagedOffsets if there is none."""
        taken: list[Group] = []
        for journal, group in groups:
            if journal.unverified:
                await self.verifier.verify(journal)
            stop = len(group)
            # The runs before the first damaged one are served.
            if journal.bad:
                stop = next(
                    (at for at, run in enumerate(group) if is_bad(journal.bad, *run)), len(group)
                )
            if stop:
                taken.append((journal, group[:stop]))
            if stop < len(group):
                if not taken:
                    raise await self._damage_error(plan)
                break
        return taken

    async def _damage_error(self, plan: Plan) -> DamagedOffsets:
        """Return the error for a reader of a damaged row of a journal; it is logged once."""
        partition = plan.partition
        rows = partition.rows
        row = rows.find(plan.offset)
        if row < 0:
            extents = partition.journal_extents
            index = await self.indexes.get(extents.journal[extents.find(plan.offset)])
            columns = index.rows(partition.number)
            row = bisect_right(columns.base, plan.offset) - 1
            first, end = columns.base[row], columns.base[row] + columns.count[row]
        else:
            first, end = rows.base[row], rows.end_offset(row)
        text = f"{partition.topic}-{partition.index}: offsets {first}-{end - 1} are damaged"
        # Once for each range, and for so many: readers retry.
        if text not in self._named and len(self._named) < MAX_NAMED:
            self._named.add(text)
            logger.critical("%s. Reading them returns an error, all other offsets are served", text)
        return DamagedOffsets(end, text)

    async def _look_up(self, plan: HotRead | JournalRead, number: int) -> list[tuple[int, int]]:
        """Find the runs of a plan whose rows are in the index file of a journal."""
        pins = Pins()
        pins.add(self._journals.by_number[number])
        try:
            index = await self.indexes.get(number)
        finally:
            pins.release()
        return index.runs(plan.partition.number, plan.offset, plan.end, plan.max_bytes, plan.first)

    def _by_journal(self, runs: list[tuple[int, int]]) -> list[Group]:
        groups: list[Group] = []
        for log_position, length in runs:
            journal = self._journals.by_number[log_position >> POSITION_BITS]
            if not groups or groups[-1][0] is not journal:
                groups.append((journal, []))
            groups[-1][1].append((log_position & POSITION_MASK, length))
        return groups

    async def _read_group(self, journal: Journal, group: list[tuple[int, int]]) -> list[memoryview]:
        spans = _join(group)
        parts = await self._env.offload.submit("read", journal.read, self._env.fs, spans)
        views: list[memoryview] = []
        at = 0
        for position, length in group:
            while position >= spans[at][0] + spans[at][1]:
                at += 1
            start = position - spans[at][0]
            views.append(memoryview(parts[at])[start : start + length])
        return views


def _is_long(plan: HotRead | JournalRead) -> bool:
    """Return whether the runs of a plan are worth sending from their files."""
    least = MAPPED_SPAN_BYTES if isinstance(plan, HotRead) else SPAN_BYTES
    return plan.whole and plan.size_bytes >= least * len(plan.runs)


def _fail_of(journal: Journal) -> Callable[[], None]:
    """Return what to call when a journal cannot be read while it is being sent."""

    def note_failure() -> None:
        journal.sendable = False  # reading it reports what is wrong to the client

    return note_failure


def _join(group: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return fewer, longer (position, length) that cover all of the group's."""
    spans: list[tuple[int, int]] = []
    wanted = between = 0
    for position, length in group:
        wanted += length
        if spans:
            start, size = spans[-1]
            gap = position - (start + size)
            # The bytes between stay in memory as long as the answer: at most as many as are wanted.
            if gap <= MAX_GAP_BYTES and between + gap <= wanted + MAX_GAP_BYTES:
                between += gap
                spans[-1] = (start, position + length - start)
                continue
        spans.append((position, length))
    return spans


def _trim(plan: Plan, buffers: list[memoryview]) -> list[Buffer]:
    """Cut the batches before the requested offset from the first buffer, and all from the first
    that does not fit."""
    kept: list[Buffer] = []
    room = plan.max_bytes
    for at, buffer in enumerate(buffers):
        start = 0 if at else skip_before(buffer, 0, len(buffer), plan.offset)
        first = plan.first and not kept
        try:
            stop = whole_batches(buffer, start, len(buffer), plan.end, room, first)
        except KafkaError:
            if kept:
                break  # reported when a reader begins there
            raise
        if stop > start:
            kept.append(buffer[start:stop])
            room -= stop - start
        if stop < len(buffer):
            break
    return kept
