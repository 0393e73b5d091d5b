"""A job refuses what no job made, changes nothing there, and adopts it if its file says so.

Covers: kafkawire_spark.pipeline.tables.parquet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, S3FileSystem
from pyiceberg.catalog import Catalog, load_catalog

from kafkawire.objectstore.url import parse_tier
from kafkawire.reading.files.open import open_place
from kafkawire_spark.audit.job import audit
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import Job, parse
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.preflight import check_job
from kafkawire_spark.replay.job import open_rows
from kafkawire_spark.replay.rows import RowFile, WantedRows, read
from tests.kit.minio import SECRET, USER, Minio
from tests.kit.spark.inline import Inline, in_process
from tests.kit.spark.pipeline_topics import Tier, job_text

ROWS = pa.table({"a": pa.array([1, 2], pa.int64())})
FORMATS = ("parquet", "delta", pytest.param("iceberg", marks=pytest.mark.slow))


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    made = Tier(open_place(str(tmp_path / "tier")))
    made.grow(30)
    return made


def catalog_of(folder: Path, **properties: str) -> Catalog:
    uri = f"sqlite:///{folder}/catalog.db"
    return load_catalog("kafkawire", type="sql", uri=uri, **properties)


def job(tier: Tier, folder: Path, format: str, **table: Any) -> Job:
    text = job_text(tier.files.place.url, folder / "table", table={"format": format, **table})
    if format == "iceberg":
        text += f'\n[table.catalog]\ntype = "sql"\nuri = "sqlite:///{folder}/catalog.db"\n'
        text += 'name = "shop.orders"\n'
    return parse(text)


def make_parquet(folder: Path, rows: pa.Table = ROWS, partition_by: str = "") -> None:
    (folder / "table" / "of").mkdir(parents=True)
    pq.write_table(rows, folder / "table" / "of" / "others.parquet")


def make_delta(folder: Path, rows: pa.Table = ROWS, partition_by: str = "") -> None:
    by = [partition_by] if partition_by else None
    deltalake.write_deltalake(folder / "table", rows, partition_by=by)


def make_iceberg(folder: Path, rows: pa.Table = ROWS, partition_by: str = "") -> None:
    catalog = catalog_of(folder)
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", rows.schema, f"file://{folder}/table")
    if partition_by:
        with table.update_spec() as spec:
            spec.add_identity(partition_by)
    table.append(rows)
    catalog.close()


MAKE: dict[str, Callable[..., None]] = {
    "parquet": make_parquet,
    "delta": make_delta,
    "iceberg": make_iceberg,
}


def content(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".db"
    }


def rows(folder: Path, format: str) -> pa.Table:
    """The table, as a reader of the format sees it."""
    if format == "delta":
        return deltalake.DeltaTable(folder / "table").to_pyarrow_table()
    if format == "iceberg":
        catalog = catalog_of(folder)
        found = catalog.load_table("shop.orders").scan().to_arrow()
        catalog.close()
        return found
    paths = [
        path for path in (folder / "table").rglob("*.parquet") if "_kafkawire" not in str(path)
    ]
    tables = [pq.read_table(path, partitioning=None) for path in paths]
    return pa.concat_tables(tables, promote_options="default")


@pytest.mark.parametrize("made_as", MAKE)
@pytest.mark.parametrize("format", FORMATS)
def test_table_of_another_program_is_refused_unchanged(
    tier: Tier, tmp_path: Path, format: str, made_as: str
) -> None:
    """Also a folder with a table of another format."""
    MAKE[made_as](tmp_path)
    before = content(tmp_path)
    wanted = job(tier, tmp_path, format)
    for act in (lambda: check_job(wanted), Engine(wanted, Inline()).run):
        with pytest.raises(JobError, match=r"that no job made.* adopt = true"):
            act()
    assert content(tmp_path) == before


def test_catalog_entry_without_files_is_refused(tier: Tier, tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", ROWS.schema, f"file://{tmp_path}/table")
    catalog.close()
    with pytest.raises(JobError, match="has a table of the format iceberg that no job made"):
        check_job(job(tier, tmp_path, "iceberg"))


@pytest.mark.parametrize("format", FORMATS)
def test_adopted_table_has_the_rows_of_both(tier: Tier, tmp_path: Path, format: str) -> None:
    MAKE[format](tmp_path)
    wanted = job(tier, tmp_path, format, adopt=True, file_bytes=1 << 16)
    check_job(wanted)
    for _ in range(3):
        Engine(wanted, Inline()).run()
        tier.grow(10)
    Engine(replace(wanted, table=replace(wanted.table, adopt=False)), Inline()).run()
    Engine(wanted, Inline()).compact()
    check_rows_of_both(rows(tmp_path, format), tier)


def check_rows_of_both(found: pa.Table, tier: Tier) -> None:
    theirs = [a for a in found["a"].to_pylist() if a is not None]
    ours = zip(found["_partition"].to_pylist(), found["_offset"].to_pylist(), strict=True)
    assert sorted(theirs) == [1, 2]
    assert sorted(pair for pair in ours if pair[1] is not None) == sorted(tier.offsets())


def append(folder: Path, format: str, rows: pa.Table, name: str) -> None:
    """As another program does."""
    if format == "delta":
        deltalake.write_deltalake(folder / "table", rows, mode="append", schema_mode="merge")
    elif format == "iceberg":
        catalog = catalog_of(folder)
        catalog.load_table("shop.orders").append(rows)
        catalog.close()
    else:
        pq.write_table(rows, folder / "table" / name)


@pytest.mark.parametrize("format", FORMATS)
def test_audit_of_adopted_table_checks_the_rows_of_the_job(
    tier: Tier, tmp_path: Path, format: str
) -> None:
    """Rows of others have no offset: a note. Those with an offset are checked, also if a
    program copied them."""
    MAKE[format](tmp_path)
    wanted = job(tier, tmp_path, format, adopt=True)
    Engine(wanted, Inline()).run()
    append(tmp_path, format, ROWS, "more.parquet")
    tier.grow(10)
    Engine(wanted, Inline()).run()
    report, _ = audit(str(tmp_path / "table"), in_process)
    assert (list(report.sentences()), report.rows) == ([], sum(tier.ends))
    (note,) = report.notes
    assert note.startswith("2 files (")
    assert "with 4 rows of other programs, without an offset, in the adopted table" in note
    mixed = rows(tmp_path, format)  # in one file, as after a compaction by another program
    append(tmp_path, format, mixed, "mixed.parquet")
    report, _ = audit(str(tmp_path / "table"), in_process)
    assert {problem.kind for each in report.partitions for problem in each.all_problems()} == {
        "duplicate"
    }
    assert report.notes[0].startswith("3 files (")
    assert "with 8 rows" in report.notes[0]


def test_adopted_table_is_replayed_without_rows_of_others(tier: Tier, tmp_path: Path) -> None:
    make_delta(tmp_path)
    Engine(job(tier, tmp_path, "delta", adopt=True), Inline()).run()
    opened = open_rows(str(tmp_path / "table"), "")
    assert "rows of other programs in the adopted table" in opened.notes[0]
    files = [RowFile(file.path, 0, tier.ends[0]) for file in opened.files]
    found = read(opened.place, files, WantedRows(0, 0, tier.ends[0]), ["_offset"])
    offsets = [offset for batch in found for offset in batch["_offset"].to_pylist()]
    assert offsets == list(range(tier.ends[0]))


class Others:
    """Other programs with a table in a bucket."""

    def __init__(self, url: str, minio: Minio, folder: Path, format: str) -> None:
        self.url, self.format = url, format
        self._bucket, self._minio, self._folder = parse_tier(url).bucket, minio, folder
        minio.client().create_bucket(Bucket=self._bucket)

    def _catalog(self) -> Catalog:
        s3 = {"endpoint": self._minio.endpoint, "access-key-id": USER, "secret-access-key": SECRET}
        return catalog_of(self._folder, **{f"s3.{name}": value for name, value in s3.items()})

    def _delta(self) -> dict[str, str]:
        return {"aws_endpoint": self._minio.endpoint, "aws_allow_http": "true",
                "aws_conditional_put": "etag"}  # fmt: skip

    def make(self) -> None:
        if self.format == "delta":
            deltalake.write_deltalake(self.url, ROWS, storage_options=self._delta())
        elif self.format == "iceberg":
            catalog = self._catalog()
            catalog.create_namespace("shop")
            catalog.create_table("shop.orders", ROWS.schema, self.url).append(ROWS)
        else:
            pq.write_table(ROWS, f"{self.url.removeprefix('s3://')}/x.parquet", filesystem=self._s3)

    @cached_property
    def _s3(self) -> S3FileSystem:
        server = self._minio.endpoint
        return S3FileSystem(access_key=USER, secret_key=SECRET, endpoint_override=server)

    def names(self) -> list[str]:
        found = self._s3.get_file_info(FileSelector(self._bucket, recursive=True))
        return sorted(each.path for each in found)

    def rows(self) -> pa.Table:
        if self.format == "delta":
            table = deltalake.DeltaTable(self.url, storage_options=self._delta())
            return table.to_pyarrow_table()
        if self.format == "iceberg":
            return self._catalog().load_table("shop.orders").scan().to_arrow()
        paths = [name for name in self.names() if name.endswith(".parquet")]
        tables = [pq.read_table(path, filesystem=self._s3, partitioning=None) for path in paths]
        return pa.concat_tables(tables, promote_options="default")


@pytest.mark.real
@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_table_in_a_bucket_is_refused_unless_adopted(
    tier: Tier, tmp_path: Path, tier_url: str, minio: Minio, format: str
) -> None:
    others = Others(f"{tier_url}/table", minio, tmp_path, format)
    others.make()
    before = others.names()
    with pytest.raises(JobError, match=f"^{others.url} has .* that no job made.* adopt = true"):
        check_job(job(tier, tmp_path, format, path=others.url))
    assert others.names() == before
    wanted = job(tier, tmp_path, format, path=others.url, adopt=True)
    check_job(wanted)
    for _ in range(3):
        Engine(wanted, Inline()).run()
        tier.grow(10)
    Engine(wanted, Inline()).run()
    Engine(wanted, Inline()).compact()
    check_rows_of_both(others.rows(), tier)
    report, _ = audit(others.url, in_process)
    assert (list(report.sentences()), report.rows) == ([], sum(tier.ends))
    assert "with 2 rows of other programs" in report.notes[-1]


@pytest.mark.parametrize(
    ("made", "partition_by", "reason"),
    [
        ({"_offset": pa.array(["1"])}, "", "_offset"),
        ({"a": pa.array([1]), "b": pa.array([1])}, "a", "partitioned by a"),
        (pa.table({"a": [1]}, pa.schema([pa.field("a", pa.int64(), nullable=False)])), "", "a "),
    ],
)
@pytest.mark.parametrize("format", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_table_whose_columns_do_not_fit_is_not_adopted(
    tier: Tier, tmp_path: Path, format: str, made: Any, partition_by: str, reason: str
) -> None:
    MAKE[format](tmp_path, made if isinstance(made, pa.Table) else pa.table(made), partition_by)
    before = content(tmp_path)
    wanted = job(tier, tmp_path, format, adopt=True)
    for act in (lambda: check_job(wanted), Engine(wanted, Inline()).run):
        with pytest.raises(JobError, match=f"cannot be adopted: .*{reason}"):
            act()
    assert content(tmp_path) == before


def test_delta_table_with_features_is_not_adopted(tier: Tier, tmp_path: Path) -> None:
    make_delta(tmp_path)
    deltalake.DeltaTable(tmp_path / "table").alter.add_constraint({"positive": "a > 0"})
    with pytest.raises(JobError, match=r"it has .* of Delta's writer version"):
        check_job(job(tier, tmp_path, "delta", adopt=True))


def test_files_of_a_lost_job_are_not_adopted(tier: Tier, tmp_path: Path) -> None:
    wanted = job(tier, tmp_path, "parquet", adopt=True)
    Engine(wanted, Inline()).run()
    for path in (tmp_path / "table" / "_kafkawire").rglob("*.json"):
        path.unlink()
    with pytest.raises(JobError, match="a file of a job whose folder _kafkawire/ was deleted"):
        Engine(wanted, Inline()).run()
