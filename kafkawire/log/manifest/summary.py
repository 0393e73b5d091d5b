"""Summary of a manifest, which a broker compares with its own state to find differences.

The process that serves clients does not read a manifest of a million topics: a job
(kafkawire.log.manifest.job) summarizes it, in slices that are compared one by one. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from kafkawire.crc32c import crc32c
from kafkawire.manifest.columns import ManifestPartition
from kafkawire.manifest.state import ClusterFacts, ManifestTopic, Snapshot

SLICE = 500
UUID_BYTES = 16


@dataclass(slots=True)
class KeySlices:
    """Rising keys in slices of SLICE, and a number for each key. `firsts`: the first key of each
    slice."""

    keys: list[bytes] = field(default_factory=list)
    values: list[array[int]] = field(default_factory=list)
    firsts: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.values))

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self.firsts, key) - 1
        if at < 0:
            return False
        part, found = self.keys[at], -1
        while (found := part.find(key, found + 1)) % UUID_BYTES and found >= 0:
            continue  # a match across two keys
        return found >= 0

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Return all of them, by key."""
        for keys, values in zip(self.keys, self.values, strict=True):
            for at, value in enumerate(values):
                yield keys[UUID_BYTES * at : UUID_BYTES * (at + 1)], value


@dataclass(slots=True)
class Outline:
    """The summary. `topics`: id -> fingerprint; `objects`: uuids; `partitions`: (number, log start,
    end, fingerprint of the epochs) in columns, by slices. `sequence`: that of the last delta."""

    sequence: int
    cluster: ClusterFacts
    topics: KeySlices
    objects: KeySlices
    partitions: list[tuple[array[int], array[int], array[int], array[int]]]


def topic_print(facts: ManifestTopic) -> int:
    """Return a number that differs when a topic does."""
    configs = sorted(facts.configs.items())
    says = (facts.name, facts.internal, facts.created_ms, configs, facts.partitions)
    return crc32c(repr(says).encode())


def partition_print(row: ManifestPartition) -> int:
    """Return a number that differs when the epochs of a partition do."""
    return crc32c(row.epochs)


def outline(state: Snapshot) -> Outline:
    """Return the summary of a manifest."""
    topics = {topic.id: topic_print(topic) for topic in state.topics}
    objects = {state.objects.uuid(at): 0 for at in range(len(state.objects))}
    partitions = []
    rows = iter(state.partitions)
    while part := list(islice(rows, SLICE)):
        partitions.append(
            (
                array("Q", [row.number for row in part]),
                array("q", [row.log_start for row in part]),
                array("q", [row.end for row in part]),
                array("I", [partition_print(row) for row in part]),
            )
        )
    cluster = state.cluster or ClusterFacts()
    return Outline(state.sequence, cluster, _slices(topics), _slices(objects), partitions)


def _slices(numbers: Mapping[bytes, int]) -> KeySlices:
    made = KeySlices()
    items = iter(sorted(numbers.items()))
    while part := list(islice(items, SLICE)):
        made.keys.append(b"".join([key for key, _ in part]))
        made.firsts.append(part[0][0])
        made.values.append(array("I", [value for _, value in part]))
    return made
