"""Every type that a column can have, through Delta and Iceberg tables."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from kafkawire.reading.model.columns import NATIVE
from kafkawire.reading.model.source import PartitionRange
from kafkawire_spark.pipeline.jobs.layout import file_path
from kafkawire_spark.pipeline.jobs.state import FileFacts
from kafkawire_spark.pipeline.tables.parquet import Encoding, ParquetFile
from kafkawire_spark.pipeline.tables.port import Table, open_table
from tests.kit.spark.lake import job, record

AT = datetime(2026, 1, 1, 2, 3, 4, 567890, UTC)
TYPES: dict[str, tuple[pa.DataType, Any]] = {
    "tiny": (pa.int8(), 1),
    "small": (pa.int16(), 2),
    "truth": (pa.bool_(), True),
    "single": (pa.float32(), 1.5),
    "double": (pa.float64(), 2.5),
    "big": (pa.decimal128(20, 0), Decimal(2**64 - 1)),
    "money": (pa.decimal128(38, 10), Decimal("1.2500000000")),
    "day": (pa.date32(), date(2026, 1, 1)),
    "local": (pa.timestamp("us"), AT.replace(tzinfo=None)),
    "places": (pa.map_(pa.string(), pa.struct([("x", pa.int32())])), [("a", {"x": 1})]),
    "lists": (
        pa.list_(pa.field("element", pa.list_(pa.field("element", pa.string())))),
        [["q"], None],
    ),
    "text": (pa.string(), "grün"),
}
SCHEMA = pa.schema([*NATIVE.arrow_schema(), *((name, type) for name, (type, _) in TYPES.items())])
FULL: dict[str, Any] = {
    "_topic": "orders", "_partition": 0, "_offset": 0, "_timestamp": AT, "_timestamp_type": 0,
    "_key": b"k", "_value": b"v",
    "_headers": [{"key": "h", "value": b"x"}, {"key": "n", "value": None}],
    **{name: value for name, (_, value) in TYPES.items()},
}  # fmt: skip
ALWAYS = ("_topic", "_partition", "_offset", "_timestamp")
EMPTY = {**dict.fromkeys(FULL), "_topic": "orders", "_partition": 0, "_offset": 1, "_timestamp": AT}


def scan(path: Path, format: str) -> tuple[pa.Table, Any]:
    """The rows that a reader sees, and the version of the table."""
    if format == "delta":
        table = deltalake.DeltaTable(path)
        return table.to_pyarrow_table(), table.version()
    uri = f"sqlite:///{path}/_kafkawire/catalog.db"
    loaded = load_catalog("kafkawire", type="sql", uri=uri).load_table("kafkawire.t")
    return loaded.scan().to_arrow(), loaded.metadata_location


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_every_type_round_trips(format: str, tmp_path: Path) -> None:
    table: Table = open_table(job(tmp_path / "t", format))
    table.prepare(SCHEMA, ())
    version = scan(tmp_path / "t", format)[1]
    table.prepare(SCHEMA, ())
    assert scan(tmp_path / "t", format)[1] == version  # nothing to be changed
    writer = ParquetFile(table.file_schema(SCHEMA), Encoding("zstd", plain=True), {})
    writer.add(pa.RecordBatch.from_pylist([FULL, EMPTY], schema=SCHEMA))
    data, stats = writer.close()
    part = PartitionRange("orders", 0, 0, 2)
    path = file_path(part, (), 1, kind="r", attempt="a1")
    table.place.put(path, data)
    table.commit(record(1, [FileFacts(path, 2, len(data), *part, (), 1, stats)]))
    full, empty = scan(tmp_path / "t", format)[0].sort_by("_offset").to_pylist()
    assert full == FULL
    # pyiceberg gives empty lists and maps for those that are null.
    assert {name: value or None for name, value in empty.items() if name not in ALWAYS} == {
        name: None for name in FULL if name not in ALWAYS
    }
