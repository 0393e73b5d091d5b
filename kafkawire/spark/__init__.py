"""Every topic is a Spark table: reading segments where they lie, without the broker.

`model` has the words, `places` opens a bucket or folder, `catalog` knows what lies where, `plan`
splits it over tasks, `reading` turns a task into Arrow batches, `decode` is the kernel of that.
`register(spark)` makes `spark.read.format("kafkawire")` known. `pipeline` writes tables, `audit`
proves them, `replay` writes them back to topics; `query` is SQL over topics.
Imports nothing of the broker but codec, manifest, messages and client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("kafkawire")` known to a session, for `spark.read`, `readStream` and SQL."""
    from kafkawire.spark.source.datasource import KafkawireSource

    spark.dataSource.register(KafkawireSource)
