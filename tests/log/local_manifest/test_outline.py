"""Outlines of manifests: different manifests have different outlines, and every entry is found."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.log.local_manifest.job import SLICE, KeySlices, outline, topic_print
from kafkawire.manifest.columns import ManifestPartition
from kafkawire.manifest.fold import empty, fold
from kafkawire.manifest.state import Delta, ManifestTopic
from tests.kit.tier.manifests import CLUSTER, add, entry, sample, topics, uuid


@given(topics(), topics())
def test_different_topics_have_different_fingerprints(
    one: ManifestTopic, two: ManifestTopic
) -> None:
    assert (topic_print(one) == topic_print(two)) == (one[1:] == two[1:])


@given(st.lists(st.sampled_from([b"\0", b"\1"]), min_size=40, max_size=400))
def test_key_is_found_only_at_key_boundary(letters: list[bytes]) -> None:
    """Ids so similar that each also occurs across the border of two others."""
    text = b"".join(letters)
    keys = sorted({text[at : at + 16] for at in range(0, len(text) - 16, 3)})
    slices = KeySlices()
    for start in range(0, len(keys), 4):
        slices.keys.append(b"".join(keys[start : start + 4]))
        slices.firsts.append(keys[start])
    for at in range(len(text) - 15):
        key = text[at : at + 16]
        assert (key in slices) == (key in keys)


def test_outline_has_everything_in_order() -> None:
    rng = random.Random(1)
    delta = Delta(1, CLUSTER, 1, 1, 1)
    ids = [rng.randbytes(16) for _ in range(2 * SLICE + 3)]
    delta.topics = [
        ManifestTopic(each, each.hex(), False, 1, {}, (n,)) for n, each in enumerate(ids)
    ]
    for n in range(len(ids)):
        delta.partitions.append(ManifestPartition(n, n, 2 * n, b"\1" + bytes(12 * (n % 2))))
        add(delta, n, [entry(n, 0, 1)])
    made = outline(fold(empty(CLUSTER, 1, 1, 0, 0), [delta]))
    assert [key for key, _ in made.topics.items()] == sorted(ids)
    assert dict(made.topics.items()) == {topic.id: topic_print(topic) for topic in delta.topics}
    assert [key for key, _ in made.objects.items()] == [uuid(n) for n in range(len(ids))]
    assert all(each in made.topics for each in ids)
    assert bytes(16) not in made.topics
    assert b"\xff" * 16 not in made.topics
    rows = [row for columns in made.partitions for row in zip(*columns, strict=True)]
    assert [row[:3] for row in rows] == [(n, n, 2 * n) for n in range(len(ids))]
    assert len({row[3] for row in rows}) == 2
    assert (len(made.topics), made.sequence) == (len(ids), 1)


def test_empty_outline() -> None:
    made = outline(empty(CLUSTER, 1, 1, 5, 0))
    assert (len(made.topics), made.partitions, made.sequence) == (0, [], 5)
    assert uuid(1) not in made.topics
    sampled = sample()
    sampled.sequence = 6
    again = outline(fold(empty(CLUSTER, 1, 1, 5, 0), [sampled]))
    assert again.cluster.configs == {"log.retention.ms": "5", "größe": "ß"}
