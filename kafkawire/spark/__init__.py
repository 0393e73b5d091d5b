"""Every topic is a Spark table: reading segments where they lie, without the broker.

In `source`, `files.locations` opens a bucket or folder, `catalog` lists topics and where their
offsets lie, `plan` splits them over tasks, `read_task` turns a task into Arrow batches with
`decode`.
`register(spark)` makes `spark.read.format("kafkawire")` known. `pipeline` writes tables, `audit`
proves them, `replay` writes them back to topics; `query` is SQL over topics.
It imports codec, manifest, messages, client and objectstore, and nothing else of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("kafkawire")` known to a session, for `spark.read`, `readStream` and SQL."""
    from kafkawire.spark.source.datasource import KafkawireSource

    spark.dataSource.register(KafkawireSource)
