"""A schema that changes within a topic, in each kind of table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from kafkawire.reading.files.open import open_place
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.tables.port import open_table
from tests.kit.spark.inline import Inline
from tests.kit.spark.pipelines import World, job
from tests.kit.spark.registry import FakeRegistry, running
from tests.spark.values.test_avro import NEW, OLD, encoded, framed


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with running() as registry:
        yield registry


class Typed(World):
    """Records in Avro: old ones up to offset 4, new ones from there on; offset 2 is none."""

    numbers: tuple[int, int] = (0, 0)

    def read(self, *args: Any, **keys: Any) -> Iterator[pa.RecordBatch]:
        for batch in super().read(*args, **keys):
            values = [self.value(offset) for offset in batch.column("_offset").to_pylist()]
            at = batch.schema.get_field_index("_value")
            yield batch.set_column(at, "_value", pa.array(values, pa.binary()))

    def value(self, offset: int) -> bytes:
        if offset == 2:
            return b"none"
        if offset < 5:
            return framed(self.numbers[0], encoded(OLD, {"id": offset, "name": f"n{offset}"}))
        row = {"id": offset, "title": f"t{offset}", "state": "sold"}
        return framed(self.numbers[1], encoded(WIDER, {**row, "name": f"n{offset}"}))


# The reader's columns of both: id, name; then also title and state.
WIDER: dict[str, Any] = {
    **OLD,
    "fields": [*OLD["fields"], *[{**one, "aliases": []} for one in NEW["fields"][1:]]],
}


def rows_of(path: Path, format: str) -> list[dict[str, Any]]:
    """The rows that readers of the format see."""
    if format == "delta":
        table = deltalake.DeltaTable(path).to_pyarrow_table()
    elif format == "iceberg":
        uri = f"sqlite:///{path}/_kafkawire/catalog.db"
        table = load_catalog("kafkawire", type="sql", uri=uri).load_table("kafkawire.t")
        table = table.scan().to_arrow()
    else:
        files = [pq.read_table(file) for file in sorted(path.glob("[!_]*.parquet"))]
        table = pa.concat_tables(files, promote_options="default")
    names = [name for name in table.schema.names if not name.startswith("_")]
    rows: list[dict[str, Any]] = table.sort_by("_offset").select(["_offset", *names]).to_pylist()
    return rows


@pytest.mark.parametrize(
    "format", ["parquet", "delta", pytest.param("iceberg", marks=pytest.mark.slow)]
)
def test_new_schema_version_adds_columns(
    format: str, fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Typed({"a": [(0, 4)]})
    old = fake.register("a-value", json.dumps(OLD))
    own = job(
        source={"subscribe": "a"},
        table={"format": format, "path": str(tmp_path / "t")},
        value={"format": "avro", "registry": fake.url},
        dead_letter={"path": str(tmp_path / "dead")},
    )
    monkeypatch.setattr("kafkawire_spark.pipeline.engine.open_catalog", world.catalog)
    monkeypatch.setattr("kafkawire_spark.pipeline.tasks.read_task", world.read)

    def run() -> Any:
        world.numbers = (old, max(fake.schemas))
        return Engine(own, Inline(), place_of=open_place, table=open_table(own)).run()

    run()
    assert rows_of(tmp_path / "t", format) == [
        {"_offset": offset, "id": offset, "name": f"n{offset}"} for offset in (0, 1, 3)
    ]
    fake.register("a-value", json.dumps(WIDER))
    world.topics["a"] = [(0, 7)]
    record = run().record
    assert [(share.rows, share.dead, share.missing) for share in record.shares] == [(3, 0, 0)]
    seen = rows_of(tmp_path / "t", format)
    assert [row["_offset"] for row in seen] == [0, 1, 3, 4, 5, 6]
    assert [row["name"] for row in seen] == ["n0", "n1", "n3", "n4", "n5", "n6"]
    # Rows of run 1 have no value there; rows of run 2 with the old schema have the default.
    assert [row["state"] for row in seen] == [None, None, None, "new", "sold", "sold"]
    assert [row["title"] for row in seen] == [None, None, None, None, "t5", "t6"]
    dead = [pq.read_table(file).to_pylist() for file in (tmp_path / "dead").rglob("*.parquet")]
    assert [(row["_offset"], row["_value"]) for part in dead for row in part] == [(2, b"none")]
    fake.register("a-value", json.dumps({**OLD, "fields": OLD["fields"][:1]}))
    world.topics["a"] = [(0, 9)]
    with pytest.raises(JobError, match=r"has a column name .*, which the job does not have"):
        run()
    # The solution: columns of a version that has them all.
    own = replace(own, value=replace(own.value, version="2"))
    assert run().record.run == 3
    assert [row["_offset"] for row in rows_of(tmp_path / "t", format)] == [0, 1, 3, 4, 5, 6]
