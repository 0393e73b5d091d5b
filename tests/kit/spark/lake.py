"""Files of a table as tasks write them, and records of runs, for tests of the table formats."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from kafkawire.reading.files.locations import Place
from kafkawire.reading.model.source import PartitionRange
from kafkawire_spark.pipeline.jobs.job import Job, from_dict
from kafkawire_spark.pipeline.jobs.layout import Values, file_path
from kafkawire_spark.pipeline.jobs.state import FileFacts, RunRecord, Share
from kafkawire_spark.pipeline.tables.parquet import Encoding, ParquetFile
from kafkawire_spark.pipeline.tables.port import Table

UTC = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", UTC),
        pa.field("_key", pa.binary()),
        pa.field("name", pa.string()),
        pa.field("deep", pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.list_(UTC))])),
    ]
)
DAY_US = 86_400_000_000


def job(path: Path | str, format: str, **table: object) -> Job:
    """A job whose table is at `path`; `table`: more keys of [table]."""
    return from_dict(
        {
            "job": {"name": "orders"},
            "source": {"url": "/nowhere", "subscribe": "orders"},
            "table": {"format": format, "path": str(path), **table},
        }
    )


def wrote(
    place: Place,
    run: int,
    base: int,
    end: int,
    *,
    partition: int = 0,
    values: Values = (),
    kind: str = "r",
    day: int = 20_000,
    schema: pa.Schema = SCHEMA,
    attempt: str = "a1",
) -> FileFacts:
    """A file with the rows [base, end) of a partition, all of one day; with partition columns where
    `schema` has them."""
    part = PartitionRange("orders", partition, base, end)
    path = file_path(part, values, run, kind=kind, attempt=attempt)
    columns: dict[str, list[Any]] = {
        "_topic": ["orders"] * (end - base),
        "_partition": [partition] * (end - base),
        "_offset": list(range(base, end)),
        "_timestamp": [day * DAY_US + offset for offset in range(base, end)],
        "_key": [str(offset).encode() for offset in range(base, end)],
        "name": [f"n{offset}" if offset % 3 else None for offset in range(base, end)],
        "deep": [{"a": offset, "b": [offset]} for offset in range(base, end)],
        "more": [offset / 2 for offset in range(base, end)],
    }
    writer = ParquetFile(schema, Encoding("zstd", plain=True), {})
    for name, text in values:
        columns[name] = [text] * (end - base)
    arrays = [_array(columns[field.name], field.type) for field in schema]
    writer.add(pa.RecordBatch.from_arrays(arrays, schema=schema))
    data, stats = writer.close()
    place.put(path, data)
    return FileFacts(path, end - base, len(data), *part, values, run, stats)


def record(run: int, files: Sequence[FileFacts]) -> RunRecord:
    """The record of a run that wrote these files."""
    shares = tuple(
        Share(PartitionRange(file.topic, file.partition, file.base, file.end), file.rows)
        for file in files
    )
    return RunRecord("orders", run, tuple(files), (), shares, {})


def _array(values: list[Any], type: pa.DataType) -> pa.Array:
    texts = all(isinstance(value, str | None) for value in values)
    return pa.array(values, pa.string()).cast(type) if texts else pa.array(values, type)


def at_once(acts: Sequence[Callable[[], object]]) -> None:
    """Run each call in a thread of its own; raise what one of them raises."""
    with ThreadPoolExecutor(len(acts)) as pool:
        for act in [pool.submit(act) for act in acts]:
            act.result(60)


def drive_at_once(make: Callable[[], Table], runs: Sequence[Sequence[RunRecord]]) -> None:
    """Let a driver for each list of runs, with its own table object, commit them: all drivers their
    first run at the same time, then all their second one, and so on."""
    barrier = threading.Barrier(len(runs))

    def drive(records: Sequence[RunRecord]) -> None:
        mine = make()
        for one in records:
            barrier.wait(90)
            mine.commit(one)

    at_once([partial(drive, records) for records in runs])
