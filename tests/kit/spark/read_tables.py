"""A program that prints what Delta's own code on Spark, and Iceberg's own Java library, read from
two tables.

read_tables.py JARS DELTA_FOLDER ICEBERG_METADATA_FILE

It prints JSON. Delta has a jar for Spark 4.2. Iceberg's newest is for Spark 4.1 and does not run on
4.2 (classes that became interfaces), so its reader is used without Spark's. Delta needs its
settings when a session is created: hence a process of its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kafkawire_spark.session import open_session
from tests.kit.spark.session import CONF

SETTINGS = {
    **CONF,
    "spark.driver.memory": "1g",
    "spark.databricks.delta.snapshotPartitions": "1",  # 50 tasks for five commits otherwise
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def delta(spark: Any, folder: str) -> dict[str, Any]:
    frame = spark.read.format("delta").load(folder)
    rows = frame.selectExpr(
        "_offset", "city", "name", "deep.a", "unix_micros(_timestamp)", "cast(_key AS STRING)"
    )
    late = frame.where("_offset >= 9")
    history = spark.sql(f"DESCRIBE HISTORY delta.`{folder}`")
    return {
        "rows": [list(row) for row in rows.orderBy("_offset").collect()],
        "late": late.count(),
        "late_files": len(late.inputFiles()),
        "versions": history.count(),
        "partitions": [row[0] for row in frame.select("city").distinct().collect()],
    }


def iceberg(spark: Any, metadata: str) -> dict[str, Any]:
    library = spark.sparkContext._jvm.org.apache.iceberg
    files = library.hadoop.HadoopFileIO(spark.sparkContext._jsc.hadoopConfiguration())
    table = library.BaseTable(library.StaticTableOperations(metadata, files), "table")
    late = library.expressions.Expressions.greaterThanOrEqual("_offset", 9)
    planned = table.newScan().filter(late).planFiles().iterator()
    return {
        "rows": sorted(_rows(library.data.IcebergGenerics.read(table).build().iterator())),
        "late": len(_rows(library.data.IcebergGenerics.read(table).where(late).build().iterator())),
        "late_files": sum(1 for _ in _each(planned)),
        "partitioned": str(table.spec()),
        "summary": dict(table.currentSnapshot().summary()),
        "properties": dict(table.properties()),
    }


def _rows(found: Any) -> list[list[Any]]:
    rows = []
    for row in _each(found):
        deep = row.getField("deep")
        said = [row.getField(name) for name in ("_offset", "city", "name")]
        at = row.getField("_timestamp").toString()
        rows.append([*said, None if deep is None else deep.getField("a"), at])
    return rows


def _each(found: Any) -> Any:
    while found.hasNext():
        yield found.next()


def main(jars: str, folder: str, metadata: str) -> None:
    spark = open_session("local[1]", conf={**SETTINGS, "spark.jars": jars}, app_name="tables")
    try:
        print(json.dumps({"delta": delta(spark, folder), "iceberg": iceberg(spark, metadata)}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
