"""Tasks read from segments, in-process: rows, gaps, damage, files that are gone meanwhile."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import resum
from kafkawire.manifest.keys import segment_key
from kafkawire.spark import reading
from kafkawire.spark.catalog import Catalog, open_catalog
from kafkawire.spark.columns import Selection
from kafkawire.spark.model import (
    ABORTED,
    COMPACTED,
    CONTROL,
    DAMAGED,
    LOST,
    Account,
    DamagedData,
    DataLoss,
    OffsetRange,
    Source,
    Task,
)
from kafkawire.spark.places import FolderPlace, Place, PlaceError, open_place
from kafkawire.spark.plan import plan_tasks
from kafkawire.spark.reading import read_task
from tests.kit.sparkfiles import Files, Share, batch, batches, marker, value

SELECTION = Selection(("topic", "partition", "offset", "value"))
Row = tuple[str, int, int]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(open_place(str(tmp_path / "tier")))


def source_of(files: Files, **more: Any) -> Source:
    return Source(files.place.url, **more)


def read(
    source: Source, places: Sequence[Place], task: Task, **more: Any
) -> tuple[list[Row], list[Account]]:
    """Rows, whose values are looked at, and accounts, which are complete."""
    accounts: list[Account] = []
    rows: list[Row] = []
    for made in read_task(source, places, task, SELECTION, accounts=accounts, **more):
        for topic, partition, offset, data in zip(
            *[column.to_pylist() for column in made.columns], strict=True
        ):
            assert data == value(offset, len(data))
            rows.append((topic, partition, offset))
    assert [account.range for account in accounts] == [part.range for part in task.parts]
    assert [account.missing for account in accounts] == [0] * len(accounts)
    return rows, accounts


def whole(catalog: Catalog, *topics: str) -> list[OffsetRange]:
    return [
        OffsetRange(topic, partition, *catalog.bounds(topic, partition)[::2])
        for topic in topics or catalog.topics
        for partition in range(catalog.topics[topic])
    ]


def everything(
    files: Files, ranges: Iterable[OffsetRange] | None = None, *, size: int = 1 << 30, **more: Any
) -> tuple[list[Row], list[Account]]:
    """All tasks of ranges, one after the other."""
    more_source = {k: more.pop(k) for k in ("isolation", "fail_on_data_loss") if k in more}
    source = source_of(files, **more_source)
    catalog = open_catalog(source)
    parts = [catalog.part(each) for each in ranges or whole(catalog)]
    rows: list[Row] = []
    accounts: list[Account] = []
    for task in plan_tasks(parts, task_bytes=size):
        found, told = read(source, catalog.places, task, **more)
        rows += found
        accounts += told
    return rows, accounts


def rows_of(topic: str, partition: int, offsets: Iterable[int]) -> list[Row]:
    return [(topic, partition, offset) for offset in offsets]


def test_a_partition_over_segments_and_tasks(files: Files) -> None:
    [number] = files.topic("t")
    for name in range(5):
        files.put(name, Share(number, batches(name * 1000, [10] * 100, codec=name % 5)))
    files.publish()
    for size in (1 << 30, 100_000, 3000):
        rows, accounts = everything(files, size=size)
        assert rows == rows_of("t", 0, range(5000))
        assert sum(account.rows for account in accounts) == 5000
    rows, _ = everything(files, [OffsetRange("t", 0, 1234, 3333)], size=50_000)
    assert rows == rows_of("t", 0, range(1234, 3333))


def test_small_pieces_of_shared_segments_are_few_requests(files: Files) -> None:
    numbers = files.topic("t", 300)
    for name in range(3):
        files.put(name, *[Share(n, batches(name * 20, [5] * 4, size=10)) for n in numbers])
    files.publish()
    catalog = open_catalog(source_of(files))
    asked: list[str] = []

    class Counting(FolderPlace):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            asked.append(key)
            return super().get_range(key, start, length)

    task = Task(tuple(catalog.part(each) for each in whole(catalog)))
    rows, accounts = read(catalog.source, [Counting(catalog.places[0].tier)], task)
    assert rows == [("t", p, offset) for p in range(300) for offset in range(60)]
    assert len(accounts) == 300
    assert len(asked) == 3  # each file once, for 900 pieces and their indexes


def test_gaps_are_explained(files: Files) -> None:
    one, two = files.topic("t", 2)
    files.put(1, Share(one, [batch(5, 5), batch(20, 10), batch(40, 1)], base=3, end=50))
    files.put(2, Share(one, [], base=50, end=60))
    files.put(3, Share(two, [batch(0, 10)], end=10), Share(one, [batch(60, 1)]))
    files.publish(starts={one: 3})
    rows, accounts = everything(files)
    kept = [*range(5, 10), *range(20, 30), 40, 60]
    assert rows == rows_of("t", 0, kept) + rows_of("t", 1, range(10))
    assert accounts[0].range == OffsetRange("t", 0, 3, 61)
    assert accounts[0].counts == {COMPACTED: 58 - len(kept)}
    assert [gap[:2] for gap in accounts[0].gaps] == [(3, 5), (10, 20), (30, 40), (41, 60)]


def test_a_log_start_within_a_batch(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, [batch(0, 10), batch(10, 10)], base=0))
    files.publish(starts={number: 7})
    rows, _ = everything(files)
    assert rows == rows_of("t", 0, range(7, 20))


def test_the_newest_generation_holds(files: Files) -> None:
    """Also where a file that is held only in part has batches beyond."""
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 10)))
    files.put(2, Share(number, [batch(32, 2), batch(50, 5)], base=30, end=60), generation=1)
    files.publish()
    rows, accounts = everything(files)
    assert rows == rows_of("t", 0, [*range(30), 32, 33, *range(50, 55), *range(60, 100)])
    assert accounts[0].counts == {COMPACTED: 23}


def transactional(files: Files) -> None:
    """Producer 7 aborts [0, 10) and [35, 40), commits [20, 30); 8 aborts over two segments."""
    [number] = files.topic("t")
    of = {"producer_epoch": 0, "attributes": 0x10}
    first = [
        batch(0, 10, producer_id=7, base_sequence=0, **of),
        marker(10, 7, commits=False),
        batch(11, 9, size=2000),
        batch(20, 10, producer_id=7, base_sequence=10, **of),
        marker(30, 7, commits=True),
        batch(31, 4, producer_id=8, base_sequence=0, **of),
        batch(35, 5, producer_id=7, base_sequence=20, **of),
    ]
    second = [marker(40, 7, commits=False), batch(41, 4), marker(45, 8, commits=False)]
    files.put(1, Share(number, first, aborted=[(7, 0, 10)]))
    files.put(2, Share(number, second, aborted=[(7, 35, 40), (8, 31, 45)]))
    files.publish()


def test_aborted_records_are_left_out(files: Files) -> None:
    transactional(files)
    rows, accounts = everything(files)
    assert rows == rows_of("t", 0, [*range(11, 30), *range(41, 45)])
    assert accounts[0].counts == {ABORTED: 19, CONTROL: 4}
    # The marker lies behind the range, in the next segment.
    rows, accounts = everything(files, [OffsetRange("t", 0, 25, 38)])
    assert rows == rows_of("t", 0, range(25, 30))
    assert accounts[0].counts == {ABORTED: 7, CONTROL: 1}


def test_read_uncommitted_has_aborted_records(files: Files) -> None:
    transactional(files)
    rows, accounts = everything(files, isolation="read_uncommitted")
    assert len(rows) == 42
    assert accounts[0].counts == {CONTROL: 4}


@st.composite
def worlds(draw: st.DrawFn) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """Segments as (base, end, batches as (base, count)), rising, some with nothing in them."""
    made, at = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 5))):
        base, inside = at, []
        for _ in range(draw(st.integers(0, 12))):
            at += draw(st.sampled_from([0, 0, 0, 3]))
            inside.append((at, draw(st.integers(1, 40))))
            at += inside[-1][1]
        at += draw(st.sampled_from([0, 0, 4]))
        if at > base:
            made.append((base, at, inside))
    return made


@given(worlds(), st.data())
def test_any_range_of_any_segments_by_any_tasks(
    world: list[tuple[int, int, list[tuple[int, int]]]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        files = Files(open_place(folder))
        [number] = files.topic("t")
        files.topic("u")
        for name, (base, end, inside) in enumerate(world, 1):
            made = [batch(at, count, codec=name % 5) for at, count in inside]
            files.put(name, Share(number, made, base, end))
        files.publish()
        first, last = (world[0][0], world[-1][1]) if world else (0, 0)
        base = data.draw(st.integers(first, last))
        end = data.draw(st.integers(base, last))
        patch.setattr(
            "kafkawire.spark.loading.SMALL_BYTES", data.draw(st.sampled_from([0, 1 << 20]))
        )
        patch.setattr("kafkawire.spark.loading.RUN_BYTES", data.draw(st.integers(1, 30_000)))
        size = data.draw(st.sampled_from([1 << 30, 5000, 300]))
        rows, accounts = everything(files, [OffsetRange("t", 0, base, end)], size=size)
        there = [o for _, _, inside in world for at, n in inside for o in range(at, at + n)]
        assert rows == rows_of("t", 0, [offset for offset in there if base <= offset < end])
        assert {reason for account in accounts for reason in account.counts} <= {COMPACTED}


# Damage


def harm(files: Files, key: str, at: int, data: bytes | None = None) -> None:
    """Change a byte, or put these in its place."""
    stored = bytearray(files.place.get(key))
    stored[at : at + len(data or b"x")] = data or bytes([stored[at] ^ 1])
    files.place.put(key, bytes(stored))


def damaged(
    files: Files, ranges: Iterable[OffsetRange] | None = None, **more: Any
) -> tuple[list[Row], list[Account], list[Any]]:
    noted: list[Any] = []
    more["on_damage"] = lambda error, data: noted.append((error, data))
    rows, accounts = everything(files, ranges, **more)
    return rows, accounts, noted


def at_batch(number: int) -> int:
    """Where a batch of `blocks` begins."""
    return 64 + sum(len(each) for each in batches(0, [10] * number))


def blocks(files: Files, count: int = 40) -> str:
    """A segment of many index blocks: five batches of ten records each."""
    [number] = files.topic("t")
    key = files.put(1, Share(number, batches(0, [10] * 5 * count)))
    files.publish()
    return key


@pytest.mark.parametrize("small", [1 << 20, 0])
def test_a_flipped_bit_is_named(files: Files, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.spark.loading.SMALL_BYTES", small)
    monkeypatch.setattr("kafkawire.spark.loading.RUN_BYTES", 20_000)
    key = blocks(files)
    harm(files, key, at_batch(17) + 300)
    with pytest.raises(DamagedData) as caught:
        everything(files)
    error = caught.value
    assert key in str(error)
    assert f"offsets [{error.base}, {error.end}) of partition 0 of topic 't'" in str(error)
    assert error.base <= 170 < 180 <= error.end < error.base + 60
    rows, accounts, noted = damaged(files)
    gone = range(error.base, error.end)
    assert rows == rows_of("t", 0, [n for n in range(2000) if n not in gone])
    assert accounts[0].counts == {DAMAGED: len(gone)}
    assert [(e.base, e.end, len(data)) for e, data in noted] == [
        (error.base, error.end, at_batch(error.end // 10) - at_batch(error.base // 10))
    ]
    # A range that does not need the block is whole.
    rows, accounts = everything(files, [OffsetRange("t", 0, 400, 2000)])
    assert not accounts[0].gaps


class Cut(FolderPlace):
    """A folder whose files end too early, as far as their batches go."""

    kept = 0

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = super().get_range(key, start, length)
        return data if start > 64 + 2000 * 120 else data[: max(0, self.kept - start)]


@pytest.mark.parametrize(("small", "index"), [(1 << 20, False), (0, False), (0, True)])
def test_a_truncated_segment_is_damaged(
    files: Files, small: int, index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any byte, at the border of a batch as well; with the index lost, or read before."""
    monkeypatch.setattr("kafkawire.spark.loading.SMALL_BYTES", small)
    monkeypatch.setattr("kafkawire.spark.loading.RUN_BYTES", 20_000)
    key = blocks(files)
    data = files.place.get(key)
    catalog = open_catalog(source_of(files))
    task = Task((catalog.part(whole(catalog)[0]),))
    places: list[Place] = [Cut(files.place.tier)] if index else catalog.places
    for sound, kept in ((0, 64), (30, at_batch(30)), (77, at_batch(77) + 5)):
        if index:
            monkeypatch.setattr(Cut, "kept", kept)
        else:
            files.place.put(key, data[:kept])
        with pytest.raises(DamagedData, match=r"\.segment"):
            read(catalog.source, places, task)
        rows, accounts = read(catalog.source, places, task, on_damage=lambda *_: None)
        assert rows == rows_of("t", 0, range(len(rows)))
        assert len(rows) + 50 > sound * 10 >= len(rows)
        assert accounts[0].gaps == [(len(rows), 2000, DAMAGED)]


@pytest.mark.parametrize("small", [1 << 20, 0])
def test_a_damaged_index_is_done_without(
    files: Files, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches' own CRCs say what is sound."""
    monkeypatch.setattr("kafkawire.spark.loading.SMALL_BYTES", small)
    monkeypatch.setattr("kafkawire.spark.loading.RUN_BYTES", 20_000)
    key = blocks(files)
    catalog = open_catalog(source_of(files))
    [piece] = catalog.part(whole(catalog)[0]).pieces
    harm(files, key, piece.index_start + 5)
    rows, accounts, noted = damaged(files, [OffsetRange("t", 0, 55, 1777)])
    assert (rows, noted) == (rows_of("t", 0, range(55, 1777)), [])
    harm(files, key, at_batch(17) + 300)
    with pytest.raises(DamagedData, match=r"\[170, 180\)"):
        everything(files)
    rows, accounts, noted = damaged(files)
    assert rows == rows_of("t", 0, [*range(170), *range(180, 2000)])
    assert accounts[0].gaps == [(170, 180, DAMAGED)]
    # A length that no batch has: nobody knows where the next one begins.
    harm(files, key, at_batch(60) + 8, b"\x7f\0\0\0")
    rows, accounts, noted = damaged(files)
    assert rows == rows_of("t", 0, [*range(170), *range(180, 600)])
    assert accounts[0].gaps == [(170, 180, DAMAGED), (600, 2000, DAMAGED)]


def test_harm_on_the_way_is_read_again(files: Files) -> None:
    blocks(files)
    catalog = open_catalog(source_of(files))

    class Once(FolderPlace):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            data = bytearray(super().get_range(key, start, length))
            if length > 10_000:
                data[5000] ^= 1
            return bytes(data)

    task = Task((catalog.part(whole(catalog)[0]),))
    rows, _ = read(catalog.source, [Once(catalog.places[0].tier)], task)
    assert rows == rows_of("t", 0, range(2000))


def test_a_batch_that_does_not_unpack(files: Files) -> None:
    """Its sums are right: it was written so."""
    [number] = files.topic("t")
    bad = bytearray(batch(10, 10, codec=4))
    bad[70:90] = bytes(20)
    resum(bad, 0, len(bad))
    files.put(1, Share(number, [batch(0, 10), bytes(bad), batch(20, 10)]))
    files.publish()
    with pytest.raises(DamagedData, match=r"\.segment: .*\[10, 20\)"):
        everything(files)
    rows, accounts, noted = damaged(files)
    assert rows == rows_of("t", 0, [*range(10), *range(20, 30)])
    assert accounts[0].gaps == [(10, 20, DAMAGED)]
    assert noted[0][1] == bytes(bad)


# Files that are gone


def merge(files: Files, number: int, *, delete: bool = True) -> None:
    """Segments 1 to 4 become 9, as a rewrite does it; the manifest says so."""
    files.put(9, Share(number, batches(0, [10] * 200)), generation=1)
    files.publish(gone=(1, 2, 3, 4))
    if delete:
        names = [name.to_bytes(16, "big") for name in (1, 2, 3, 4)]
        files.place.delete([segment_key(name) for name in names])


@pytest.mark.parametrize("small", [1 << 20, 0])
def test_a_file_that_was_replaced(
    files: Files, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the plan was made; and also while a task is reading."""
    monkeypatch.setattr("kafkawire.spark.loading.SMALL_BYTES", small)
    monkeypatch.setattr("kafkawire.spark.loading.RUN_BYTES", 20_000)
    monkeypatch.setattr("kafkawire.spark.loading.TOGETHER_AT_MOST", 1)
    number, other = files.topic("t", 2)
    for name in range(1, 5):
        files.put(name, Share(number, batches((name - 1) * 500, [10] * 50)))
    files.put(5, Share(other, batches(0, [10] * 5)))
    files.publish()
    catalog = open_catalog(source_of(files))
    task = Task(tuple(catalog.part(each) for each in whole(catalog)))
    wanted = rows_of("t", 0, range(2000)) + rows_of("t", 1, range(50))
    told: list[Account] = []
    taken = read_task(
        catalog.source, catalog.places, task, SELECTION, accounts=told, batch_rows=100
    )
    seen = [next(taken).num_rows for _ in range(3)]
    merge(files, number)
    seen += [made.num_rows for made in taken]
    assert sum(seen) == len(wanted)
    assert [account.missing for account in told] == [0, 0]
    rows, _ = read(catalog.source, catalog.places, task)
    assert rows == wanted


def test_a_file_that_is_gone_for_good(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(reading, "pause", pauses.append)
    [number] = files.topic("t")
    for name in range(1, 4):
        files.put(name, Share(number, batches((name - 1) * 500, [10] * 50)))
    files.publish()
    files.place.delete([segment_key((2).to_bytes(16, "big"))])
    with pytest.raises(DataLoss, match=r"\[500, 1000\) of partition 0 of topic 't' are lost"):
        everything(files)
    assert pauses == [2, 3, 4, 5]
    rows, accounts = everything(files, fail_on_data_loss=False)
    assert rows == rows_of("t", 0, [*range(500), *range(1000, 1500)])
    assert accounts[0].gaps == [(500, 1000, LOST)]


def test_retention_and_deletion_after_the_plan(files: Files) -> None:
    one, _ = files.topic("t", 1) + files.topic("u", 1)
    for name in range(1, 4):
        files.put(name, Share(one, batches((name - 1) * 500, [10] * 50)))
    files.publish()
    catalog = open_catalog(source_of(files, fail_on_data_loss=False))
    task = Task((catalog.part(OffsetRange("t", 0, 0, 1500)),))
    files.publish(starts={one: 700}, gone=(1,))
    files.place.delete([segment_key((1).to_bytes(16, "big"))])
    rows, accounts = read(catalog.source, catalog.places, task)
    assert rows == rows_of("t", 0, range(700, 1500))
    assert accounts[0].gaps == [(0, 700, LOST)]
    failing = replace(catalog.source, fail_on_data_loss=True)
    with pytest.raises(DataLoss, match=r"offsets \[0, 700\)"):
        read(failing, catalog.places, task)


def test_a_topic_that_was_deleted_after_the_plan(files: Files) -> None:
    [one] = files.topic("t", 1)
    files.put(1, Share(one, batches(0, [10] * 50)))
    files.publish()
    catalog = open_catalog(source_of(files, fail_on_data_loss=False))
    task = Task((catalog.part(OffsetRange("t", 0, 0, 500)),))
    old = files.topics.pop("t")
    files.drop(old.id)
    files.publish(gone=(1,))
    files.place.delete([segment_key((1).to_bytes(16, "big"))])
    rows, accounts = read(catalog.source, catalog.places, task)
    assert (rows, accounts[0].gaps) == ([], [(0, 500, LOST)])
    with pytest.raises(DataLoss, match="no topic 't'"):
        read(replace(catalog.source, fail_on_data_loss=True), catalog.places, task)


def test_offsets_that_no_segment_has_are_lost_without_a_broker(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 5)))
    files.put(2, Share(number, batches(100, [10] * 5)))
    files.publish()
    with pytest.raises(DataLoss, match=r"\[50, 100\)"):
        everything(files)
    _, accounts = everything(files, fail_on_data_loss=False)
    assert accounts[0].gaps == [(50, 100, LOST)]


def test_who_stops_early_leaves_nothing_behind(files: Files) -> None:
    blocks(files)
    catalog = open_catalog(source_of(files))
    task = Task((catalog.part(whole(catalog)[0]),))
    before = threading.active_count()
    taken: Any = read_task(catalog.source, catalog.places, task, SELECTION, batch_rows=10)
    assert next(taken).num_rows == 10
    taken.close()
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_what_fails_ahead_is_raised_where_it_is_taken(files: Files) -> None:
    blocks(files)
    catalog = open_catalog(source_of(files))

    class Failing(FolderPlace):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            raise PlaceError("the cable is out")

    task = Task((catalog.part(whole(catalog)[0]),))
    with pytest.raises(PlaceError, match="the cable is out"):
        read(catalog.source, [Failing(catalog.places[0].tier)], task)
