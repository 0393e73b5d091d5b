"""Generated deltas, and one delta with a sample of everything."""

from __future__ import annotations

from hypothesis import strategies as st

from kafkawire.manifest.columns import (
    Entry,
    EntryColumns,
    ManifestObject,
    ManifestPartition,
    ObjectColumns,
    PartitionColumns,
)
from kafkawire.manifest.state import ClusterFacts, Delta, ManifestTopic

CLUSTER = "cluster-of-the-tests00"
EPOCHS = b"\1" + bytes(12)


def uuid(number: int) -> bytes:
    """A UUID that is the same for the same number."""
    return number.to_bytes(16, "big")


def entry(number: int, base: int, end: int, start: int = 64) -> Entry:
    """A share of an object; a hundred bytes an offset."""
    length = 100 * (end - base)
    return Entry(number, base, end, start, length, 1 << 20, 28, 0xFEDCBA98, end, 1, end - base)


def add(
    delta: Delta, name: int, entries: list[Entry], generation: int = 0, kind: str = "tiered"
) -> None:
    """One more object in a delta."""
    row = ManifestObject(
        uuid(name), uuid(name + 1000), generation, 1, 1 << 21, name, -1,
        delta.objects.class_at(kind), len(entries),
    )  # fmt: skip
    delta.objects.append(row)
    for each in entries:
        delta.entries.append(each)


def sample() -> Delta:
    """A delta with a sample of everything."""
    delta = Delta(7, CLUSTER, 3, 2, 1_700_000_000_000)
    delta.cluster = ClusterFacts(9, 5000, {"log.retention.ms": "5", "größe": "ß"})
    delta.topics = [
        ManifestTopic(uuid(1), "orders", False, 5, {"retention.ms": "-1"}, (3, 4, 1 << 40)),
        ManifestTopic(uuid(2), "täglich", True, 0, {}, (7,)),
        ManifestTopic(uuid(9), "empty", False, 1, {}, ()),
    ]
    delta.deleted_topics = [uuid(77), uuid(78)]
    delta.partitions.append(ManifestPartition(3, 5, 20, EPOCHS))
    delta.partitions.append(ManifestPartition(1 << 40, 0, 1 << 50, b"\1"))
    delta.partitions.append(ManifestPartition(7, 2, 30, EPOCHS + bytes(12)))
    add(delta, 1, [entry(3, 0, 10), entry(1 << 40, 0, 1 << 30)])
    add(delta, 2, [])
    add(delta, 3, [entry(3, 10, 20), entry(7, 3, 30)], 4, "cleaned/x")
    delta.deleted = {uuid(20): 1_800_000_000_000, uuid(21): 0}
    return delta


def large(count: int = 300) -> Delta:
    """A delta large enough for its sections to be stored compressed."""
    delta = sample()
    for n in range(count):
        add(delta, 100 + n, [entry(3, 20 + n, 21 + n), entry(7, 30 + n, 31 + n)])
    return delta


_small = st.integers(1, 6)
_texts = st.dictionaries(st.sampled_from(["a", "b", "ü"]), st.text(max_size=5), max_size=2)


@st.composite
def topics(draw: st.DrawFn) -> ManifestTopic:
    name = draw(_small)
    first = 10 * name
    numbers = tuple(range(first, first + draw(st.integers(0, 3))))
    flag = draw(st.booleans())
    return ManifestTopic(uuid(name), f"t{name}", flag, draw(_small), draw(_texts), numbers)


@st.composite
def rows(draw: st.DrawFn) -> ManifestPartition:
    number = 10 * draw(_small) + draw(st.integers(0, 2))
    start, end = draw(st.integers(0, 50)), draw(st.integers(0, 100))
    return ManifestPartition(number, start, end, b"\1" + bytes(12 * draw(st.integers(0, 2))))


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    number = 10 * draw(_small) + draw(st.integers(0, 2))
    base = draw(st.integers(0, 60))
    return entry(number, base, base + draw(st.integers(0, 40)))


@st.composite
def deltas(draw: st.DrawFn, sequence: int = 1) -> Delta:
    """One delta of a small world, in which the same names occur again."""
    created = draw(st.integers(0, 10**9))
    delta = Delta(sequence, CLUSTER, draw(_small), draw(_small), created)
    if draw(st.booleans()):
        delta.cluster = ClusterFacts(draw(_small), draw(_small), draw(_texts))
    delta.topics = draw(st.lists(topics(), max_size=3))
    delta.deleted_topics = [uuid(n) for n in draw(st.lists(_small, max_size=2))]
    for row in draw(st.lists(rows(), max_size=4)):
        delta.partitions.append(row)
    for name in draw(st.lists(st.integers(1, 12), max_size=4, unique=True)):
        kind = draw(st.sampled_from(["tiered", "cleaned/a", "b"]))
        add(delta, name, draw(st.lists(entries(), max_size=3)), draw(_small), kind)
    gone = draw(st.lists(st.integers(1, 12), max_size=3))
    delta.deleted = {uuid(n): draw(st.integers(0, 2 * 10**9)) for n in gone}
    return delta


def histories(count: int) -> st.SearchStrategy[list[Delta]]:
    """Deltas that follow each other, from number 1 on."""
    return st.tuples(*[deltas(n) for n in range(1, count + 1)]).map(list)


__all__ = ["EntryColumns", "ObjectColumns", "PartitionColumns", "histories"]
