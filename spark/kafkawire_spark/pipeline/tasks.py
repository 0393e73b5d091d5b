"""The tasks of a run: read, convert, write. Executed by Spark's tasks.

All that a task needs is in `Work`, which is pickled. JSON takes two steps, with Spark's from_json
in between: `read` returns rows and a last row with a note (the accounts) for `write`.
"""

from __future__ import annotations

import base64
import json
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kafkawire.reading.model.source import (
    Account,
    DamagedData,
    OffsetGap,
    PartitionRange,
    Source,
    Task,
)
from kafkawire.reading.read_task import read_task
from kafkawire_spark.pipeline.jobs.state import RUNS, Done, TableState
from kafkawire_spark.pipeline.values.converters import Converter
from kafkawire_spark.pipeline.values.rows import convert
from kafkawire_spark.pipeline.writing import TaskWriter, WriteTarget

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place

NOTE = "_note"
"""The column that only the last row of a task has, between the two steps of JSON."""


@dataclass(frozen=True)
class Work:
    """The tasks of one run. `tasks`: by number, only those to be executed.

    `key`, `value`: None for raw bytes. `keep_damage`: an unreadable range becomes a dead letter.
    """

    target: WriteTarget
    source: Source
    places: tuple[Place, ...]
    tasks: Mapping[int, Task]
    key: Converter | None = None
    value: Converter | None = None
    keep_damage: bool = False

    def do(self, index: int) -> Done | None:
        """Execute task `index`; None if the run has been committed by another driver."""
        done = self._already(index)
        if done is not None or TableState(self.target.place).has_record(self.target.number):
            return done
        writer = self._writer(index)
        accounts: list[Account] = []
        for batch in self._batches(index, accounts, writer.add_damaged):
            self._add(writer, batch)
        return writer.finish(accounts)

    def read(self, index: int) -> Iterator[pa.RecordBatch]:
        """Execute the first of two steps: yield rows with the column `_note`, which is set in the
        last row."""
        accounts: list[Account] = []
        damaged: list[dict[str, Any]] = []

        def damage(part: PartitionRange, base: int, end: int, reason: str, data: bytes) -> None:
            kept = base64.b64encode(data).decode()
            damaged.append({"part": part, "base": base, "end": end, "reason": reason, "data": kept})

        schema = self.target.layout.reads.arrow_schema().append(pa.field(NOTE, pa.string()))
        if not self._is_committed():
            for batch in self._batches(index, accounts, damage):
                arrays = [*batch.columns, pa.nulls(batch.num_rows, pa.string())]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        note = {
            "task": index,
            "accounts": [asdict(account) for account in accounts],
            "damaged": damaged,
        }
        nulls = [pa.nulls(1, field.type) for field in schema][:-1]
        last = [*nulls, pa.array([json.dumps(note)])]
        yield pa.RecordBatch.from_arrays(last, schema=schema)

    def write(self, index: int, batches: Iterable[pa.RecordBatch]) -> Done | None:
        """Execute the second step."""
        writer = self._writer(index)
        note: dict[str, Any] = {}
        for batch in batches:
            at = batch.num_rows - 1
            note_text = batch.column(NOTE)[at].as_py() if at >= 0 else None
            if note_text is not None:
                note = json.loads(note_text)
                batch = batch.slice(0, at)
            if batch.num_rows:
                self._add(writer, batch.drop_columns([NOTE]))
        if not note["accounts"]:
            return self._already(index)
        for one in note["damaged"]:
            data = base64.b64decode(one["data"])
            part = PartitionRange(*one["part"])
            writer.add_damaged(part, one["base"], one["end"], one["reason"], data)
        return writer.finish([_account(plain) for plain in note["accounts"]])

    def _already(self, index: int) -> Done | None:
        return TableState(self.target.place).read_done(RUNS, self.target.number, index)

    def _is_committed(self) -> bool:
        return TableState(self.target.place).has_record(self.target.number)

    def _writer(self, index: int) -> TaskWriter:
        parts = [part.range for part in self.tasks[index].parts]
        return TaskWriter(self.target, index, parts, secrets.token_hex(4), _is_retried())

    def _batches(
        self,
        index: int,
        accounts: list[Account],
        damage: Callable[[PartitionRange, int, int, str, bytes], None],
    ) -> Iterator[pa.RecordBatch]:
        task = self.tasks[index]
        parts = {part.range[:2]: part.range for part in task.parts}

        def keep(problem: DamagedData, data: bytes) -> None:
            part = parts[problem.topic, problem.partition]
            damage(part, problem.base, problem.end, str(problem), data)

        return read_task(
            self.source,
            self.places,
            task,
            self.target.layout.reads,
            on_damage=keep if self.keep_damage else None,
            accounts=accounts,
        )

    def _add(self, writer: TaskWriter, batch: pa.RecordBatch) -> None:
        if self.key is None and self.value is None:
            writer.add(batch)
            return
        good, dead = convert(batch, self.key, self.value)
        if good.num_rows:
            writer.add(good)
        if dead is not None:
            writer.add_dead(dead)


def _is_retried() -> bool:
    """Return True if this is a retry of the task by Spark; False outside Spark."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def _account(plain: Mapping[str, Any]) -> Account:
    gaps = [OffsetGap(*gap) for gap in plain["gaps"]]
    return Account(PartitionRange(*plain["range"]), plain["rows"], dict(plain["counts"]), gaps)
