"""Replays of tables of every format, in the order of offsets whatever their files are; refusal of
tables whose rows are not the records any more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import SourceError
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import DELTA, ICEBERG, PARQUET, from_dict
from kafkawire_spark.replay.job import open_rows
from kafkawire_spark.replay.lane import TableRows
from kafkawire_spark.replay.record import Replay, ReplayError, ReplayLane
from kafkawire_spark.replay.rows import RowFile
from tests.kit.spark.files import START_MS, Files, Share, batches, value
from tests.kit.spark.inline import Inline

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two topics; the days of orders-0 alternate from batch to batch."""
    url = str(tmp_path_factory.mktemp("tier"))
    files = Files(open_place(url))
    (orders,) = files.topic("orders")
    (other,) = files.topic("other")
    some = []
    for n, base in enumerate(range(0, 100, 10)):
        some += batches(base, [10], timestamp_ms=START_MS + (n % 3) * DAY_MS)
    files.put(1, Share(orders, some), Share(other, batches(0, [5])))
    files.publish()
    return url


def written(tier: str, path: Path, topics: str = "orders", **sections: Any) -> str:
    plain = {
        "job": {"name": "j"},
        "source": {"url": tier, "subscribe": topics},
        "table": {"path": str(path), **sections.pop("table", {})},
        **sections,
    }
    job = from_dict(plain)
    Engine(replace(job, running=replace(job.running, task_bytes=2000)), Inline()).run()
    return str(path)


@pytest.mark.parametrize(
    ("form", "by_date"), [(PARQUET, False), (PARQUET, True), (DELTA, True), (ICEBERG, False)]
)
def test_rows_are_read_in_order_of_offsets(
    tier: str, form: str, by_date: bool, tmp_path: Path
) -> None:
    table = {"format": form} | ({"partition_by": ["date(timestamp)"]} if by_date else {})
    opened = open_rows(written(tier, tmp_path / "table", table=table), "")
    assert opened.topic == "orders"
    files = [RowFile(file.path, file.base, file.end) for file in opened.files]
    lane = ReplayLane(0, 3, 97, 0, 0)
    rows = TableRows(opened.place, files, Replay("r", "orders", "x", "", "", 1, 0, (lane,)), lane)
    found = [row for batch in rows.since(3) for row in batch.to_pylist()]
    assert [row["_offset"] for row in found] == list(range(3, 97))
    assert [row["_value"] for row in found] == [value(offset) for offset in range(3, 97)]
    days = [(row["_timestamp"].timestamp() * 1000 - START_MS) // DAY_MS for row in found]
    assert days == [offset // 10 % 3 for offset in range(3, 97)]
    assert (rows.count(), rows.offset_of(0), rows.offset_of(93)) == (94, 3, 96)
    assert rows.offset_of(94) is None


def test_table_of_several_topics_requires_topic_name(tier: str, tmp_path: Path) -> None:
    table = written(tier, tmp_path / "table", "orders,other")
    with pytest.raises(ReplayError, match="--topic must be one of orders, other"):
        open_rows(table, "")
    with pytest.raises(ReplayError, match="no rows of a topic 'more'"):
        open_rows(table, "more")
    assert {file.topic for file in open_rows(table, "other").files} == {"other"}


def test_text_is_replayed_but_converted_values_are_refused(tier: str, tmp_path: Path) -> None:
    assert open_rows(written(tier, tmp_path / "text", value={"format": "text"}), "").files
    schema = '{"type": "string"}'
    avro = tmp_path / "avro"
    dead = {"path": str(tmp_path / "dead")}
    written(tier, avro, value={"format": "avro", "schema": schema}, dead_letter=dead)
    with pytest.raises(ReplayError, match="converted keys or values"):
        open_rows(str(avro), "")


def test_path_without_pipeline_table_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is no table of a pipeline"):
        open_rows(str(tmp_path), "")
