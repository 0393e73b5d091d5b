"""A driver for the cluster tests: reads a topic on a cluster and prints what it read as JSON.

python job.py MASTER CONF SOURCE TOPIC [FOLDER]

With a folder each task writes a file to it when it begins and then takes its time, so that a test
can kill a worker while tasks run.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kafkawire_spark.mapping import map_in_arrow
from kafkawire_spark.session import open_session

if TYPE_CHECKING:
    import pyarrow as pa

TASK_BYTES = 16384
SLOWLY_S = 0.5


def main(master: str, conf: str, source: str, topic: str, folder: str = "") -> None:
    spark = open_session(master, conf=json.loads(conf), app_name="cluster test")

    def scan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A row for each batch: which worker read it (its executor has a folder of its own)."""
        import pyarrow as pa

        if folder:
            Path(folder, f"{Path.cwd().parent.parent.name}.{uuid.uuid4().hex}").touch()
            time.sleep(SLOWLY_S)
        for batch in batches:
            where = pa.array([str(Path.cwd())] * batch.num_rows)
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, where], names=[*batch.schema.names, "w"]
            )

    read = (
        spark.read.format("kafkawire")
        .option("source", source)
        .option("subscribe", topic)
        .option("taskBytes", str(TASK_BYTES))
        .load()
    )
    wanted = read.select("partition", "offset", "value")
    rows = map_in_arrow(wanted, scan, "partition int, offset bigint, value binary, w string")
    found = [(row[0], row[1], bytes(row[2]).decode(), row[3]) for row in rows.collect()]
    workers = sorted({row[3].split("/work-")[-1].split("/")[0] for row in found})
    tasks = read.rdd.getNumPartitions()
    print(json.dumps({"rows": [row[:3] for row in found], "workers": workers, "tasks": tasks}))
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(*sys.argv[1:])
