"""Whole runs of the three formats over real segments, without Spark: rows, kills, compaction.

Covers: kafkawire_spark.pipeline.dead_letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafkawire.codec.batches import build
from kafkawire.objectstore.url import parse_tier
from kafkawire.reading.files.open import open_place
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import Job, parse
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import FileFacts, RunRecord
from kafkawire_spark.pipeline.tables.port import Table, open_table, open_table_at
from tests.kit.minio import Minio
from tests.kit.spark.files import START_MS, Files, Share, batch, marker
from tests.kit.spark.inline import Inline
from tests.kit.spark.pipeline_topics import Tier, job_text
from tests.kit.spark.pipelines import Killed

FORMATS = ("parquet", "delta", pytest.param("iceberg", marks=pytest.mark.slow))


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    tier = Tier(open_place(str(tmp_path / "tier")))
    tier.grow(300)
    return tier


def job(tier: Tier, path: Path | str, format: str) -> Job:
    table = {"format": format, "partition_by": ["date(timestamp)"], "file_bytes": 1 << 16}
    return parse(job_text(tier.files.place.url, path, table=table))


def rows(table: Table) -> Counter[tuple[int, int]]:
    """Partition and offset of each row of the table's files."""
    found: Counter[tuple[int, int]] = Counter()
    for file in table.files():
        data = pa.BufferReader(table.place.get(file.path))
        columns = pq.read_table(data, columns=["_partition", "_offset"]).to_pydict()
        found.update(zip(columns["_partition"], columns["_offset"], strict=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_runs_followed_by_compaction(tier: Tier, tmp_path: Path, format: str) -> None:
    wanted = job(tier, tmp_path / "table", format)
    for _ in range(3):
        outcome = Engine(wanted, Inline()).run()
        assert outcome.record is not None
        assert outcome.record.seconds > 0
        assert not any(outcome.lags.values())
        tier.grow(40)
    Engine(wanted, Inline()).run()
    assert rows(open_table(wanted)) == Counter(tier.offsets())
    before = len(open_table(wanted).files())
    Engine(wanted, Inline()).compact()
    table = open_table_at(wanted.table.path)
    assert len(table.files()) < before
    assert rows(table) == Counter(tier.offsets())
    assert Engine(wanted, Inline()).run().record is None


class Ending:
    """A table whose process ends before or after one of its changes."""

    def __init__(self, table: Table, at: int) -> None:
        self._table, self._left = table, at
        self.place, self.hides = table.place, table.hides
        self.prepare, self.file_schema = table.prepare, table.file_schema
        self.read_last_run, self.read_last_replacement, self.files = (
            table.read_last_run,
            table.read_last_replacement,
            table.files,
        )
        self.tidy, self.exists, self.misfit = table.tidy, table.exists, table.misfit

    def commit(self, record: RunRecord) -> None:
        self._around(lambda: self._table.commit(record))

    def replace(self, old: Sequence[FileFacts], new: Sequence[FileFacts], number: int) -> None:
        self._around(lambda: self._table.replace(old, new, number))

    def _around(self, change: Callable[[], None]) -> None:
        steps: list[Callable[[], None]] = [lambda: None, change]
        for step in steps:
            step()
            if self._left == 0:
                raise Killed
            self._left -= 1


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("format", FORMATS)
def test_driver_killed_at_commit(tier: Tier, tmp_path: Path, format: str, at: int) -> None:
    wanted = job(tier, tmp_path / "table", format)
    with pytest.raises(Killed):
        Engine(wanted, Inline(), table=Ending(open_table(wanted), at)).run()
    resumed = Engine(wanted, Inline()).run()
    assert resumed.resumed is (at == 0)
    tier.grow(40)
    Engine(wanted, Inline()).run()
    assert rows(open_table(wanted)) == Counter(tier.offsets())
    with pytest.raises(Killed):
        Engine(wanted, Inline(), table=Ending(open_table(wanted), at)).compact()
    tier.grow(40)
    Engine(wanted, Inline()).run()
    table = open_table(wanted)
    assert table.read_last_replacement() > 0
    assert rows(table) == Counter(tier.offsets())


def test_damaged_segment_is_error_or_dead_letter(tier: Tier, tmp_path: Path) -> None:
    key = next(key for key in tier.files.place.list("segments/"))
    path = Path(tier.files.place.tier.folder, key)
    data = bytearray(path.read_bytes())
    data[3000] ^= 0x40
    path.write_bytes(data)
    strict = job(tier, tmp_path / "table", "parquet")
    with pytest.raises(Exception, match="of partition 0 of topic 'orders' are damaged") as caught:
        Engine(strict, Inline()).run()
    assert key in str(caught.value)
    text = job_text(
        tier.files.place.url,
        tmp_path / "table",
        dead_letter={"path": str(tmp_path / "dead")},
        run={"on_damage": "dead_letter"},
        table={"partition_by": ["date(timestamp)"]},
    )
    record = Engine(parse(text), Inline()).run().record
    assert record is not None
    lost = sum(share.counts["damaged"] for share in record.shares if share.counts)
    dead = pq.read_table(tmp_path / "dead" / record.dead[0].path).to_pylist()
    assert sum(row["_end"] - row["_offset"] for row in dead) == lost > 0
    gone = {(row["_partition"], n) for row in dead for n in range(row["_offset"], row["_end"])}
    assert rows(open_table(strict)) == Counter(tier.offsets() - gone)


def test_empty_partitions_and_topics_create_no_file(tmp_path: Path) -> None:
    tier = Tier(open_place(str(tmp_path / "tier")))
    tier.files.publish()
    wanted = job(tier, tmp_path / "table", "parquet")
    assert Engine(wanted, Inline()).run().record is None
    assert not (tmp_path / "table").exists()


@pytest.mark.real
@pytest.mark.parametrize("format", FORMATS)
def test_pipeline_from_bucket_to_bucket(
    tier_url: str, minio: Minio, tmp_path: Path, format: str
) -> None:
    address = parse_tier(tier_url)
    minio.client().create_bucket(Bucket=address.bucket)
    root, _, options = tier_url.partition("?")
    tier = Tier(open_place(f"{root}/tier?{options}"))
    tier.grow(300)
    text = job_text(
        tier.files.place.url,
        f"{root}/table?{options}",
        table={"format": format, "partition_by": ["date(timestamp)"], "file_bytes": 1 << 16},
    )
    if format == "iceberg":  # a catalog file of its own needs a folder
        text += f'\n[table.catalog]\ntype = "sql"\nuri = "sqlite:///{tmp_path}/catalog.db"\n'
    wanted = parse(text)
    with pytest.raises(Killed):
        Engine(wanted, Inline(), table=Ending(open_table(wanted), 0)).run()
    for _ in range(2):
        Engine(wanted, Inline()).run()
        tier.grow(30)
    Engine(wanted, Inline()).run()
    Engine(wanted, Inline()).compact()
    assert rows(open_table(wanted)) == Counter(tier.offsets())


@pytest.mark.parametrize("format", FORMATS)
def test_offset_can_be_written_as_index_column(tier: Tier, tmp_path: Path, format: str) -> None:
    wanted = job(tier, tmp_path / "table", format)
    wanted = replace(wanted, table=replace(wanted.table, index_column=True))
    Engine(wanted, Inline()).run()
    tier.grow(30)
    Engine(wanted, Inline()).run()
    Engine(wanted, Inline()).compact()
    table = open_table(wanted)
    assert rows(table) == Counter(tier.offsets())
    for file in table.files():
        found = pq.read_table(pa.BufferReader(table.place.get(file.path)))
        assert found["_index"].to_pylist() == found["_offset"].to_pylist()


@pytest.mark.parametrize("format", FORMATS)
def test_column_added_later(tier: Tier, tmp_path: Path, format: str) -> None:
    wanted = job(tier, tmp_path / "table", format)
    Engine(wanted, Inline()).run()
    tier.grow(40)
    more = replace(wanted, table=replace(wanted.table, timestamp_type_column=True))
    Engine(more, Inline()).run()
    Engine(more, Inline()).compact()
    table = open_table(more)
    assert rows(table) == Counter(tier.offsets())
    found = [pq.read_table(pa.BufferReader(table.place.get(f.path))) for f in table.files()]
    assert any("_timestamp_type" in one.schema.names for one in found)
    less = replace(wanted, table=replace(wanted.table, topic_column=False))
    tier.grow(40)
    with pytest.raises(JobError, match="the table has a column"):
        Engine(less, Inline()).run()


def test_transactions_nulls_and_large_values(tmp_path: Path) -> None:
    files = Files(open_place(str(tmp_path / "tier")))
    [number] = files.topic("orders")
    large = batch(20, 2, size=10 << 20)
    nothing = bytes(build([(None, None)] * 3, base_offset=40, timestamp_ms=START_MS))
    given_up = batch(30, 4, producer_id=7, producer_epoch=0, attributes=0x10)
    shares = [batch(0, 10), large, given_up, marker(34, 7, commits=False), nothing]
    files.put(1, Share(number, shares, aborted=[(7, 30, 34)]))
    files.publish()
    whole = {"task_bytes": 64 << 20}
    wanted = parse(job_text(files.place.url, tmp_path / "table", run=whole))
    record = Engine(wanted, Inline()).run().record
    assert record is not None
    [share] = record.shares
    assert (share.rows, share.missing) == (15, 0)
    assert share.counts == {"compacted": 43 - 15 - 5, "aborted": 4, "control": 1}
    [file] = record.files
    table = pq.read_table(tmp_path / "table" / file.path).to_pydict()
    assert table["_offset"] == [*range(10), 20, 21, 40, 41, 42]
    assert len(table["_value"][11]) == 10 << 20
    assert table["_key"][-1] is table["_value"][-1] is None
