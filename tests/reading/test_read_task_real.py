"""Catalogs and tasks over a real broker's data: in MinIO, in its folder, in its journals."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kafkawire.reading.catalog import SourceCatalog, open_catalog
from kafkawire.reading.files.manifests import open_holdings
from kafkawire.reading.model.columns import Selection
from kafkawire.reading.model.source import Account, PartitionRange, Source, SourceError
from kafkawire.reading.plan import plan_tasks
from kafkawire.reading.read_task import read_task
from kafkawire.testing.plugin import Factory
from tests.kit.minio import Minio
from tests.kit.spark.topics import QUICK, Row, Topics

pytestmark = pytest.mark.real

SELECTION = Selection(("topic", "partition", "offset", "timestamp", "key", "value", "headers"))


@pytest.fixture
def topics(
    kafkawire_broker_factory: Factory, minio: Minio, tier_url: str
) -> Iterator[tuple[Topics, str]]:
    """`t`: 3 partitions, most of it in the tier, the rest in the journals; and the tier's URL."""
    made = Topics(kafkawire_broker_factory(settings={**QUICK, "tier.url": tier_url}))
    # Local files may go, since a segment has records of several topics.
    made.make("t", 3, local_retention_ms="1")
    made.fill("t", 3000, "zstd")
    made.until_cut(tier_url)
    made.fill("t", 300)
    yield made, tier_url
    made.broker.stop()


def read(catalog: SourceCatalog) -> tuple[list[Row], list[Account]]:
    """Read all of topic t, by small tasks."""
    ranges = [PartitionRange("t", p, *catalog.bounds("t", p)[::2]) for p in range(3)]
    accounts: list[Account] = []
    rows: list[Row] = []
    for task in plan_tasks([catalog.part(each) for each in ranges], task_bytes=20_000):
        for batch in read_task(catalog.source, catalog.places, task, SELECTION, accounts=accounts):
            for row in batch.to_pylist():
                stamp = row.pop("timestamp")
                headers = row.pop("headers")
                rows.append(
                    Row(
                        **row,
                        timestamp_ms=round(stamp.timestamp() * 1000),
                        headers=headers and tuple((h["key"], h["value"]) for h in headers),
                    )
                )
    assert sum(account.missing for account in accounts) == 0
    return rows, accounts


def test_records_are_read_from_tier_folder_and_broker(topics: tuple[Topics, str]) -> None:
    made, url = topics
    wanted = made.of("t")
    for source in (Source(url, made.bootstrap), Source("", made.bootstrap)):
        catalog = open_catalog(source)
        bounds = [catalog.bounds("t", partition) for partition in range(3)]
        assert [b.end for b in bounds] == [1100] * 3
        assert all(1000 <= b.segments_end <= 1100 for b in bounds)
        assert read(catalog)[0] == wanted
        catalog.close()
    # Files and the bucket; the files once their manifest is there, seconds after a start.
    until = time.monotonic() + 60
    found: set[bool] = set()
    while found != {True, False} and time.monotonic() < until:
        catalog = open_catalog(Source("", made.bootstrap))
        found = {place.tier.is_s3 for place in catalog.places}
        catalog.close()
        time.sleep(0.2)
    assert found == {True, False}
    alone = open_catalog(Source(url))
    rows, _ = read(alone)
    ends = [alone.bounds("t", partition).end for partition in range(3)]
    assert rows == [row for row in wanted if row.offset < ends[row.partition]]
    assert min(ends) >= 1000
    stamp = wanted[500].timestamp_ms
    assert alone.offset_for_time("t", 0, stamp) == next(
        row.offset for row in wanted if row.partition == 0 and row.timestamp_ms >= stamp
    )


def test_bucket_alone_is_sufficient(topics: tuple[Topics, str]) -> None:
    """The broker is stopped, and its folder deleted."""
    made, url = topics
    made.until_cut(url)
    made.broker.stop()
    assert read(open_catalog(Source(url)))[0] == made.of("t")


def test_stream_reads_new_records(topics: tuple[Topics, str]) -> None:
    made, url = topics
    catalog = open_catalog(Source(url, made.bootstrap))
    made.fill("t", 30)
    deadline = time.monotonic() + 60
    while catalog.refresh_catalog().bounds("t", 0).end < 1110 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert read(catalog.refresh_catalog())[0] == made.of("t")
    catalog.close()


def test_data_folder_is_read_with_what_is_only_in_its_bucket(topics: tuple[Topics, str]) -> None:
    """It was "offsets are lost", and with failOnDataLoss=false only the local rows came."""
    made, url = topics
    made.make("cold", 1, local_retention_ms="1")
    made.fill("cold", 2000, "zstd")
    made.until_cut(url)
    data = made.broker.data
    deadline = time.monotonic() + 60
    while not _is_cold(str(data)):
        assert time.monotonic() < deadline, "the local files were not deleted"
        time.sleep(0.2)
    made.broker.stop()
    catalog = open_catalog(Source(str(data)))
    rows: list[PartitionRange] = [PartitionRange("cold", 0, *catalog.bounds("cold", 0)[::2])]
    found = 0
    for task in plan_tasks([catalog.part(each) for each in rows], task_bytes=1 << 30):
        for batch in read_task(catalog.source, catalog.places, task, SELECTION):
            found += batch.num_rows
    assert (rows, found) == ([PartitionRange("cold", 0, 0, 2000)], 2000)


def _is_cold(data: str) -> bool:
    """Return True if a manifest of the folder has the topic, and no local file of it."""
    try:
        [holding] = open_holdings(data)
    except SourceError:
        return False  # the manifest of the tier may be written before the one of the folder
    facts = holding.manifest.topics.get("cold")
    row = holding.manifest.get_partition(facts.partitions[0]) if facts else None
    return row is not None and row.end == 2000 and not len(holding.sheet.spans(row.number, 0).bases)
