"""Discarded offsets: the account has them as lost, and those removed by compaction as compacted.

Covers: kafkawire.reading.files.lost, kafkawire.codec.segment.lost.
"""

from __future__ import annotations

from pathlib import Path

from kafkawire.codec.batches import empty_batches
from kafkawire.codec.segment.format import LostRange
from kafkawire.reading.model.source import COMPACTED, LOST, Account, OffsetGap, PartitionRange
from tests.kit.spark.files import Files, Share, batches
from tests.kit.spark.reads import (
    everything,
    rows_of,
    tier_files,  # noqa: F401  (a fixture, by name)
)


def test_lost_and_compacted_gaps_are_distinguished(files: Files) -> None:
    [number] = files.topic("t")
    stored = [
        *batches(0, [10]),
        bytes(empty_batches(10, 20)),
        *batches(20, [10]),
        *batches(35, [5]),
    ]
    files.put(1, Share(number, stored, end=50, lost=[LostRange(10, 20, 7, 1)]))
    files.put(2, Share(number, batches(60, [5]), base=50, lost=[LostRange(50, 60, 7, 2)]))
    files.publish()
    rows, (account,) = everything(files)
    assert rows == rows_of("t", 0, [*range(10), *range(20, 30), *range(35, 40), *range(60, 65)])
    assert account.gaps == [
        OffsetGap(10, 20, LOST), OffsetGap(30, 35, COMPACTED), OffsetGap(40, 50, COMPACTED),
        OffsetGap(50, 60, LOST),
    ]  # fmt: skip
    assert account.counts == {LOST: 20, COMPACTED: 15}


def test_range_within_gap(files: Files) -> None:
    [number] = files.topic("t")
    stored = [*batches(0, [10]), bytes(empty_batches(10, 20)), *batches(20, [10])]
    files.put(1, Share(number, stored, lost=[LostRange(10, 20, 7, 1)]))
    files.publish()
    rows, (account,) = everything(files, [PartitionRange("t", 0, 12, 15)])
    assert rows == []
    assert account.counts == {LOST: 3}


def test_damaged_account_is_ignored(files: Files, tmp_path: Path) -> None:
    [number] = files.topic("t")
    stored = [*batches(0, [10]), bytes(empty_batches(10, 20)), *batches(20, [10])]
    key = files.put(1, Share(number, stored, lost=[LostRange(10, 20, 7, 1)]))
    files.publish()
    path = tmp_path / "tier" / key
    data = bytearray(path.read_bytes())
    at = data.find((10).to_bytes(8, "little") + (20).to_bytes(8, "little"))
    data[at] ^= 1
    path.write_bytes(bytes(data))
    _, (account,) = everything(files)
    assert account.counts == {COMPACTED: 10}


def test_explained_offsets_never_exceed_missing_ones() -> None:
    account = Account(PartitionRange("t", 0, 0, 100))
    account.add_gap(0, 5, COMPACTED)
    account.explain_lost(0, 50)
    assert account.counts == {LOST: 5}
    assert account.gaps == [OffsetGap(0, 5, LOST)]
