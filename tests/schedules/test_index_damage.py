"""One flipped bit of the index of waiting records: either all of it is as before, or it is noticed
and the index is empty, so that the records are read again. Never another record, time or key, and
none that is missing.

Covers: kafkawire.schedules.waiting, kafkawire.cli.fsck.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kafkawire.cli.fsck import check_schedules
from kafkawire.fsck.report import FsckReport
from kafkawire.schedules.waiting import (
    PAGE_BYTES,
    Arrival,
    DamagedIndex,
    WaitingIndex,
    find_damage,
    is_damage,
)

FIRST, LAST = (-1, -1), (1 << 62, 1 << 62)
RECORDS = 100
"""Of each partition: several pages, so that some are inner ones."""
KEYS = 7


class Contents(NamedTuple):
    """All that deliveries use of a partition."""

    followed: object
    least: int | None
    rows: list[Arrival]
    records: list[tuple[int, bytes]]
    removed: list[int]


def contents(index: WaitingIndex, number: int) -> Contents:
    generation = index.generation
    found = index.read_followed(number)
    rows = index.next_entries(generation, number, FIRST, 2 * RECORDS)
    records = index.contents(generation, number, FIRST, LAST, 2 * RECORDS)
    least = index.least_offset(number)
    replaced = [(b"%016d" % key, RECORDS) for key in range(KEYS)]
    removed, _ = index.save(generation, number, 1000, [], replaced, [])
    rest = index.next_entries(generation, number, FIRST, 2 * RECORDS)
    assert {row.offset for row in rows} == {row.offset for row in rest} | set(removed)
    return Contents(found, least, rows, records, sorted(removed))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An index with two partitions, of which one has keys."""
    path = tmp_path_factory.mktemp("index") / "schedules.db"
    index = WaitingIndex(str(path))
    index.open()
    for number in (5, 7):
        arrivals = [
            Arrival(
                1_700_000_000_000 + at * 37 % RECORDS,
                at,
                at % 3 == 0,
                b"%016d" % (at % KEYS) if number == 7 else None,
                b"amount=1000 order-%03d" % at + bytes(450) if at % 2 else None,
            )
            for at in range(RECORDS)
        ]
        index.save(0, number, RECORDS, arrivals, [], [])
    index.close()
    return path.read_bytes()


def outcome(path: Path, data: bytes) -> list[Contents] | str:
    """Return the contents of the index, or a text if the damage was noticed."""
    path.write_bytes(data)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    index = WaitingIndex(str(path))
    index.open()
    try:
        if index.generation:
            return "when it was opened"
        index._open.execute("PRAGMA synchronous=OFF")  # thousands of files
        return [contents(index, number) for number in (5, 7)]
    except sqlite3.Error as failure:
        if not is_damage(failure):
            raise
        return str(failure)
    finally:
        index.close()


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def check_bits(path: Path, data: bytes, bits: Iterable[int]) -> int:
    """Flip each bit alone; return how often it was noticed."""
    before, noticed = outcome(path, data), 0
    assert not isinstance(before, str)
    for bit in bits:
        found = outcome(path, flip(data, bit))
        if isinstance(found, str):
            noticed += 1
        elif found != before:
            # An index of records without a partition, or of another format, is read again.
            empty = [each.followed is None and not each.rows for each in found]
            assert all(empty), f"bit {bit % 8} of byte {bit // 8} changed what is in the index"
    return noticed


def fields(data: bytes, page: int) -> Iterator[int]:
    """The bytes of a page that are no contents of rows: its head and its cell pointers."""
    start = page * PAGE_BYTES
    at = start + (100 if page == 0 else 0)
    head = 12 if data[at] in (2, 5) else 8
    cells = int.from_bytes(data[at + 3 : at + 5], "big")
    yield from range(at, at + head + 2 * min(cells, 3))


def row_bytes(data: bytes, text: bytes) -> set[int]:
    """The bytes of a row with this text, and of the head of its cell."""
    at = data.index(text)
    return set(range(at - 60, at + 20))


def test_bits_of_a_row_are_noticed(tmp_path: Path, whole: bytes) -> None:
    """Those of its record all; of its times and lengths those that change what is read."""
    path, start = tmp_path / "schedules.db", whole.index(b"amount=1000 order-003")
    record = range(8 * start, 8 * start + 8 * 20, 11)
    assert check_bits(path, whole, record) == len(record)
    before = sorted(row_bytes(whole, b"order-003"))[::3]
    assert check_bits(path, whole, [8 * byte + byte % 8 for byte in before]) > 0


@pytest.mark.slow
def test_a_bit_of_each_field_is_noticed_or_harmless(tmp_path: Path, whole: bytes) -> None:
    pages = range(len(whole) // PAGE_BYTES)
    places = {byte for page in pages for byte in fields(whole, page)} | set(range(100))
    places |= row_bytes(whole, b"order-003") | row_bytes(whole, b"CREATE TABLE waiting")
    bits = [8 * byte + byte % 8 for byte in sorted(places)]
    assert check_bits(tmp_path / "schedules.db", whole, bits) > len(bits) / 2


@pytest.mark.slow
def test_bits_anywhere_are_noticed_or_harmless(tmp_path: Path, whole: bytes) -> None:
    """Every 5003rd bit, a prime number."""
    bits = range(0, 8 * len(whole), 5003)
    assert check_bits(tmp_path / "schedules.db", whole, bits) > 0


def test_row_that_is_not_found_is_noticed(tmp_path: Path, whole: bytes) -> None:
    """As after a write to a page that never came to the disk: each row is right, one is missing."""
    path = tmp_path / "schedules.db"
    path.write_bytes(whole)
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM waiting WHERE number = 5 AND at = 17")
    connection.commit()
    connection.close()
    index = WaitingIndex(str(path))
    index.open()
    for method in (index.read_followed, index.least_offset):
        with pytest.raises(DamagedIndex, match="partition 5"):
            method(5)
    assert index.read_followed(7) is not None
    index.close()


def test_fsck_names_a_damaged_index_and_removes_it(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "schedules.db"
    report = FsckReport()
    check_schedules(str(tmp_path), report)
    path.write_bytes(whole)
    check_schedules(str(tmp_path), report)
    assert report.problems == []
    damaged = whole.replace(b"amount=1000 order-003", b"amount=9000 order-003", 1)
    path.write_bytes(damaged)
    check_schedules(str(tmp_path), report)
    assert path.read_bytes() == damaged
    (problem,) = report.problems
    assert problem.where == "schedules.db"
    assert "a row of partition 5" in problem.text
    assert "from the schedule topics" in problem.repair
    assert problem.fix is not None


def test_repair_of_a_damaged_index(tmp_path: Path) -> None:
    (tmp_path / "schedules.db").write_bytes(b"no SQLite file")
    report = FsckReport()
    check_schedules(str(tmp_path), report)
    asyncio.run(report.repair())
    assert report.clean
    assert list(tmp_path.iterdir()) == []
    assert find_damage(str(tmp_path / "schedules.db")) == ""
