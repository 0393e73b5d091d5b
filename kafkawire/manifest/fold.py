"""Fold deltas into one snapshot.

Folding deltas one by one, all together, or repeatedly gives the same snapshot and the same bytes,
so concurrent or repeated folds write the same object. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kafkawire.manifest.columns import (
    EntryColumns,
    ManifestPartition,
    ObjectColumns,
    PartitionColumns,
)
from kafkawire.manifest.format import first_entries
from kafkawire.manifest.state import ClusterFacts, Delta, ManifestTopic, Snapshot

REMEMBERED_MS = 86_400_000
"""How long a snapshot names an object after the end of its grace period. Deletion may be late (an
outage), and a scrub must not report a known object as an orphan."""


class GapError(ValueError):
    """A delta is missing between two others."""


def empty(cluster_id: str, node_id: int, epoch: int, sequence: int, created_ms: int) -> Snapshot:
    """Return the empty snapshot, on which deltas from `sequence` + 1 on build."""
    return Snapshot(sequence, cluster_id, node_id, epoch, created_ms, ClusterFacts())


def fold(snapshot: Snapshot, deltas: Sequence[Delta]) -> Snapshot:
    """Apply deltas in order, without those already folded. Raises GapError if one is missing."""
    folding = _Folding(snapshot)
    for delta in deltas:
        if delta.sequence > folding.head.sequence + 1:
            raise GapError(f"delta {folding.head.sequence + 1} is missing")
        if delta.sequence == folding.head.sequence + 1:
            folding.apply(delta)
    return folding.result()


@dataclass(slots=True)
class _Head:
    sequence: int
    cluster_id: str
    node_id: int
    epoch: int
    created_ms: int
    cluster: ClusterFacts


class _Folding:
    """The live objects, topics and partitions. `_objects`: uuid -> (source, row in it), in the
    order of their last addition; rows are copied only at the end."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.head = _Head(
            snapshot.sequence, snapshot.cluster_id, snapshot.node_id, snapshot.epoch,
            snapshot.created_ms, snapshot.cluster or ClusterFacts(),
        )  # fmt: skip
        self._topics = {topic.id: topic for topic in snapshot.topics}
        self._alive = {number for topic in snapshot.topics for number in topic.partitions}
        self._partitions = {row.number: row for row in snapshot.partitions}
        self._deleted = dict(snapshot.deleted)
        self._sources: list[Delta] = []
        self._objects: dict[bytes, tuple[int, int]] = {}
        self._add_objects(snapshot)

    def apply(self, delta: Delta) -> None:
        head = self.head
        head.sequence, head.node_id = delta.sequence, delta.node_id
        head.epoch = max(head.epoch, delta.epoch)
        head.created_ms = max(head.created_ms, delta.created_ms)
        # Never lower: a partition number or producer id must not be given twice.
        if delta.cluster is not None:
            head.cluster = ClusterFacts(
                max(head.cluster.next_partition, delta.cluster.next_partition),
                max(head.cluster.next_producer_id, delta.cluster.next_producer_id),
                delta.cluster.configs,
            )
        # Each delta has a changed topic as a whole, so the later one replaces the earlier one.
        for topic in delta.topics:
            self._drop_topic(topic.id, set(topic.partitions))
            self._topics[topic.id] = topic
            self._alive.update(topic.partitions)
        for topic_id in delta.deleted_topics:
            self._drop_topic(topic_id, set())
        for row in delta.partitions:
            # A partition of a topic that was deleted meanwhile must not come back.
            if row.number in self._alive:
                self._partitions[row.number] = _later(self._partitions.get(row.number), row)
        self._add_objects(delta)
        # After its objects: one that is added and deleted in the same delta is deleted.
        for uuid, delete_after_ms in delta.deleted.items():
            self._objects.pop(uuid, None)
            self._deleted[uuid] = delete_after_ms

    def _drop_topic(self, topic_id: bytes, keep: set[int]) -> None:
        old: ManifestTopic | None = self._topics.pop(topic_id, None)
        if old is not None:
            for number in old.partitions:
                if number not in keep:
                    self._alive.discard(number)
                    self._partitions.pop(number, None)

    def _add_objects(self, content: Delta) -> None:
        source = len(self._sources)
        self._sources.append(content)
        for row in range(len(content.objects)):
            uuid = content.objects.uuid(row)
            # Removed first: objects are in the order of their last addition.
            self._objects.pop(uuid, None)
            self._deleted.pop(uuid, None)
            self._objects[uuid] = source, row

    def result(self) -> Snapshot:
        """Return all live rows in the order of a snapshot."""
        head = self.head
        # Sorted, here and below: the bytes must not depend on how the deltas were folded.
        partitions = PartitionColumns()
        for _, row in sorted(self._partitions.items()):
            partitions.append(row)
        objects, entries = self._gather()
        forgotten = head.created_ms - REMEMBERED_MS
        return Snapshot(
            head.sequence, head.cluster_id, head.node_id, head.epoch, head.created_ms,
            head.cluster,
            topics=[topic for _, topic in sorted(self._topics.items())],
            partitions=partitions,
            objects=objects,
            entries=entries,
            deleted={u: after for u, after in sorted(self._deleted.items()) if after > forgotten},
        )  # fmt: skip

    def _gather(self) -> tuple[ObjectColumns, EntryColumns]:
        """Copy the live objects with their entries, in runs of adjacent rows."""
        objects, entries = ObjectColumns(), EntryColumns()
        firsts = [first_entries(source.objects) for source in self._sources]
        objects.classes = self._classes()
        numbers_of = {name: number for number, name in enumerate(objects.classes)}
        for source, start, stop in _runs(self._objects.values()):
            content, first = self._sources[source], firsts[source]
            copied = len(objects)
            objects.copy_rows(content.objects, start, stop)
            # Each source numbers its retention classes itself. One without a live object is not in
            # `numbers_of`, and no copied row has it.
            renamed = [numbers_of.get(name, 0) for name in content.objects.classes]
            numbers = objects.class_numbers
            for at in range(copied, len(objects)):
                numbers[at] = renamed[numbers[at]]
            entries.copy_rows(content.entries, first[start], first[stop])
        return objects, entries

    def _classes(self) -> list[str]:
        """Return the retention classes of live objects, sorted."""
        used: list[set[int]] = [set() for _ in self._sources]
        for source, row in self._objects.values():
            used[source].add(self._sources[source].objects.class_numbers[row])
        names = {
            content.objects.classes[number]
            for content, numbers in zip(self._sources, used, strict=True)
            for number in numbers
        }
        return sorted(names)


def _later(old: ManifestPartition | None, new: ManifestPartition) -> ManifestPartition:
    if old is None:
        return new
    # Neither may decrease: records that were deleted, or are in the bucket, remain so.
    log_start, end = max(old.log_start, new.log_start), max(old.end, new.end)
    return ManifestPartition(new.number, log_start, end, new.epochs)


def _runs(places: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Yield (source, start, stop) of adjacent rows."""
    runs: list[tuple[int, int, int]] = []
    for source, row in places:
        if runs and runs[-1][0] == source and runs[-1][2] == row:
            runs[-1] = source, runs[-1][1], row + 1
        else:
            runs.append((source, row, row + 1))
    return runs
