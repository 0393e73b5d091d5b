"""Read the offsets of files in Spark tasks; the results are islands and damaged files.

Only the columns of topic, partition and offset are read, with pyarrow, file by file. A task keeps
one batch in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kafkawire_spark.audit.coverage import NONE, Islands, islands, join, keep, outside

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.files.locations import Place

ROWS_AT_A_TIME = 1 << 20
"""Batch size: 24 MB of topic, partition and offset; smaller ones make more islands and no less
work."""
DDL = "kind STRING, topic STRING, partition INT, base BIGINT, end BIGINT, text STRING"
ISLAND, DEAD = "island", "dead"
OTHERS = "rows of others"
"""Kind of a note: `end` rows of the file `text` have no offset."""
MISSING, UNREADABLE, COUNT, STRAY = "missing file", "unreadable file", "row count", "misplaced rows"
"""Kinds of findings: a missing file, an unreadable one, one with other rows than in its commit, one
with rows outside of its range."""

TOPICS, PARTITIONS, OFFSETS = ("_topic", "topic"), ("_partition", "partition"), (
    "_offset",
    "offset",
)  # fmt: skip
"""Possible column names: ours, and the Kafka connector's."""


@dataclass(frozen=True, slots=True)
class ScanFile:
    """A Parquet file to scan. `place`: index of its location; `path`: its name there; `topic`: ""
    if it is a column of the file; `partition`: -1 likewise; `rows`, `base`, `end`: its expected
    content, -1 if unknown; `dead`: of dead letters; `adopted`: of a table in which others have
    rows, without partition and offset."""

    place: int
    path: str
    size_bytes: int
    topic: str = ""
    partition: int = -1
    base: int = -1
    end: int = -1
    rows: int = -1
    dead: bool = False
    adopted: bool = False


class ScanFinding(NamedTuple):
    """An island, or a problem of a file: `text` is then a sentence, `base` an offset."""

    kind: str
    topic: str
    partition: int
    base: int
    end: int
    text: str = ""


def scan_file(place: Place, file: ScanFile) -> Iterator[pa.RecordBatch]:
    """Yield the islands of a file, then its problems."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem, root = place.arrow()
    rows = strays = others = 0
    first: ScanFinding | None = None
    try:
        with filesystem.open_input_file(f"{root}/{file.path}") as stream:
            parquet = pq.ParquetFile(stream, page_checksum_verification=True)
            if file.adopted and not _has_offsets(parquet):
                yield _of_others(file, parquet.metadata.num_rows)
                return
            for batch in _batches(parquet, file):
                rows += batch.num_rows
                batch, without = _with_offsets(batch, file)
                others += without
                for topic, found in _islands(batch, file):
                    yield _island_batch(DEAD if file.dead else ISLAND, topic, found)
                    wrong = _strays(topic, found, file)
                    strays += int((wrong.end - wrong.base).sum())
                    if first is None and len(wrong.base):
                        partition, base, end = (int(column[0]) for column in wrong)
                        first = ScanFinding(STRAY, topic, partition, base, end)
    # A missing or damaged file is a finding, and does not stop the audit.
    except FileNotFoundError:
        yield _about(file, MISSING, "is in the table's commits, and not there")
        return
    except (OSError, pa.ArrowException, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        yield _about(file, UNREADABLE, f"cannot be read: {reason}")
        return
    if others:
        yield _of_others(file, others)
    if file.rows >= 0 and rows != file.rows:
        yield _about(file, COUNT, f"has {rows} rows, its commit says {file.rows}")
    if first is not None:
        text = (
            f"has {strays} rows outside of its range {file.topic}-{file.partition} "
            f"[{file.base}, {file.end}), first {first.topic}-{first.partition} offset {first.base}"
        )
        yield _about(file, STRAY, text)


def _about(file: ScanFile, kind: str, text: str) -> pa.RecordBatch:
    found = ScanFinding(
        kind, file.topic, file.partition, file.base, file.end, f"{file.path} {text}"
    )  # fmt: skip
    return as_batch([found])


def _of_others(file: ScanFile, rows: int) -> pa.RecordBatch:
    return as_batch([ScanFinding(OTHERS, "", -1, 0, rows, file.path)])


def _has_offsets(parquet: Any) -> bool:
    return {PARTITIONS[0], OFFSETS[0]} <= set(parquet.schema_arrow.names)


def _with_offsets(batch: pa.RecordBatch, file: ScanFile) -> tuple[pa.RecordBatch, int]:
    """Return the rows that have an offset, and how many have none, in an adopted table."""
    import pyarrow.compute as pc

    without = batch["offset"].null_count if file.adopted else 0
    return (batch.filter(pc.is_valid(batch["offset"])) if without else batch), without


def schema() -> pa.Schema:
    """Return the Arrow schema of findings; `DDL` is the same for Spark."""
    import pyarrow as pa

    types = (pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.string())
    return pa.schema(list(zip(ScanFinding._fields, types, strict=True)))


def as_batch(findings: Iterable[ScanFinding]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([each._asdict() for each in findings], schema=schema())


def _island_batch(kind: str, topic: str, found: Islands) -> pa.RecordBatch:
    import pyarrow as pa

    count = len(found.base)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(kind, count),
            pa.repeat(topic, count),
            pa.array(found.partition.astype(np.int32)),
            pa.array(found.base),
            pa.array(found.end),
            pa.repeat("", count),
        ],
        schema=schema(),
    )


def _batches(parquet: Any, file: ScanFile) -> Iterator[pa.RecordBatch]:
    """Yield the needed columns, under our names."""
    there = set(parquet.schema_arrow.names)
    names = {}
    for name, wanted, known in (
        ("topic", TOPICS, bool(file.topic)),
        ("partition", PARTITIONS, file.partition >= 0),
        ("offset", OFFSETS, False),
    ):
        column = next((each for each in wanted if each in there), None)
        if column is not None:
            names[column] = name
        elif not known and name != "topic":
            raise KeyError(f"there is no column {wanted[0]} or {wanted[1]}")
    for batch in parquet.iter_batches(ROWS_AT_A_TIME, columns=list(names)):
        yield batch.rename_columns([names[column] for column in batch.schema.names])


def _islands(batch: pa.RecordBatch, file: ScanFile) -> Iterator[tuple[str, Islands]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    names = batch.schema.names
    if "topic" not in names:
        yield file.topic, _of_rows(batch, file)
        return
    topics = pc.unique(batch["topic"]).to_pylist()
    for topic in topics:
        if topic is None:
            raise pa.ArrowInvalid("a row has no topic")
        some = batch if len(topics) == 1 else batch.filter(pc.equal(batch["topic"], topic))
        yield topic, _of_rows(some, file)


def _of_rows(batch: pa.RecordBatch, file: ScanFile) -> Islands:
    offset = _longs(batch["offset"])
    if "partition" in batch.schema.names:
        partition = _longs(batch["partition"])
    else:
        partition = np.full(len(offset), file.partition, np.int64)
    if file.dead:  # separately: a damaged range has a row that is not one of its offsets
        return Islands(partition, offset, offset + 1)
    return islands(partition, offset)


def _longs(column: Any) -> Any:
    import pyarrow as pa

    if column.null_count:
        raise pa.ArrowInvalid("a row has no partition or no offset")
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False)


def _strays(topic: str, found: Islands, file: ScanFile) -> Islands:
    """Return islands, or parts of them, outside of the file's range."""
    if file.end < 0:
        return NONE
    if topic != file.topic:
        return found
    own = found.partition == file.partition
    return join([outside(keep(found, own), file.base, file.end), keep(found, ~own)])
