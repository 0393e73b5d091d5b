"""Damaged tables of RocksDB: a read raises DamagedMetadata, it never gives fewer pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.metadata.store import DamagedMetadata
from kafkawire.offsets.catalog.kv.rocksdb import RocksStore
from kafkawire.offsets.catalog.kv.store import Writes

pytest.importorskip("rocksdict")

ROWS = 400
SECTOR = 512


def key(number: int) -> bytes:
    """The key of a row: between `r` and `s`, which no key of the store itself is."""
    return b"r%06d" % number


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table file with all rows, of several blocks."""
    store = RocksStore(str(tmp_path))
    writes = Writes()
    for number in range(ROWS):
        writes.put(key(number), bytes([number % 251]) * 50)
    store.write(writes)
    store.close()
    reopened = RocksStore(str(tmp_path))  # writes what the log had into a table
    assert len(reopened.scan(b"r", b"s")) == ROWS
    reopened.close()
    return max(tmp_path.glob("*.sst"), key=lambda path: path.stat().st_size)


def scanned(store: RocksStore) -> int:
    """The number of rows that a scan of all of them gives."""
    return len(store.scan(b"r", b"s"))


def scanned_from_within(store: RocksStore) -> int:
    """The same by a bounded scan that begins in a block."""
    return len(store.scan(key(5), b"s", ROWS)) + 5


def checked(store: RocksStore) -> int:
    """All of them, if the check passes."""
    store.check()
    return ROWS


@pytest.mark.slow
def test_a_scan_raises_at_a_damaged_block(table: Path) -> None:
    """RocksDB's own iterator ends at a damaged block as if it were the last."""
    sound = table.read_bytes()
    assert len(sound) > 4 * SECTOR
    refused = 0
    for at in range(0, len(sound), SECTOR):
        table.write_bytes(sound[:at] + bytes(SECTOR) + sound[at + SECTOR :])
        for read in (scanned, scanned_from_within, checked):
            store = RocksStore(str(table.parent))
            try:
                assert read(store) == ROWS, f"zeros at {at}"
            except DamagedMetadata:
                refused += 1
            finally:
                store.close()
    assert refused > 2 * len(sound) // SECTOR, "hardly any damage was found: is the table read?"
