"""Giving up damaged batches: a segment is exchanged for one without them.

The last resort, asked for with --skip-lost, when no sound copy is left. As a rewrite: STARTED row
-> file -> one transaction that exchanges the mappings. Readers go over the gap; the new segment
says what was lost, for audits. Called by tiering.scrubrepair and log.fsck.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kafkawire.codec.configs import BrokerConfig
from kafkawire.codec.segment import PartitionEntry
from kafkawire.metadata.catalog import Catalog
from log.env import Env
from log.segments.jobs import Lost, Output, SkipArguments, SkipResult, pack, unpack_all
from log.segments.origin import Origins
from log.segments.outcome import mappings_of
from log.segments.store import Segment, SegmentStore
from log.segments.swap import Swapper
from offsets.storage import Mapping, OffsetStorage, SegmentRow

logger = logging.getLogger(__name__)

PACKED_AT_ONCE = 256
"""Entries packed in one event-loop iteration: about half a millisecond."""


class Skipper:
    """See the module."""

    __slots__ = (
        "_catalog",
        "_config",
        "_env",
        "_node_id",
        "_origins",
        "_storage",
        "_store",
        "_swapper",
    )

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        catalog: Catalog,
        storage: OffsetStorage,
        store: SegmentStore,
        swapper: Swapper,
        node_id: int,
        origins: Origins,
    ) -> None:
        self._env = env
        self._config = config
        self._catalog = catalog
        self._storage = storage
        self._store = store
        self._swapper = swapper
        self._node_id = node_id
        self._origins = origins

    async def skip(self, segment: Segment, path: str) -> list[Lost]:
        """Exchange a segment for one without what cannot be read of `path`: its file, a copy of its
        object, or empty if there is neither. What was given up; each range is logged.

        Raises what the storage raises, StaleSwap if the segment changed meanwhile, OSError,
        WorkerError.
        """
        old = segment.row
        mappings = await self._storage.segment_mappings([old.id])
        entries = await self._entries(mappings)
        row = SegmentRow(
            self._env.random.randbytes(16),
            self._node_id,
            self._env.clock.now_ms(),
            generation=old.generation + 1,
            retention_class=old.retention_class,
        )
        (row.id,) = await self._storage.start_segments([row])
        output = Segment(row, self._store.folder)
        segment.pins += 1
        try:
            arguments = SkipArguments(
                self._node_id,
                row.created_ms,
                path,
                entries,
                Output(output.path, row.uuid, [], row.generation, row.retention_class),
                await self._origins.of(mapping.number for mapping in mappings),
            )
            result: SkipResult = await self._env.worker.run(
                "skip", arguments, self._config.worker_bytes_per_second
            )
            made = await mappings_of(self._env, result.made, row, {})
            dues = {mapping.number: mapping.due_ms for mapping in mappings}
            made = [mapping._replace(due_ms=dues[mapping.number]) for mapping in made]
            await self._swapper.replace([(row, made)], mappings)
        except Exception:
            if not self._swapper.in_doubt(row):
                await self._store.discard([output])
            raise
        finally:
            segment.pins -= 1
        lost = list(unpack_all(result.lost))
        _log(segment, output, lost)
        return lost

    async def _entries(self, mappings: Sequence[Mapping]) -> list[bytes]:
        """What the metadata says of a segment, in the form of its directory."""
        packed: list[bytes] = []
        ordered = sorted(mappings, key=lambda mapping: mapping.number)
        for at in range(0, len(ordered), PACKED_AT_ONCE):
            packed += pack(map(self._entry, ordered[at : at + PACKED_AT_ONCE]))
            await self._env.sleep(0)
        return packed

    def _entry(self, mapping: Mapping) -> PartitionEntry:
        place = self._catalog.locate(mapping.number)
        topic = (bytes(16), "", 0) if place is None else (place.topic_id, place.topic, place.index)
        return PartitionEntry(
            mapping.number, *topic, mapping.start, mapping.length, mapping.base_offset,
            mapping.end_offset, mapping.batches, mapping.records, mapping.max_timestamp,
            mapping.index_start, mapping.index_length, mapping.index_checksum,
        )  # fmt: skip


def _log(old: Segment, new: Segment, lost: Sequence[Lost]) -> None:
    for each in lost:
        logger.critical(
            "offsets %d-%d of %s-%d are given up: they were damaged in segment %s. Readers go over "
            "them; segment %s has the account",
            each.first,
            each.end - 1,
            each.topic,
            each.index,
            old.name,
            new.name,
        )
