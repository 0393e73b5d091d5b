"""Parquet tables like those of `pipeline run`, built by hand: small, quick, with known faults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import DAMAGED, Account, PartitionRange
from kafkawire_spark.pipeline.jobs.state import (
    FileFacts,
    RunRecord,
    Share,
    TableState,
    dump,
    load_json,
    load_record,
)

ROW, DEAD = "row", "dead"
T0 = 1_700_000_000_000


def rows_table(topic: str, partition: int, offsets: Iterable[int]) -> pa.Table:
    """Rows whose every column is derived from partition and offset."""
    listed = list(offsets)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.table(
        {
            "_topic": pa.array([topic] * len(listed), pa.string()),
            "_partition": pa.array([partition] * len(listed), pa.int32()),
            "_offset": pa.array(listed, pa.int64()),
            "_timestamp": pa.array(
                [(T0 + offset) * 1000 for offset in listed], pa.timestamp("us", tz="UTC")
            ),
            "_key": pa.array(
                [None if offset % 7 == 0 else b"k%d" % offset for offset in listed], pa.binary()
            ),
            "_value": pa.array(
                [
                    None if offset % 11 == 0 else b"v%d-%d" % (partition, offset)
                    for offset in listed
                ],
                pa.binary(),
            ),
            "_headers": pa.array(
                [
                    [{"key": "h", "value": b"%d" % offset}] if offset % 3 == 0 else None
                    for offset in listed
                ],
                headers,
            ),
        }
    )


class MadeTable:
    """A table that grows by runs. `fates` of a range: a row, or the reason for none, for each
    offset; `rows()` is the expected content."""

    def __init__(self, folder: Path, topic: str = "t") -> None:
        self.folder, self.topic = folder, topic
        self.state = TableState(open_place(str(folder)))
        self.describe({})
        self.runs = 0
        self.ends: dict[int, int] = {}
        self.files: list[FileFacts] = []

    def describe(self, columns: dict[str, str]) -> None:
        """Write its table.json, with these columns and their types."""
        plain = {"version": 1, "job": "job", "format": "parquet", "partition_by": []}
        self.state.write_description(
            plain | {"catalog": {}, "dead_letters": "", "columns": columns}, new=False
        )

    def run(
        self, fates: dict[int, Sequence[str]], *, files: int = 1, dead: Path | None = None
    ) -> RunRecord:
        """Add a run that begins where the last one ended, with `files` for each partition; `dead`:
        the folder of dead letters, for the fates DEAD and DAMAGED."""
        self.runs += 1
        made: list[FileFacts] = []
        letters: list[FileFacts] = []
        shares: list[Share] = []
        for partition, some in fates.items():
            base = self.ends.get(partition, 0)
            size = max(1, -(-len(some) // files))
            for at in range(0, len(some), size):
                part = some[at : at + size]
                where = PartitionRange(self.topic, partition, base + at, base + at + len(part))
                share, offsets = self._share(where, part)
                shares.append(share)
                made.append(self.write(where, offsets))
                if dead is not None:
                    letters.append(self._letters(dead, where, part))
            self.ends[partition] = base + len(some)
        record = RunRecord(
            "job",
            self.runs,
            tuple(made),
            tuple(letters),
            tuple(shares),
            {self.topic: dict(self.ends)},
            dead_letters=f"file://{dead}" if dead is not None else "",
        )
        assert self.state.put_record(record)
        self.files += made
        return record

    def _share(self, where: PartitionRange, fates: Sequence[str]) -> tuple[Share, list[int]]:
        account = Account(where)
        offsets = []
        for offset, fate in enumerate(fates, where.base):
            if fate in (ROW, DEAD):
                account.rows += 1
            else:
                account.add_gap(offset, offset + 1, fate)
            if fate == ROW:
                offsets.append(offset)
        return Share.from_account(account, sum(fate == DEAD for fate in fates)), offsets

    def _letters(self, folder: Path, where: PartitionRange, fates: Sequence[str]) -> FileFacts:
        """A letter for each DEAD offset, and one for the first of neighbouring DAMAGED ones."""
        offsets = [
            offset
            for offset, (before, fate) in enumerate(pairwise(["", *fates]), where.base)
            if fate == DEAD or (fate == DAMAGED and before != DAMAGED)
        ]
        rows = rows_table(where.topic, where.partition, offsets)
        path = folder / "job=job" / f"letters-r{self.runs}-{where.base}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path)
        name, size = str(path.relative_to(folder)), path.stat().st_size
        return FileFacts(name, len(offsets), size, *where, run=self.runs)

    def write(self, part: PartitionRange, offsets: Iterable[int], extra: str = "") -> FileFacts:
        """A file with these offsets."""
        name = (
            f"{part.topic}-p{part.partition:05}-o{part.base:020}-{part.end:020}"
            f"-r{self.runs}{extra}.parquet"
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = rows_table(part.topic, part.partition, offsets)
        pq.write_table(rows, self.folder / name, row_group_size=5)
        size = (self.folder / name).stat().st_size
        return FileFacts(name, rows.num_rows, size, *part, run=self.runs)

    def change(self, file: FileFacts, offsets: Iterable[int]) -> None:
        """Rewrite the file with other rows, as no run would leave it."""
        rows = rows_table(file.topic, file.partition, offsets)
        pq.write_table(rows, self.folder / file.path)

    def offsets(self, file: FileFacts) -> list[int]:
        """The offsets that a file contains."""
        column = pq.read_table(self.folder / file.path, columns=["_offset"])["_offset"]
        return [int(offset) for offset in column.to_pylist()]


def forge(folder: Path, topic: str, offset: int, reason: str | None) -> None:
    """Remove a row of partition 0 from a Parquet table that a run wrote, and change everything the
    table records about it to match: the run saw no row there, for this reason. None: add a made-up
    row."""
    for path in sorted((folder / "_kafkawire" / "commits").iterdir()):
        record = load_record(load_json(path.read_bytes(), str(path)))
        for at, share in enumerate(record.shares):
            if share.range[:2] == (topic, 0) and share.range.base <= offset < share.range.end:
                shares = list(record.shares)
                shares[at] = _forged_share(share, offset, reason)
                files = tuple(
                    _forged_file(folder, file, offset, reason)
                    if (file.topic, file.partition) == (topic, 0) and file.base <= offset < file.end
                    else file
                    for file in record.files
                )
                path.write_bytes(dump(replace(record, shares=tuple(shares), files=files)))
                return
    raise AssertionError(f"no run has covered offset {offset} of {topic}-0")


def _forged_share(share: Share, offset: int, reason: str | None) -> Share:
    reported = Account(share.range)
    lost = {at: gap.reason for gap in share.gaps for at in range(gap.base, gap.end)}
    if reason is None:
        del lost[offset]
    else:
        lost[offset] = reason
    for at in sorted(lost):
        reported.add_gap(at, at + 1, lost[at])
    reported.rows = share.range.end - share.range.base - len(lost)
    return Share.from_account(reported, share.dead)


def _forged_file(folder: Path, file: FileFacts, offset: int, reason: str | None) -> FileFacts:
    rows = pq.read_table(folder / file.path, partitioning=None)
    offsets = rows["_offset"].to_pylist()
    if reason is None:
        row = rows.slice(0, 1)
        at = row.schema.get_field_index("_offset")
        row = row.set_column(at, row.schema.field(at), pa.array([offset], pa.int64()))
        below = sum(each < offset for each in offsets)
        rows = pa.concat_tables([rows.slice(0, below), row, rows.slice(below)])
    else:
        rows = rows.filter(pa.array([each != offset for each in offsets]))
    pq.write_table(rows, folder / file.path)
    size = (folder / file.path).stat().st_size
    return replace(file, rows=rows.num_rows, size_bytes=size)
