"""Compaction of a table: merge small adjacent files of a partition, which short runs produce.

    1  the intent of compaction k is written: which files become one
    2  tasks merge them, write the new files, and record a result file
    3  the table replaces the old ones by the new ones, atomically if its format can
    4  (a Parquet table) the old files are deleted

After an interruption the next run or compaction continues there first. Merged files cover the same
offsets and have the same rows in the same order.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kafkawire.reading.files.locations import UNFINISHED, FolderPlace
from kafkawire.reading.model.source import PartitionRange
from kafkawire_spark.pipeline.executors import Executor
from kafkawire_spark.pipeline.jobs.layout import covering, file_path, written_by
from kafkawire_spark.pipeline.jobs.state import COMPACTIONS, Compaction, Done, FileFacts, TableState
from kafkawire_spark.pipeline.tables.commit import CommitError
from kafkawire_spark.pipeline.tables.parquet import RANGE_KEY, Encoding, ParquetFile
from kafkawire_spark.pipeline.tables.port import Table

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place

UNFINISHED_AFTER_S = 600.0
"""A temporary file that was not written for this long is abandoned: writing a file takes
seconds."""
GROUPS_MAX = 1000
"""Maximum number of new files per compaction of a format that replaces files atomically, which
keeps its intent small."""

Group = tuple[FileFacts, ...]


def groups(files: Iterable[FileFacts], target_bytes: int) -> Iterator[Group]:
    """Return groups of files to merge into one of at most about `target_bytes`: of one partition
    with the same values of partition columns, adjacent by offset, each less than half of it."""

    def of(file: FileFacts) -> tuple[str, int, str]:
        return file.topic, file.partition, json.dumps(file.values)

    ours = [file for file in files if file.partition >= 0]
    for _, found in groupby(sorted(ours, key=lambda file: (of(file), file.base)), of):
        near: list[FileFacts] = []
        for file in found:
            small = file.size_bytes < target_bytes // 2
            size = sum(one.size_bytes for one in near) + file.size_bytes
            if near and (not small or size > target_bytes):
                if len(near) > 1:
                    yield tuple(near)
                near = []
            if small:
                near.append(file)
        if len(near) > 1:
            yield tuple(near)


@dataclass(frozen=True)
class Merging:
    """The tasks of one compaction: task i writes the file of group i."""

    place: Place
    compaction: Compaction
    encoding: Encoding
    hides: bool

    def do(self, index: int) -> Done | None:
        """Tasks of a compaction, for the executors."""
        state, number = TableState(self.place), self.compaction.number
        group = self.compaction.groups[index]
        ranges = [PartitionRange(file.topic, file.partition, file.base, file.end) for file in group]
        part = covering(ranges)
        attempt = secrets.token_hex(4) if self.hides else ""
        path = file_path(part, group[0].values, number, kind="c", attempt=attempt)
        table = pa.concat_tables(
            [_read(self.place, file) for file in group],
            promote_options="default",
        )
        rows = sum(file.rows for file in group)
        if table.num_rows != rows:
            raise CommitError(
                f"{self.place.where(path)}: {table.num_rows} rows of {rows} are there"
            )
        metadata = json.dumps(part._asdict()).encode()
        merged = ParquetFile(table.schema, self.encoding, {RANGE_KEY: metadata})
        for batch in table.to_batches():
            merged.add(batch)
        data, stats = merged.close()
        if not self.hides and state.read_replaced(number) is not None:
            return None
        self.place.put(path, data)
        run = max(file.run for file in group)
        facts = FileFacts(path, rows, len(data), *part, group[0].values, run, stats)
        done = Done(index, (facts,), (), ())
        if state.put_done(COMPACTIONS, number, done):
            return done
        return state.read_done(COMPACTIONS, number, index)


def _read(place: Place, file: FileFacts) -> pa.Table:
    """Read a whole file in this thread: Spark gives a task one core. Raises CommitError if a page
    has another checksum."""
    stream = pa.BufferReader(place.get(file.path))
    try:
        parquet = pq.ParquetFile(stream, page_checksum_verification=True)
        return parquet.read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CommitError(f"{place.where(file.path)} cannot be read: {reason}") from error


def finish_compactions(
    table: Table, state: TableState, executor: Executor, encoding: Encoding
) -> int:
    """Complete interrupted compactions and clean up; return the number of the last one."""
    number = state.hint().compaction
    while (there := state.compaction(number + 1)) is not None:
        number += 1
        _finish(table, state, executor, encoding, there)
    return number


def compact(
    table: Table,
    state: TableState,
    executor: Executor,
    encoding: Encoding,
    target_bytes: int,
    progress: Callable[[str, int, int], None],
) -> tuple[int, int]:
    """Merge small files; return how many became how many. Raises SourceError.

    A Parquet table's old and new files exist together for a moment, so few are merged at a time.
    """
    number = finish_compactions(table, state, executor, encoding)
    wanted = list(groups(table.files(), target_bytes))
    at_once = GROUPS_MAX if table.hides else executor.parallelism
    for start in range(0, len(wanted), at_once):
        progress("files merged", start, len(wanted))
        number += 1
        intended = Compaction(number, tuple(wanted[start : start + at_once]))
        there = state.intend_compaction(intended)
        _finish(table, state, executor, encoding, there)
        if there != intended:
            raise CommitError("another process compacts the table: this one stops")
    progress("files merged", len(wanted), len(wanted))
    if not table.hides:
        sweep(table)
    return sum(map(len, wanted)), len(wanted)


def _finish(
    table: Table, state: TableState, executor: Executor, encoding: Encoding, plan: Compaction
) -> None:
    old = [file for group in plan.groups for file in group]
    if table.read_last_replacement() < plan.number:
        try:
            new = _merge(table, state, executor, encoding, plan)
        except Exception:
            if table.read_last_replacement() < plan.number:
                raise
            new = []
    else:
        new = []
    table.replace(old, new, plan.number)
    state.forget_done(COMPACTIONS, plan.number, len(plan.groups))
    state.put_hint(state.hint()._replace(compaction=plan.number))


def _merge(
    table: Table, state: TableState, executor: Executor, encoding: Encoding, plan: Compaction
) -> Sequence[FileFacts]:
    done = state.all_done(COMPACTIONS, plan.number)
    merging = Merging(table.place, plan, encoding, table.hides)
    pending = [index for index in range(len(plan.groups)) if index not in done]
    done |= {one.task: one for one in executor.run(merging, pending, lambda count: None)}
    if len(done) < len(plan.groups):
        raise CommitError(f"compaction {plan.number} was done by another process meanwhile")
    return [file for index in sorted(done) for file in done[index].files]


def sweep(table: Table) -> list[str]:
    """Delete files of a Parquet table that belong to a finished run or compaction and are not among
    its files: an executor that was given up may have written them late. Return their names."""
    last = {"r": table.read_last_run(), "c": table.read_last_replacement()}
    kept = {file.path for file in table.files()}
    extra = [
        key
        for key in table.place.list()
        if (by := written_by(key)) is not None and by[1] <= last[by[0]] and key not in kept
    ]
    if extra:
        table.place.delete(extra)
    remove_unfinished(table.place)
    return extra


def remove_unfinished(place: Place) -> None:
    """Delete temporary files in a folder that ended processes left. A process that is still writing
    detects it, and its task is retried."""
    if not isinstance(place, FolderPlace):
        return  # objects are written atomically
    for path in Path(place.tier.folder).rglob(f".*{UNFINISHED}"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > UNFINISHED_AFTER_S:
                path.unlink()
