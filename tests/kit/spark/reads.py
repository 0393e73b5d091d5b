"""Read tasks in the test process, from files built by hand: rows and accounts of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkawire.reading.catalog import SourceCatalog, open_catalog
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.columns import Selection
from kafkawire.reading.model.source import Account, PartitionRange, Source, Task
from kafkawire.reading.plan import plan_tasks
from kafkawire.reading.read_task import read_task
from tests.kit.spark.files import Files, Share, batches, value

SELECTION = Selection(("topic", "partition", "offset", "value"))
Row = tuple[str, int, int]


@pytest.fixture(name="files")
def tier_files(tmp_path: Path) -> Files:
    return Files(open_place(str(tmp_path / "tier")))


def source_of(files: Files, **more: Any) -> Source:
    return Source(files.place.url, **more)


def read(
    source: Source, places: Sequence[Place], task: Task, **more: Any
) -> tuple[list[Row], list[Account]]:
    """Rows, whose values are checked, and accounts, which must be complete."""
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


def whole(catalog: SourceCatalog, *topics: str) -> list[PartitionRange]:
    return [
        PartitionRange(topic, partition, *catalog.bounds(topic, partition)[::2])
        for topic in topics or catalog.topics
        for partition in range(catalog.topics[topic])
    ]


def everything(
    files: Files,
    ranges: Iterable[PartitionRange] | None = None,
    *,
    size: int = 1 << 30,
    **more: Any,
) -> tuple[list[Row], list[Account]]:
    """Read all tasks of ranges, one after the other."""
    more_source = {k: more.pop(k) for k in ("isolation", "fail_on_data_loss") if k in more}
    source = source_of(files, **more_source)
    catalog = open_catalog(source)
    parts = [catalog.part(each) for each in ranges or whole(catalog)]
    rows: list[Row] = []
    accounts: list[Account] = []
    for task in plan_tasks(parts, task_bytes=size):
        found, reported = read(source, catalog.places, task, **more)
        rows += found
        accounts += reported
    return rows, accounts


def rows_of(topic: str, partition: int, offsets: Iterable[int]) -> list[Row]:
    return [(topic, partition, offset) for offset in offsets]


def at_batch(number: int) -> int:
    """The position at which a batch of `blocks` begins."""
    return 64 + sum(len(each) for each in batches(0, [10] * number))


def blocks(files: Files, count: int = 40) -> str:
    """A segment of many index blocks: five batches of ten records each."""
    [number] = files.topic("t")
    key = files.put(1, Share(number, batches(0, [10] * 5 * count)))
    files.publish()
    return key
