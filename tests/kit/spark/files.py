"""Tiers built by hand for readers without a broker: real segments and a manifest at any URL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from kafkawire.codec.batches import build, read_head
from kafkawire.codec.control import Aborted
from kafkawire.codec.segment.format import LostRange, PartitionState, SegmentBuilder
from kafkawire.manifest.columns import Entry, ManifestObject, ManifestPartition
from kafkawire.manifest.fold import empty
from kafkawire.manifest.format import pack
from kafkawire.manifest.keys import CURRENT, delta_key, segment_key, snapshot_key
from kafkawire.manifest.reader import Current, pack_current
from kafkawire.manifest.state import Delta, ManifestTopic
from kafkawire.reading.files.locations import Place

CLUSTER = "abcdefghijklmnopqrstuv"
MADE_MS = 1_700_000_000_000
START_MS = 1_600_000_000_000

AbortedRow = tuple[int, int, int]


def value(offset: int, size: int = 100) -> bytes:
    """The value of the record at an offset; the same everywhere."""
    return (b"%d:" % offset).ljust(size, b".")


def batch(base: int, count: int = 1, *, size: int = 100, codec: int = 0, **more: int) -> bytes:
    """A batch of the offsets [base, base + count); timestamps rise by a millisecond an offset."""
    pairs = [(b"k%d" % n, value(n, size)) for n in range(base, base + count)]
    stamp = more.pop("timestamp_ms", START_MS + base)
    return bytes(build(pairs, base_offset=base, timestamp_ms=stamp, codec=codec, **more))


def marker(offset: int, producer_id: int, *, commits: bool) -> bytes:
    """The control batch that ends a transaction."""
    key = b"\0\0\0\1" if commits else b"\0\0\0\0"
    return bytes(
        build(
            [(key, b"\0\0\0\0\0\0")], base_offset=offset, timestamp_ms=START_MS + offset,
            producer_id=producer_id, producer_epoch=0, attributes=0x30,
        )
    )  # fmt: skip


@dataclass
class Share:
    """A partition's batches in a segment. `base`, `end`: the range it covers, if larger than the
    batches."""

    number: int
    batches: Sequence[bytes]
    base: int | None = None
    end: int | None = None
    aborted: Sequence[AbortedRow] = ()
    lost: Sequence[LostRange] = ()
    stored: Sequence[tuple[int, int]] = ()


@dataclass
class Files:
    """A tier that a test builds. Partition numbers are assigned in the order of topics."""

    place: Place
    topics: dict[str, ManifestTopic] = field(default_factory=dict)
    rows: dict[int, tuple[ManifestObject, list[Entry]]] = field(default_factory=dict)
    sequence: int = 0
    cluster: str = CLUSTER
    dropped: list[bytes] = field(default_factory=list)

    def topic(self, name: str, partitions: int = 1, **configs: str) -> tuple[int, ...]:
        """Create a topic; return the numbers of its partitions."""
        first = 1 + sum(len(facts.partitions) for facts in self.topics.values())
        numbers = tuple(range(first, first + partitions))
        internal = name.startswith("__")
        self.topics[name] = ManifestTopic(
            name.encode().ljust(16, b"-")[:16], name, internal, 5, configs, numbers
        )
        return numbers

    def drop(self, topic_id: bytes) -> None:
        """Delete a topic that has already been removed from `topics`."""
        self.dropped.append(topic_id)

    def put(self, name: int, *shares: Share, generation: int = 0, keys: bytes | None = None) -> str:
        """Store a segment; return its key. `keys`: the body of its key index."""
        made = SegmentBuilder(name.to_bytes(16, "little"), 1, MADE_MS)
        data = bytearray(made.header())
        for share in sorted(shares, key=lambda share: share.number):
            facts = next(f for f in self.topics.values() if share.number in f.partitions)
            base = share.base
            if base is None:
                base = read_head(share.batches[0]).base_offset
            state = PartitionState(
                aborted=[*map(Aborted._make, share.aborted)],
                lost=list(share.lost),
                stored=list(share.stored),
            )
            index = facts.partitions.index(share.number)
            made.start_partition(share.number, facts.id, facts.name, index, base, state)
            for each in share.batches:
                made.add(each)
                data += each
            made.end_partition(made.next_offset if share.end is None else share.end)
        data += made.finish(keys=keys)
        entries = [
            Entry(
                e.number, e.base_offset, e.end_offset, e.start, e.length, e.index_start,
                e.index_length, e.index_checksum, e.max_timestamp, e.batches, e.records,
            )
            for e in made.entries
        ]  # fmt: skip
        uuid = name.to_bytes(16, "big")
        newest = max((e.max_timestamp for e in made.entries), default=-1)
        self.rows[name] = (
            ManifestObject(
                uuid, uuid, generation, 1, len(data), MADE_MS + name, newest, 0, len(entries)
            ),
            entries,
        )
        self.place.put(segment_key(uuid), bytes(data))
        return segment_key(uuid)

    def publish(
        self, starts: Mapping[int, int] | None = None, ends: Mapping[int, int] | None = None,
        gone: Iterable[int] = (),
    ) -> None:  # fmt: skip
        """Write the next delta of the manifest. `gone`: objects that are deleted now."""
        self.sequence += 1
        delta = Delta(self.sequence, self.cluster, 1, 4, MADE_MS)
        delta.topics = list(self.topics.values())
        delta.deleted_topics = list(self.dropped)
        found: dict[int, list[int]] = {}
        for row, entries in self.rows.values():
            delta.objects.append(row)
            for entry in entries:
                delta.entries.append(entry)
                found.setdefault(entry.number, []).append(entry.end_offset)
        for number, covered in sorted(found.items()):
            start = (starts or {}).get(number, 0)
            end = (ends or {}).get(number, max(covered))
            delta.partitions.append(ManifestPartition(number, start, end, b"\1"))
        delta.objects.classes = ["delete/tiered/ever"]
        delta.deleted = dict.fromkeys((name.to_bytes(16, "big") for name in gone), MADE_MS)
        for name in gone:
            self.rows.pop(name, None)
        if self.sequence == 1:
            self.place.put(snapshot_key(0), pack(empty(self.cluster, 1, 4, 0, MADE_MS)))
        self.place.put(delta_key(self.sequence), pack(delta))
        self.place.put(CURRENT, pack_current(Current(0)))


def batches(base: int, counts: Iterable[int], **more: int) -> list[bytes]:
    """Consecutive batches of the given numbers of records."""
    sizes = list(counts)
    starts = accumulate(sizes, initial=base)
    return [batch(start, count, **more) for start, count in zip(starts, sizes, strict=False)]
