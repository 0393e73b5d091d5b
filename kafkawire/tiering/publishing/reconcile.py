"""Comparison of the manifest with the broker's state: differences become pending changes.

This publishes changes that a crash left unpublished, fills a new bucket of an existing broker, and
rewrites a damaged manifest from the rows in SQL. The manifest is read as an outline in sorted
slices, which are compared one by one; differences are recorded by id. A topic takes the 20 bytes of
its outline entry, and a little more if it differs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from kafkawire.log.io.ports import Env
from kafkawire.log.local_manifest.delta_builder import SLICE, Gathering, partition_row, topic_facts
from kafkawire.log.local_manifest.job import KeySlices, Outline, partition_print, topic_print
from kafkawire.log.local_manifest.pending_changes import Added, Changes
from kafkawire.log.partition.partition import Partition
from kafkawire.manifest.columns import ManifestPartition
from kafkawire.manifest.state import ClusterFacts
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import COPY_FINISHED, ObjectRow, SegmentCatalog, SegmentRange

logger = logging.getLogger(__name__)

OBJECTS_AT_ONCE = 100
"""Objects missing in the manifest per delta: a few thousand entries."""


def uploaded_end(dispatch_offset: int, commit_offset: int, log_start: int) -> int:
    """Return the end of the offsets that are uploaded; 0 if no upload was ever begun."""
    # By the dispatch offset, as a manifest may name objects that were never committed, if the
    # process died in between. Without any, moved log starts are irrelevant.
    return max(commit_offset, log_start) if dispatch_offset else 0


class Comparing:
    """One comparison of the manifest with the broker's state. `noted`: receives the differences."""

    def __init__(
        self,
        env: Env,
        catalog: Catalog,
        storage: SegmentCatalog,
        partitions: Mapping[int, Partition],
        gathering: Gathering,
        node_id: int,
        tier: int,
        noted: Callable[[], Changes],
    ) -> None:
        self._env = env
        self._catalog = catalog
        self._storage = storage
        self._partitions = partitions
        self._gathering = gathering
        self._node_id = node_id
        self._tier = tier
        self._noted = noted

    async def compare(self, outline: Outline) -> None:
        """Record the differences, except for objects. Raises the storage's errors."""
        self._compare_cluster(outline.cluster)
        await self._compare_topics(outline.topics)
        for columns in outline.partitions:
            said = {number: rest for number, *rest in zip(*columns, strict=True)}
            await self._compare_partitions(said)

    async def _compare_partitions(self, said: Mapping[int, list[int]]) -> None:
        away = []
        for number, row in said.items():
            partition = self._partitions.get(number)
            # Of one that is not in memory only the log start is compared: other changes have been
            # published, or will be with the next upload.
            if partition is None:
                away.append(number)
            elif _differs(row, partition_row(partition, uploaded_end)):
                self._noted().partitions[number] = None
        for stats in await self._storage.stats(away) if away else []:
            if stats.log_start > said[stats.number][0]:
                self._noted().partitions[stats.number] = None

    def _compare_cluster(self, said: ClusterFacts) -> None:
        gathering = self._gathering
        gathering.note_lease(said.next_producer_id)
        now = gathering.cluster_facts()
        if (
            now.next_partition > said.next_partition
            or now.next_producer_id > said.next_producer_id
            or dict(now.configs) != dict(said.configs)
        ):
            self._noted().cluster = True

    async def _compare_topics(self, said: KeySlices) -> None:
        topics, noted = self._catalog.by_id, self._noted
        known = list(topics)
        found = 0
        for done, (topic_id, fingerprint) in enumerate(said.items(), 1):
            info = topics.get(topic_id)
            if info is None:
                noted().topic_deleted(topic_id)
            else:
                found += 1
                if topic_print(topic_facts(info)) != fingerprint:
                    noted().topic(topic_id)
            if done % SLICE == 0:
                await self._env.slices.pause()
        if found == len(known):
            return
        for done, topic_id in enumerate(known, 1):
            if topic_id not in said and topic_id in topics:
                noted().topic(topic_id)
            if done % SLICE == 0:
                await self._env.slices.pause()

    async def missing(self, said: KeySlices) -> list[bytes]:
        """Return finished objects of this tier that the manifest lacks; none unless it was lost."""
        missing: list[bytes] = []
        # Both sides are sorted by uuid, so one pass over them is enough.
        rest = (uuid for uuid, _ in said.items())
        at = next(rest, b"")
        after = b""
        while rows := await self._storage.objects(self._node_id, [COPY_FINISHED], SLICE, after):
            for row in rows:
                at = _skip(rest, at, row.uuid)
                if at != row.uuid and row.tier == self._tier:
                    missing.append(row.uuid)
            after = rows[-1].uuid
        return missing

    async def load_added(self, uuids: list[bytes]) -> list[Added]:
        """Return the manifest entries of these objects, without those not finished any more."""
        rows: dict[int, ObjectRow] = {
            row.segment_id: row
            for row in await self._storage.objects_by_uuid(uuids)
            if row.state == COPY_FINISHED
        }
        mappings: dict[int, list[SegmentRange]] = {}
        for mapping in await self._storage.segment_mappings(sorted(rows)):
            mappings.setdefault(mapping.segment_id, []).append(mapping)
        return [
            Added(rows[segment.id], segment, mappings.get(segment.id, []))
            for segment in await self._storage.segments_by_id(sorted(rows))
        ]


def _differs(said: list[int], now: ManifestPartition) -> bool:
    """Check that log starts and ends of a manifest never decrease."""
    log_start, end, epochs = said
    return now.log_start > log_start or now.end > end or partition_print(now) != epochs


def _skip(rest: Iterator[bytes], at: bytes, to: bytes) -> bytes:
    """Return the first value of `at` and its successors that is not below `to`; b"" at the end."""
    while at and at < to:
        at = next(rest, b"")
    return at
