"""Drivers of a pipeline over real segments that end in a phase of a run, and independent readers of
their tables.

    python -m tests.kit.spark.phases JOB.toml PHASE     kills itself (SIGKILL) in that phase
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deltalake
import pyarrow.dataset
from pyiceberg.catalog import MetastoreCatalog, load_catalog

from kafkawire.reading.files.locations import FolderPlace
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import ICEBERG, PARQUET, Job, parse
from kafkawire_spark.pipeline.tables.port import Table, open_table
from tests.kit.spark.inline import Inline

Hook = Callable[[str, str, str], None]
"""Called before and after a call: `when`, the name of the method, and the key of a file."""

PHASES = {
    "planned": ("after put", "_kafkawire/runs/"),
    "writing": ("after put", ".parquet"),  # the first of several files
    "files written": ("after put", "/task-"),
    "committing": ("before commit", ""),
    "in the commit": ("after metadata", ""),  # Iceberg: its file is there, the catalog has the old
    "committed": ("after commit", ""),
    "settled": ("after put", "_kafkawire/latest.json"),
}


class WatchedFolder(FolderPlace):
    """A folder that reports each call that changes or lists files to `hook`."""

    hook: Hook

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        self.hook("before", "put", key)
        super().put(key, data, if_absent=if_absent)
        self.hook("after", "put", key)

    def list(self, prefix: str = "") -> Iterator[str]:
        self.hook("before", "list", prefix)
        yield from super().list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self.hook("before", "delete", "")
        super().delete(keys)
        self.hook("after", "delete", "")


def watched_table(job: Job, hook: Hook) -> Table:
    """Open a job's table; its changes are reported to `hook`."""
    table = open_table(job)
    place = WatchedFolder(table.place.tier)
    object.__setattr__(place, "hook", hook)
    table.place = place
    for name in ("commit", "replace"):
        _hook_method(table, name, hook)
    return table


def _hook_method(table: Table, name: str, hook: Hook) -> None:
    original = getattr(table, name)

    def call(*args: Any) -> None:
        hook("before", name, "")
        original(*args)
        hook("after", name, "")

    setattr(table, name, call)


def drive(job: Job, phase: str, end: Callable[[], None]) -> None:
    """Execute one run, which calls `end` in a phase."""
    at, key_part = PHASES[phase]
    commits: list[str] = []
    write = MetastoreCatalog._write_metadata

    def hook(when: str, what: str, key: str) -> None:
        if what == "commit":
            commits.append(when)
        if f"{when} {what}" == at and key_part in key:
            end()

    def write_metadata(*args: Any, **named: Any) -> None:
        write(*args, **named)
        if commits:  # not when the table is created
            hook("after", "metadata", "")

    with patch.object(MetastoreCatalog, "_write_metadata", staticmethod(write_metadata)):
        Engine(job, Inline(), table=watched_table(job, hook)).run()


def rows_seen(job: Job) -> Counter[tuple[int, int]]:
    """Partition and offset of each row that pyarrow, deltalake or pyiceberg reads at the path."""
    names = ["_partition", "_offset"]
    if job.table.format == PARQUET:
        dataset = pyarrow.dataset.dataset(
            job.table.path, partitioning="hive", exclude_invalid_files=True
        )
        found = dataset.to_table(columns=names)
    elif job.table.format == ICEBERG:
        uri = f"sqlite:///{job.table.path}/_kafkawire/catalog.db"
        with load_catalog("kafkawire", type="sql", uri=uri) as catalog:
            table = catalog.load_table(f"kafkawire.{Path(job.table.path).name}")
            found = table.scan(selected_fields=tuple(names)).to_arrow()
    else:
        found = deltalake.DeltaTable(job.table.path).to_pyarrow_table(columns=names)
    return Counter(zip(*(found[name].to_pylist() for name in names), strict=True))


def main(job_file: str, phase: str) -> None:
    """Run a job, and end this process in a phase as a machine failure would."""
    drive(parse(Path(job_file).read_text()), phase, lambda: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    main(*sys.argv[1:])
