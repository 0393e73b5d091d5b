"""The work of one task: write Arrow batches of its ranges to Parquet files, one per range and value
of the partition columns, and one result at the end.

Files are built in memory and written atomically; a range has at most about `file_bytes` of stored
batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from kafkawire.reading.model.source import Account, PartitionRange
from kafkawire_spark.pipeline.dead_letters import DeadLetters
from kafkawire_spark.pipeline.jobs.layout import Layout, Values, constant, file_path, repeating
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import RUNS, Done, FileFacts, Share, TableState
from kafkawire_spark.pipeline.tables.parquet import RANGE_KEY, Encoding, ParquetFile

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place

WAITING_BYTES = 256 << 20
"""Arrow memory that may be buffered in a task's open files; beyond it all of them are encoded."""
FILES_MAX = 10_000
"""Maximum number of files of one range; more means that the table is partitioned by nearly unique
values."""


@dataclass(frozen=True)
class WriteTarget:
    """Where and how the tasks of run `number` write; it is pickled.

    `hides`: names contain the attempt (Table.hides); `dead`: location of dead letters, None for
    none.
    """

    number: int
    place: Place
    dead: Place | None
    job: str
    layout: Layout
    encoding: Encoding
    hides: bool


class TaskWriter:
    """Files of one task. `add` rows in order, `finish` when the accounts are complete.

    `attempt`: hexadecimal, unique per attempt; `retried`: see Done.
    """

    def __init__(
        self,
        target: WriteTarget,
        task: int,
        parts: Sequence[PartitionRange],
        attempt: str,
        retried: bool = False,
    ) -> None:
        self._target, self._task, self._retried = target, task, retried
        self._attempt = attempt if target.hides else ""
        self._state = TableState(target.place)
        self._parts = {(part.topic, part.partition): part for part in parts}
        assert len(self._parts) == len(parts)  # a task has one range of a partition
        self._order = list(parts)
        self._part: PartitionRange | None = None
        self._open: dict[Values, ParquetFile] = {}
        self._files: list[FileFacts] = []
        self._rows: dict[tuple[str, int], int] = {}
        self._dead = DeadLetters(target.number, target.dead, target.job, target.encoding)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with the layout's columns, of one or more ranges, in order."""
        for part, rows in self._by_part(batch):
            if part is not self._part:
                self._close()
                self._part = part
            self._add(part, rows)

    def add_dead(self, batch: pa.RecordBatch) -> None:
        """Add records that cannot be converted, with `_reason` and DEAD_SCHEMA's columns or fewer.
        Raises JobError if there is no location for dead letters."""
        for part, rows in self._by_part(batch):
            self._dead.add(part, rows)

    def add_damaged(
        self, part: PartitionRange, base: int, end: int, reason: str, data: bytes
    ) -> None:
        self._dead.add_damaged(part, base, end, reason, data)

    def finish(self, accounts: Sequence[Account]) -> Done:
        """Write the rest, then the task's result, and return it; if another attempt was first,
        return its result. Raises AssertionError if rows and accounts differ: nothing may be
        committed then."""
        self._close()
        dead = self._dead.finish(self._is_done)
        shares = []
        for part, account in zip(self._order, accounts, strict=True):
            key = (part.topic, part.partition)
            share = Share.from_account(account, self._dead.records.get(key, 0))
            written = self._rows.get(key, 0)
            if account.range != part or share.missing or share.rows != written:
                raise AssertionError(
                    f"{written} rows of {part} were written, the accounts have {account}"
                )
            shares.append(share)
        done = Done(self._task, tuple(self._files), dead, tuple(shares), self._retried)
        if self._state.put_done(RUNS, self._target.number, done):
            return done
        first = self._state.read_done(RUNS, self._target.number, self._task)
        self._undo(first)
        return first or done

    def _by_part(self, batch: pa.RecordBatch) -> Iterator[tuple[PartitionRange, pa.RecordBatch]]:
        """Split at the beginning of each range. Parts are ascending, so equal ends mean a single
        range."""
        start = 0
        while start < batch.num_rows:
            rest = batch.slice(start)
            topic, partition = self._key(rest, 0)
            if self._key(rest, rest.num_rows - 1) == (topic, partition):
                count = rest.num_rows
            else:
                same = pc.equal(rest.column("_partition"), partition)
                if "_topic" in batch.schema.names:
                    same = pc.and_(same, pc.equal(rest.column("_topic"), topic))
                count = pc.index(same, False).as_py()
            yield self._parts[topic, partition], rest.slice(0, count)
            start += count

    def _key(self, batch: pa.RecordBatch, row: int) -> tuple[str, int]:
        one_topic = "_topic" not in batch.schema.names
        topic = self._order[0].topic if one_topic else batch.column("_topic")[row].as_py()
        return topic, batch.column("_partition")[row].as_py()

    def _add(self, part: PartitionRange, batch: pa.RecordBatch) -> None:
        schema = self._target.layout.files
        key = (part.topic, part.partition)
        self._rows[key] = self._rows.get(key, 0) + batch.num_rows
        if "_topic" in schema.names:
            topic = constant(part.topic, pa.string(), batch.num_rows)
            if "_topic" in batch.schema.names:
                batch = batch.drop_columns(["_topic"])
            batch = batch.append_column("_topic", topic)
        for values, rows in self._target.layout.split(batch):
            file = self._open.get(values)
            if file is None:
                file = self._open[values] = self._new(part)
            file.add(rows.select(schema.names))
        if sum(file.waiting_bytes for file in self._open.values()) > WAITING_BYTES:
            for file in self._open.values():
                file.flush()

    def _new(self, part: PartitionRange) -> ParquetFile:
        if len(self._open) >= FILES_MAX:
            raise JobError(
                f"[table] partition_by gives more than {FILES_MAX} files for offsets "
                f"[{part.base}, {part.end}) of {part.topic}-{part.partition}: take a column with "
                "fewer values"
            )
        metadata = json.dumps(part._asdict()).encode()
        return ParquetFile(
            repeating(self._target.layout.files), self._target.encoding, {RANGE_KEY: metadata}
        )

    def _close(self) -> None:
        """Write the files of the complete range."""
        # A repeated or concurrent attempt writes the same rows under the same names: it detects the
        # first one here, or does no harm.
        late = bool(self._open) and self._is_done()
        for values, file in self._open.items():
            assert self._part is not None
            path = file_path(
                self._part, values, self._target.number, kind="r", attempt=self._attempt
            )
            data, stats = file.close()
            if not late:
                self._target.place.put(path, data)
            facts = FileFacts(
                path, file.rows, len(data), *self._part, values, self._target.number, stats
            )
            self._files.append(facts)
        self._open = {}

    def _is_done(self) -> bool:
        """Return True if another attempt has finished the task, or another driver the run; this
        attempt could then write a file that a compaction has already replaced."""
        if self._target.hides:
            return False  # a file without a record is not visible
        number = self._target.number
        return self._state.is_done(RUNS, number, self._task) or self._state.has_record(number)

    def _undo(self, first: Done | None) -> None:
        """Delete the files that only this attempt wrote, because another attempt was first."""
        if first is not None:
            named = {file.path for file in first.files}
            self._target.place.delete([f.path for f in self._files if f.path not in named])
