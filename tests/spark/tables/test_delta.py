"""Delta tables: each run is committed once, and independent readers agree on the content."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from kafkawire.objectstore.url import parse_tier
from kafkawire.reading.files.open import open_place
from kafkawire_spark.pipeline.tables import commit as committing
from kafkawire_spark.pipeline.tables.commit import CommitError
from kafkawire_spark.pipeline.tables.delta import DeltaTable
from tests.kit.minio import Minio
from tests.kit.spark.lake import SCHEMA, drive_at_once, job, record, wrote


def table_at(path: Path | str, **keys: Any) -> DeltaTable:
    table = DeltaTable(job(path, "delta", **keys), open_place(str(path)))
    table.prepare(SCHEMA, ())
    return table


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return table_at(tmp_path / "t")


def offsets(path: Path | str, options: dict[str, str] | None = None) -> list[int]:
    """The offsets that delta-rs' own scan finds."""
    found = deltalake.DeltaTable(str(path), storage_options=options)
    return sorted(found.to_pyarrow_table(columns=["_offset"]).column(0).to_pylist())


def test_runs_are_committed_with_their_offsets(table: DeltaTable, tmp_path: Path) -> None:
    assert table.read_last_run() == 0
    table.commit(record(1, [wrote(table.place, 1, 0, 5), wrote(table.place, 1, 0, 3, partition=1)]))
    table.commit(record(2, [wrote(table.place, 2, 5, 9)]))
    assert table.read_last_run() == 2
    assert offsets(tmp_path / "t") == [0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8]
    newest, before, _ = deltalake.DeltaTable(tmp_path / "t").history(3)
    assert json.loads(newest["kafkawire.offsets"]) == {"orders": {"0": [5, 9]}}
    assert json.loads(before["kafkawire.offsets"]) == {"orders": {"0": [0, 5], "1": [0, 3]}}
    assert newest["kafkawire.record"] == "_kafkawire/commits/00000000000000000002.json"
    assert newest["kafkawire.run"] == "2"


def test_repeated_commit_of_run_is_ignored(table: DeltaTable, tmp_path: Path) -> None:
    first = record(1, [wrote(table.place, 1, 0, 5)])
    table.commit(first)
    table.commit(first)
    other = DeltaTable(job(tmp_path / "t", "delta"), open_place(str(tmp_path / "t")))
    other.commit(record(1, [wrote(table.place, 1, 0, 5, attempt="b2")]))  # a late driver's files
    assert offsets(tmp_path / "t") == [0, 1, 2, 3, 4]
    assert deltalake.DeltaTable(tmp_path / "t").version() == 1


def test_uncommitted_files_are_not_read(table: DeltaTable, tmp_path: Path) -> None:
    lost = wrote(table.place, 1, 0, 5)
    assert (tmp_path / "t" / lost.path).is_file()
    assert offsets(tmp_path / "t") == []
    assert table.files() == []
    table.commit(record(1, [wrote(table.place, 1, 0, 5, attempt="b2")]))
    assert offsets(tmp_path / "t") == [0, 1, 2, 3, 4]


def test_run_committed_out_of_order_is_refused(table: DeltaTable) -> None:
    with pytest.raises(CommitError, match=r"run 2 cannot be committed to .*the last one .* is 0"):
        table.commit(record(2, [wrote(table.place, 2, 5, 9)]))
    table.commit(record(1, []))
    table.commit(record(2, []))
    assert table.read_last_run() == 2
    table.commit(record(1, [wrote(table.place, 1, 0, 5)]))  # too late: done long ago
    assert table.files() == []


def test_concurrent_drivers_commit_each_run_once(table: DeltaTable, tmp_path: Path) -> None:
    race(table, str(tmp_path / "t"))
    assert offsets(tmp_path / "t") == [1, 2, 3]


def race(table: DeltaTable, url: str) -> None:
    """Let three drivers commit the same three runs at the same time, each with files of its own."""
    runs = [
        [record(run, [wrote(table.place, run, run, run + 1, attempt=attempt)]) for run in (1, 2, 3)]
        for attempt in ("aa", "bb", "cc")
    ]
    drive_at_once(lambda: DeltaTable(job(url, "delta"), open_place(url)), runs)


def test_concurrent_foreign_commit(
    table: DeltaTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our check and our commit, which checks again."""
    original = DeltaTable._write
    times: list[int] = []

    def write(self: DeltaTable, *args: Any) -> None:
        if not times:
            times.append(1)
            rows = pa.table({"_offset": [100]}, schema=pa.schema([SCHEMA.field("_offset")]))
            deltalake.write_deltalake(tmp_path / "t", rows, mode="append", schema_mode="merge")
        original(self, *args)

    monkeypatch.setattr(DeltaTable, "_write", write)
    table.commit(record(1, [wrote(table.place, 1, 0, 2)]))
    assert offsets(tmp_path / "t") == [0, 1, 100]
    theirs = [file for file in table.files() if file.partition == -1]
    assert [(file.topic, file.rows) for file in theirs] == [("", 1)]


def test_commit_fails_after_repeated_conflicts(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*args: Any) -> None:
        raise committing.Conflict

    monkeypatch.setattr(DeltaTable, "_write", write)
    monkeypatch.setattr(committing, "WAIT_S", 0.0)
    with pytest.raises(CommitError, match=r"run 1 cannot be settled with .* 20 times"):
        table.commit(record(1, []))


def test_listed_files_match_commits(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("city", pa.string()))
    table = DeltaTable(job(tmp_path, "delta", partition_by="city"), open_place(str(tmp_path)))
    table.prepare(schema, ("city",))
    odd = wrote(table.place, 1, 0, 5, values=(("city", "a/b %2F=ü"),))
    none = wrote(table.place, 1, 5, 6, values=(("city", None),))
    table.commit(record(1, [odd, none]))
    plain = [
        (file.path, file.rows, file.size_bytes, file.base, file.end, file.values, file.run)
        for file in sorted(table.files(), key=lambda file: file.base)
    ]
    assert plain == [
        (file.path, file.rows, file.size_bytes, file.base, file.end, file.values, file.run)
        for file in (odd, none)
    ]
    found = deltalake.DeltaTable(tmp_path).to_pyarrow_table(columns=["city", "_offset"])
    assert set(found.column("city").to_pylist()) == {"a/b %2F=ü", None}
    # Readers leave out files by their statistics.
    cut = deltalake.DeltaTable(tmp_path).get_add_actions(flatten=True)
    assert sorted(pa.table(cut).column("max._offset").to_pylist()) == [4, 5]


def test_compaction_is_one_commit(table: DeltaTable, tmp_path: Path) -> None:
    files = [wrote(table.place, run, run * 5, run * 5 + 5) for run in (1, 2)]
    for run, file in enumerate(files, 1):
        table.commit(record(run, [file]))
    merged = wrote(table.place, 1, 5, 15, kind="c")
    table.replace(files, [merged], 1)
    table.replace(files, [wrote(table.place, 1, 5, 15, kind="c", attempt="b2")], 1)
    assert table.read_last_replacement() == 1
    assert table.read_last_run() == 2
    assert offsets(tmp_path / "t") == list(range(5, 15))
    assert [file.path for file in table.files()] == [merged.path]
    log = sorted((tmp_path / "t" / "_delta_log").glob("*.json"))[-1].read_text()
    changes = [json.loads(line) for line in log.splitlines()]
    assert [one["remove"]["dataChange"] for one in changes if "remove" in one] == [False, False]
    assert [one["add"]["dataChange"] for one in changes if "add" in one] == [False]
    with pytest.raises(CommitError, match="compaction 3 cannot be committed"):
        table.replace([merged], [], 3)


def test_compaction_after_foreign_commit(table: DeltaTable, tmp_path: Path) -> None:
    files = [wrote(table.place, run, run * 5, run * 5 + 5) for run in (1, 2)]
    for run, file in enumerate(files, 1):
        table.commit(record(run, [file]))
    deltalake.DeltaTable(tmp_path / "t").optimize.compact()
    table.replace(files, [wrote(table.place, 1, 5, 15, kind="c")], 1)
    assert offsets(tmp_path / "t") == list(range(5, 15))
    assert table.read_last_replacement() == 1


def test_new_columns_including_nested_ones(table: DeltaTable, tmp_path: Path) -> None:
    table.commit(record(1, [wrote(table.place, 1, 0, 2)]))
    deep = pa.struct([*SCHEMA.field("deep").type, pa.field("c", pa.string())])
    wider = SCHEMA.set(SCHEMA.get_field_index("deep"), pa.field("deep", deep))
    wider = wider.append(pa.field("more", pa.float64()))
    table.prepare(wider, ())
    version = deltalake.DeltaTable(tmp_path / "t").version()
    table.prepare(wider, ())
    assert deltalake.DeltaTable(tmp_path / "t").version() == version
    table.commit(record(2, [wrote(table.place, 2, 2, 4, schema=wider)]))
    rows = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().sort_by("_offset").to_pylist()
    assert [row["more"] for row in rows] == [None, None, 1.0, 1.5]
    assert [row["deep"]["a"] for row in rows] == [0, 1, 2, 3]


def test_runs_are_known_from_a_checkpoint(table: DeltaTable, tmp_path: Path) -> None:
    """The log before it is deleted after some time, like in every Delta table."""
    for run in (1, 2, 3):
        table.commit(record(run, [wrote(table.place, run, run, run + 1)]))
    deltalake.DeltaTable(tmp_path / "t").create_checkpoint()
    for path in (tmp_path / "t" / "_delta_log").glob("*.json"):
        if not path.name.startswith(f"{3:020}"):
            path.unlink()
    assert table.read_last_run() == 3
    table.commit(record(3, [wrote(table.place, 3, 3, 4, attempt="b2")]))
    table.commit(record(4, [wrote(table.place, 4, 4, 5)]))
    assert offsets(tmp_path / "t") == [1, 2, 3, 4]


def test_missing_table(tmp_path: Path) -> None:
    table = DeltaTable(job(tmp_path, "delta"), open_place(str(tmp_path)))
    assert (table.read_last_run(), table.read_last_replacement(), table.files()) == (0, 0, [])
    with pytest.raises(CommitError, match="there is no Delta table at"):
        table.commit(record(1, []))


def test_damaged_log_is_reported(table: DeltaTable, tmp_path: Path) -> None:
    (tmp_path / "t" / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(CommitError, match="cannot be read"):
        table.read_last_run()


@pytest.mark.real
def test_delta_table_in_bucket(tier_url: str, minio: Minio) -> None:
    minio.client().create_bucket(Bucket=parse_tier(tier_url).bucket)
    table = table_at(tier_url)
    table.commit(record(1, [wrote(table.place, 1, 0, 5)]))
    again = DeltaTable(job(tier_url, "delta"), open_place(tier_url))
    again.commit(record(1, [wrote(table.place, 1, 0, 5, attempt="b2")]))
    again.commit(record(2, [wrote(table.place, 2, 5, 7)]))
    assert table.read_last_run() == 2
    options = {"aws_allow_http": "true", "aws_endpoint": os.environ["AWS_ENDPOINT_URL"]}
    assert offsets(tier_url, options) == list(range(7))
    race(table_at(f"{tier_url}2"), f"{tier_url}2")
    assert offsets(f"{tier_url}2", options) == [1, 2, 3]
