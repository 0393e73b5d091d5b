"""`kafkawire sql`: formats, files, limits, what is refused.

Covers: kafkawire.cli.sql.command.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafkawire.cli.app import app
from kafkawire.cli.sql.output import write_rows
from kafkawire.reading.model.source import Source
from kafkawire.testing.control import TEST_SETTINGS
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.cli.query import run as run_statements
from tests.kit.cli import produce, run
from tests.kit.spark.files import Files, Share, batches, value
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)
from tests.kit.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def tier(files: Files) -> str:
    """`orders`: one partition with 2000 records in two segments."""
    [number] = files.topic("orders")
    for name in range(2):
        files.put(name, Share(number, batches(name * 1000, [100] * 10)))
    files.publish()
    return files.place.url


def test_formats(tier: str, tmp_path: Path) -> None:
    words = ["sql", "--source", tier]
    statement = 'SELECT "offset", value, timestamp FROM orders WHERE "offset" < 2 ORDER BY 1'
    done = run(app, [*words, statement])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == "2 rows:"
    done = run(app, [*words, "--json", statement])
    assert json.loads(done.stdout.splitlines()[1]) == {
        "offset": 1, "value": value(1).decode(), "timestamp": "2020-09-13T12:26:40.000Z",
    }  # fmt: skip
    done = run(app, [*words, "--format", "csv", statement])
    assert list(csv.reader(io.StringIO(done.stdout)))[1][:2] == ["0", value(0).decode()]
    file = tmp_path / "orders.parquet"
    done = run(app, [*words, "--format", "parquet", "--output", str(file), "SELECT * FROM orders"])
    assert done.exit_code == 0
    table = pq.read_table(file)
    assert table.column("value").to_pylist() == [value(n) for n in range(2000)]
    assert pq.ParquetFile(file).num_row_groups == 1
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".part"] == []


def test_limits(tier: str) -> None:
    words = ["sql", "--source", tier, 'SELECT "offset" FROM orders']
    done = run(app, words)
    assert done.stdout.startswith("1,000 rows:")
    done = run(app, [*words, "--format", "csv"])
    assert len(done.stdout.splitlines()) == 2001
    done = run(app, [*words, "--json", "--limit", "3"])
    assert len(done.stdout.splitlines()) == 3


@pytest.fixture
def stopped(tmp_path: Path) -> str:
    """The data folder of a stopped broker: the topic `orders` has 7 records, only in journals."""
    statement = "SELECT count(*) FROM orders"
    with BrokerProcess(tmp_path, settings=TEST_SETTINGS) as broker:
        produce(broker.bootstrap, "orders", {0: 7})
        whole = run(app, ["sql", "--source", broker.bootstrap, statement])
        assert (whole.exit_code, whole.stdout.split()[-1], whole.stderr) == (0, "7", "")
        manifest = tmp_path / "brokers" / "1" / "manifest" / "current"
        wait_until(manifest.exists, "the local manifest, which is first written after 2 s")
    return str(tmp_path)


UNREAD = "orders: 7 offsets that are only in journals were not read"


@pytest.mark.real
def test_offsets_only_in_journals_are_reported(stopped: str) -> None:
    done = run(app, ["sql", "--source", stopped, "SELECT count(*) FROM orders"])
    assert (done.exit_code, done.stdout.split()[-1]) == (0, "0")
    assert UNREAD in done.stderr


@pytest.mark.real
def test_spark_reports_offsets_only_in_journals(
    stopped: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    statements = "SELECT count(*) FROM orders; SELECT 1"
    run_statements(spark, Source(stopped), statements, lambda _: None, 10)
    assert capsys.readouterr().err.count(UNREAD) == 1


def test_plan(tier: str) -> None:
    statement = 'SELECT count(*) FROM orders WHERE "offset" >= 1500'
    done = run(app, ["sql", "--source", tier, f"EXPLAIN {statement}"])
    assert '"offset" >= 1500' in done.stdout


def test_failures_are_one_sentence(tier: str, tmp_path: Path) -> None:
    for statement in ("selec", "SELECT * FROM nosuch", "SELECT value::INT FROM orders"):
        done = run(app, ["sql", "--source", tier, "--output", str(tmp_path / "f"), statement])
        assert done.exit_code == 1
        assert done.stderr.startswith("kafkawire: ")
        assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("f*"))


def test_rows_are_written_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def batches_of_one() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            seen.append(capsys.readouterr().out)
            yield pa.record_batch({"n": [number]})

    write_rows(pa.schema([("n", pa.int64())]), batches_of_one(), "json", 0)
    assert seen == ["", '{"n": 0}\n', '{"n": 1}\n']


def test_values(capsys: pytest.CaptureFixture[str]) -> None:
    from decimal import Decimal

    made: dict[str, Any] = {"a": Decimal(10) ** 20, "b": Decimal("1.5"), "c": b"\xff", "d": [b"x"]}
    batch = pa.record_batch({name: [each] for name, each in made.items()})
    write_rows(batch.schema, iter([batch]), "json", 0)
    assert json.loads(capsys.readouterr().out) == {
        "a": 10**20, "b": "1.5", "c": "0xff", "d": ["x"],
    }  # fmt: skip


def test_headers_of_a_table_are_the_names_of_its_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    batch = pa.record_batch({"key_text": ["a"], "count_star()": [1]})
    write_rows(batch.schema, iter([batch]), "table", 0)
    assert capsys.readouterr().out.splitlines()[1].split() == ["key_text", "count_star()"]


def test_columns_of_one_name(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    file = tmp_path / "t.parquet"
    write_rows(batch.schema, iter([batch]), "parquet", 0, str(file))
    assert pq.read_table(file).to_pylist() == [{"a": 1, "a (2)": 2}]
