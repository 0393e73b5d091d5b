"""Whole runs into Delta and Iceberg tables, killed at each of their calls: every row once,
according to independent readers."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pytest
from pyiceberg.catalog import load_catalog

from kafkawire.reading.files.open import open_place
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import Job
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.tables.port import open_table
from tests.kit.spark.inline import Inline
from tests.kit.spark.phases import Hook, watched_table
from tests.kit.spark.pipelines import Counting, Killed, World, job


class Lake:
    """A table at a path, and the world whose records it holds."""

    def __init__(self, world: World, path: Path, format: str, patch: pytest.MonkeyPatch) -> None:
        self.world, self.path, self.format = world, path, format
        self.job: Job = job(
            table={"format": format, "path": str(path), "partition_by": ["date(timestamp)"]},
            value={"format": "text"},
            run={"task_bytes": 1 << 16},
        )
        patch.setattr("kafkawire_spark.pipeline.engine.open_catalog", world.catalog)
        patch.setattr("kafkawire_spark.pipeline.tasks.read_task", world.read)

    def engine(self, hook: Hook | None = None) -> Engine:
        """A driver of its own; its commits are reported to `hook` as well."""
        table = watched_table(self.job, hook) if hook else open_table(self.job)
        return Engine(self.job, Inline(), place_of=open_place, table=table)

    def rows(self) -> list[tuple[str, int, int]]:
        """The rows that readers of the format see."""
        names = ["_topic", "_partition", "_offset"]
        if self.format == "delta":
            found = deltalake.DeltaTable(self.path).to_pyarrow_table(columns=names)
        else:
            uri = f"sqlite:///{self.path}/_kafkawire/catalog.db"
            catalog = load_catalog("kafkawire", type="sql", uri=uri)
            table = catalog.load_table(f"kafkawire.{self.path.name}")
            found = table.scan(selected_fields=tuple(names)).to_arrow()
        return sorted(tuple(row.values()) for row in found.select(names).to_pylist())

    def check(self) -> None:
        """Check every row once, each gap explained, and no file on the disk that does not belong to
        the table."""
        assert self.rows() == sorted(self.world.expected())
        records = list(self.engine().state.read_records())
        assert sum(one.rows for one in records) == len(self.world.expected())
        assert all(not share.missing for one in records for share in one.shares)


def world() -> World:
    return World({"a": [(0, 14), (3, 9)], "b": [(0, 2)]})


def small() -> World:
    """One task, one file."""
    return World({"a": [(0, 4)], "b": []})


@pytest.mark.slow
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_driver_killed_at_any_call(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every third call, and around the commit."""
    for point in ("before commit ", "after commit ", *range(0, 1000, 3)):
        lake = Lake(small(), tmp_path / f"t{point}".replace(" ", ""), format, monkeypatch)
        try:
            lake.engine(Counting(point) if isinstance(point, int) else ending(point)).run()
        except Killed:
            lake.engine().run()
            lake.check()
            continue
        lake.check()
        break
    assert isinstance(point, int)
    assert point > 12


@pytest.mark.slow
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_runs_followed_by_compaction(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(world(), tmp_path / "t", format, monkeypatch)
    for _ in range(3):
        lake.engine().run()
        for parts in lake.world.topics.values():
            parts[:] = [(start, end + 4) for start, end in parts]
    lake.engine().run()
    lake.check()
    before = len(lake.engine().table.files())
    with pytest.raises(Killed):
        lake.engine(ending("after replace ")).compact()
    lake.check()
    lake.engine().compact()
    lake.check()
    assert len(lake.engine().table.files()) < before
    lake.engine().run()
    lake.check()
    facts = lake.engine().table.files()
    assert {file.topic for file in facts} == {"a", "b"}
    assert all(json.loads(file.stats)["numRecords"] == file.rows for file in facts)


def ending(where: str) -> Hook:
    """A hook that ends the process at the first call of a name."""

    def hook(when: str, what: str, key: str) -> None:
        if f"{when} {what} {key}" == where:
            raise Killed(where)

    return hook


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_table_without_its_run_records_is_refused(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the runs is deleted and the table is not: an error, and no row twice."""
    lake = Lake(world(), tmp_path / "t", format, monkeypatch)
    lake.engine().run()
    rows = lake.rows()
    for path in (tmp_path / "t" / "_kafkawire").rglob("*.json"):
        path.unlink()
    with pytest.raises(JobError, match="its folder _kafkawire/ was deleted"):
        lake.engine().run()
    assert lake.rows() == rows
