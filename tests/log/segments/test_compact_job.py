"""The job `compact` over segment files: several sources, transactions, remainders, damage, outputs.

Covers: kafkawire.log.segments.compact.job.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.batches import CONTROL, Record, iter_batches, pack, read_head, records
from kafkawire.codec.segment.format import PartitionState
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import Made, SegmentOutput, entries_of, no_pace
from kafkawire.log.io.worker_jobs import pack as pack_items
from kafkawire.log.segments.compact.job import PIECE_BYTES, run
from kafkawire.log.segments.compact.messages import (
    CompactArguments,
    CompactResult,
    CompactSource,
    PartitionToClean,
)
from kafkawire.log.segments.file.open import SegmentFile
from kafkawire.log.segments.file.writer import SegmentWriter
from kafkawire.metadata.checkpoint import ProducerEntry, pack_epochs, pack_producers
from tests.kit.log.compaction import DAY_MS, NOW_MS, TXN, keyed, marker
from tests.kit.memfs import MemFileSystem

FOLDER = "/segments"
TOPIC = (b"t" * 16, "t", 0)


def output(number: int) -> SegmentOutput:
    uuid = number.to_bytes(16, "big")
    return SegmentOutput(f"{FOLDER}/{uuid.hex()}.segment", uuid)


class Shelf:
    """Segments of a few partitions on a disk in memory."""

    def __init__(self) -> None:
        self.fs = MemFileSystem()
        self.fs.makedirs(FOLDER)
        self.count = 0

    def write(self, parts: dict[int, list[bytes]]) -> dict[int, CompactSource]:
        """One segment with batches of partitions."""
        self.count += 1
        out = output(self.count)
        writer = SegmentWriter(self.fs, out, 1, NOW_MS)
        for number, batches in sorted(parts.items()):
            writer.start_partition(number, TOPIC, read_head(batches[0]).base_offset, state())
            writer.write([memoryview(batch) for batch in batches])
            writer.end_partition(read_head(batches[-1]).last_offset + 1)
        return {e.number: source(self.fs, out, e.number) for e in entries_of(writer.finish())}

    def clean(self, *shares: PartitionToClean, outputs: int = 1, **more: int) -> CompactResult:
        """Clean into segments 100, 101, ... and the remainder into 99."""
        arguments = CompactArguments(
            1,
            more.get("now_ms", NOW_MS),
            pack_items(shares),
            [output(100 + n) for n in range(outputs)],
            output(99),
            more.get("segment_bytes", 1 << 30),
            more.get("buffer_bytes", 1 << 20),
            0.9,
        )
        return run(self.fs, arguments, no_pace)


def source(fs: FileSystem, out: SegmentOutput, number: int) -> CompactSource:
    file = SegmentFile(fs, out.path, out.uuid)
    (entry,) = [entry for entry in file.directory if entry.number == number]
    file.close()
    return CompactSource(
        out.path, out.uuid, entry.start, entry.length, entry.base_offset, entry.end_offset,
        entry.records,
    )  # fmt: skip


def state(*producers: ProducerEntry) -> PartitionState:
    return PartitionState(0, pack_epochs([(3, 0)]), pack_producers(producers), [])


def share(
    *sources: CompactSource, number: int = 1, dirty_from: int = 0, **more: PartitionState
) -> PartitionToClean:
    kept = more.get("state", state())
    return PartitionToClean(number, *TOPIC, dirty_from, DAY_MS, list(sources), kept)


def read(shelf: Shelf, made: Made, number: int = 1) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key, value of the records of a partition, without control records."""
    file = SegmentFile(shelf.fs, made.path, made.uuid)
    found = []
    for entry in file.directory:
        if entry.number == number:
            data = bytes(file.view[entry.start : entry.start + entry.length])
            for at, head in iter_batches(data):
                if not head.attributes & CONTROL:
                    found += [(r.offset, r.key, r.value) for r in records(data, at)]
    file.close()
    return found


def test_several_sources_are_cleaned_into_shared_segment() -> None:
    shelf = Shelf()
    one = shelf.write({1: [keyed(0, (b"a", b"1"), (b"b", b"1"))], 2: [keyed(5, (b"x", b"1"))]})
    two = shelf.write({1: [keyed(2, (b"a", b"2"))], 2: [keyed(6, (b"x", b"2"))]})
    result = shelf.clean(share(one[1], two[1]), share(one[2], two[2], number=2, dirty_from=5))
    (made,) = result.made
    assert read(shelf, made) == [(1, b"b", b"1"), (2, b"a", b"2")]
    assert read(shelf, made, 2) == [(6, b"x", b"2")]
    entries = {entry.number: entry for entry in entries_of(made)}
    assert (entries[1].base_offset, entries[1].end_offset, entries[1].records) == (0, 3, 2)
    assert (entries[2].base_offset, entries[2].end_offset, entries[2].records) == (5, 7, 1)
    assert [(s.number, s.clean_end, s.touched_end) for s in result.cleaned] == [
        (1, 3, 3),
        (2, 7, 7),
    ]
    assert result.rest.size_bytes == 0
    assert not result.damaged


def test_only_dirty_part_is_added_to_offset_map() -> None:
    shelf = Shelf()
    old = shelf.write({1: [keyed(0, (b"a", b"1"), (b"b", b"1"))]})[1]
    new = shelf.write({1: [keyed(2, (b"a", b"2"))]})[1]
    result = shelf.clean(share(old, new, dirty_from=2))
    assert read(shelf, result.made[0]) == [(1, b"b", b"1"), (2, b"a", b"2")]


def test_rest_is_unchanged_if_offset_map_is_full() -> None:
    shelf = Shelf()
    batches = [keyed(n * 300, *[(b"%d" % (i % 1000), b"") for i in range(n * 300, n * 300 + 300)])
               for n in range(8)]  # fmt: skip
    all_of = shelf.write({1: batches})[1]
    result = shelf.clean(share(all_of), buffer_bytes=16 << 10)  # 921 keys
    (cleaned,) = result.cleaned
    assert (cleaned.clean_end, cleaned.touched_end) == (900, 2400)
    assert len(read(shelf, result.made[0])) == 900
    rest = SegmentFile(shelf.fs, result.rest.path, result.rest.uuid)
    (entry,) = rest.directory
    assert (entry.base_offset, entry.end_offset) == (900, 2400)
    assert bytes(rest.view[entry.start : entry.start + entry.length]) == b"".join(batches[3:])


def test_batches_larger_than_a_piece_and_across_pieces() -> None:
    shelf = Shelf()
    big = b"x" * (PIECE_BYTES + 1000)
    batches = [keyed(n, (b"k%d" % (n % 2), big if n == 3 else b"y" * 300_000)) for n in range(9)]
    result = shelf.clean(share(shelf.write({1: batches})[1]))
    assert [row[0] for row in read(shelf, result.made[0])] == [7, 8]


def test_transactions_across_sources() -> None:
    shelf = Shelf()
    one = shelf.write({1: [keyed(0, (b"a", b"0")), keyed(1, (b"a", b"aborted"), **TXN)]})[1]
    two = shelf.write({1: [marker(2, 5, commit=False), keyed(3, (b"b", b"1"), **TXN)]})[1]
    three = shelf.write({1: [marker(4, 5, commit=True), keyed(5, (b"c", b"1"), **TXN)]})[1]
    result = shelf.clean(share(one, two, three))
    assert read(shelf, result.made[0]) == [(0, b"a", b"0"), (3, b"b", b"1")]
    (cleaned,) = result.cleaned
    assert (cleaned.clean_end, cleaned.touched_end) == (5, 6), "the last transaction is open"
    assert read(shelf, result.rest) == [(5, b"c", b"1")]
    states = SegmentFile(shelf.fs, result.made[0].path).states()
    assert states[1].aborted == [(5, 1, 2)]
    assert states[1].leader_epochs == pack_epochs([(3, 0)])
    assert SegmentFile(shelf.fs, result.rest.path).states()[1].aborted == []


def test_open_transaction_at_beginning_prevents_cleaning() -> None:
    shelf = Shelf()
    before = shelf.write({1: [keyed(0, (b"a", b"0"))]})[1]
    dirty = shelf.write({1: [keyed(1, (b"a", b"1"), **TXN), keyed(2, (b"a", b"2"))]})[1]
    result = shelf.clean(share(before, dirty, dirty_from=1))
    (cleaned,) = result.cleaned
    assert (cleaned.clean_end, cleaned.touched_end) == (1, 1)
    assert [made.size_bytes for made in (*result.made, result.rest)] == [0, 0]
    assert len(shelf.fs.listdir(FOLDER)) == 2


def test_last_batch_of_active_producers_is_kept() -> None:
    shelf = Shelf()
    mine = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    one = shelf.write({1: [keyed(0, (b"a", b"1"), **mine), keyed(1, (b"a", b"2"))]})[1]
    known = state(ProducerEntry(9, 0, [(0, 0, 0, NOW_MS)]))
    result = shelf.clean(share(one, state=known))
    file = SegmentFile(shelf.fs, result.made[0].path)
    assert file.directory[0].batches == 2
    assert file.states()[1].producers == known.producers


def test_large_partition_continues_in_next_output() -> None:
    shelf = Shelf()
    sources = []
    for n in range(6):
        batch = keyed(n * 10, *[(b"%d" % i, bytes(100)) for i in range(n * 10, n * 10 + 10)])
        sources.append(shelf.write({1: [batch]})[1])
    result = shelf.clean(share(*sources), outputs=5, segment_bytes=2000)
    sizes = [made.size_bytes for made in result.made]
    assert [size > 0 for size in sizes] == [True, True, True, False, False]
    ends = [entries_of(made)[0] for made in result.made[:3]]
    assert [(e.base_offset, e.end_offset) for e in ends] == [(0, 20), (20, 40), (40, 60)]
    rows = [row for made in result.made[:3] for row in read(shelf, made)]
    assert rows == [(n, b"%d" % n, bytes(100)) for n in range(60)]


@pytest.mark.parametrize("where", ["dirty", "clean", "rest"])
def test_damage_is_reported_and_partition_skipped(where: str) -> None:
    shelf = Shelf()
    other = shelf.write({2: [keyed(0, (b"x", b"1"))], 3: [keyed(0, (b"y", b"1"))]})
    old = shelf.write({1: [keyed(0, (b"a", b"1"), (b"b", b"1"))]})[1]
    many = [(b"%d" % n, b"") for n in range(600)]
    new = shelf.write({1: [keyed(2, *many), keyed(602, *many), keyed(1202, (b"z", b""))]})[1]
    path, at, offset = {
        "clean": (old.path, old.start, 0),
        "dirty": (new.path, new.start, 2),
        "rest": (new.path, new.start + new.length - 68 - 2, 1202),
    }[where]
    shelf.fs.files[path].data[at + 66] ^= 1
    buffer = (16 << 10) if where == "rest" else 1 << 20
    result = shelf.clean(
        share(old, new, dirty_from=2), share(other[2], number=2), share(other[3], number=3),
        buffer_bytes=buffer,
    )  # fmt: skip
    (damage,) = result.damaged
    assert (damage.number, damage.offset, damage.path) == (1, offset, path)
    assert "is damaged" in damage.text
    assert [entry.number for entry in entries_of(result.made[0])] == [2, 3]
    assert result.rest.size_bytes == 0
    assert [share.number for share in result.cleaned] == [2, 3]


def test_damage_of_large_partition_removes_all_its_outputs() -> None:
    shelf = Shelf()
    sources = []
    for n in range(5):
        batch = keyed(n * 10, *[(b"%d" % i, bytes(100)) for i in range(n * 10, n * 10 + 10)])
        sources.append(shelf.write({1: [batch]})[1])
    shelf.fs.files[sources[3].path].data[sources[3].start + 100] ^= 1
    before = shelf.fs.listdir(FOLDER)
    result = shelf.clean(share(*sources, dirty_from=40), outputs=5, segment_bytes=1500)
    assert result.damaged[0].offset == 30
    assert all(made.size_bytes == 0 for made in result.made)
    assert shelf.fs.listdir(FOLDER) == before


def test_partial_output_is_removed_if_disk_is_full() -> None:
    shelf = Shelf()
    one = shelf.write({1: [keyed(0, (b"a", b"1"))]})[1]
    before = shelf.fs.listdir(FOLDER)
    shelf.fs.faults.room_bytes = 10
    with pytest.raises(OSError, match="short write"):
        shelf.clean(share(one))
    assert shelf.fs.listdir(FOLDER) == before


def test_truncated_source_is_damage() -> None:
    shelf = Shelf()
    one = shelf.write({1: [keyed(0, (b"a", b"1"))]})[1]
    one.length += 10_000
    (damage,) = shelf.clean(share(one)).damaged
    assert damage.offset == 0


def test_compressed_batches_keep_their_codec() -> None:
    shelf = Shelf()
    items = [Record(n, NOW_MS, b"%d" % (n % 10), b"v" * 100) for n in range(100)]
    one = shelf.write({1: [bytes(pack(items, codec=codec)) for codec in (4,)]})[1]
    result = shelf.clean(share(one))
    file = SegmentFile(shelf.fs, result.made[0].path)
    entry = file.directory[0]
    assert read_head(file.view, entry.start).codec == 4
    assert (entry.records, result.cleaned[0].stats.kept) == (10, 10)
