"""Give up damaged batches: replace a segment by one without them.

The last resort, used by --skip-lost, when no intact copy is left. As in a merge: STARTED row ->
file -> one transaction that replaces the mappings. Readers skip the gap; the new segment lists what
was lost, for audits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.segment.format import PartitionEntry
from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import (
    Lost,
    SegmentOutput,
    SkipArguments,
    SkipResult,
    pack,
    unpack_all,
)
from kafkawire.log.segments.file.open import segment_path
from kafkawire.log.segments.file.origin import Origins
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.log.segments.store.swap import Swapper, mappings_of
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import SegmentCatalog, SegmentRange, SegmentRow

logger = logging.getLogger(__name__)

PACKED_AT_ONCE = 256
"""Entries packed in one event-loop iteration: about half a millisecond."""


@dataclass(slots=True)
class Written:
    """A segment without its lost ranges: its row and mappings, the mappings it replaces, the lost
    ranges."""

    row: SegmentRow
    mappings: list[SegmentRange]
    removed: list[SegmentRange]
    lost: list[Lost]


class SkipWriter:
    """Writes segments without their lost ranges; the caller replaces the old ones. `run` runs the
    job."""

    __slots__ = ("_catalog", "_env", "_folder", "_node_id", "_origins", "_run", "_storage")

    def __init__(
        self,
        env: Env,
        catalog: Catalog,
        storage: SegmentCatalog,
        folder: str,
        node_id: int,
        run: Callable[[SkipArguments], Awaitable[SkipResult]],
    ) -> None:
        self._env = env
        self._catalog = catalog
        self._storage = storage
        self._folder = folder
        self._node_id = node_id
        self._origins = Origins(env, catalog)
        self._run = run

    async def start(self, old: SegmentRow) -> SegmentRow:
        row = SegmentRow(
            self._env.random.randbytes(16),
            self._node_id,
            self._env.clock.now_ms(),
            generation=old.generation + 1,
            retention_class=old.retention_class,
        )
        (row.id,) = await self._storage.start_segments([row])
        return row

    async def write(self, old: SegmentRow, path: str, row: SegmentRow) -> Written:
        """Write the file of `row` from `path`: the file of `old`, a copy of its object, or empty if
        there is neither."""
        mappings = await self._storage.segment_mappings([old.id])
        output = SegmentOutput(
            segment_path(self._folder, row.uuid), row.uuid, [], row.generation, row.retention_class
        )
        arguments = SkipArguments(
            self._node_id,
            row.created_ms,
            path,
            await self._entries(mappings),
            output,
            await self._origins.current_topics(mapping.number for mapping in mappings),
        )
        result = await self._run(arguments)
        made = await mappings_of(self._env, result.made, row, {})
        dues = {mapping.number: mapping.due_ms for mapping in mappings}
        # As in the old rows: retention continues as before.
        made = [mapping._replace(due_ms=dues[mapping.number]) for mapping in made]
        return Written(row, made, mappings, list(unpack_all(result.lost)))

    async def _entries(self, mappings: Sequence[SegmentRange]) -> list[bytes]:
        packed: list[bytes] = []
        ordered = sorted(mappings, key=lambda mapping: mapping.number)
        for at in range(0, len(ordered), PACKED_AT_ONCE):
            packed += pack(map(self._entry, ordered[at : at + PACKED_AT_ONCE]))
            await self._env.slices.pause()
        return packed

    def _entry(self, mapping: SegmentRange) -> PartitionEntry:
        location = self._catalog.locate(mapping.number)
        topic = (
            # A deleted topic: its rows still have to be replaced.
            (bytes(16), "", 0)
            if location is None
            else (location.topic_id, location.topic, location.index)
        )
        return PartitionEntry(
            mapping.number, *topic, mapping.start, mapping.length, mapping.base_offset,
            mapping.end_offset, mapping.batches, mapping.records, mapping.max_timestamp,
            mapping.index_start, mapping.index_length, mapping.index_checksum,
        )  # fmt: skip


class Skipper:
    """Removes damaged batches from segments of a running broker."""

    __slots__ = ("_config", "_env", "_store", "_swapper", "_writer")

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        catalog: Catalog,
        storage: SegmentCatalog,
        store: SegmentStore,
        swapper: Swapper,
        node_id: int,
    ) -> None:
        self._env = env
        self._config = config
        self._store = store
        self._swapper = swapper
        self._writer = SkipWriter(env, catalog, storage, store.folder, node_id, self._run)

    async def _run(self, arguments: SkipArguments) -> SkipResult:
        rate = self._config.worker_bytes_per_second
        result: SkipResult = await self._env.worker.run("skip", arguments, rate)
        return result

    async def skip(self, segment: Segment, path: str) -> list[Lost]:
        """Replace a segment by one without the unreadable ranges of `path`: its file, a copy of its
        object, or empty if there is neither. Returns what was given up; each range is logged.

        Raises what the storage raises, StaleSwap if the segment changed meanwhile, OSError,
        WorkerError.
        """
        row = await self._writer.start(segment.row)
        output = Segment(row, self._store.folder)
        # The file must stay until the job has read it.
        segment.pins += 1
        try:
            written = await self._writer.write(segment.row, path, row)
            await self._swapper.replace([(row, written.mappings)], written.removed)
        except Exception:
            # If the outcome is unknown the file may be that of a LIVE row.
            if not self._swapper.in_doubt(row):
                await self._store.discard([output])
            raise
        finally:
            segment.pins -= 1
        _log(segment, output, written.lost)
        return written.lost


def _log(old: Segment, new: Segment, lost: Sequence[Lost]) -> None:
    for each in lost:
        logger.critical(
            "gave up offsets %d-%d of %s-%d, damaged in segment %s. Readers skip them; segment %s "
            "lists them",
            each.first,
            each.end - 1,
            each.topic,
            each.index,
            old.name,
            new.name,
        )
