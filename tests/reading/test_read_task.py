"""Tasks that read segments, in-process: rows, gaps, transactions, any range by any tasks.

Covers: kafkawire.reading.files.checked_entries.
"""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.reading import read_task, transactions
from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.files.locations import FolderPlace
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import ABORTED, COMPACTED, CONTROL, PartitionRange, Task
from tests.kit.spark.files import Files, Share, batch, batches, marker
from tests.kit.spark.reads import (
    everything,
    read,
    rows_of,
    source_of,
    tier_files,  # noqa: F401  (a fixture, by name)
    whole,
)
from tests.kit.waiting import wait_until


def test_partition_over_several_segments_and_tasks(files: Files) -> None:
    [number] = files.topic("t")
    for name in range(5):
        files.put(name, Share(number, batches(name * 1000, [10] * 100, codec=name % 5)))
    files.publish()
    for size in (1 << 30, 100_000, 3000):
        rows, accounts = everything(files, size=size)
        assert rows == rows_of("t", 0, range(5000))
        assert sum(account.rows for account in accounts) == 5000
    rows, _ = everything(files, [PartitionRange("t", 0, 1234, 3333)], size=50_000)
    assert rows == rows_of("t", 0, range(1234, 3333))


def test_small_pieces_of_shared_segments_need_few_requests(files: Files) -> None:
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
    assert accounts[0].range == PartitionRange("t", 0, 3, 61)
    assert accounts[0].counts == {COMPACTED: 58 - len(kept)}
    assert [gap[:2] for gap in accounts[0].gaps] == [(3, 5), (10, 20), (30, 40), (41, 60)]


def test_log_start_within_batch(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, [batch(0, 10), batch(10, 10)], base=0))
    files.publish(starts={number: 7})
    rows, _ = everything(files)
    assert rows == rows_of("t", 0, range(7, 20))


def test_newest_generation_is_read(files: Files) -> None:
    """Also where a file that is only partially valid has batches beyond its range."""
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
    files.put(1, Share(number, first, aborted=[(7, 0, 10), (7, 35, 40), (8, 31, 45)]))
    files.put(2, Share(number, second, aborted=[(7, 35, 40), (8, 31, 45)]))
    files.publish()


def test_aborted_records_are_excluded(files: Files) -> None:
    transactional(files)
    rows, accounts = everything(files)
    assert rows == rows_of("t", 0, [*range(11, 30), *range(41, 45)])
    assert accounts[0].counts == {ABORTED: 19, CONTROL: 4}
    # The marker is after the range, in the next segment.
    rows, accounts = everything(files, [PartitionRange("t", 0, 25, 38)])
    assert rows == rows_of("t", 0, range(25, 30))
    assert accounts[0].counts == {ABORTED: 7, CONTROL: 1}


def test_only_segments_of_the_range_are_asked_for_transactions(files: Files) -> None:
    """One small read for each task would be half a million for a thousand segments."""
    transactional(files)
    number = files.topics["t"].partitions[0]
    for name in range(3, 20):
        files.put(name, Share(number, batches(name * 100, [10])))
    files.publish()
    transactions._read.cache_clear()
    everything(files, [PartitionRange("t", 0, 25, 38)])
    assert transactions._read.cache_info().misses == 1


def test_read_uncommitted_includes_aborted_records(files: Files) -> None:
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
            "kafkawire.reading.files.read_ahead.SMALL_BYTES",
            data.draw(st.sampled_from([0, 1 << 20])),
        )
        patch.setattr(
            "kafkawire.reading.files.read_ahead.RUN_BYTES", data.draw(st.integers(1, 30_000))
        )
        size = data.draw(st.sampled_from([1 << 30, 5000, 300]))
        rows, accounts = everything(files, [PartitionRange("t", 0, base, end)], size=size)
        there = [o for _, _, inside in world for at, n in inside for o in range(at, at + n)]
        assert rows == rows_of("t", 0, [offset for offset in there if base <= offset < end])
        assert {reason for account in accounts for reason in account.counts} <= {COMPACTED}


def test_a_decoder_that_takes_long_to_load_is_explained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(read_task, "LONG_LOAD_S", 0.0)
    with read_task.long_load_logged():
        wait_until(lambda: "its first use compiles it" in caplog.text, "the line is logged")
