"""One Spark session for the Spark bench: runs jobs, one JSON object a line, and prints results.

`python -m bench.spark_job connector|ours`; the first line it writes says that it is ready. A job is
{"do": "count" | "parquet" | "pipeline" | "stream", "source": URL, "bootstrap": HOST:PORT, "topic":
NAME, "out": FOLDER, "compression": CODEC}; the result {"seconds": s, "rows": n} or {"error": text}.
`connector` is Spark's own Kafka connector with the jars of the peers' folder, `ours` the data
source and the pipeline.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

COLUMNS = ("partition", "offset", "timestamp", "key", "value")


def connector_session() -> Any:
    """A session as users get it who add the connector to a local Spark."""
    from pyspark.sql import SparkSession

    home = Path(os.environ.get("PEERS_HOME") or Path.home() / ".cache/kafkawire-peers")
    jars = sorted((home / "spark-kafka/jars").glob("*.jar"))
    if not jars:
        sys.exit(f"Spark's Kafka connector is not in {home}: install it first")
    builder = SparkSession.builder.master("local[2]").appName("bench")
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def our_session() -> Any:
    """A session like that of `kafkawire pipeline run`."""
    from kafkawire_spark import register
    from kafkawire_spark.session import open_session

    conf = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
    spark = open_session("local[2]", conf=conf, app_name="bench")
    register(spark)
    return spark


def rows_of(spark: Any, kind: str, job: dict[str, str]) -> Any:
    """The topic as a DataFrame."""
    reader = spark.read.format("kafka" if kind == "connector" else "kafkawire")
    if kind == "connector":
        reader = reader.option("kafka.bootstrap.servers", job["bootstrap"])
    else:
        reader = reader.option("source", job["source"])
    reader = reader.option("startingOffsets", "earliest").option("endingOffsets", "latest")
    reader = reader.option("subscribe", job["topic"])
    if kind == "ours" and job["do"] == "count":
        reader = reader.option("columns", "partition,offset")
    return reader.load()


def count(spark: Any, kind: str, job: dict[str, str]) -> int:
    """Rows, first and last offset of each partition, as one aggregation."""
    from pyspark.sql import functions as f

    found = rows_of(spark, kind, job).groupBy("partition")
    rows = found.agg(f.count("*"), f.min("offset"), f.max("offset")).collect()
    for partition, counted, first, last in rows:
        if last - first + 1 != counted:
            raise RuntimeError(f"partition {partition}: {counted} rows from {first} to {last}")
    return sum(row[1] for row in rows)


def parquet(spark: Any, kind: str, job: dict[str, str]) -> int:
    """Write the topic through Spark's own Parquet writer."""
    writer = rows_of(spark, kind, job).select(*COLUMNS).write.mode("overwrite")
    writer.parquet(job["out"], compression=job["compression"])
    return -1


def pipeline(spark: Any, kind: str, job: dict[str, str]) -> int:
    """Write the topic by a job of the pipeline: the same columns, with intent, accounts and
    commit."""
    from kafkawire_spark.pipeline.engine import Engine
    from kafkawire_spark.pipeline.executors import OnSpark
    from kafkawire_spark.pipeline.jobs.job import parse

    text = (
        f'[job]\nname = "bench"\n[source]\nurl = "{job["source"]}"\n'
        f'subscribe = ["{job["topic"]}"]\n[table]\nformat = "parquet"\n'
        f'compression = "{job["compression"]}"\npath = "{job["out"]}"\n'
    )
    engine = Engine(parse(text), OnSpark(spark))
    try:
        outcome = engine.run()
    finally:
        engine.close()
    if outcome.record is None or outcome.planned_less:
        raise RuntimeError("the run did not read all there is")
    return -1


def stream(spark: Any, kind: str, job: dict[str, str]) -> int:
    """Write the topic as a job of Structured Streaming: its checkpoint, and a folder for each micro
    batch, which a repetition overwrites."""
    checkpoint = f"{job['out']}.checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    reader = spark.readStream.format("kafkawire").option("source", job["source"])
    reader = reader.option("startingOffsets", "earliest").option("subscribe", job["topic"])

    def write(rows: Any, number: int) -> None:
        writer = rows.select(*COLUMNS).write.mode("overwrite")
        writer.parquet(f"{job['out']}/batch={number}", compression=job["compression"])

    started = reader.load().writeStream.foreachBatch(write).trigger(availableNow=True)
    query = started.option("checkpointLocation", checkpoint).start()
    query.awaitTermination()
    return -1


JOBS = {"count": count, "parquet": parquet, "pipeline": pipeline, "stream": stream}


def main(kind: str) -> None:
    """Run jobs from standard input until it ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of Spark is not a result
    spark = connector_session() if kind == "connector" else our_session()
    print(json.dumps({"ready": spark.version}), file=out, flush=True)
    for text in sys.stdin:
        job = json.loads(text)
        began = time.perf_counter()
        try:
            rows = JOBS[job["do"]](spark, kind, job)
            answer: dict[str, object] = {"seconds": time.perf_counter() - began, "rows": rows}
        except Exception as failure:
            answer = {"error": f"{type(failure).__name__}: {failure}"[:2000]}
        print(json.dumps(answer), file=out, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
