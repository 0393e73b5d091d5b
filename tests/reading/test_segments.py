"""Records of folders: by offset, time and key, with gaps, transactions, damage, replaced files.

Covers: kafkawire.reading.model.records, kafkawire.reading.port, kafkawire.reading.files.key_index,
kafkawire.reading.files.traffic.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kafkawire.codec.batches import Record, pack
from kafkawire.codec.murmur2 import murmur2
from kafkawire.manifest.keys import segment_key
from kafkawire.reading import (
    READ_UNCOMMITTED,
    DamagedData,
    SourceError,
    TopicReader,
    TopicRecord,
    UnknownName,
    open_folder,
)
from kafkawire.reading.files.locations import Place
from kafkawire.reading.model.source import Piece, Source
from kafkawire.reading.segments import SegmentRecords
from tests.kit.spark.files import START_MS, Files, Share, batch, batches, marker
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)


def rows(*records: Record, codec: int = 0) -> bytes:
    return bytes(pack(records, codec=codec))


@pytest.fixture
def three(files: Files) -> Files:
    """Topic t: two partitions, offsets [0, 300) of each in segments of 100; keys k0 to k299."""
    one, two = files.topic("t", 2)
    for base in range(0, 300, 100):
        files.put(
            base + 1,
            Share(one, batches(base, [10] * 10, codec=base // 100)),
            Share(two, batches(base, [10] * 10, codec=4)),
        )
    files.publish()
    return files


def test_topics_partitions_and_offsets(three: Files) -> None:
    with open_folder(three.place.url) as reader:
        assert reader.topics() == {"t": 2}
        assert reader.partitions("t") == [(0, 0, 300), (1, 0, 300)]
        found = list(reader.read("t"))
        assert [(each.partition, each.offset) for each in found] == [
            (partition, offset) for partition in range(2) for offset in range(300)
        ]
        assert found[17].key == b"k17"
        some = reader.read("t", partitions=[1], start=95, end=203)
        assert [each.offset for each in some] == list(range(95, 203))
        assert list(reader.read("t", start=300)) == list(reader.read("t", start=9, end=9)) == []


def test_keys(three: Files) -> None:
    with open_folder(three.place.url) as reader:
        found = list(reader.find("t", b"k123"))
        assert [(each.partition, each.offset) for each in found] == [(0, 123), (1, 123)]
        many = [b"k%d" % n for n in range(0, 300, 7)]
        assert len(list(reader.find("t", many))) == 2 * len(many)
        assert list(reader.find("t", b"k")) == list(reader.find("t", [])) == []
        assert list(reader.find("t", b"k123", end=123)) == []


def test_times(three: Files) -> None:
    with open_folder(three.place.url) as reader:
        since, until = START_MS + 110, START_MS + 120
        found = [each.offset for each in reader.read("t", partitions=[0], since=since, until=until)]
        assert found == list(range(110, 120))
        moment = datetime.fromtimestamp(START_MS / 1000, UTC)
        assert len(list(reader.read("t", since=moment))) == 600
        assert list(reader.read("t", until=moment.replace(tzinfo=None))) == []
        assert [each.offset for each in reader.find("t", b"k115", since=since, until=until)] == [
            115,
            115,
        ]


def test_time_range_reads_only_its_part(files: Files) -> None:
    """Of three segments of 20 MB the first is not read, and of the second only some blocks."""
    [number] = files.topic("t")
    for base in range(0, 3000, 1000):
        files.put(base + 1, Share(number, batches(base, [10] * 100, size=2000)))
    files.publish()
    with open_folder(files.place.url) as reader:
        opened = sum(each.size_bytes for each in reader.traffic())
        found = list(reader.read("t", since=START_MS + 1500, until=START_MS + 1510))
        assert [each.offset for each in found] == list(range(1500, 1510))
        read = sum(each.size_bytes for each in reader.traffic()) - opened
        assert read < 1 << 20


def test_null_large_and_empty_keys_and_headers(files: Files) -> None:
    large = b"K" * (1 << 20)
    [number] = files.topic("t")
    headers = [("a", b"1"), ("a", None), ("ü", b"\xff")]
    data = rows(
        Record(0, 5, None, b"null"),
        Record(1, 5, b"", b"empty"),
        Record(2, 5, large, b"large", headers),
        Record(3, 5, large[:-1], None),
        codec=4,
    )
    files.put(1, Share(number, [data]))
    files.publish()
    with open_folder(files.place.url) as reader:
        [found] = reader.find("t", large)
        assert (found.value, found.headers) == (b"large", tuple(headers))
        assert [each.offset for each in reader.find("t", b"")] == [1]
        assert [each.offset for each in reader.find("t", [None])] == [0]
        assert [each.offset for each in reader.find("t", [None, b"", large])] == [0, 1, 2]
        assert reader.latest("t", large[:-1]) == ("t", 0, 3, 5, large[:-1], None, ())


def test_aborted_records_are_not_found(files: Files) -> None:
    [number] = files.topic("t")
    of = {"producer_epoch": 0, "attributes": 0x10, "producer_id": 7}
    share = Share(
        number,
        [
            batch(0, 10, base_sequence=0, **of),
            marker(10, 7, commits=False),
            batch(11, 9, base_sequence=10, **of),
            marker(20, 7, commits=True),
        ],
        aborted=[(7, 0, 10)],
    )
    files.put(1, share)
    files.publish()
    with open_folder(files.place.url) as reader:
        assert [each.offset for each in reader.read("t")] == list(range(11, 20))
        assert list(reader.find("t", b"k3")) == []
        assert reader.latest("t", b"k3") is None
    with open_folder(files.place.url, isolation=READ_UNCOMMITTED) as reader:
        assert [each.offset for each in reader.find("t", b"k3")] == [3]


def test_latest_is_found_from_the_end(files: Files) -> None:
    """A compacted topic of 8 MB: an updated key takes one step, an old one all of it."""
    one, two = files.topic("t", 2)
    updated = Record(4000, START_MS + 4000, b"k5", b"new")
    files.put(1, Share(one, batches(0, [10] * 200, size=2000)))
    files.put(2, Share(one, [*batches(2000, [10] * 200, size=2000), rows(updated)]))
    files.put(3, Share(two, [rows(Record(0, START_MS, b"k5", b"elsewhere, and old"))]))
    files.publish()
    with open_folder(files.place.url) as reader:
        found = reader.latest("t", b"k5")
        assert found is not None
        assert (found.offset, found.value) == (4000, b"new")
        before = sum(each.size_bytes for each in reader.traffic())
        assert before < 3 << 20
        assert reader.latest("t", b"k5", partitions=[1]) == (
            "t", 1, 0, START_MS, b"k5", b"elsewhere, and old", (),
        )  # fmt: skip
        oldest = reader.latest("t", b"k0")
        assert oldest is not None
        assert oldest.offset == 0
        assert reader.latest("t", b"absent") is None


def test_latest_of_a_recent_key_takes_few_requests(files: Files) -> None:
    """Small segments: the last one is read alone, then several together."""
    [number] = files.topic("t")
    for base in range(0, 4000, 100):
        files.put(base + 1, Share(number, batches(base, [10] * 10)))
    files.publish()
    with open_folder(files.place.url) as reader:

        def spent() -> int:
            return sum(each.requests for each in reader.traffic())

        opened = spent()
        assert reader.latest("t", b"k3955") is not None
        assert spent() - opened == 1
        assert reader.latest("t", b"k3555") is not None
        assert spent() - opened < 16


def test_latest_of_many_partitions(files: Files) -> None:
    """Other partitions than the default partitioner's are searched from its record's time on."""
    numbers = files.topic("t", 8)
    key = b"k5"
    likely = (murmur2(key) & 0x7FFFFFFF) % 8

    def put(name: int, values: dict[int, list[tuple[int, bytes]]]) -> None:
        """Store a segment with 100 old records and these of each partition, at the offset 5000."""
        shares = []
        for partition, number in enumerate(numbers):
            more = [
                rows(Record(5000 + at, START_MS + ms, key, text))
                for at, (ms, text) in enumerate(values.get(partition, []))
            ]
            old = batches(0, [10] * 200, size=2000) if partition != likely else []
            shares.append(Share(number, [*old, *more], base=0, end=6000))
        files.put(name, *shares, generation=name)
        files.publish()

    other = (likely + 3) % 8
    put(1, {likely: [(9000, b"a")]})
    with open_folder(files.place.url) as reader:
        before = sum(each.size_bytes for each in reader.traffic())
        assert value_of(reader.latest("t", key)) == b"a"
        assert sum(each.size_bytes for each in reader.traffic()) - before < 10_000
        assert value_of(reader.latest("t", key, partitions=[other])) == b"5:".ljust(2000, b".")
        assert value_of(reader.latest("t", b"k1999")) == b"1999:".ljust(2000, b".")
    put(2, {likely: [(9000, b"a")], other: [(9500, b"b"), (9001, b"c")]})
    with open_folder(files.place.url) as reader:
        assert value_of(reader.latest("t", key)) == b"c"
    # The last record of a partition counts, also if one before it has a later timestamp.
    put(3, {likely: [(9000, b"a")], other: [(9500, b"b"), (8000, b"c")]})
    with open_folder(files.place.url) as reader:
        assert value_of(reader.latest("t", key)) == b"a"
        assert value_of(reader.latest("t", key, partitions=[other, other])) == b"c"


def value_of(found: TopicRecord | None) -> bytes | None:
    assert found is not None
    return found.value


def test_progress_of_a_search_from_the_end(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 200, size=2000)))
    files.publish()
    seen: list[tuple[str, int, int]] = []
    with open_folder(files.place.url, progress=lambda *each: seen.append(each)) as reader:
        assert reader.latest("t", b"absent") is None
    done = [each[1] for each in seen]
    assert {(what, total) for what, _, total in seen} == {("offsets searched", 2000)}
    assert done == sorted(done)
    assert done[-1] == 2000
    assert len(done) > 1


def test_gaps_of_compaction_and_newer_generations(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 10)))
    files.put(2, Share(number, [batch(32, 2), batch(50, 5)], base=30, end=60), generation=1)
    files.publish(starts={number: 7})
    with open_folder(files.place.url) as reader:
        found = [each.offset for each in reader.read("t")]
        assert found == [*range(7, 30), 32, 33, *range(50, 55), *range(60, 100)]
        assert [each.offset for each in reader.find("t", [b"k40", b"k33", b"k6"])] == [33]


def test_unknown_names_and_places(three: Files, tmp_path: Path) -> None:
    with open_folder(three.place.url) as reader:
        with pytest.raises(UnknownName, match="has no topic 'u'"):
            reader.read("u")
        with pytest.raises(UnknownName, match="has no partition 2: it has 2"):
            reader.find("t", b"k", partitions=[2])
    with pytest.raises(SourceError, match="has no manifest"):
        open_folder(str(tmp_path))


def test_damage_is_raised_or_reported(three: Files) -> None:
    path = Path(three.place.tier.folder) / segment_key((101).to_bytes(16, "big"))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with open_folder(three.place.url) as reader, pytest.raises(DamagedData, match="partition 0"):
        list(reader.read("t"))
    harmed: list[DamagedData] = []
    with open_folder(three.place.url, on_damage=harmed.append) as reader:
        found = [(each.partition, each.offset) for each in reader.read("t")]
    [error] = harmed
    assert (error.topic, error.partition, error.base) == ("t", 0, 100)
    lost = range(error.base, error.end)
    assert found == [
        (p, offset) for p in range(2) for offset in range(300) if p or offset not in lost
    ]


def test_replaced_files_are_found_again(three: Files) -> None:
    """The second segment is rewritten after the manifest was read."""
    one, two = (number for facts in three.topics.values() for number in facts.partitions)
    with open_folder(three.place.url) as reader:
        key = segment_key((101).to_bytes(16, "big"))
        shares = [Share(number, batches(100, [10] * 10)) for number in (one, two)]
        three.put(900, *shares, generation=1)
        three.publish(gone=[101])
        three.place.delete([key])
        assert [each.offset for each in reader.read("t")] == 2 * list(range(300))


def test_missing_file_is_an_error(three: Files) -> None:
    with open_folder(three.place.url) as reader:
        three.place.delete([segment_key((101).to_bytes(16, "big"))])
        with pytest.raises(SourceError, match="is gone, though its manifest names it"):
            list(reader.read("t"))


def test_offsets_in_no_segment_are_named(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10])))
    files.put(2, Share(number, batches(30, [10])))
    files.publish(ends={number: 50})
    harmed: list[DamagedData] = []
    with open_folder(files.place.url, on_damage=harmed.append) as reader:
        assert [each.offset for each in reader.read("t")] == [*range(10), *range(30, 40)]
    assert [(each.base, each.end) for each in harmed] == [(10, 30), (40, 50)]


class Second:
    """An index of keys that knows that only offsets from 100 to 119 may have one of the keys."""

    def __init__(self) -> None:
        self.asked: list[Collection[bytes]] = []

    def narrow(
        self, places: Sequence[Place], pieces: Sequence[Piece], keys: Collection[bytes]
    ) -> Sequence[Piece]:
        self.asked.append(keys)
        parts = [(100, 110), (110, 120)]
        return [
            piece._replace(base=max(base, piece.base), end=min(end, piece.end))
            for piece in pieces
            for base, end in parts
            if max(base, piece.base) < min(end, piece.end)
        ]


def test_index_of_keys_chooses_blocks(three: Files) -> None:
    """It is used for keys, with all partitions at once, not for reading all, or null keys."""
    index = Second()
    with TopicReader(SegmentRecords(Source(three.place.url), index)) as reader:
        found = [(each.partition, each.offset) for each in reader.find("t", [b"k115", b"k215"])]
        assert found == [(0, 115), (1, 115)]
        assert [set(keys) for keys in index.asked] == [{b"k115", b"k215"}]
        assert len(list(reader.read("t"))) == 600
        assert list(reader.find("t", [None])) == []
        assert len(index.asked) == 1
