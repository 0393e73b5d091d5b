"""Damage that a task finds: reported with its block, skipped where that is allowed, read again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kafkawire.codec.batches import resum
from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.files.locations import FolderPlace, Place
from kafkawire.reading.model.source import DAMAGED, Account, DamagedData, PartitionRange, Task
from tests.kit.spark.files import Files, Share, batch
from tests.kit.spark.reads import (
    Row,
    at_batch,
    blocks,
    everything,
    read,
    rows_of,
    source_of,
    tier_files,  # noqa: F401  (a fixture, by name)
    whole,
)


def harm(files: Files, key: str, at: int, data: bytes | None = None) -> None:
    """Change a byte, or write these in its position."""
    stored = bytearray(files.place.get(key))
    stored[at : at + len(data or b"x")] = data or bytes([stored[at] ^ 1])
    files.place.put(key, bytes(stored))


def damaged(
    files: Files, ranges: Iterable[PartitionRange] | None = None, **more: Any
) -> tuple[list[Row], list[Account], list[Any]]:
    noted: list[Any] = []
    more["on_damage"] = lambda error, data: noted.append((error, data))
    rows, accounts = everything(files, ranges, **more)
    return rows, accounts, noted


@pytest.mark.parametrize("small", [1 << 20, 0])
def test_flipped_bit_is_reported(files: Files, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.reading.files.read_ahead.SMALL_BYTES", small)
    monkeypatch.setattr("kafkawire.reading.files.read_ahead.RUN_BYTES", 20_000)
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
    rows, accounts = everything(files, [PartitionRange("t", 0, 400, 2000)])
    assert not accounts[0].gaps


class Cut(FolderPlace):
    """A folder whose files are truncated within their batches."""

    kept = 0

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = super().get_range(key, start, length)
        return data if start > 64 + 2000 * 120 else data[: max(0, self.kept - start)]


@pytest.mark.parametrize(("small", "index"), [(1 << 20, False), (0, False), (0, True)])
def test_truncated_segment_is_reported(
    files: Files, small: int, index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any byte, also between two batches; with the index lost, or read before."""
    monkeypatch.setattr("kafkawire.reading.files.read_ahead.SMALL_BYTES", small)
    monkeypatch.setattr("kafkawire.reading.files.read_ahead.RUN_BYTES", 20_000)
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
def test_damaged_index_is_not_needed(
    files: Files, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches' own CRCs say what is sound."""
    monkeypatch.setattr("kafkawire.reading.files.read_ahead.SMALL_BYTES", small)
    monkeypatch.setattr("kafkawire.reading.files.read_ahead.RUN_BYTES", 20_000)
    key = blocks(files)
    catalog = open_catalog(source_of(files))
    [piece] = catalog.part(whole(catalog)[0]).pieces
    harm(files, key, piece.index_start + 5)
    rows, accounts, noted = damaged(files, [PartitionRange("t", 0, 55, 1777)])
    assert (rows, noted) == (rows_of("t", 0, range(55, 1777)), [])
    harm(files, key, at_batch(17) + 300)
    with pytest.raises(DamagedData, match=r"\[170, 180\)"):
        everything(files)
    rows, accounts, noted = damaged(files)
    assert rows == rows_of("t", 0, [*range(170), *range(180, 2000)])
    assert accounts[0].gaps == [(170, 180, DAMAGED)]
    # An impossible length: the beginning of the next batch is unknown.
    harm(files, key, at_batch(60) + 8, b"\x7f\0\0\0")
    rows, accounts, noted = damaged(files)
    assert rows == rows_of("t", 0, [*range(170), *range(180, 600)])
    assert accounts[0].gaps == [(170, 180, DAMAGED), (600, 2000, DAMAGED)]


def test_damage_in_transit_is_read_again(files: Files) -> None:
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


def test_batch_that_cannot_be_decompressed(files: Files) -> None:
    """Its checksums are valid: it was written like this."""
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
