"""Topics as Spark tables: segments are read from a bucket or folder, without the broker.

In `source`, `files.locations` opens a bucket or folder, `catalog` lists topics and the files of
their offsets, `plan` splits them into tasks, `read_task` reads a task as Arrow batches with
`decode`. `register(spark)` registers the data source of `datasource`: `spark.read`, and `df.write`,
which `sink` does with `encode`, in transactions. `model` has the values that all of these share,
`brokers` their requests to brokers. `pipeline` writes tables,
`audit` verifies them, `replay` writes them back to topics; `query` is SQL over topics. Of the rest
of kafkawire only codec, manifest, messages, client and objectstore are imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("kafkawire")` in a session, for `spark.read`, `readStream`, SQL, `df.write`
    and `writeStream`.

    With a local master its workers run in the driver's Python, unless PYSPARK_PYTHON names another
    one. Raises SourceError if that lacks the packages.
    """
    from kafkawire.spark.datasource import KafkawireSource
    from kafkawire.spark.interpreter import use_driver_python

    if hasattr(spark, "_sc"):  # a client of Spark Connect has no workers on its machine
        use_driver_python(spark.sparkContext)
    spark.dataSource.register(KafkawireSource)
