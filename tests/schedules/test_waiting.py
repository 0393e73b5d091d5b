"""The index of waiting records on disk: its contents, another format, damage.

Covers: kafkawire.schedules.waiting.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.schedules.progress import Corner
from kafkawire.schedules.waiting import IN_MEMORY, Arrival, IndexReplaced, WaitingIndex

FIRST = (-1, -1)


@pytest.fixture
def index() -> Iterator[WaitingIndex]:
    made = WaitingIndex(IN_MEMORY)
    made.open()
    yield made
    made.close()


def waiting(index: WaitingIndex, number: int = 1) -> list[tuple[int, int]]:
    return [row.due for row in index.next_entries(index.generation, number, FIRST, 100)]


def followed(index: WaitingIndex, number: int) -> tuple[int, int] | None:
    """Up to which offset a partition is in the index, and how many of its records wait."""
    found = index.read_followed(number)
    return None if found is None else (found.until, found.records)


def test_records_in_the_order_of_delivery(index: WaitingIndex) -> None:
    arrivals = [Arrival(30, 0), Arrival(10, 1), Arrival(10, 2, True), Arrival(20, 3)]
    assert index.save(0, 1, 4, arrivals, [], []) == ([], 4)
    assert waiting(index) == [(10, 1), (10, 2), (20, 3), (30, 0)]
    assert [row.repeats for row in index.next_entries(0, 1, (10, 1), 2)] == [1, 0]
    assert (followed(index, 1), index.least_offset(1)) == ((4, 4), 0)
    assert (followed(index, 2), index.least_offset(2)) == (None, None)


def test_delivered_and_repeating_records(index: WaitingIndex) -> None:
    index.save(0, 1, 2, [Arrival(10, 0), Arrival(20, 1, True)], [], [])
    again = [Arrival(120, 1, True)]
    assert index.save(0, 1, 2, again, [], [(10, 0), (20, 1), (99, 9)]) == ([], 1)
    assert index.save(0, 1, 2, again, [], []) == ([], 1), "it is there"
    assert waiting(index) == [(120, 1)]


def test_newer_record_of_a_key_replaces_older_ones_also_of_the_same_save(
    index: WaitingIndex,
) -> None:
    index.save(0, 1, 1, [Arrival(10, 0, False, b"a")], [(b"a", 0)], [])
    arrivals = [Arrival(20, 1, False, b"a"), Arrival(5, 2, False, b"a"), Arrival(7, 3, False, b"b")]
    removed, records = index.save(0, 1, 4, arrivals, [(b"a", 2), (b"b", 3)], [])
    assert (sorted(removed), records) == ([0, 1], 2)
    assert waiting(index) == [(5, 2), (7, 3)]
    assert index.save(0, 1, 5, [], [(b"b", 4)], []) == ([3], 1)
    assert waiting(index) == [(5, 2)]


def test_contents_of_small_records(index: WaitingIndex) -> None:
    arrivals = [Arrival(10 * n, n, False, b"%d" % n, b"record %d" % n) for n in range(70)]
    index.save(0, 1, 71, [*arrivals, Arrival(15, 70)], [], [])
    found = index.contents(0, 1, (10, 1), (40, 4), 100)
    assert found == [(n, b"record %d" % n) for n in (1, 2, 3, 4)], "the large one is in the log"
    assert index.contents(0, 1, (10, 1), (40, 4), 2) == found[:2]
    assert index.contents(0, 2, (0, 0), (99, 99), 9) == []


def test_delivered_records_are_removed_by_corners(index: WaitingIndex) -> None:
    index.save(0, 1, 6, [Arrival(10 * n, n) for n in range(6)], [], [])
    corners = [Corner(3, 40, 9), Corner(6, 10, 0)]
    assert index.save(0, 1, 6, [], [], [], corners) == ([], 3)
    assert waiting(index) == [(30, 3), (40, 4), (50, 5)]


def test_partitions_are_apart(index: WaitingIndex) -> None:
    index.save(0, 1, 1, [Arrival(10, 0, False, b"a")], [(b"a", 0)], [])
    index.save(0, 2, 1, [Arrival(10, 0, False, b"a")], [(b"a", 0)], [])
    index.delete_partition(1)
    assert (waiting(index, 1), waiting(index, 2)) == ([], [(10, 0)])
    assert index.read_followed(1) is None


def test_counts_by_hour(index: WaitingIndex) -> None:
    hour = 3_600_000
    index.save(0, 1, 3, [Arrival(5, 0), Arrival(hour + 1, 1), Arrival(hour + 2, 2)], [], [])
    assert index.per_hour(1, 10) == [(0, 1), (hour, 2)]
    assert index.per_hour(1, 1) == [(0, 1)]


def test_failed_save_changes_nothing(index: WaitingIndex) -> None:
    index.save(0, 1, 1, [Arrival(10, 0)], [], [])
    bad: list[tuple[bytes, int]] = [(b"k", [])]  # type: ignore[list-item]
    with pytest.raises(sqlite3.Error):
        index.save(0, 1, 2, [Arrival(20, 1)], bad, [(10, 0)])
    assert (waiting(index), followed(index, 1)) == ([(10, 0)], (1, 1))


def test_index_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "schedules.db")
    first = WaitingIndex(path)
    first.open()
    first.save(0, 1, 1, [Arrival(10, 0)], [], [])
    first.close()
    first.open()
    assert waiting(first) == [(10, 0)]
    first.close()


@pytest.mark.parametrize("damage", [b"not SQLite at all" * 400, b""])
def test_file_that_is_no_index_is_made_again(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "schedules.db"
    path.write_bytes(damage)
    index = WaitingIndex(str(path))
    index.open()
    assert index.read_followed(1) is None
    index.close()


@pytest.mark.parametrize("version", [1, 99])
def test_index_of_another_format_is_made_again(tmp_path: Path, version: int) -> None:
    path = str(tmp_path / "schedules.db")
    old = sqlite3.connect(path)
    old.executescript(f"CREATE TABLE waiting (x); PRAGMA user_version={version};")
    old.close()
    index = WaitingIndex(path)
    index.open()
    index.save(0, 1, 1, [Arrival(10, 0)], [], [])
    assert waiting(index) == [(10, 0)]
    index.close()


def test_users_of_a_damaged_index_begin_again(tmp_path: Path) -> None:
    index = WaitingIndex(str(tmp_path / "schedules.db"))
    index.open()
    index.save(0, 1, 1, [Arrival(10, 0)], [], [])
    index.recreate("a test says so", 0)
    index.recreate("another partition has noticed it, too", 0)
    assert index.generation == 1
    with pytest.raises(IndexReplaced):
        index.save(0, 1, 2, [], [], [])
    with pytest.raises(IndexReplaced):
        index.next_entries(0, 1, FIRST, 1)
    assert index.read_followed(1) is None
    index.close()


def test_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        WaitingIndex(str(tmp_path / "none" / "schedules.db")).open()
    with pytest.raises(sqlite3.ProgrammingError):
        WaitingIndex(IN_MEMORY).read_followed(1)
