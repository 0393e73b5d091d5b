"""Segments: all operations on them, assembled for the log.

Opened with the rows of SQL before the partitions are served; then it cleans up what a crash left,
cuts, deletes what retention, deletion of topics and merging have made dead, and merges.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from kafkawire.codec.segment.format import PartitionEntry
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.partition.damaged_ranges import Range, lacks_rows
from kafkawire.log.partition.loader import Loader
from kafkawire.log.partition.stored_rows import RowVersion, has_all_rows
from kafkawire.log.recovery.given_up import GivenUp
from kafkawire.log.recovery.quarantine import Quarantine
from kafkawire.log.segments.compact.cleaner import SegmentCleaner
from kafkawire.log.segments.cut.cutter import Cutter
from kafkawire.log.segments.deletion import Deletion
from kafkawire.log.segments.file.open import SUFFIX, read_entries
from kafkawire.log.segments.file.origin import Origins
from kafkawire.log.segments.merge.merger import Rewriter
from kafkawire.log.segments.skip.skipper import Skipper
from kafkawire.log.segments.store.delete_delay import FileDelays
from kafkawire.log.segments.store.remote_tier import RemoteTier
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore, empty
from kafkawire.log.segments.store.swap import Swapper
from kafkawire.log.segments.store.warm_reader import WarmReader
from kafkawire.log.segments.strays import (
    Known,
    check_records,
    describe,
    held_in_memory,
    subtract_held,
)
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import DELETING, LIVE, STARTED, SegmentCatalog, SegmentRow

logger = logging.getLogger(__name__)

PAGE = 1000
"""Rows read from SQL at a time."""


class Segments:
    """The segments of a broker: cutting, merging, cleaning, deletion."""

    def __init__(
        self,
        commit_log: CommitLog,
        storage: SegmentCatalog,
        catalog: Catalog,
        loader: Loader,
        warm: WarmReader,
        store: SegmentStore,
        remote: RemoteTier,
        rows: RowVersion,
        folder: str,
        node_id: int,
        released: Callable[[list[int]], None],
        known_partitions: Known,
        given_up: GivenUp,
    ) -> None:
        self._env = commit_log.env
        self._loader = loader
        self._catalog = catalog
        self.known_partitions = known_partitions
        partitions, config_of = loader.partitions, loader.config_of
        self.storage = storage
        self._node_id = node_id
        self.folder = store.folder
        self.store = store
        self.warm = warm
        self.remote = remote
        config = commit_log.config
        self.swapper = Swapper(
            self._env, storage, self.store, partitions, released,
            FileDelays(self._env, config, self.store, config_of), commit_log.hooks, rows,
        )  # fmt: skip
        origins = Origins(self._env, catalog)
        self.cutter = Cutter(
            commit_log, partitions, storage, self.store, self.swapper, node_id, origins, given_up
        )
        self.rewriter = Rewriter(
            self._env, config, partitions, storage, self.store, remote, self.swapper, node_id,
            origins, config_of, loader.led_elsewhere, self._list_decommissioned,
        )  # fmt: skip
        self.deletion = Deletion(commit_log, partitions, storage, self.swapper, loader.load)
        self.cleaner = SegmentCleaner(
            commit_log, partitions, storage, self.store, remote, self.swapper, node_id, origins,
            loader.load, config_of,
        )  # fmt: skip
        self._config = config
        self._partitions = partitions
        self._quarantine = Quarantine(self._env.fs, folder)
        self.skipper = Skipper(
            self._env, config, catalog, storage, self.store, self.swapper, node_id
        )
        self._leftover: list[Segment] = []
        self.strays: list[str] = []  # files without a row, as the start found them
        # Two cuts at once would cut the same, and so would two rewrites.
        self._cutting = asyncio.Lock()
        self._tending = asyncio.Lock()

    def _list_decommissioned(self) -> list[int]:
        """Return the brokers whose segments this one is to copy; none if it leaves, too."""
        brokers = self._catalog.list_decommissioned()
        return [] if self._node_id in brokers else brokers

    async def open(self) -> None:
        """Read which segments exist. Raises what the storage raises, OSError."""
        self._env.fs.makedirs(self.folder)
        await self._env.offload.submit("files", empty, self._env.fs, self.store.downloads)
        rows = await self._rows((STARTED, LIVE, DELETING))
        for row in rows:
            # A crash has interrupted its job. `clean` removes it, once partitions can be loaded.
            if row.state == STARTED:
                self._leftover.append(Segment(row, self.folder))
            else:
                self.store.add(row)
        self.store.schedule_removal(row.id for row in rows if row.state == DELETING)
        away = await self._env.offload.submit("files", self._compare, self._env.fs, rows)
        for row in away:  # removed by local retention, which first asks for the object
            self.store.by_id[row.id].has_file = True
        # Without an object the file is the only copy: it counts as local again.
        alone = [row.id for row in away if not row.object]
        if alone:
            await self.swapper.update(lambda: self.storage.set_local(alone, True))

    async def _rows(self, states: tuple[int, ...]) -> list[SegmentRow]:
        rows: list[SegmentRow] = []
        while True:
            after = rows[-1].id if rows else 0
            page = await self.storage.segments(self._node_id, states, PAGE, after)
            rows += page
            if len(page) < PAGE:
                return rows

    def _compare(self, fs: FileSystem, rows: list[SegmentRow]) -> list[SegmentRow]:
        """Log where rows and files differ. Returns the segments that have a file, although their
        rows say otherwise."""
        there = {name for name in fs.listdir(self.folder) if name.endswith(SUFFIX)}
        known = {row.uuid.hex() + SUFFIX: row for row in rows}
        strays = sorted(there - known.keys())
        self.strays = [os.path.join(self.folder, name) for name in strays]
        # A crash leaves no file without a row: it may be the only remains of lost metadata, and is
        # left to `kafkawire fsck`.
        for name in strays:
            logger.error("%s is not in the metadata: the file is ignored and kept", name)
        for name in sorted(known.keys() - there):
            row = known[name]
            if row.state == LIVE and (row.local or not row.object):
                logger.critical("segment %s is missing: reading its records returns an error", name)
        both = [known[name] for name in sorted(there & known.keys())]
        return [row for row in both if not row.local and row.state == LIVE]

    async def refuse_lost_rows(self) -> None:
        """Raise IdentityError if a file has records of which there is no row: one without any row,
        or any file if a partition lacks records between its segments and its journals. The
        partitions with records in the journals are loaded. Raises what the storage and SQL
        raise."""
        home = os.path.dirname(self.folder)
        data = os.path.dirname(os.path.dirname(home))
        live: list[str] = []
        if any(
            lacks_rows(partition) and has_all_rows(self._catalog, number)
            for number, partition in self._partitions.items()
        ):
            # Any live file may have what a partition lacks.
            live = [one.path for one in self.store.by_id.values() if one.row.state == LIVE]
        await check_records(
            self._env, self.strays, live, data, self._partitions, self._catalog, self.storage,
            self.known_partitions, self._node_id,
        )  # fmt: skip

    async def clean(self) -> None:
        """Remove the files of cuts that a crash interrupted; files with records that are nowhere
        else are moved into the quarantine (kafkawire.log.segments.strays)."""
        leftover, self._leftover = self._leftover, []
        for segment in leftover:
            # With older metadata a STARTED row may be that of a finished file.
            await self._keep_records(segment)
        if leftover:
            logger.info("removing %d unfinished segments", len(leftover))
            await self.store.discard(leftover)

    async def _keep_records(self, segment: Segment) -> None:
        """Move the file of an unfinished segment into the quarantine if it is the only copy of
        something."""
        fs, submit = self._env.fs, self._env.offload.submit
        entries = await submit("files", read_entries, fs, segment.path)
        numbers = {entry.number for entry in entries}
        await self._loader.load(numbers)
        # Of deleted topics nothing is the only copy.
        gone = {number for number in numbers if number not in self._partitions}
        gone &= await self.known_partitions(gone) if gone else gone

        def find_held(entry: PartitionEntry) -> list[Range] | None:
            partition = self._partitions.get(entry.number)
            if partition is not None and partition.topic_id == entry.topic_id:
                return held_in_memory(partition)
            return None if entry.number in gone else []

        found = subtract_held(entries, find_held)
        if found:
            what = f"it was not finished by its row, but is the only copy of {describe(found)}"
            now_ms = self._env.clock.now_ms()
            path = await submit("files", self._quarantine.move_file, segment.path, what, now_ms)
            logger.critical(
                "segment %s: %s. The file is kept as %s; `kafkawire fsck` checks the data folder",
                segment.name, what, path,
            )  # fmt: skip

    async def cut(self) -> set[int]:
        """Cut what is due; return the partitions that got new segments."""
        async with self._cutting:
            await self.cutter.run()
        taken = self.cutter.take_cut_partitions()
        # A cut makes a partition dirty.
        self.cleaner.note_partitions(taken)
        return taken

    @asynccontextmanager
    async def cutting(self) -> AsyncIterator[None]:
        """Hold back periodic cuts."""
        async with self._cutting:
            yield

    def settings_changed(self, numbers: Iterable[int] | None) -> None:
        """Apply changed settings of these partitions, None: of all."""
        changed = None if numbers is None else list(numbers)
        self.cutter.timing.settings_changed()
        self.deletion.settings_changed(changed)
        self.cleaner.settings_changed(changed)

    async def tend(self) -> None:
        """Delete dead rows and files, and merge segments."""
        async with self._tending:
            await self._tend()

    async def _tend(self) -> None:
        # Of a topic whose deletion a crash has interrupted.
        await self.deletion.find_orphans()
        await self.deletion.run_pending()
        dead = await self.storage.segments(self._node_id, (DELETING,), PAGE)
        # The response of a transaction may have been lost.
        self.swapper.apply_states([row for row in dead if self._is_news(row)])
        self.store.schedule_removal(row.id for row in dead)
        await self.sweep()
        await self.store.renew_others()
        await self.rewriter.find_candidates(self._config.segment_dead_max_ms / 1000)
        while await self.rewriter.run():
            pass

    def _is_news(self, row: SegmentRow) -> bool:
        """Return whether the outcome of a transaction became known only now, since its response was
        lost."""
        segment = self.store.by_id.get(row.id)
        return segment is not None and segment.row.state != row.state

    async def sweep(self, *, now: bool = False) -> None:
        """Remove files that are neither needed nor read, after their delay or `now`."""
        await self.store.sweep(self._config.file_delete_delay_ms / 1000, now=now)

    def close(self) -> None:
        self.rewriter.fetcher.close()
        self.store.close()
