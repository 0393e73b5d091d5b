"""Check segments against their rows: whether each file exists, is undamaged, and matches its rows
in SQL.

Files and rows that an interrupted cut or removal leaves are reported as harmless: the next start
removes them.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Sequence

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import PartitionEntry
from kafkawire.fsck.journals import JournalContents
from kafkawire.fsck.report import Fix, FsckReport
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.io.worker_jobs import ScrubArguments, SkipArguments, SkipResult, no_pace
from kafkawire.log.partition.damaged_ranges import Range
from kafkawire.log.recovery.quarantine import Quarantine
from kafkawire.log.segments.file import verify
from kafkawire.log.segments.file.open import SUFFIX, SegmentFile, read_entries, segment_path
from kafkawire.log.segments.skip.job import run as skip_job
from kafkawire.log.segments.skip.skipper import SkipWriter
from kafkawire.log.segments.strays import Known, describe, find_unaccounted
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    DELETING,
    LIVE,
    STARTED,
    ObjectRow,
    PartitionRow,
    SegmentCatalog,
    SegmentRange,
    SegmentRow,
    Swap,
    range_of,
)
from kafkawire.progress import Progress

ROWS_AT_ONCE = 1000
"""Rows of segments or objects of one round trip."""


class SegmentCheck:
    """One check of `<home>/segments` and the rows of one broker."""

    def __init__(
        self,
        env: Env,
        home: str,
        node_id: int,
        storage: SegmentCatalog,
        report: FsckReport,
        progress: Progress,
        catalog: Catalog,
        held: JournalContents,
        known: Known,
    ) -> None:
        self._env = env
        self._fs = env.fs
        self._folder = os.path.join(home, "segments")
        self._quarantine = Quarantine(env.fs, home)
        self._catalog = catalog
        self._held = held
        self._known = known
        self._node_id = node_id
        self._storage = storage
        self._report = report
        self._progress = progress
        self._own: set[int] = set()
        self._others: dict[str, set[str]] = {}  # by the folder of another broker
        self.intact: dict[int, str] = {}
        """Paths of the LIVE segments in which nothing is wrong, by id."""

    async def run(self) -> set[int]:
        """Check all of them; return the ids of the LIVE ones that have a file, or an object
        according to the rows."""
        rows = await self._rows()
        self._own = {row.id for row in rows}
        remote = await ObjectCheck(
            self._env, self._node_id, self._storage, self._report, rows
        ).run()
        files = set(self._files())
        usable: set[int] = set()
        for at, row in enumerate(rows):
            self._progress("segments", at, len(rows))
            path = segment_path(self._folder, row.uuid)
            there = path in files
            files.discard(path)
            if row.state == LIVE and not row.local:
                self._remote(row, path, there)
                if row.id in remote or there:
                    usable.add(row.id)
            elif row.state == LIVE:
                mappings = await self._storage.segment_mappings([row.id])
                if await self._live(row, path, there, mappings):
                    usable.add(row.id)
            else:
                await self._leftover(row, path)
        self._progress("segments", len(rows), len(rows))
        for path in sorted(files):
            await self._stray(path)
        return usable

    async def of_others(self, partitions: Iterable[PartitionRow]) -> set[int]:
        """Return the ids of other brokers' segments of these partitions that have a file in this
        data folder, or an object according to the rows. They are checked with their brokers'
        folders."""
        wanted = {each.segment_id for row in partitions for each in row.mappings} - self._own
        ids, usable = sorted(wanted), set()
        brokers = os.path.dirname(os.path.dirname(self._folder))
        for at in range(0, len(ids), ROWS_AT_ONCE):
            for row in await self._storage.segments_by_id(ids[at : at + ROWS_AT_ONCE]):
                folder = os.path.join(brokers, str(row.node_id), "segments")
                name = os.path.basename(segment_path(folder, row.uuid))
                if row.object or (row.local and name in self._names(folder)):
                    usable.add(row.id)
        return usable

    def _names(self, folder: str) -> set[str]:
        """Return the names of the files in another broker's folder, which is read once."""
        if folder not in self._others:
            try:
                self._others[folder] = set(self._fs.listdir(folder))
            except FileNotFoundError:
                self._others[folder] = set()
        return self._others[folder]

    async def _rows(self) -> list[SegmentRow]:
        rows: list[SegmentRow] = []
        states = (STARTED, LIVE, DELETING)
        while True:
            after = rows[-1].id if rows else 0
            more = await self._storage.segments(self._node_id, states, ROWS_AT_ONCE, after)
            rows += more
            if len(more) < ROWS_AT_ONCE:
                return rows

    def _files(self) -> list[str]:
        try:
            names = self._fs.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [os.path.join(self._folder, name) for name in names if name.endswith(SUFFIX)]

    async def _live(
        self, row: SegmentRow, path: str, there: bool, mappings: Sequence[SegmentRange]
    ) -> bool:
        where = f"segment {row.uuid.hex()}"
        self._report.segments += 1
        if not there:
            lost = ", ".join(
                f"{m.base_offset}-{m.end_offset - 1} of partition {m.number}" for m in mappings[:5]
            )
            more = f" and of {len(mappings) - 5} more" if len(mappings) > 5 else ""
            text = f"its file is gone, with the offsets {lost}{more}"
            self._report.add(where, text, skip=self._skip(row, ""))
            return False
        try:
            size_bytes, problems = self._scrub(row, path)
            problems += compare(self._fs, path, row, size_bytes, mappings)
        except OSError as failure:
            problems = [f"{path} cannot be read: {failure.strerror}"]
            size_bytes = 0
        self._report.size_bytes += size_bytes
        skip = self._skip(row, path) if problems else None
        for problem in problems:
            self._report.add(where, problem, skip=skip)
        if not problems:
            self.intact[row.id] = path
        return True

    def _skip(self, row: SegmentRow, path: str) -> Fix | None:
        """Return a function that replaces a segment by one without its lost ranges."""
        # Nothing is lost: its object is read instead.
        if row.object:
            return None

        async def run(arguments: SkipArguments) -> SkipResult:
            return skip_job(self._fs, arguments, no_pace)

        async def fix() -> None:
            writer = SkipWriter(
                self._env, self._catalog, self._storage, self._folder, self._node_id, run
            )
            made = await writer.start(row)
            written = await writer.write(row, path, made)
            now_ms = self._env.clock.now_ms()
            swap = Swap([(made, written.mappings)], written.removed, delete_after_ms=now_ms)
            await self._storage.finish_segments(swap)

        return fix

    def _scrub(self, row: SegmentRow, path: str) -> tuple[int, list[str]]:
        result = verify.run(self._fs, ScrubArguments(path, row.uuid), no_pace)
        return result.size_bytes, list(result.problems)

    def _remote(self, row: SegmentRow, path: str, there: bool) -> None:
        self._report.segments += 1
        if there and row.object:
            self._report.add(
                f"segment {row.uuid.hex()}",
                "it is in the remote tier, and its file is still here: the broker removes it once "
                "the tier has confirmed that it has the object",
                harmless=True,
            )

    async def _leftover(self, row: SegmentRow, path: str) -> None:
        where = f"segment {row.uuid.hex()}"
        # Of an unfinished segment the journals have everything, unless they were lost since.
        found = await self._find_unaccounted(path) if row.state == STARTED else []
        if found:
            self._report.add(
                where,
                "its row says that it was not finished, but its file is the only copy of "
                f"{describe(found)}",
                "file is moved into the quarantine, row is removed",
                self._set_aside(path, f"the only copy of {describe(found)}", [row.id]),
            )
            return
        what = "was being written" if row.state == STARTED else "is not needed any more"
        self._report.add(
            where,
            f"it {what} when the broker ended",
            "file and row are removed",
            self._drop(path, [row.id]),
            harmless=True,
        )

    async def _find_unaccounted(self, path: str) -> list[tuple[PartitionEntry, Range]]:
        """Return offsets in a file that no mapping and no journal has."""
        entries = read_entries(self._fs, path)
        ranges = self._held.ranges
        return await find_unaccounted(
            entries, self._catalog, self._storage, self._known, lambda n: ranges.get(n, [])
        )

    async def _stray(self, path: str) -> None:
        """Report a file without a row, which no operation of the broker leaves."""
        # It may be the only copy of its records: a repair moves it into the quarantine and never
        # deletes it.
        found = await self._find_unaccounted(path)
        if found:
            what = f"no row knows its file, which is the only copy of {describe(found)}"
        elif read_entries(self._fs, path):
            what = "no row knows its file; what it holds is in other files too, or was deleted"
        else:
            what = "no row knows its file, which cannot be read as a segment"
        self._report.add(
            f"segment {os.path.basename(path).removesuffix(SUFFIX)}",
            what,
            "the file is moved into the quarantine",
            self._set_aside(path, what, []),
        )

    def _set_aside(self, path: str, why: str, ids: Sequence[int]) -> Fix:
        async def fix() -> None:
            self._quarantine.move_file(path, why, self._env.clock.now_ms())
            if ids:
                await self._storage.drop_segments(ids)

        return fix

    def _drop(self, path: str, ids: Sequence[int]) -> Fix:
        async def fix() -> None:
            # Durably, before its row: a file without a row is a problem.
            self._fs.remove(path)
            self._fs.sync_dir(self._folder)
            if ids:
                await self._storage.drop_segments(ids)

        return fix


class ObjectCheck:
    """One check of the finished objects of a broker against the rows of its segments, without
    access to the bucket. `segments`: its rows, all of them.

    `kafkawire tier scrub` checks whether the objects exist."""

    def __init__(
        self,
        env: Env,
        node_id: int,
        storage: SegmentCatalog,
        report: FsckReport,
        segments: Iterable[SegmentRow],
    ) -> None:
        self._env = env
        self._node_id = node_id
        self._storage = storage
        self._report = report
        self._segments = {row.id: row for row in segments}

    async def run(self) -> set[int]:
        """Check all of them; return the ids of the LIVE segments that have a finished object."""
        whole: set[int] = set()
        after = b""
        while True:
            # Others are the remains of an interrupted upload or removal: the next start continues.
            states = (COPY_FINISHED,)
            rows = await self._storage.objects(self._node_id, states, ROWS_AT_ONCE, after)
            for row in rows:
                segment = self._segments.get(row.segment_id)
                # The broker removes the object later.
                if segment is None or segment.state != LIVE:
                    continue
                if segment.object == row.uuid and segment.tier == row.tier:
                    whole.add(segment.id)
                else:
                    self._report_forgotten(segment, row)
            if len(rows) < ROWS_AT_ONCE:
                break
            after = rows[-1].uuid
        for segment in self._segments.values():
            self._pointer(segment, segment.id in whole)
        return whole

    def _report_forgotten(self, segment: SegmentRow, row: ObjectRow) -> None:
        other = f"is read from {segment.object.hex()}" if segment.object else "has no object"
        self._report.add(
            f"object {row.uuid.hex()}",
            f"its row says that it is finished, but its segment {segment.uuid.hex()} {other}",
            "the object is deleted from the remote tier once the broker runs",
            self._delete(row),
        )

    def _delete(self, row: ObjectRow) -> Fix:
        async def fix() -> None:
            await self._storage.delete_objects([row.uuid], self._env.clock.now_ms())

        return fix

    def _pointer(self, segment: SegmentRow, whole: bool) -> None:
        if segment.state != LIVE or whole:
            return
        where = f"segment {segment.uuid.hex()}"
        if segment.object:
            self._report.add(
                where, f"its row points to the object {segment.object.hex()}, which is not finished"
            )
        elif not segment.local:
            self._report.add(where, "its rows say that it is neither here nor in the remote tier")


def compare(
    fs: FileSystem, path: str, row: SegmentRow, size_bytes: int, mappings: Iterable[SegmentRange]
) -> list[str]:
    """Compare the rows of a segment with its directory; return the differences as sentences."""
    problems = []
    if size_bytes != row.size_bytes:
        problems.append(f"its file has {size_bytes} bytes, its row says {row.size_bytes}")
    try:
        file = SegmentFile(fs, path, row.uuid)
    # The scrub has reported it.
    except FormatError:
        return problems
    try:
        entries = {entry.number: entry for entry in file.directory}
    finally:
        file.close()
    for mapping in mappings:
        entry = entries.get(mapping.number)
        if entry is None:
            problems.append(f"a row maps partition {mapping.number} to it, which it does not have")
        elif range_of(entry, mapping.segment_id, mapping.due_ms) != mapping:
            problems.append(
                f"its row of partition {mapping.number} says offsets {mapping.base_offset}-"
                f"{mapping.end_offset - 1}, {mapping.length} bytes at {mapping.start}; its "
                f"directory {entry.base_offset}-{entry.end_offset - 1}, {entry.length} bytes "
                f"at {entry.start}"
            )
    return problems
