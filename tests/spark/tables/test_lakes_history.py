"""Old snapshots of Iceberg and Delta tables: expired when the job configures it, with the files
that only they had, and never with a row, or with the record of which runs are in the table.

Covers: kafkawire_spark.pipeline.tables.iceberg.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as Loaded

from kafkawire.reading.files.locations import FolderPlace
from kafkawire.reading.files.open import open_place
from kafkawire_spark.pipeline import engine
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import FileFacts, TableState
from kafkawire_spark.pipeline.tables import delta
from kafkawire_spark.pipeline.tables.delta import DeltaTable
from kafkawire_spark.pipeline.tables.iceberg import IcebergTable
from tests.kit.spark import lake
from tests.kit.spark.inline import Inline
from tests.kit.spark.lake import SCHEMA, job, record
from tests.kit.spark.pipelines import Killed, World
from tests.kit.spark.pipelines import job as world_job

HOUR_MS = 3_600_000


def iceberg(path: Path, **keys: Any) -> IcebergTable:
    """Three runs of five rows, of which the first two are merged."""
    table = IcebergTable(job(path, "iceberg", **keys), open_place(str(path)))
    table.prepare(SCHEMA, ())
    files = [wrote(table, run, 5 * run, 5 * run + 5) for run in range(3)]
    for run, file in enumerate(files, 1):
        table.commit(record(run, [file]))
    table.replace(files[:2], [wrote(table, 1, 0, 10, kind="c")], 1)
    return table


def wrote(table: IcebergTable, *args: Any, **more: Any) -> FileFacts:
    return lake.wrote(table.place, *args, schema=table.file_schema(SCHEMA), **more)


def loaded(table: IcebergTable) -> Loaded:
    uri = f"sqlite:///{table.place.tier.folder}/_kafkawire/catalog.db"
    return load_catalog("kafkawire", type="sql", uri=uri).load_table("kafkawire.t")


def offsets(found: Any) -> list[int]:
    return sorted(found.column("_offset").to_pylist())


def files(root: Path) -> set[str]:
    """Data files, manifests and manifest lists on the disk."""
    there = [*root.rglob("*.parquet"), *root.rglob("*.avro")]
    return {str(path.relative_to(root)) for path in there}


def referred(table: IcebergTable) -> set[str]:
    """Those that a snapshot of the table refers to."""
    there, found = loaded(table), set()
    for snapshot in there.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(there.io):
            found.add(manifest.manifest_path)
            found |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(there.io)}
    return {path.removeprefix(f"{there.location()}/") for path in found}


def check(table: IcebergTable) -> None:
    assert offsets(loaded(table).scan().to_arrow()) == list(range(15))
    assert (table.read_last_run(), table.read_last_replacement()) == (3, 1)


def test_snapshots_expire_with_their_own_files(tmp_path: Path) -> None:
    table = iceberg(tmp_path / "t", history="1 ms")
    before = files(tmp_path / "t")
    assert table.tidy() == 2 + 3 + 2  # merged files, lists, manifests: run 3 has its own still
    assert len(loaded(table).snapshots()) == 1
    assert files(tmp_path / "t") == referred(table)
    assert len(before - files(tmp_path / "t")) == 7
    check(table)
    assert table.tidy() == 0
    table.commit(record(2, [wrote(table, 2, 5, 10, attempt="b2")]))  # a late driver's
    check(table)
    table.commit(record(4, [wrote(table, 4, 15, 16)]))
    assert table.read_last_run() == 4


@pytest.mark.slow
def test_young_snapshots_are_kept(tmp_path: Path) -> None:
    table = iceberg(tmp_path / "t", history="1 h")
    before = files(tmp_path / "t")
    assert table.tidy() == 0
    assert files(tmp_path / "t") == before == referred(table)
    assert len(loaded(table).snapshots()) == 4


@pytest.mark.slow
def test_tagged_snapshots_and_opted_out_tables_are_kept(tmp_path: Path) -> None:
    table = iceberg(tmp_path / "t", history="1 ms")
    there = loaded(table)
    first, second, *_ = (one.snapshot_id for one in there.snapshots())
    there.manage_snapshots().create_tag(second, "of-friday").commit()
    with loaded(table).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    assert table.tidy() == 0
    with loaded(table).transaction() as change:
        change.set_properties({"gc.enabled": "true"})
    assert table.tidy() > 0
    ids = [one.snapshot_id for one in loaded(table).snapshots()]
    assert first not in ids
    assert len(ids) == 2
    assert offsets(loaded(table).scan(snapshot_id=second).to_arrow()) == list(range(10))
    assert files(tmp_path / "t") == referred(table)
    check(table)


@pytest.mark.slow
def test_manifests_are_merged_and_data_files_kept(tmp_path: Path) -> None:
    """Otherwise each run leaves one for ever; and a merged one had files that the new one has."""
    table = iceberg(tmp_path / "t", history="1 ms")
    with loaded(table).transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "3"})
    for run in range(4, 12):
        table.commit(record(run, [wrote(table, run, 5 * run - 5, 5 * run)]))
    there = loaded(table)
    snapshot = there.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(there.io)) <= 3
    assert (
        "commit.manifest-merge.enabled" not in there.properties
    )  # of the table: not decided by us
    before = files(tmp_path / "t")
    assert table.tidy() > 0
    assert referred(table) <= files(tmp_path / "t")
    gone = before - files(tmp_path / "t")
    assert sum(path.endswith(".parquet") for path in gone) == 2  # those of the compaction
    assert offsets(loaded(table).scan().to_arrow()) == list(range(55))
    assert len(table.files()) == 10


class Ending(FolderPlace):
    """A folder that ends the process when it is to delete."""

    def delete(self, keys: Iterable[str]) -> None:
        raise Killed


@pytest.mark.slow
def test_interrupted_after_snapshots_expired(tmp_path: Path) -> None:
    table = iceberg(tmp_path / "t", history="1 ms")
    place, table.place = table.place, Ending(table.place.tier)
    with pytest.raises(Killed):
        table.tidy()
    assert len(loaded(table).snapshots()) == 1
    assert files(tmp_path / "t") > referred(table)
    table.place = place
    assert table.tidy() == 7
    assert files(tmp_path / "t") == referred(table)
    assert TableState(place).expiry() is None
    check(table)


@pytest.mark.slow
def test_interrupted_before_snapshots_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noted files are still in use: none of them is deleted."""
    table = iceberg(tmp_path / "t", history="1 ms")
    with monkeypatch.context() as patch:
        patch.setattr("pyiceberg.table.update.snapshot.ExpireSnapshots.commit", killed)
        with pytest.raises(Killed):
            table.tidy()
    noted = TableState(table.place).expiry()
    assert noted is not None
    later = IcebergTable(job(tmp_path / "t", "iceberg", history="1 h"), table.place)
    assert later.tidy() == 0
    assert TableState(table.place).expiry() is None
    assert set(noted.files) < files(tmp_path / "t") == referred(table)
    check(table)


def killed(self: Any) -> None:
    raise Killed


@pytest.mark.slow
def test_concurrent_expiry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process expires the snapshots just before this one does."""
    import pyiceberg.table.update.snapshot as library

    table, original = iceberg(tmp_path / "t", history="1 ms"), library.ExpireSnapshots.commit
    other = IcebergTable(job(tmp_path / "t", "iceberg", history="1 ms"), table.place)

    def commit(self: Any) -> None:
        monkeypatch.setattr(library.ExpireSnapshots, "commit", original)
        assert other.tidy() == 7
        original(self)

    monkeypatch.setattr(library.ExpireSnapshots, "commit", commit)
    table.tidy()
    assert files(tmp_path / "t") == referred(table)
    check(table)


def test_delta_vacuums_merged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    table = DeltaTable(job(path, "delta", history="1 h"), open_place(str(path)))
    table.prepare(SCHEMA, ())
    made = [lake.wrote(table.place, run, 5 * run, 5 * run + 5) for run in range(3)]
    for run, file in enumerate(made, 1):
        table.commit(record(run, [file]))
    begun = lake.wrote(table.place, 4, 15, 20)  # of a run that is not committed yet
    os.utime(path / begun.path, (0, 0))
    table.replace(made[:1], [lake.wrote(table.place, 1, 0, 5, kind="c")], 1)
    assert table.tidy() == 0  # a reader may still use it
    now = delta._now_ms()
    monkeypatch.setattr(delta, "_now_ms", lambda: now - 2 * HOUR_MS)
    table.replace(made[1:2], [lake.wrote(table.place, 2, 5, 10, kind="c")], 2)
    monkeypatch.undo()
    assert table.tidy() == 1
    assert not (path / made[1].path).exists()
    assert (path / made[0].path).exists()
    table.commit(record(4, [begun]))
    assert (table.read_last_run(), table.read_last_replacement()) == (4, 2)
    assert offsets(deltalake.DeltaTable(path).to_pyarrow_table()) == list(range(20))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["iceberg", "delta"])
def test_history_is_bounded_over_many_runs(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many runs of a job: the number of snapshots is bounded, and each row is there once."""
    world = World({"a": [(0, 4)], "b": [(0, 2)]})
    monkeypatch.setattr(engine, "open_catalog", world.catalog)
    monkeypatch.setattr("kafkawire_spark.pipeline.tasks.read_task", world.read)
    monkeypatch.setattr(engine, "TIDY_EVERY", 3)
    table = {"format": format, "path": str(tmp_path / "t"), "history": "1 ms"}
    made = world_job(table=table, value={"format": "text"})
    running = Engine(made, Inline(), place_of=open_place)
    for _ in range(7):
        assert running.run().record is not None
        for parts in world.topics.values():
            parts[:] = [(start, end + 4) for start, end in parts]
    running.compact()
    running.run()
    if format == "iceberg":
        assert isinstance(running.table, IcebergTable)
        assert len(loaded(running.table).snapshots()) == 2
        found = loaded(running.table).scan().to_arrow()
    else:
        found = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table()
        log = tmp_path / "t" / "_delta_log" / "00000000000000000000.json"
        assert json.loads(log.read_text().splitlines()[0])
    names = ["_topic", "_partition", "_offset"]
    rows = sorted(tuple(row.values()) for row in found.select(names).to_pylist())
    assert rows == sorted(world.expected())


def test_history_setting_is_validated() -> None:
    assert job("/t", "delta", history="7 d").table.history_s == 7 * 86_400
    with pytest.raises(JobError, match="history is 'ever', it must be a time like"):
        job("/t", "iceberg", history="ever")
    with pytest.raises(JobError, match="has a history, which a table of the format parquet"):
        job("/t", "parquet", history="1 d")
