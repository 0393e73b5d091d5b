"""An archive of the classes that Spark loads (class data sharing of Java 17), for the JVMs that
tests start: with it a driver and its first query take 5 s of CPU time instead of 10.

    python -m tests.kit.spark.class_archive    # writes it, where there is a Java

`make test` does that once for each environment. Tests run without it, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kafkawire.reading.files.open import open_place
from kafkawire_spark.mapping import map_in_arrow
from kafkawire_spark.session import SessionError, find_java, open_session
from tests.kit.jvm import SHORT_LIVED, SPARK_CLASSES
from tests.kit.spark.files import Files, Share, batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

WRITTEN_WITHIN_S = 600.0  # 20 s on a quiet machine


def write(archive: Path) -> None:
    """Run the sample in a process of its own; its JVM writes the archive when it ends."""
    new = archive.with_suffix(".new")
    options = " ".join([*SHORT_LIVED, "-Xlog:disable", f"-XX:ArchiveClassesAtExit={new}"])
    subprocess.run(
        [sys.executable, "-m", "tests.kit.spark.class_archive", "sample"],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options},
        capture_output=True,  # its end is that of the JVM, which outlives the process
        timeout=WRITTEN_WITHIN_S,
        check=True,
    )
    new.replace(archive)


def sample() -> None:
    """Use what many tests use of Spark, so that its classes are loaded."""
    with tempfile.TemporaryDirectory(prefix="kafkawire-spark-") as folder:
        tier = str(Path(folder, "tier"))
        files = Files(open_place(tier))
        ids = files.topic("t", 1)
        files.put(1, Share(ids[0], batches(0, [10])))
        files.publish()
        spark = open_session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
        try:
            _read_and_write(spark, tier, Path(folder))
        finally:
            spark.stop()


def _read_and_write(spark: SparkSession, tier: str, folder: Path) -> None:
    def copied(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    options = {"source": tier, "subscribe": "t", "startingOffsets": "earliest"}
    rows = spark.read.format("kafkawire").options(**options).load()
    rows.createOrReplaceTempView("t")
    spark.sql("SELECT partition, count(DISTINCT value) FROM t GROUP BY 1 ORDER BY 1").collect()
    wanted = rows.select("offset", "value")
    map_in_arrow(wanted, copied, "offset bigint, value binary").write.parquet(str(folder / "table"))
    spark.read.parquet(str(folder / "table")).where("offset > 3").count()
    stream = spark.readStream.format("kafkawire").options(**options).load().writeStream
    stream = stream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = stream.trigger(availableNow=True).start(str(folder / "copy"))
    query.awaitTermination()


def main(*arguments: str) -> None:
    """Write the archive, or run the sample."""
    if arguments == ("sample",):
        sample()
        return
    try:
        find_java()
        write(SPARK_CLASSES)
    except SessionError as missing:
        print(f"no archive of Spark's classes: {missing}")
    except subprocess.TimeoutExpired as failed:
        print(f"no archive of Spark's classes: {failed}")
    except subprocess.CalledProcessError as failed:
        print(f"no archive of Spark's classes: {failed}\n{failed.stderr[-2000:].decode()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
