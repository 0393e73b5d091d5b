"""A topic as a data set of Arrow: DuckDB asks it for columns and a filter, and gets a stream.

A scan plans as a task of Spark's source: the partitions, segments, offsets and blocks of keys that
the filter can select. Arrow then applies the filter to each batch, as DuckDB does not apply it
again. So the columns of texts are made here: a filter on a computed column of a view is not passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kafkawire.reading.catalog import SourceCatalog
from kafkawire.reading.files.key_index import KeyIndexBlocks
from kafkawire.reading.key_filter import ranges_with_keys
from kafkawire.reading.model.columns import DEFAULT_HEADERS, OFFSET, Selection
from kafkawire.reading.model.source import PartitionRange, Task, TaskPart
from kafkawire.reading.pushdown import Pruning
from kafkawire.reading.read_task import read_task
from kafkawire.sql.pruning import ORIGINS, TopicFilter, with_texts

if TYPE_CHECKING:
    import pyarrow as pa


# The scans of a statement, which threads of DuckDB read: their errors, and their end.
#
# DuckDB passes on only the text of an error. It also stops reading whenever it has enough, and a
# thread that is in a scan while the interpreter ends would end the process with SIGABRT.


class StoppableScan:
    """Batches of a scan, read by one thread at a time, until another thread stops it."""

    def __init__(self, batches: Iterator[pa.RecordBatch], running: RunningScans) -> None:
        self._batches, self._running = _generator(batches), running
        self._reading = threading.Lock()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._reading:
            try:
                return next(self._batches)
            except StopIteration:
                raise
            except Exception as error:
                self._running.note_failure(error)
                raise

    def stop(self) -> None:
        """Wait for the batch that is being read, and close files and connections."""
        with self._reading:
            self._batches.close()


class RunningScans:
    """The scans of a statement that have not been stopped."""

    def __init__(self) -> None:
        self._scans: list[StoppableScan] = []
        self.failures: list[Exception] = []

    def add(self, batches: Iterator[pa.RecordBatch]) -> StoppableScan:
        """Return a scan of these batches."""
        scan = StoppableScan(batches, self)
        self._scans.append(scan)
        return scan

    def note_failure(self, error: Exception) -> None:
        """Record the error of a scan or of its plan."""
        self.failures.append(error)

    def stop(self) -> None:
        """Stop all scans, and forget their errors."""
        for scan in self._scans:
            scan.stop()
        self._scans.clear()
        self.failures.clear()


def _generator(batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
    if isinstance(batches, Generator):
        with closing(batches):
            yield from batches
    else:
        yield from batches


BATCH_ROWS, BATCH_BYTES = 16384, 2 << 20
"""Size of a batch: a quarter of a Spark task's, because the first row waits for a whole one."""
MAX_RANGES = 10_000
"""Segments that are compared with a filter one by one: a tenth of a second. With more of them only
the bounds of the offsets count."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Contents of one scan of a topic: `segments` of `of_segments`, `partitions` of
    `of_partitions`, `size_bytes` of `of_bytes`: of batches, estimated. A segment with two
    partitions counts twice."""

    topic: str
    partitions: int
    of_partitions: int
    segments: int
    of_segments: int
    offsets: int
    size_bytes: int
    of_bytes: int


class TopicScanner:
    """A scan of a topic: batches filtered by `expression`, which names the columns `asked`, with
    the columns `shown` of `schema`."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        schema: pa.Schema,
        shown: Sequence[str],
        expression: pc.Expression | None,
        asked: Collection[str],
    ) -> None:
        self._batches, self._shown = batches, shown
        self._expression, self._asked = expression, asked
        self.projected_schema = pa.schema([schema.field(name) for name in shown])

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the stream; it can be read once."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._filter_batches())

    def _filter_batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            if self._expression is not None:
                batch = with_texts(batch, self._asked).filter(self._expression)
            if batch.num_rows:
                yield with_texts(batch, self._shown).select(self._shown)


class TopicDataset(ds.Dataset):
    """All records of a topic; only `schema` and `scanner` are used.

    `planning`: held while the catalog is used, which is not thread-safe. `scanned` gets each plan.
    """

    def __init__(
        self,
        catalog: SourceCatalog,
        topic: str,
        planning: threading.Lock,
        running: RunningScans,
        scanned: Callable[[Scan], None],
    ) -> None:
        self._catalog, self._topic, self._planning = catalog, topic, planning
        self._running, self._scanned = running, scanned
        texts = [pa.field(name, pa.string()) for name in ORIGINS]
        self._schema = pa.schema([*DEFAULT_HEADERS.arrow_schema(), *texts])

    @property
    def schema(self) -> pa.Schema:
        """The columns of the Spark source, with headers, and texts."""
        return self._schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> TopicScanner:
        """Plan a scan of the records of now. DuckDB calls `to_reader` of what is returned."""
        wanted = None if filter is None else TopicFilter(self._schema, self._topic, filter)
        shown = list(self._schema.names if columns is None else columns)
        asked = frozenset() if wanted is None else wanted.columns
        read = {ORIGINS.get(name, name) for name in asked.union(shown)}
        selection = Selection(tuple(name for name in DEFAULT_HEADERS.names if name in read))
        try:
            with self._planning:
                parts = self._plan(wanted)
        except Exception as error:
            self._running.note_failure(error)
            raise
        batches = self._running.add(self._rows(parts, selection))
        return TopicScanner(batches, self._schema, shown, filter, asked)

    def _plan(self, wanted: TopicFilter | None) -> list[TaskPart]:
        whole = self._ranges()
        parts = self._catalog.parts(whole)
        every, every_bytes = _segments(parts), sum(part.size_bytes for part in parts)
        if wanted is not None:
            parts = self._catalog.parts(self._select_ranges(whole, wanted))
            parts = self._without_unselected(parts, wanted)
            parts = self._with_keys(parts, wanted)
        self._scanned(
            Scan(
                self._topic,
                len({part.range.partition for part in parts}),
                self._catalog.topics[self._topic],
                _segments(parts),
                every,
                sum(part.range.end - part.range.base for part in parts),
                sum(part.size_bytes for part in parts),
                every_bytes,
            )
        )
        return parts

    def _ranges(self) -> list[PartitionRange]:
        found = []
        for partition in range(self._catalog.topics[self._topic]):
            bounds = self._catalog.bounds(self._topic, partition)
            if bounds.start < bounds.end:
                found.append(PartitionRange(self._topic, partition, bounds.start, bounds.end))
        return found

    def _select_ranges(
        self, whole: Sequence[PartitionRange], wanted: TopicFilter
    ) -> list[PartitionRange]:
        if not whole:
            return []
        low, high = min(each.base for each in whole), max(each.end for each in whole)
        needed = wanted.find_needed(self._catalog.topics[self._topic], low, high)
        chosen = set(needed.partitions)
        pruning = Pruning(low=needed.low, high=needed.high, since_ms=needed.since_ms)
        return pruning.prune_ranges(
            [each for each in whole if each.partition in chosen], self._catalog.offsets_for_times
        )

    def _without_unselected(self, parts: list[TaskPart], wanted: TopicFilter) -> list[TaskPart]:
        """Return parts without the segments that have no selected offset, as with IN and OR."""
        if OFFSET not in wanted.columns or sum(len(part.pieces) for part in parts) > MAX_RANGES:
            return parts
        ranges = [each for part in parts for each in _cut(part)]
        kept = wanted.keeps(ranges)
        if len(kept) == len(ranges):
            return parts
        return self._catalog.parts(_join_adjacent([ranges[at] for at in kept]))

    def _with_keys(self, parts: list[TaskPart], wanted: TopicFilter) -> list[TaskPart]:
        """Return parts without the blocks that do not have a selected key."""
        keys = wanted.keys()
        if keys is None:
            return parts
        if not keys:
            return []
        places = self._catalog.places
        return self._catalog.parts(ranges_with_keys(places, parts, keys, KeyIndexBlocks()))

    def _rows(self, parts: Sequence[TaskPart], selection: Selection) -> Iterator[pa.RecordBatch]:
        return read_task(
            self._catalog.source,
            self._catalog.places,
            Task(tuple(parts)),
            selection,
            batch_rows=BATCH_ROWS,
            batch_bytes=BATCH_BYTES,
            quick_start=True,
        )


def _segments(parts: Sequence[TaskPart]) -> int:
    """Return in how many segments parts are, of each partition."""
    return len(
        {(part.range.partition, piece.place, piece.key) for part in parts for piece in part.pieces}
    )


def _cut(part: TaskPart) -> list[PartitionRange]:
    """Return the ranges of a part's segments, and those between them."""
    whole = part.range
    edges = {whole.base, whole.end}
    for piece in part.pieces:
        edges |= {max(piece.base, whole.base), min(piece.end, whole.end)}
    return [whole._replace(base=base, end=end) for base, end in pairwise(sorted(edges))]


def _join_adjacent(ranges: Sequence[PartitionRange]) -> list[PartitionRange]:
    """Return ranges of which no two are adjacent."""
    found: list[PartitionRange] = []
    for each in ranges:
        last = found[-1] if found else None
        if last is not None and last.partition == each.partition and last.end == each.base:
            found[-1] = last._replace(end=each.end)
        else:
            found.append(each)
    return found
