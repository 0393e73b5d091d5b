"""Folding deltas: the result does not depend on who folds, how often, or in which portions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.manifest.columns import ManifestPartition
from kafkawire.manifest.fold import REMEMBERED_MS, GapError, empty, fold
from kafkawire.manifest.format import pack, unpack
from kafkawire.manifest.state import ClusterFacts, Delta, ManifestTopic, Snapshot
from tests.kit.tier.manifests import CLUSTER, EPOCHS, add, entry, histories, sample, uuid

START = empty(CLUSTER, 1, 1, 0, 0)


def stored(snapshot: Snapshot) -> Snapshot:
    """The manifest as it is read back."""
    found = unpack(pack(snapshot))
    assert isinstance(found, Snapshot)
    return found


@given(histories(6), st.integers(0, 6), st.integers(0, 6))
def test_fold_is_independent_of_portions(deltas: list[Delta], one: int, two: int) -> None:
    whole = pack(fold(START, deltas))
    single = START
    for delta in deltas:
        single = stored(fold(single, [delta]))
    assert pack(single) == whole
    low, high = sorted((one, two))
    part = stored(fold(START, deltas[:high]))
    assert pack(fold(part, deltas[low:])) == whole, "some of them repeated"
    assert pack(fold(single, deltas)) == whole
    assert pack(stored(single)) == whole


@given(histories(5))
def test_snapshot_matches_plain_model(deltas: list[Delta]) -> None:
    topics: dict[bytes, ManifestTopic] = {}
    objects: dict[bytes, tuple[object, ...]] = {}
    for delta in deltas:
        topics |= {topic.id: topic for topic in delta.topics}
        for topic_id in delta.deleted_topics:
            topics.pop(topic_id, None)
        at = 0
        for row in delta.objects:
            entries = [delta.entries[n] for n in range(at, at + row.entries)]
            kind = delta.objects.classes[row.class_at]
            objects[row.uuid] = (row.segment, row.generation, kind, entries)
            at += row.entries
        for name in delta.deleted:
            objects.pop(name, None)
    found = fold(START, deltas)
    assert {topic.id: topic for topic in found.topics} == topics
    at = 0
    for number, row in enumerate(found.objects):
        entries = [found.entries[n] for n in range(at, at + row.entries)]
        kind = found.objects.retention_class(number)
        assert objects.pop(row.uuid) == (row.segment, row.generation, kind, entries)
        at += row.entries
    assert not objects
    numbers = {number for topic in topics.values() for number in topic.partitions}
    assert set(found.partitions.number) <= numbers


def test_gap_between_deltas_is_reported() -> None:
    with pytest.raises(GapError, match="delta 1 is missing"):
        fold(START, [Delta(2, CLUSTER, 1, 1, 1)])


def test_log_starts_ends_and_numbers_never_decrease() -> None:
    first, second = sample(), sample()
    first.sequence, second.sequence = 1, 2
    second.cluster = ClusterFacts(1, 1, {})
    second.partitions.append(ManifestPartition(3, 1, 2, EPOCHS + EPOCHS))
    found = fold(START, [first, second])
    assert found.cluster == ClusterFacts(9, 5000, {})
    assert next(iter(found.partitions)) == ManifestPartition(3, 5, 20, EPOCHS + EPOCHS)


def test_topic_deletion_removes_its_partitions() -> None:
    first = sample()
    first.sequence = 1
    second = Delta(2, CLUSTER, 1, 1, 1, deleted_topics=[uuid(1)])
    second.partitions.append(ManifestPartition(3, 9, 9, EPOCHS))
    found = fold(START, [first, second])
    assert [topic.name for topic in found.topics] == ["täglich", "empty"]
    assert list(found.partitions.number) == [7]
    assert len(found.objects) == 3, "they are deleted one by one"


def test_deleted_objects_are_listed_for_a_while() -> None:
    first = Delta(1, CLUSTER, 1, 1, 1000, deleted={uuid(1): 5000})
    add(first, 1, [entry(3, 0, 10)])
    found = fold(START, [first])
    assert (len(found.objects), found.deleted) == (0, {uuid(1): 5000})
    later = Delta(2, CLUSTER, 1, 1, 4999 + REMEMBERED_MS)
    assert fold(found, [later]).deleted == {uuid(1): 5000}
    later.created_ms += 1
    assert fold(found, [later]).deleted == {}
