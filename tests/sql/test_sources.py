"""Statements over a real broker: its journals, its folder, its tier in MinIO; equal to Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kafkawire.reading.model.source import Source
from kafkawire.sql.engine import SqlEngine
from kafkawire.testing.plugin import Factory
from tests.kit.minio import Minio
from tests.kit.spark.topics import QUICK, Topics
from tests.kit.sql import rows_of_statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.slow]

STATEMENT = (
    'SELECT topic, partition, "offset", timestamp, "timestampType", key, value, headers FROM t '
    'ORDER BY partition, "offset"'
)


@pytest.fixture
def topics(
    kafkawire_broker_factory: Factory, minio: Minio, tier_url: str
) -> Iterator[tuple[Topics, str]]:
    """`t`: 3 partitions, most of it in the tier, the rest in the journals; and the tier's URL."""
    made = Topics(kafkawire_broker_factory(settings={**QUICK, "tier.url": tier_url}))
    made.make("t", 3)
    made.fill("t", 3000, "zstd")
    made.until_cut(tier_url)
    made.fill("t", 300)
    yield made, tier_url
    made.broker.stop()


def test_bucket_broker_and_both(topics: tuple[Topics, str], spark: SparkSession) -> None:
    made, url = topics
    kept = made.of("t")
    for source in (Source(bootstrap=made.bootstrap), Source(url, made.bootstrap)):
        with SqlEngine(source) as engine:
            found = rows_of_statement(engine, STATEMENT)
            assert [(row[1], row[2], row[5], row[6]) for row in found] == [
                (row.partition, row.offset, row.key, row.value) for row in kept
            ]
    with SqlEngine(Source(url)) as engine:
        [[count]] = rows_of_statement(engine, "SELECT count(*) FROM t")
        assert 3000 <= count <= len(kept)
    frame = spark.read.format("kafkawire").option("subscribe", "t")
    frame = frame.option("source", made.bootstrap).option("includeHeaders", "true")
    table = frame.load().orderBy("partition", "offset").toArrow()
    with SqlEngine(Source(bootstrap=made.bootstrap)) as engine:
        schema, batches = engine.run(STATEMENT)
        rows = [row for batch in batches for row in batch.to_pylist()]
    assert schema.names == table.schema.names
    assert rows == table.to_pylist()
