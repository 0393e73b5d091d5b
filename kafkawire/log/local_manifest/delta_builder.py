"""Build a delta from pending changes, with the current state of topics and partitions.

The state of a partition is read from memory, or from the offset storage if it is not loaded. Shell;
called by kafkawire.log.local_manifest.maintenance, kafkawire.tiering.publishing.publisher and
kafkawire.tiering.publishing.reconcile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kafkawire.log.io.ports import Env
from kafkawire.log.local_manifest.pending_changes import Added, Changes
from kafkawire.log.partition.partition import Partition
from kafkawire.manifest.columns import Entry, ManifestObject, ManifestPartition
from kafkawire.manifest.state import ClusterFacts, Delta, ManifestTopic
from kafkawire.metadata.catalog import ALL_BROKERS, Catalog, TopicInfo
from kafkawire.metadata.checkpoint import pack_epochs
from kafkawire.offsets.catalog.port import PartitionRow as StoredPartition
from kafkawire.offsets.catalog.port import SegmentCatalog

SLICE = 200
"""Rows per event-loop iteration: a millisecond."""

EndOf = Callable[[int, int, int], int]
"""Return where a partition ends in a manifest, by its dispatch offset, commit offset and log start;
added objects move the end further. 0: the manifest has nothing of it."""


def topic_facts(info: TopicInfo) -> ManifestTopic:
    return ManifestTopic(
        info.id,
        info.name,
        info.internal,
        info.created_ms,
        info.configs,
        tuple(row.number for row in info.partitions),
    )


def partition_row(partition: Partition, end_of: EndOf) -> ManifestPartition:
    end = end_of(partition.dispatch_offset, partition.commit_offset, partition.log_start)
    return ManifestPartition(
        partition.number, partition.log_start, end, pack_epochs(partition.epochs)
    )


def stored_row(stored: StoredPartition, end_of: EndOf) -> ManifestPartition:
    known = stored.checkpoint
    log_start = 0 if known is None else known.log_start
    epochs = pack_epochs([] if known is None else known.leader_epochs)
    end = end_of(stored.dispatch_offset, stored.commit_offset, log_start)
    return ManifestPartition(stored.number, log_start, end, epochs)


class Gathering:
    """Builds a delta from pending changes. `next_producer_id`: producer ids from here on were never
    assigned, as far as is known."""

    def __init__(
        self,
        env: Env,
        catalog: Catalog,
        storage: SegmentCatalog,
        partitions: Mapping[int, Partition],
        node_id: int,
        end_of: EndOf,
    ) -> None:
        self.next_producer_id = 0
        self._end_of = end_of
        self._env = env
        self._catalog = catalog
        self._storage = storage
        self._partitions = partitions
        self._node_id = node_id

    def note_lease(self, following: int) -> bool:
        """Note that producer ids below `following` may have been assigned; return whether that is
        new."""
        before = self.next_producer_id
        self.next_producer_id = max(before, following)
        return following > before

    def cluster_facts(self) -> ClusterFacts:
        """Return the facts of the cluster that belong to no topic."""
        return ClusterFacts(
            self._catalog.last_number() + 1,
            self.next_producer_id,
            dict(self._catalog.broker_overrides.get(ALL_BROKERS, {})),
        )

    async def delta(self, changes: Changes, sequence: int, epoch: int) -> Delta:
        """Return the delta with these changes. Raises what the storage raises."""
        delta = Delta(
            sequence, self._catalog.cluster_id, self._node_id, epoch, self._env.clock.now_ms()
        )
        if changes.cluster:
            delta.cluster = self.cluster_facts()
        numbers = dict.fromkeys(changes.partitions)
        for each in changes.added.values():
            numbers.update(dict.fromkeys(mapping.number for mapping in each.mappings))
        numbers.update(dict.fromkeys(changes.commits))
        for row in await self._rows(list(numbers), changes):
            delta.partitions.append(row)
        delta.deleted_topics = list(changes.deleted_topics)
        # Topics last: their current state goes with partitions that were read a moment before.
        for done, topic_id in enumerate(changes.topics, 1):
            info = self._catalog.by_id.get(topic_id)
            if info is not None:
                delta.topics.append(topic_facts(info))
            if done % SLICE == 0:
                await self._env.slices.pause()
        for each in changes.added.values():
            await self.add_object(delta, each)
        delta.deleted = dict(changes.deleted)
        return delta

    async def _rows(self, numbers: Sequence[int], changes: Changes) -> list[ManifestPartition]:
        """Return the current state of partitions that the manifest has something of."""
        uploaded = {mapping.number for each in changes.added.values() for mapping in each.mappings}
        rows: list[ManifestPartition] = []
        for start in range(0, len(numbers), SLICE):
            for row in await self.stored_rows(numbers[start : start + SLICE]):
                end = max(row.end, changes.commits.get(row.number, 0))
                # Nothing of it was ever uploaded: readers need no row.
                if end or row.number in uploaded:
                    rows.append(row._replace(end=end))
            await self._env.slices.pause()
        return rows

    async def stored_rows(self, numbers: Iterable[int]) -> list[ManifestPartition]:
        """Return those of some partitions that exist, SLICE at most."""
        alive = [number for number in numbers if self._catalog.locate(number) is not None]
        # Not loaded for this: there may be many that no client uses.
        away = [number for number in alive if number not in self._partitions]
        stored = await self._storage.load_partitions(away) if away else []
        rows = {row.number: stored_row(row, self._end_of) for row in stored}
        for number in alive:
            partition = self._partitions.get(number)  # it may have changed meanwhile
            if partition is not None:
                rows[number] = partition_row(partition, self._end_of)
        return [rows[number] for number in alive if number in rows]

    async def add_object(self, delta: Delta, added: Added) -> None:
        """Add an object, with its entries in the order of their positions."""
        row, segment, mappings = added
        delta.objects.append(
            ManifestObject(
                row.uuid,
                segment.uuid,
                segment.generation,
                row.node_id,
                row.size_bytes,
                row.created_ms,
                segment.max_timestamp,
                delta.objects.class_at(segment.retention_class),
                len(mappings),
            )
        )
        ordered = sorted(mappings, key=lambda each: (each.number, each.base_offset))
        for done, mapping in enumerate(ordered, 1):
            delta.entries.append(
                Entry(
                    mapping.number, mapping.base_offset, mapping.end_offset, mapping.start,
                    mapping.length, mapping.index_start, mapping.index_length,
                    mapping.index_checksum, mapping.max_timestamp, mapping.batches,
                    mapping.records,
                )
            )  # fmt: skip
            if done % SLICE == 0:
                await self._env.slices.pause()
        await self._env.slices.pause()
