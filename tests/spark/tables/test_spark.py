"""Delta and Iceberg tables read by the formats' own code: Delta's on a real Spark, Iceberg's Java
library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafkawire.reading.files.open import open_place
from kafkawire_spark.pipeline.tables.delta import DeltaTable
from kafkawire_spark.pipeline.tables.iceberg import IcebergTable
from kafkawire_spark.pipeline.tables.port import Table
from tests.kit.jars import table_jars
from tests.kit.spark.lake import DAY_US, SCHEMA, job, record, wrote
from tests.kit.spark.session import need_java

pytestmark = pytest.mark.real

CITY = "a/b %2F=ü"
WITHIN_S = 600.0
"""It starts a JVM of its own: 141 s on two cores that ten others shared."""


def fill(table: Table, days: tuple[str, ...]) -> None:
    """Three runs, of which two files were merged: offsets 0 to 14, of the day 20,000."""
    schema = SCHEMA.append(pa.field("city", pa.string()))
    with_days = schema
    for day in days:
        with_days = with_days.append(pa.field(day, pa.date32()))
    table.prepare(with_days, ("city", *days))
    own = table.file_schema(schema if days else SCHEMA)

    def file(run: int, base: int, end: int, city: str | None, **more: Any) -> Any:
        values = (*((day, "2024-10-04") for day in days), ("city", city))
        return wrote(table.place, run, base, end, values=values, schema=own, **more)

    first, second = file(1, 0, 5, CITY), file(2, 5, 9, CITY)
    table.commit(record(1, [first]))
    table.commit(record(2, [second]))
    table.commit(record(3, [file(3, 9, 15, None)]))
    table.replace([first, second], [file(1, 0, 9, CITY, kind="c")], 1)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of the readers; one process for both."""
    need_java()
    jars = table_jars()
    base = tmp_path_factory.mktemp("tables")
    delta = DeltaTable(job(base / "d", "delta", partition_by="city"), open_place(str(base / "d")))
    fill(delta, ())
    of = job(base / "i", "iceberg", partition_by=["date(timestamp)", "city"])
    fill(IcebergTable(of, open_place(str(base / "i"))), (of.table.partition_by[0].name,))
    metadata = max((base / "i" / "metadata").glob("*.metadata.json"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.spark.read_tables", jars, str(base / "d"),
        f"file://{metadata}"], capture_output=True, text=True, timeout=WITHIN_S,
        cwd=Path(__file__).parent.parent.parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_delta_table_read_by_spark(seen: dict[str, Any]) -> None:
    delta = seen["delta"]
    assert delta["rows"] == [
        [
            offset,
            CITY if offset < 9 else None,
            f"n{offset}" if offset % 3 else None,
            offset,
            20_000 * DAY_US + offset,
            str(offset),
        ]
        for offset in range(15)
    ]
    assert (delta["late"], delta["late_files"]) == (6, 1)  # by the statistics of the commits
    assert delta["versions"] == 5
    assert set(delta["partitions"]) == {CITY, None}


def test_iceberg_table_read_by_java_library(seen: dict[str, Any]) -> None:
    iceberg = seen["iceberg"]
    assert [row[:4] for row in iceberg["rows"]] == [
        [offset, CITY if offset < 9 else None, f"n{offset}" if offset % 3 else None, offset]
        for offset in range(15)
    ]
    assert iceberg["rows"][7][4] == "2024-10-04T00:00:00.000007Z"
    assert (iceberg["late"], iceberg["late_files"]) == (6, 1)
    assert "day(4)" in iceberg["partitioned"]
    assert "identity" in iceberg["partitioned"]
    assert iceberg["summary"]["kafkawire.compaction"] == "1"
    assert iceberg["properties"]["kafkawire.run.orders"] == "3"
