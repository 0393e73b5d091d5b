"""The catalog of readable data, from manifests: topics, bounds, timestamps, pieces of ranges.

Covers: kafkawire.reading.files.times.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.fold import empty, fold
from kafkawire.manifest.keys import CURRENT, delta_key, segment_key, snapshot_key
from kafkawire.manifest.reader import Current, pack_current, read_manifest, refresh_manifest
from kafkawire.manifest.state import Delta, ManifestTopic
from kafkawire.reading.catalog import Bounds, open_catalog
from kafkawire.reading.files.locations import FolderPlace
from kafkawire.reading.files.manifests import open_holdings
from kafkawire.reading.files.open import open_place
from kafkawire.reading.files.spans import Sheet, merge_spans
from kafkawire.reading.model.source import DamagedData, PartitionRange, Piece, Source, SourceError
from tests.kit.spark.files import START_MS, Files, Share, batch, batches
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)
from tests.kit.tier import manifests
from tests.kit.tier.manifests import histories


def held(pieces: Iterable[Piece]) -> list[tuple[int, int, int, str]]:
    """(place, base, end, file's name without zeros)"""
    return [(p.place, p.base, p.end, Path(p.key).stem.lstrip("0")) for p in pieces]


def test_topics_bounds_and_properties(files: Files) -> None:
    one, two = files.topic("t", 2, **{"retention.ms": "7"})
    files.topic("empty", 3)
    files.topic("__internal", 1)
    files.put(1, Share(one, batches(0, [10] * 10)), Share(two, [batch(5, 5)]))
    files.publish(starts={one: 20})
    catalog = open_catalog(Source(files.place.url))
    assert catalog.topics == {"__internal": 1, "empty": 3, "t": 2}
    assert catalog.bounds("t", 0) == Bounds(20, 100, 100)
    assert catalog.bounds("t", 1) == Bounds(0, 10, 10)
    assert catalog.bounds("empty", 2) == Bounds(0, 0, 0)
    assert catalog.facts("t").configs == {"retention.ms": "7"}
    assert catalog.facts("__internal").internal
    assert catalog.part(PartitionRange("empty", 0, 0, 0)).pieces == ()
    with pytest.raises(SourceError, match=r"has no topic 'nothing'"):
        catalog.bounds("nothing", 0)
    for partition in (-1, 2):
        with pytest.raises(SourceError, match=f"no partition {partition}: it has 2"):
            catalog.part(PartitionRange("t", partition, 0, 1))


def test_parts_of_ranges(files: Files) -> None:
    [number] = files.topic("t")
    for name in (1, 2, 3):
        files.put(name, Share(number, batches((name - 1) * 100, [10] * 10)))
    files.publish()
    catalog = open_catalog(Source(files.place.url))
    part = catalog.part(PartitionRange("t", 0, 50, 250))
    assert held(part.pieces) == [(0, 50, 100, "1"), (0, 100, 200, "2"), (0, 200, 250, "3")]
    sizes = [row.size_bytes for row, _ in files.rows.values()]
    assert [piece.file_bytes for piece in part.pieces] == sizes
    assert part.size_bytes == pytest.approx(sum(p.size_bytes for p in part.pieces), abs=5)
    assert held(catalog.part(PartitionRange("t", 0, 100, 101)).pieces) == [(0, 100, 101, "2")]
    assert held(catalog.part(PartitionRange("t", 0, 99, 99)).pieces) == []
    assert held(catalog.part(PartitionRange("t", 0, 300, 400)).pieces) == []
    ranges = [PartitionRange("t", 0, 0, 100), PartitionRange("t", 0, 150, 300)]
    assert catalog.parts(iter(ranges)) == [catalog.part(each) for each in ranges]
    assert gc.isenabled()
    assert catalog.part(PartitionRange("t", 0, 200, 400)).size_bytes == pytest.approx(
        2 * catalog.part(PartitionRange("t", 0, 200, 300)).size_bytes, rel=0.1
    )  # offsets in no segment count like the others


@given(histories(3), st.integers(0, 60), st.integers(0, 80))
def test_sheets_match_manifests(deltas: list[Delta], base: int, size: int) -> None:
    state = fold(empty(manifests.CLUSTER, 1, 1, 0, 0), deltas)
    manifest, sheet = Manifest(state), Sheet(Manifest(state))
    for number in manifest.numbers:
        spans = sheet.spans(number, 0)
        rows = list(zip(*[column.tolist() for column in spans[:3]], strict=True))
        assert rows == [(s.base, s.end, s.entry) for s in manifest.spans(number)]
        for piece, span in zip(sheet.pieces(spans, 4), manifest.spans(number), strict=True):
            entry, row = manifest.entries[span.entry], manifest.objects[span.object]
            assert piece == Piece(
                4, segment_key(row.uuid), entry.start, entry.length, entry.index_start,
                entry.index_length, entry.index_checksum, entry.base_offset, span.base, span.end,
                entry.end_offset, number, row.size_bytes,
            )  # fmt: skip


@given(histories(4))
def test_several_manifests_give_each_offset_once(deltas: list[Delta]) -> None:
    """The highest generation is used; then the first manifest."""
    sheets = [
        Sheet(Manifest(fold(empty(manifests.CLUSTER, 1, 1, n, 0), [replace(d, sequence=n + 1)])))
        for n, d in enumerate(deltas)
    ]
    for number in {n for sheet in sheets for n in sheet.manifest.numbers}:
        found = [sheet.spans(number, at) for at, sheet in enumerate(sheets)]
        best: dict[int, tuple[int, int, int]] = {}
        for at, spans in enumerate(found):
            generations = sheets[at].generations(spans).tolist()
            for base, end, entry, generation in zip(
                *[column.tolist() for column in spans[:3]], generations, strict=True
            ):
                for offset in range(base, end):
                    best[offset] = min(best.get(offset, (1, 0, 0)), (-generation, at, entry))
        together = merge_spans(sheets, found)
        seen = [
            (offset, holder, entry)
            for base, end, entry, holder in zip(*[c.tolist() for c in together], strict=True)
            for offset in range(base, end)
        ]
        assert seen == [(offset, at, entry) for offset, (_, at, entry) in sorted(best.items())]


def test_data_folder_of_several_brokers(tmp_path: Path) -> None:
    for node in (1, 2):
        files = Files(open_place(str(tmp_path / f"data/brokers/{node}")))
        [number] = files.topic("t")
        if node == 1:
            files.put(1, Share(number, batches(0, [10] * 10)))
        else:
            files.put(2, Share(number, batches(50, [10] * 10)))
        files.publish(starts={number: 0 if node == 1 else 50})
    (tmp_path / "data/brokers/3").mkdir()
    catalog = open_catalog(Source(str(tmp_path / "data")))
    assert [place.url.rpartition("/")[2] for place in catalog.places] == ["1", "2"]
    assert catalog.bounds("t", 0) == Bounds(50, 150, 150)  # the later log start
    part = catalog.part(PartitionRange("t", 0, 50, 150))
    assert held(part.pieces) == [(0, 50, 100, "1"), (1, 100, 150, "2")]
    one = open_catalog(Source(str(tmp_path / "data/brokers/2")))
    assert held(one.part(PartitionRange("t", 0, 50, 150)).pieces) == [(0, 50, 150, "2")]


def test_recreated_topic(tmp_path: Path) -> None:
    """The newer topic is meant; the older one's segments belong to another topic."""
    for node in (1, 2):
        files = Files(open_place(str(tmp_path / f"brokers/{node}")))
        [number] = files.topic("t")
        old = files.topics["t"]
        if node == 2:
            files.topics["t"] = ManifestTopic(b"n" * 16, "t", False, 9, {}, old.partitions)
        files.put(node, Share(number, batches(0, [10] * node)))
        files.publish()
    catalog = open_catalog(Source(str(tmp_path)))
    assert catalog.bounds("t", 0) == Bounds(0, 20, 20)
    assert held(catalog.part(PartitionRange("t", 0, 0, 20)).pieces) == [(1, 0, 20, "2")]


def test_places_without_a_manifest(tmp_path: Path) -> None:
    for url in (str(tmp_path), str(tmp_path / "nowhere")):
        with pytest.raises(SourceError, match=r"has no manifest.*brokers/\*/manifest"):
            open_catalog(Source(url))
    with pytest.raises(SourceError, match="nothing to read from"):
        open_catalog(Source())
    (tmp_path / "manifest").mkdir()
    (tmp_path / "manifest/current").write_bytes(b"{")
    with pytest.raises(SourceError, match="manifest/current is not what kafkawire writes"):
        open_catalog(Source(str(tmp_path)))
    (tmp_path / "manifest/current").write_bytes(pack_current(Current(7)))
    with pytest.raises(SourceError, match="is not there, though manifest/current speaks of it"):
        open_catalog(Source(str(tmp_path)))


# Times


def test_offsets_for_timestamps(files: Files) -> None:
    """The first offset at or after a timestamp, in any block; timestamps may decrease."""
    [number] = files.topic("t")
    late = batch(500, 1, timestamp_ms=START_MS + 10_000)
    early = [batch(n, 1, timestamp_ms=START_MS + 400 + n) for n in range(501, 600)]
    files.put(1, Share(number, batches(0, [10] * 50)))
    files.put(2, Share(number, [late, *early]))
    files.publish(starts={number: 105})
    catalog = open_catalog(Source(files.place.url))
    stamps = {o: START_MS + o // 10 * 10 for o in range(105, 500)} | {500: START_MS + 10_000}
    stamps |= {o: START_MS + 400 + o for o in range(501, 600)}
    for ms in (0, 1, 104, 110, 111, 250, 490, 491, 500, 999, 10_000, 10_001):
        wanted = next((o for o, stamp in stamps.items() if stamp >= START_MS + ms), None)
        assert catalog.offset_for_time("t", 0, START_MS + ms) == wanted, ms
    assert catalog.offset_for_time("t", 0, 0) == 105
    assert catalog.offset_for_time("t", 0, 1 << 62) is None


def test_timestamp_after_compacted_records(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, [batch(0, 10), batch(40, 10)], end=60))
    [other] = files.topic("u")
    files.put(2, Share(number, [], base=60, end=70), Share(other, [batch(0, 1)]))
    files.put(3, Share(number, [batch(70, 1)]))
    files.publish()
    catalog = open_catalog(Source(files.place.url))
    assert catalog.offset_for_time("t", 0, START_MS + 1) == 40
    assert catalog.offset_for_time("t", 0, START_MS + 41) == 70


def test_timestamp_in_damaged_bytes(files: Files) -> None:
    [number] = files.topic("t")
    key = files.put(1, Share(number, batches(0, [10] * 50)))
    files.publish()
    stored = bytearray(files.place.get(key))
    stored[300] ^= 1
    files.place.put(key, bytes(stored))
    catalog = open_catalog(Source(files.place.url))
    with pytest.raises(DamagedData, match=r"\.segment, partition 0 of topic 't'"):
        catalog.offset_for_time("t", 0, START_MS)
    assert catalog.offset_for_time("t", 0, START_MS + 480) == 480


def test_timestamp_in_replaced_file(files: Files) -> None:
    [number] = files.topic("t")
    for name in (1, 2):
        files.put(name, Share(number, batches((name - 1) * 100, [10] * 10)))
    files.publish()
    catalog = open_catalog(Source(files.place.url))
    gone = segment_key((2).to_bytes(16, "big"))
    stored = files.place.get(gone)
    files.place.delete([gone])
    with pytest.raises(SourceError, match=f"{gone} is not there, though its manifest names it"):
        catalog.offset_for_time("t", 0, START_MS + 150)
    files.place.put(gone, stored)
    files.put(3, Share(number, batches(0, [10] * 20)), generation=1)
    files.publish(gone=(1, 2))
    files.place.delete([gone])
    assert catalog.offset_for_time("t", 0, START_MS + 150) == 150


# Read again


def test_refresh_reads_new_deltas(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 10)))
    files.publish()
    catalog = open_catalog(Source(files.place.url))
    again = catalog.refresh_catalog()
    assert again._holdings[0] is catalog._holdings[0]
    files.put(2, Share(number, batches(100, [10] * 10)))
    files.publish()
    asked: list[str] = []

    def get(key: str) -> bytes:
        asked.append(key)
        return files.place.get(key)

    known = open_holdings(files.place.url)[0].manifest
    asked.clear()
    assert refresh_manifest(known, get) is known
    assert asked == [delta_key(3), CURRENT]
    newer = again.refresh_catalog()
    assert newer.bounds("t", 0) == Bounds(0, 200, 200)
    assert held(newer.part(PartitionRange("t", 0, 0, 200)).pieces) == [
        (0, 0, 100, "1"),
        (0, 100, 200, "2"),
    ]
    assert again.bounds("t", 0) == Bounds(0, 100, 100)


def test_refresh_after_fold(files: Files) -> None:
    """The deltas that would be next are deleted: the snapshot is read."""
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 10)))
    files.publish()
    catalog = open_catalog(Source(files.place.url))
    files.put(2, Share(number, batches(100, [10] * 10)))
    files.publish()
    folded = read_manifest(files.place.get)
    from kafkawire.manifest.format import pack

    files.place.put(snapshot_key(2), pack(folded.state))
    files.place.put(CURRENT, pack_current(Current(2)))
    files.place.delete([delta_key(1), delta_key(2), snapshot_key(0)])
    assert catalog.refresh_catalog().bounds("t", 0) == Bounds(0, 200, 200)


def test_deltas_of_bucket_are_fetched_together(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    [number] = files.topic("t")
    for name in range(1, 40):
        files.put(name, Share(number, batches(name * 10, [10])))
        files.publish()
    listed: list[str] = []

    class Far(FolderPlace):
        """A place like a bucket: not a folder."""

        def list(self, prefix: str = "") -> Iterator[str]:
            listed.append(prefix)
            return super().list(prefix)

    monkeypatch.setattr("kafkawire.reading.files.manifests.FolderPlace", type("Other", (), {}))
    monkeypatch.setattr(
        "kafkawire.reading.files.manifests.open_place", lambda url: Far(open_place(url).tier)
    )
    assert open_catalog(Source(files.place.url)).bounds("t", 0).end == 400
    assert listed == ["manifest/delta-"]


def test_write_time_of_files(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10])))
    files.put(2, Share(number, batches(10, [10])), generation=1)
    files.publish()
    catalog = open_catalog(Source(files.place.url))
    first, second = catalog.part(PartitionRange("t", 0, 0, 20)).pieces
    assert catalog.created_ms(first) == files.rows[1][0].created_ms
    assert catalog.created_ms(second) == -1
