"""Topics as Spark tables: segments are read from a bucket or folder, without the broker.

`register(spark)` registers the data source of `datasource`: `spark.read`, which `source` plans and
kafkawire.reading reads, and `df.write`, which `sink` does with `encode`, in transactions.
`pipeline` writes tables, `audit` verifies them, `replay` writes them back to topics; `query` is
SQL over topics.
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
    from kafkawire_spark.datasource import KafkawireSource
    from kafkawire_spark.interpreter import use_driver_python

    if hasattr(spark, "_sc"):  # a client of Spark Connect has no workers on its machine
        use_driver_python(spark.sparkContext)
    spark.dataSource.register(KafkawireSource)
