"""Files that are deleted when a task reads them, and readers that stop early."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from kafkawire.manifest.keys import segment_key
from kafkawire.reading import read_task as reading
from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.files.locations import FolderPlace, PlaceError
from kafkawire.reading.model.source import LOST, Account, DataLoss, PartitionRange, Task
from kafkawire.reading.read_task import read_task
from tests.kit.spark.files import Files, Share, batches
from tests.kit.spark.reads import (
    SELECTION,
    blocks,
    everything,
    read,
    rows_of,
    source_of,
    tier_files,  # noqa: F401  (a fixture, by name)
    whole,
)


def merge(files: Files, number: int, *, delete: bool = True) -> None:
    """Replace segments 1 to 4 by 9, like a rewrite, and publish it in the manifest."""
    files.put(9, Share(number, batches(0, [10] * 200)), generation=1)
    files.publish(gone=(1, 2, 3, 4))
    if delete:
        names = [name.to_bytes(16, "big") for name in (1, 2, 3, 4)]
        files.place.delete([segment_key(name) for name in names])


@pytest.mark.parametrize("small", [1 << 20, 0])
def test_replaced_file_is_found_in_new_manifest(
    files: Files, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After planning; and also while a task is reading."""
    monkeypatch.setattr("kafkawire.reading.files.read_ahead.SMALL_BYTES", small)
    monkeypatch.setattr("kafkawire.reading.files.read_ahead.RUN_BYTES", 20_000)
    monkeypatch.setattr("kafkawire.reading.files.read_ahead.MAX_CONCURRENT", 1)
    number, other = files.topic("t", 2)
    for name in range(1, 5):
        files.put(name, Share(number, batches((name - 1) * 500, [10] * 50)))
    files.put(5, Share(other, batches(0, [10] * 5)))
    files.publish()
    catalog = open_catalog(source_of(files))
    task = Task(tuple(catalog.part(each) for each in whole(catalog)))
    wanted = rows_of("t", 0, range(2000)) + rows_of("t", 1, range(50))
    reported: list[Account] = []
    taken = read_task(
        catalog.source, catalog.places, task, SELECTION, accounts=reported, batch_rows=100
    )
    seen = [next(taken).num_rows for _ in range(3)]
    merge(files, number)
    seen += [made.num_rows for made in taken]
    assert sum(seen) == len(wanted)
    assert [account.missing for account in reported] == [0, 0]
    rows, _ = read(catalog.source, catalog.places, task)
    assert rows == wanted


def test_deleted_file_is_data_loss(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_retention_and_deletion_after_planning(files: Files) -> None:
    one, _ = files.topic("t", 1) + files.topic("u", 1)
    for name in range(1, 4):
        files.put(name, Share(one, batches((name - 1) * 500, [10] * 50)))
    files.publish()
    catalog = open_catalog(source_of(files, fail_on_data_loss=False))
    task = Task((catalog.part(PartitionRange("t", 0, 0, 1500)),))
    files.publish(starts={one: 700}, gone=(1,))
    files.place.delete([segment_key((1).to_bytes(16, "big"))])
    rows, accounts = read(catalog.source, catalog.places, task)
    assert rows == rows_of("t", 0, range(700, 1500))
    assert accounts[0].gaps == [(0, 700, LOST)]
    failing = replace(catalog.source, fail_on_data_loss=True)
    with pytest.raises(DataLoss, match=r"offsets \[0, 700\)"):
        read(failing, catalog.places, task)


def test_topic_deleted_after_planning(files: Files) -> None:
    [one] = files.topic("t", 1)
    files.put(1, Share(one, batches(0, [10] * 50)))
    files.publish()
    catalog = open_catalog(source_of(files, fail_on_data_loss=False))
    task = Task((catalog.part(PartitionRange("t", 0, 0, 500)),))
    old = files.topics.pop("t")
    files.drop(old.id)
    files.publish(gone=(1,))
    files.place.delete([segment_key((1).to_bytes(16, "big"))])
    rows, accounts = read(catalog.source, catalog.places, task)
    assert (rows, accounts[0].gaps) == ([], [(0, 500, LOST)])
    with pytest.raises(DataLoss, match="no topic 't'"):
        read(replace(catalog.source, fail_on_data_loss=True), catalog.places, task)


def test_offsets_in_no_segment_are_lost_without_broker(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [10] * 5)))
    files.put(2, Share(number, batches(100, [10] * 5)))
    files.publish()
    with pytest.raises(DataLoss, match=r"\[50, 100\)"):
        everything(files)
    _, accounts = everything(files, fail_on_data_loss=False)
    assert accounts[0].gaps == [(50, 100, LOST)]


def test_reader_stopping_early_leaves_no_thread(files: Files) -> None:
    blocks(files)
    catalog = open_catalog(source_of(files))
    task = Task((catalog.part(whole(catalog)[0]),))
    before = threading.active_count()
    taken: Any = read_task(catalog.source, catalog.places, task, SELECTION, batch_rows=10)
    assert next(taken).num_rows == 10
    taken.close()
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before  # a thread of an earlier test may end meanwhile


def test_failure_of_read_ahead_is_raised_when_consumed(files: Files) -> None:
    blocks(files)
    catalog = open_catalog(source_of(files))

    class Failing(FolderPlace):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            raise PlaceError("the cable is out")

    task = Task((catalog.part(whole(catalog)[0]),))
    with pytest.raises(PlaceError, match="the cable is out"):
        read(catalog.source, [Failing(catalog.places[0].tier)], task)
