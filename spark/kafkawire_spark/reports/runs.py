"""The records of a task as columns, one partition after another, for the tasks of reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kafkawire.reading.model.columns import PARTITION, TOPIC, Selection
from kafkawire.reading.model.source import Source, Task

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.files.locations import Place


class RecordRun(NamedTuple):
    """Consecutive records of a partition: the requested columns as Arrow arrays."""

    topic: str
    partition: int
    columns: tuple[Any, ...]


def runs(
    source: Source, places: Sequence[Place], task: Task, columns: Sequence[str]
) -> Iterator[RecordRun]:
    """Yield all records of a task, in the order of its parts."""
    from kafkawire.reading.read_task import read_task

    topics = {part.range.topic for part in task.parts}
    # The topic's name per record costs more than the partition's number: read it only if needed.
    named = (TOPIC,) if len(topics) > 1 else ()
    selection = Selection((*columns, PARTITION, *named))
    # The whole task is read at once, so that small adjacent pieces of a file need one request.
    for batch in read_task(source, places, task, selection):
        topic = next(iter(topics))
        for start, stop in _boundaries(batch, len(columns)):
            some = batch.slice(start, stop - start)
            partition = some.column(len(columns))[0].as_py()
            if named:
                topic = some.column(len(columns) + 1)[0].as_py()
            yield RecordRun(topic, partition, tuple(some.columns[: len(columns)]))


def _boundaries(batch: pa.RecordBatch, first: int) -> Iterator[tuple[int, int]]:
    """Return where each run begins and ends: where a column from `first` on changes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = [np.array([], np.int64)]
    for column in batch.columns[first:]:
        encoded = pc.run_end_encode(column, run_end_type=pa.int64())
        ends.append(encoded.run_ends.to_numpy(zero_copy_only=False))
    start = 0
    for end in np.unique(np.concatenate(ends)).tolist():
        yield start, end
        start = end


def milliseconds(stamps: pa.Array) -> Any:
    """Convert Arrow timestamps to Kafka's: ms since 1970, -1 for none."""
    import pyarrow as pa

    return stamps.cast(pa.int64()).to_numpy(zero_copy_only=False) // 1000
