"""Audits of tables of each format, written from a hand-built tier: gaps match the tier, and the
source itself is read where the accounts have no information."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafkawire.codec.batches import build
from kafkawire.reading.files.locations import FolderPlace
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import ABORTED, COMPACTED, CONTROL, DAMAGED, Source
from kafkawire_spark.audit.job import audit
from kafkawire_spark.audit.listing import AuditError, ListedTable
from kafkawire_spark.audit.scanning import ScanFinding
from kafkawire_spark.audit.verdict import MISSING, TableReport
from kafkawire_spark.pipeline.compaction import compact
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import DELTA, ICEBERG, PARQUET, from_dict
from tests.kit.minio import Minio
from tests.kit.spark.files import Files, Share, batch, batches, marker
from tests.kit.spark.inline import Inline, in_process

PRODUCER = 77
GAPS = {ABORTED: 5, CONTROL: 1, COMPACTED: 10}


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """orders-0: offsets 0..9 and 10..19 in batches, 20..24 aborted, 25 its marker, 26..35 compacted
    away, 36..45; orders-1: 0..29."""
    url = str(tmp_path_factory.mktemp("tier"))
    files = Files(open_place(url))
    first, second = files.topic("orders", 2)
    doomed = batch(20, 5, producer_id=PRODUCER, producer_epoch=0, attributes=0x10)
    some = [*batches(0, [10, 10]), doomed, marker(25, PRODUCER, commits=False)]
    aborted = [(PRODUCER, 20, 25)]
    files.put(1, Share(first, some, 0, 30, aborted), Share(second, batches(0, [30])))
    files.put(2, Share(first, batches(36, [10]), 30, 46))
    files.publish()
    return url


def job_of(tier: str, form: str, path: str, **table: Any) -> Any:
    made = from_dict(
        {
            "job": {"name": "orders"},
            "source": {"url": tier, "subscribe": "orders"},
            "table": {"format": form, "path": path, **table},
        }
    )
    return replace(made, running=replace(made.running, task_bytes=2000))


def report_of(path: Path, source: str = "") -> TableReport:
    return audit(str(path), in_process, Source(source) if source else None)[0]


@pytest.mark.parametrize(
    ("form", "by_date"), [(PARQUET, False), (PARQUET, True), (DELTA, True), (ICEBERG, False)]
)
def test_table_written_by_run_is_clean(tier: str, form: str, by_date: bool, tmp_path: Path) -> None:
    table = tmp_path / "table"
    more = {"partition_by": ["date(timestamp)"]} if by_date else {}
    Engine(job_of(tier, form, str(table), **more), Inline()).run()
    report = report_of(table, tier)
    assert list(report.sentences()) == []
    assert report.clean
    assert report.format == form
    first, second = report.partitions
    assert (first.rows, first.first, first.last, first.next) == (30, 0, 45, 46)
    assert first.gaps == GAPS
    assert (second.rows, second.gaps) == (30, {})
    assert first.source is not None
    assert (first.source.start, first.source.end) == (0, 46)


@pytest.mark.parametrize("form", [DELTA, ICEBERG])
def test_missing_file_is_found_in_every_format(tier: str, form: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    Engine(job_of(tier, form, str(table)), Inline()).run()
    next(file for file in table.rglob("*-p00001-*.parquet")).unlink()
    report = report_of(table, tier)
    assert [problem.kind for problem in report.problems] == ["missing file"]
    assert report.partitions[0].clean
    assert [problem.kind for problem in report.partitions[1].all_problems()] == [MISSING]


@pytest.mark.parametrize("form", [PARQUET, ICEBERG])
def test_gaps_without_accounts_are_explained_by_source(
    tier: str, form: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    Engine(job_of(tier, form, str(table)), Inline()).run()
    shutil.rmtree(table / "_kafkawire")
    assert report_of(table).partitions[0].found["unexplained"].offsets == 16
    report = report_of(table, tier)
    assert report.clean
    assert report.partitions[0].gaps == GAPS


def test_foreign_delta_table_is_read_by_its_log(tier: str, tmp_path: Path) -> None:
    rows = pa.table({"partition": pa.array([0] * 3, pa.int32()), "offset": [4, 5, 6]})
    table = tmp_path / "table"
    deltalake.write_deltalake(str(table), rows)
    deltalake.write_deltalake(str(table), rows.slice(0, 1), mode="append")
    pq.write_table(rows, table / "nobody.parquet")
    report = report_of(table)
    assert list(report.sentences()) == ["-0: 1 offset more than once: 4"]
    deltalake.write_deltalake(str(table), rows, mode="overwrite")
    assert report_of(table).clean


def test_compacted_table_is_clean(tier: str, tmp_path: Path) -> None:
    for form in (PARQUET, DELTA):
        table = tmp_path / form
        engine = Engine(job_of(tier, form, str(table)), Inline())
        engine.run()
        before = report_of(table).files
        compact(engine.table, engine.state, Inline(), engine.encoding(), 1 << 20, print)
        report = report_of(table, tier)
        assert list(report.sentences()) == []
        assert report.files < before


def test_dead_letters_and_damage_are_accounted(tier: str, tmp_path: Path) -> None:
    """Every second value is not Avro, and a segment is damaged: all of it is reported, nothing is
    lost."""
    url = str(tmp_path / "tier")
    files = Files(open_place(url))
    (number,) = files.topic("orders")
    pairs = [(None, b"\4ab" if n % 2 else b"no Avro") for n in range(20)]
    for base in (0, 20, 40):
        data = build(pairs, base_offset=base, timestamp_ms=1_700_000_000_000)
        key = files.put(1 + base, Share(number, [bytes(data)]))
        if base == 20:
            path = Path(url) / key
            broken = bytearray(path.read_bytes())
            broken[broken.index(data) + 100] ^= 1
            path.write_bytes(broken)
    files.publish()
    table = tmp_path / "table"
    schema = '{"type": "record", "name": "r", "fields": [{"name": "s", "type": "string"}]}'
    job = from_dict(
        {
            "job": {"name": "orders"},
            "source": {"url": url, "subscribe": "orders"},
            "value": {"format": "avro", "schema": schema},
            "table": {"path": str(table)},
            "dead_letter": {"path": str(tmp_path / "dead")},
            "run": {"on_damage": "dead_letter"},
        }
    )
    Engine(job, Inline()).run()
    report = report_of(table, url)
    assert list(report.sentences()) == []
    (only,) = report.partitions
    assert only.gaps == {DAMAGED: 20}
    assert (only.rows, only.dead) == (20, 20)


class Killed(BaseException):
    """The process was ended here."""


@pytest.mark.slow
@pytest.mark.parametrize("form", [PARQUET, DELTA])
def test_table_is_clean_after_killed_and_repeated_run(
    tier: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = FolderPlace.put
    for fatal in range(1, 60, 2):
        calls = 0
        before = fatal % 4 == 1

        def dying(place: FolderPlace, key: str, data: bytes, *, if_absent: bool = False) -> None:
            nonlocal calls
            calls += 1
            if calls == fatal and before:  # noqa: B023 (called in this round alone)
                raise Killed
            put(place, key, data, if_absent=if_absent)
            if calls == fatal:  # noqa: B023
                raise Killed

        table = tmp_path / f"table-{fatal}"
        monkeypatch.setattr(FolderPlace, "put", dying)
        with contextlib.suppress(Killed):
            Engine(job_of(tier, form, str(table)), Inline()).run()
        killed = calls == fatal
        monkeypatch.setattr(FolderPlace, "put", put)
        Engine(job_of(tier, form, str(table)), Inline()).run()
        report = report_of(table, tier)
        assert list(report.sentences()) == []
        assert report.rows == 60
        if not killed:
            break
    assert fatal > 5


def test_audit_concurrent_with_compaction_is_reported(tier: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    engine = Engine(job_of(tier, PARQUET, str(table)), Inline())
    engine.run()

    def through(listed: ListedTable) -> list[ScanFinding]:
        compact(engine.table, engine.state, Inline(), engine.encoding(), 1 << 20, print)
        return list(in_process(listed))

    with pytest.raises(AuditError, match="was compacted while it was read"):
        audit(str(table), through)
    assert report_of(table).clean


@pytest.mark.real
@pytest.mark.parametrize("form", [PARQUET, DELTA, ICEBERG])
def test_table_in_bucket(tier: str, form: str, minio: Minio, tier_url: str, tmp_path: Path) -> None:
    bucket, _, prefix = tier_url.removeprefix("s3://").partition("/")
    client = minio.client()
    client.create_bucket(Bucket=bucket)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    more = {"catalog": catalog} if form == ICEBERG else {}
    Engine(job_of(tier, form, tier_url, **more), Inline()).run()
    report = audit(tier_url, in_process)[0]
    assert list(report.sentences()) == []
    assert report.rows == 60
    keys = client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    victim = next(each["Key"] for each in keys if "-p00001-" in each["Key"])
    client.delete_object(Bucket=bucket, Key=victim)
    report = audit(tier_url, in_process)[0]
    assert [problem.kind for problem in report.problems] == ["missing file"]
    for each in keys:
        if "_kafkawire/" in each["Key"]:
            client.delete_object(Bucket=bucket, Key=each["Key"])
    if form != PARQUET:  # there the log still has the file, in a folder it does not
        assert [p.kind for p in audit(tier_url, in_process)[0].problems] == ["missing file"]
