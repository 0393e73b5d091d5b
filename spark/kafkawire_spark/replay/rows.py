"""The rows of one partition of a table, in offset order, from any offset on.

Rows that are not ascending end the replay with an error; run an audit then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kafkawire_spark.replay.record import ReplayError

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.files.locations import Place

BATCH_BYTES = 8 << 20
"""Size of the rows of one file in memory, as estimated by Parquet."""
BATCH_ROWS = 65536


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file with rows of the partition among offsets [base, end)."""

    path: str
    base: int
    end: int


def groups(files: Sequence[RowFile]) -> Iterator[list[RowFile]]:
    """Return files in offset order, in groups: those of a group overlap, groups do not."""
    group: list[RowFile] = []
    reach = 0
    for file in sorted(files, key=lambda file: (file.base, file.end, file.path)):
        if group and file.base >= reach:
            yield group
            group = []
        group.append(file)
        reach = max(reach, file.end) if len(group) > 1 else file.end
    if group:
        yield group


def merge(streams: Sequence[Iterator[pa.RecordBatch]], offset: str) -> Iterator[pa.RecordBatch]:
    """Merge ascending streams: each round takes from all the rows up to the smallest of the last
    offsets in memory."""
    import pyarrow as pa
    import pyarrow.compute as pc

    heads: list[pa.RecordBatch] = []
    rest: list[Iterator[pa.RecordBatch]] = []

    def pull(stream: Iterator[pa.RecordBatch]) -> None:
        batch = next(stream, None)
        if batch is not None:
            heads.append(batch)
            rest.append(stream)

    for stream in streams:
        pull(stream)
    while len(heads) > 1:
        bound = min(head[offset][-1].as_py() for head in heads)
        parts, old_heads, old_rest = [], heads, rest
        heads, rest = [], []
        for head, stream in zip(old_heads, old_rest, strict=True):
            taken = _count_upto(head[offset], bound)
            if taken:
                parts.append(head.slice(0, taken))
            if taken < head.num_rows:
                heads.append(head.slice(taken))
                rest.append(stream)
            else:
                pull(stream)
        table = pa.Table.from_batches(parts)
        order = pc.sort_indices(table, [(offset, "ascending")])
        yield from table.take(order).combine_chunks().to_batches()
    for head, stream in zip(heads, rest, strict=True):
        yield head
        yield from stream


def _count_upto(offsets: Any, bound: int) -> int:
    """Return how many of the ascending offsets are at most `bound`."""
    return int(offsets.to_numpy().searchsorted(bound, "right"))


def rising(batches: Iterator[pa.RecordBatch], offset: str, where: str) -> Iterator[pa.RecordBatch]:
    """Yield the same batches after checking that offsets are strictly ascending. Raises
    ReplayError."""
    last = -1
    for batch in batches:
        if not batch.num_rows:
            continue
        offsets = batch[offset].to_numpy()
        first = int(offsets[0])
        wrong = first if first <= last else None
        if wrong is None and len(offsets) > 1:
            falls = (offsets[1:] <= offsets[:-1]).nonzero()[0]
            wrong = int(offsets[falls[0] + 1]) if len(falls) else None
        if wrong is not None:
            raise ReplayError(
                f"{where}: offset {wrong} comes again or too late; `kafkawire pipeline audit` "
                "says what is wrong with the table"
            )
        last = int(offsets[-1])
        yield batch


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Rows of `partition` with offsets in [base, end) and timestamps in [since, until), -1: all.
    `names`: the table's column names for partition, offset and timestamp."""

    partition: int
    base: int
    end: int
    since_ms: int = -1
    until_ms: int = -1
    names: tuple[str, str, str] = ("_partition", "_offset", "_timestamp")

    def since(self, offset: int) -> WantedRows:
        return replace(self, base=max(self.base, offset))


def read(
    place: Place, files: Sequence[RowFile], wanted: WantedRows, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the existing ones of these columns, of the selected rows in order. Raises
    ReplayError."""
    near = [file for file in files if file.base < wanted.end and file.end > wanted.base]
    needed = list(dict.fromkeys((*columns, *wanted.names)))

    def merge_groups() -> Iterator[pa.RecordBatch]:
        # A table partitioned by date has several files for each range: they are read concurrently,
        # with one batch of each in memory.
        for group in groups(near):
            streams = [
                rising(_read_wanted_rows(place, file, wanted, needed), wanted.names[1], file.path)
                for file in group
            ]
            yield from merge(streams, wanted.names[1])

    for batch in rising(merge_groups(), wanted.names[1], f"partition {wanted.partition}"):
        yield batch.select([name for name in columns if name in batch.schema.names])


def _read_wanted_rows(
    place: Place, file: RowFile, wanted: WantedRows, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    keep = _filter(wanted)
    for batch in _batches(place, file.path, columns, wanted.names[1]):
        some = batch.filter(keep(batch))
        if some.num_rows:
            yield some


def _filter(wanted: WantedRows) -> Callable[[pa.RecordBatch], Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    partition, offset, timestamp = wanted.names

    def keep(batch: pa.RecordBatch) -> Any:
        offsets = batch[offset]
        mask = pc.and_(
            pc.greater_equal(offsets, wanted.base), pc.less(offsets, wanted.end)
        )  # fmt: skip
        if partition in batch.schema.names:
            mask = pc.and_(mask, pc.equal(batch[partition], wanted.partition))
        if wanted.since_ms >= 0 or wanted.until_ms >= 0:
            ms = batch[timestamp].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
            if wanted.since_ms >= 0:
                mask = pc.and_(mask, pc.greater_equal(ms, wanted.since_ms))
            if wanted.until_ms >= 0:
                mask = pc.and_(mask, pc.less(ms, wanted.until_ms))
        return pc.fill_null(mask, False)

    return keep


def _batches(
    place: Place, path: str, columns: Sequence[str], offset: str
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one file with offsets, in bounded sizes. Raises ReplayError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem, root = place.arrow()
    try:
        with filesystem.open_input_file(f"{root}/{path}") as stream:
            parquet = pq.ParquetFile(stream, page_checksum_verification=True)
            facts = parquet.metadata
            groups = range(facts.num_row_groups)
            total = sum(facts.row_group(index).total_byte_size for index in groups)
            rows = max(1, min(BATCH_ROWS, BATCH_BYTES * facts.num_rows // max(total, 1)))
            there = [name for name in columns if name in parquet.schema_arrow.names]
            if offset in there:  # else all rows are of others, in an adopted table
                yield from parquet.iter_batches(rows, columns=there)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ReplayError(f"{path} cannot be read: {reason}") from error
