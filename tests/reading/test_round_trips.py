"""Small reads of many files are requested concurrently, since a remote bucket has high latency."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from kafkawire.objectstore.url import TierUrl
from kafkawire.reading import catalog as catalogs
from kafkawire.reading import transactions
from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.files import read_ahead as loading
from kafkawire.reading.files.locations import FolderPlace, PlaceError
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import PartitionRange, Source, SourceError
from tests.kit.spark.files import START_MS, Files, Share, batch, batches, marker

WITHIN_S = 90.0


class Together(FolderPlace):
    """Answers the first request for each of these files only when all of them were requested;
    `broken`: one that cannot be read."""

    def __init__(self, tier: TierUrl, keys: Collection[str], broken: str = "") -> None:
        super().__init__(tier)
        self.__dict__.update(
            left=set(keys), broken=broken, all_there=threading.Barrier(len(keys)),
            lock=threading.Lock(),
        )  # fmt: skip

    left: set[str]
    broken: str
    all_there: threading.Barrier
    lock: threading.Lock

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self.lock:
            is_first = key in self.left
            self.left.discard(key)
        if is_first:
            self.all_there.wait(WITHIN_S)
        if key == self.broken:
            raise PlaceError(f"{key} cannot be read")
        return super().get_range(key, start, length)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    loading._read_index.cache_clear()
    transactions._read.cache_clear()
    return Files(open_place(str(tmp_path / "tier")))


def test_timestamp_lookups_of_partitions_are_concurrent(files: Files) -> None:
    count = catalogs.TIMES_AT_ONCE
    numbers = files.topic("t", count)
    keys = [
        files.put(at, Share(number, batches(0, [1] * (at + 1))))
        for at, number in enumerate(numbers)
    ]
    files.publish()
    wanted = [("t", at, START_MS + 3) for at in range(count)]
    found = [3 if at >= 3 else None for at in range(count)]
    catalog = open_catalog(Source(files.place.url))
    catalog.places[0] = Together(files.place.tier, keys[3:])
    assert catalog.offsets_for_times(wanted) == found
    assert [catalog.offset_for_time(*each) for each in wanted] == found
    loading._read_index.cache_clear()
    catalog.places[0] = Together(files.place.tier, keys[3:], keys[5])
    with pytest.raises(PlaceError, match="cannot be read"):
        catalog.offsets_for_times(wanted)


def test_file_replaced_meanwhile_is_located_again(files: Files) -> None:
    numbers = files.topic("t", 5)
    for at, number in enumerate(numbers):
        files.put(at + 1, Share(number, batches(0, [1] * 9)))
    files.publish()
    catalog = open_catalog(Source(files.place.url))
    old = list(catalog.part(PartitionRange("t", 2, 0, 9)).pieces)
    files.put(50, Share(numbers[2], batches(0, [1] * 9)), generation=1)
    files.publish(gone=[3])
    files.place.delete([old[0].key])
    wanted = [("t", at, START_MS + 3) for at in range(5)]
    assert catalog.offsets_for_times(wanted) == [3] * 5
    files.place.delete(
        [open_catalog(catalog.source).part(PartitionRange("t", 2, 0, 9)).pieces[0].key]
    )
    loading._read_index.cache_clear()
    with pytest.raises(SourceError, match="though its manifest names it"):
        catalog.offsets_for_times(wanted)


def test_aborted_transactions_are_read_from_all_files_concurrently(files: Files) -> None:
    [number] = files.topic("t")
    of = {"producer_id": 7, "producer_epoch": 0, "attributes": 0x10}
    keys = []
    for at in range(transactions.FILES_AT_ONCE):
        base = at * 10
        made = [batch(base, 9, base_sequence=base, **of), marker(base + 9, 7, commits=False)]
        keys.append(files.put(at, Share(number, made, aborted=[(7, base, base + 9)])))
    files.publish()
    catalog = open_catalog(Source(files.place.url))
    wanted = PartitionRange("t", 0, 0, base + 5)
    catalog.places[0] = Together(files.place.tier, keys)
    found = transactions.aborted_transactions(catalog, wanted)
    assert found == [(7, at, at + 9) for at in range(0, base + 1, 10)]
    transactions._read.cache_clear()
    catalog.places[0] = Together(files.place.tier, keys, keys[4])
    with pytest.raises(PlaceError, match="cannot be read"):
        transactions.aborted_transactions(catalog, wanted)
