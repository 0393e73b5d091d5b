"""Iceberg tables: each run is committed once, and independent readers agree on the content.

Covers: kafkawire_spark.pipeline.tables.iceberg_files, kafkawire_spark.pipeline.tables.port.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as Loaded

from kafkawire.objectstore.url import parse_tier
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import SourceError
from kafkawire_spark.pipeline.jobs.layout import describe_schema
from kafkawire_spark.pipeline.jobs.state import FileFacts, TableState
from kafkawire_spark.pipeline.tables import commit as committing
from kafkawire_spark.pipeline.tables.commit import CommitError, Conflict
from kafkawire_spark.pipeline.tables.iceberg import IcebergTable
from kafkawire_spark.pipeline.tables.locations import without_secrets
from kafkawire_spark.pipeline.tables.ownership import description
from tests.kit.minio import SECRET, USER, Minio
from tests.kit.spark import lake
from tests.kit.spark.lake import SCHEMA, at_once, drive_at_once, job, record

NAME = "kafkawire.t"


def table_at(path: Path | str, schema: pa.Schema = SCHEMA, **keys: Any) -> IcebergTable:
    table = IcebergTable(job(path, "iceberg", **keys), open_place(str(path)))
    table.prepare(schema, ())
    return table


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return table_at(tmp_path / "t")


def wrote(table: IcebergTable, *args: Any, schema: pa.Schema = SCHEMA, **more: Any) -> FileFacts:
    """A file as written by tasks, with the ids of the table's fields."""
    return lake.wrote(table.place, *args, schema=table.file_schema(schema), **more)


def loaded(path: Path) -> Loaded:
    """The table as an independent reader opens it."""
    uri = f"sqlite:///{path}/_kafkawire/catalog.db"
    return load_catalog("kafkawire", type="sql", uri=uri).load_table(NAME)


def offsets(path: Path) -> list[int]:
    """The offsets that pyiceberg's own scan finds."""
    found = loaded(path).scan(selected_fields=("_offset",)).to_arrow()
    return sorted(found.column(0).to_pylist())


def test_runs_are_committed_with_their_offsets(table: IcebergTable, tmp_path: Path) -> None:
    assert table.read_last_run() == 0
    table.commit(record(1, [wrote(table, 1, 0, 5), wrote(table, 1, 0, 3, partition=1)]))
    table.commit(record(2, [wrote(table, 2, 5, 9)]))
    assert table.read_last_run() == 2
    assert offsets(tmp_path / "t") == [0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8]
    said = [one.summary.additional_properties for one in loaded(tmp_path / "t").snapshots()]
    assert [json.loads(one["kafkawire.offsets"]) for one in said] == [
        {"orders": {"0": [0, 5], "1": [0, 3]}},
        {"orders": {"0": [5, 9]}},
    ]
    assert [one["kafkawire.run"] for one in said] == ["1", "2"]
    rows = loaded(tmp_path / "t").scan("_offset = 7").to_arrow().to_pylist()
    assert [(row["name"], row["_key"], row["deep"]["a"]) for row in rows] == [("n7", b"7", 7)]


def test_repeated_commit_of_run_is_ignored(table: IcebergTable, tmp_path: Path) -> None:
    first = record(1, [wrote(table, 1, 0, 5)])
    table.commit(first)
    table.commit(first)
    other = IcebergTable(job(tmp_path / "t", "iceberg"), open_place(str(tmp_path / "t")))
    other.commit(record(1, [wrote(table, 1, 0, 5, attempt="b2")]))  # a late driver's files
    assert offsets(tmp_path / "t") == [0, 1, 2, 3, 4]
    assert len(loaded(tmp_path / "t").snapshots()) == 1


def test_run_is_known_after_its_snapshot_expired(table: IcebergTable, tmp_path: Path) -> None:
    for run in (1, 2):
        table.commit(record(run, [wrote(table, run, run, run + 1)]))
    there = loaded(tmp_path / "t")
    there.maintenance.expire_snapshots().by_id(there.snapshots()[0].snapshot_id).commit()
    with there.transaction() as change:
        change.set_properties({"somebody": "else"})
    assert table.read_last_run() == 2
    table.commit(record(1, [wrote(table, 1, 1, 2, attempt="b2")]))
    assert offsets(tmp_path / "t") == [1, 2]


def test_uncommitted_files_are_not_read(table: IcebergTable, tmp_path: Path) -> None:
    lost = wrote(table, 1, 0, 5)
    assert (tmp_path / "t" / lost.path).is_file()
    assert table.files() == []
    table.commit(record(1, [wrote(table, 1, 0, 5, attempt="b2")]))
    assert offsets(tmp_path / "t") == [0, 1, 2, 3, 4]


def test_run_committed_out_of_order_is_refused(table: IcebergTable) -> None:
    with pytest.raises(CommitError, match=r"run 2 cannot be committed to .*the last one .* is 0"):
        table.commit(record(2, [wrote(table, 2, 5, 9)]))
    table.commit(record(1, []))
    table.commit(record(2, []))
    assert table.read_last_run() == 2
    table.commit(record(1, [wrote(table, 1, 0, 5)]))  # too late: done long ago
    assert table.files() == []


@pytest.mark.slow
def test_concurrent_drivers_commit_each_run_once(table: IcebergTable, tmp_path: Path) -> None:
    runs = [
        [record(run, [wrote(table, run, run, run + 1, attempt=attempt)]) for run in (1, 2)]
        for attempt in ("aa", "bb", "cc")
    ]

    def open_table() -> IcebergTable:
        mine = IcebergTable(job(tmp_path / "t", "iceberg"), open_place(str(tmp_path / "t")))
        mine.prepare(SCHEMA, ())
        return mine

    drive_at_once(open_table, runs)
    assert offsets(tmp_path / "t") == [1, 2]


def test_concurrent_table_creation(tmp_path: Path) -> None:
    at_once([lambda: table_at(tmp_path / "t")] * 3)
    assert loaded(tmp_path / "t").schema().column_names[:3] == ["_topic", "_partition", "_offset"]


def test_commit_with_lost_response_is_recognised(
    table: IcebergTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog has the commit, but we do not know: the run is found at the next check."""
    original = IcebergTable._commit

    def commit(self: IcebergTable, one: Any) -> None:
        before = self.read_last_run()
        original(self, one)
        if self.read_last_run() != before:
            raise Conflict("no answer")

    monkeypatch.setattr(IcebergTable, "_commit", commit)
    table.commit(record(1, [wrote(table, 1, 0, 2)]))
    assert offsets(tmp_path / "t") == [0, 1]


def test_concurrent_commit_of_same_run(
    table: IcebergTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver commits the same run between our check and our commit."""
    import pyiceberg.table as library

    original = library.Transaction.commit_transaction
    late = record(1, [wrote(table, 1, 0, 2, attempt="b2")])
    times: list[int] = []

    def commit_transaction(self: Any) -> Any:
        if not times:
            times.append(1)
            IcebergTable(job(tmp_path / "t", "iceberg"), table.place).commit(late)
        return original(self)

    monkeypatch.setattr(library.Transaction, "commit_transaction", commit_transaction)
    table.commit(record(1, [wrote(table, 1, 0, 2)]))
    assert [file.path for file in table.files()] == [late.files[0].path]
    assert offsets(tmp_path / "t") == [0, 1]


def test_commit_fails_after_repeated_conflicts(
    table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(*args: Any) -> None:
        raise Conflict("locked")

    monkeypatch.setattr(IcebergTable, "_commit", commit)
    monkeypatch.setattr(committing, "WAIT_S", 0.0)
    with pytest.raises(CommitError, match=r"run 1 cannot be settled with .* 20 times.*\(locked\)"):
        table.commit(record(1, []))


def test_partitions_and_statistics(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("city", pa.string())).append(pa.field("zip", pa.int32()))
    keys = {"partition_by": ["date(timestamp)", "city", "zip"]}
    day = job(tmp_path / "t", "iceberg", **keys).table.partition_by[0].name
    schema = schema.append(pa.field(day, pa.string()))
    table = table_at(tmp_path / "t", schema, **keys)
    first = ((day, "2024-10-04"), ("city", "a/b %2F=ü"), ("zip", "77"))
    second = ((day, "2024-10-05"), ("city", None), ("zip", None))
    own = pa.schema([field for field in schema if field.name != day])
    files = [
        wrote(table, 1, 0, 5, values=first, schema=own),
        wrote(table, 1, 5, 6, values=second, day=20_001),  # without its partition columns
    ]
    table.commit(record(1, files))
    assert sorted((file.path, file.values, file.base) for file in table.files()) == sorted(
        (file.path, file.values, file.base) for file in files
    )
    there = loaded(tmp_path / "t")
    rows = there.scan("_timestamp >= '2024-10-05T00:00:00+00:00'").to_arrow().to_pylist()
    assert [(row["_offset"], row["city"], row["zip"]) for row in rows] == [(5, None, None)]
    rows = there.scan("city = 'a/b %2F=ü'").to_arrow().to_pylist()
    assert {(row["city"], row["zip"]) for row in rows} == {("a/b %2F=ü", 77)}
    assert len(list(there.scan("_offset > 4").plan_files())) == 1
    assert len(list(there.scan("_timestamp < '2024-10-05T00:00:00+00:00'").plan_files())) == 1
    assert day not in there.schema().column_names
    with pytest.raises(CommitError, match="is of no city"):
        table.commit(record(2, [wrote(table, 2, 6, 7, values=first[:1])]))
    with pytest.raises(CommitError, match=f"is partitioned by {day}, city, zip"):
        table_at(tmp_path / "t", schema, partition_by="city")


def test_compaction_is_one_snapshot(table: IcebergTable, tmp_path: Path) -> None:
    files = [wrote(table, run, run * 5, run * 5 + 5) for run in (1, 2, 3)]
    for run, file in enumerate(files, 1):
        table.commit(record(run, [file]))
    merged = wrote(table, 1, 5, 15, kind="c")
    table.replace(files[:2], [merged], 1)
    table.replace(files[:2], [wrote(table, 1, 5, 15, kind="c", attempt="b2")], 1)
    assert table.read_last_replacement() == 1
    assert table.read_last_run() == 3
    assert offsets(tmp_path / "t") == list(range(5, 20))
    assert sorted(file.path for file in table.files()) == sorted([merged.path, files[2].path])
    with pytest.raises(CommitError, match="compaction 3 cannot be committed"):
        table.replace([merged], [], 3)


@pytest.mark.slow
def test_compaction_after_foreign_commit(table: IcebergTable, tmp_path: Path) -> None:
    files = [wrote(table, run, run * 5, run * 5 + 5) for run in (1, 2)]
    for run, file in enumerate(files, 1):
        table.commit(record(run, [file]))
    loaded(tmp_path / "t").overwrite(loaded(tmp_path / "t").scan().to_arrow())
    table.replace(files, [wrote(table, 1, 5, 15, kind="c")], 1)
    assert offsets(tmp_path / "t") == list(range(5, 15))
    assert table.read_last_replacement() == 1
    assert {(file.topic, file.partition) for file in table.files()} == {("", -1)}


def test_new_columns_including_nested_ones(table: IcebergTable, tmp_path: Path) -> None:
    table.commit(record(1, [wrote(table, 1, 0, 2)]))
    deep = pa.struct([*SCHEMA.field("deep").type, pa.field("c", pa.string())])
    wider = SCHEMA.set(SCHEMA.get_field_index("deep"), pa.field("deep", deep))
    wider = wider.append(pa.field("more", pa.float64()))
    table.prepare(wider, ())
    version = loaded(tmp_path / "t").metadata_location
    table.prepare(wider, ())
    assert loaded(tmp_path / "t").metadata_location == version
    table.commit(record(2, [wrote(table, 2, 2, 4, schema=wider)]))
    rows = loaded(tmp_path / "t").scan().to_arrow().sort_by("_offset").to_pylist()
    assert [row["more"] for row in rows] == [None, None, 1.0, 1.5]
    assert [row["deep"]["a"] for row in rows] == [0, 1, 2, 3]


def test_fields_of_files_have_ids_and_those_without_a_mapping(
    table: IcebergTable, tmp_path: Path
) -> None:
    schema = table.file_schema(SCHEMA)
    there = loaded(tmp_path / "t").schema()
    ids = {name: schema.field(name).metadata[b"PARQUET:field_id"] for name in schema.names}
    assert ids == {name: b"%d" % there.find_field(name).field_id for name in schema.names}
    deep = schema.field("deep").type.field("b").type.value_field
    assert deep.metadata[b"PARQUET:field_id"] == b"%d" % there.find_field("deep.b.element").field_id
    bare = lake.wrote(table.place, 1, 5, 7)
    table.commit(record(1, [wrote(table, 1, 0, 5), bare]))
    rows = loaded(tmp_path / "t").scan("_offset >= 4").to_arrow().sort_by("_offset").to_pylist()
    assert [row["deep"]["a"] for row in rows] == [4, 5, 6]


def test_missing_table(tmp_path: Path) -> None:
    table = IcebergTable(job(tmp_path / "t", "iceberg"), open_place(str(tmp_path / "t")))
    assert (table.read_last_run(), table.read_last_replacement(), table.files()) == (0, 0, [])
    assert not (tmp_path / "t").exists()
    with pytest.raises(CommitError, match=r"there is no Iceberg table kafkawire\.t"):
        table.commit(record(1, []))


def test_unusable_catalogs_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="catalog is missing: an Iceberg table in a bucket"):
        IcebergTable(job("s3://bucket/p", "iceberg"), open_place("s3://bucket/p"))
    wrong = {"type": "nonsense", "uri": "x"}
    table = IcebergTable(job(tmp_path, "iceberg", catalog=wrong), open_place(str(tmp_path)))
    with pytest.raises(CommitError, match="nonsense"):
        table.read_last_run()


def test_passwords_are_not_stored(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    said = {
        "type": "sql",
        "uri": "postgresql://me:hidden@host/db",
        "token": "hidden",
        "name": "a.b",
    }
    TableState(place).write_description(
        description(job(tmp_path, "iceberg", catalog=said), describe_schema(SCHEMA)), new=True
    )
    kept = (tmp_path / "_kafkawire" / "table.json").read_text()
    assert json.loads(kept)["catalog"] == {"type": "sql", "name": "a.b"}


def test_which_properties_are_secret() -> None:
    plain = {
        "uri": "https://me@lake:8181",
        "s3.secret-access-key": "${KEY}",
        "oauth2-server-uri": "https://lake/token",
        "name": "shop.orders",
        "auth": {"type": "oauth2"},
    }
    secret = {
        "uri2": "https://me:hidden@lake",
        "credential": "me:hidden",
        "s3.access-key-id": "hidden",
        "s3.session-token": "hidden",
        "header.Authorization": "hidden",
        "auth": {"type": "oauth2", "client_secret": "hidden"},
    }
    assert without_secrets(secret | plain) == plain
    assert without_secrets(plain | secret) == plain


@pytest.mark.real
def test_iceberg_table_in_bucket(tier_url: str, minio: Minio, tmp_path: Path) -> None:
    minio.client().create_bucket(Bucket=parse_tier(tier_url).bucket)
    uri = f"sqlite:///{tmp_path}/catalog.db"
    keys = {"catalog": {"type": "sql", "uri": uri, "name": "shop.orders"}}
    table = table_at(tier_url, **keys)
    table.commit(record(1, [wrote(table, 1, 0, 5)]))
    again = table_at(tier_url, **keys)
    again.commit(record(1, [wrote(table, 1, 0, 5, attempt="b2")]))
    again.commit(record(2, [wrote(table, 2, 5, 7)]))
    assert table.read_last_run() == 2
    own = {
        "s3.endpoint": minio.endpoint,
        "s3.access-key-id": USER,
        "s3.secret-access-key": SECRET,
        "s3.region": "us-east-1",
    }
    there = load_catalog("kafkawire", type="sql", uri=uri, **own).load_table("shop.orders")
    assert sorted(there.scan().to_arrow().column("_offset").to_pylist()) == list(range(7))
