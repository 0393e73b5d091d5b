"""Statements over segments in a folder: rows, what filters leave unread, errors, the end.

Covers: kafkawire.sql.topic_dataset, kafkawire.sql.topic_dataset.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.reading.model.source import DamagedData, Source, SourceError
from kafkawire.reading.read_task import read_task
from kafkawire.sql import topic_dataset
from kafkawire.sql.engine import SqlEngine, SqlError
from tests.kit.spark.files import START_MS, Files, Share, batch, batches, marker, value
from tests.kit.spark.reads import at_batch, tier_files  # noqa: F401  (a fixture, by name)
from tests.kit.sql import rows_of_statement

SEGMENTS = 10
OFFSETS = 1000
"""Of a partition in each segment."""

Ask = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def orders(files: Files) -> Files:
    """`orders`: two partitions in ten segments, 20,000 records; `my.topic`: one record."""
    numbers = files.topic("orders", 2)
    [other] = files.topic("my.topic")
    for name in range(SEGMENTS):
        files.put(name, *[Share(n, batches(name * OFFSETS, [100] * 10)) for n in numbers])
    files.put(SEGMENTS, Share(other, [batch(0)]))
    files.publish()
    return files


@pytest.fixture
def engine(orders: Files) -> Iterator[SqlEngine]:
    with SqlEngine(Source(orders.place.url)) as made:
        yield made


@pytest.fixture
def ask(engine: SqlEngine) -> Ask:
    return lambda statement: rows_of_statement(engine, statement)


def test_rows_have_the_columns_of_the_spark_source_and_texts(engine: SqlEngine) -> None:
    schema, _ = engine.run("SELECT * FROM orders LIMIT 0")
    assert schema.names == [
        "topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers",
        "key_text", "value_text",
    ]  # fmt: skip
    [row] = rows_of_statement(engine, 'SELECT * FROM orders WHERE partition = 1 AND "offset" = 7')
    assert row[:3] == ("orders", 1, 7)
    assert row[3].timestamp() * 1000 == START_MS
    assert row[4:] == (0, b"k7", value(7), None, "k7", value(7).decode())


def test_text_of_what_is_no_utf8_is_null(files: Files) -> None:
    from kafkawire.codec.batches import build

    [number] = files.topic("t")
    data = bytes(build([(b"\xff", None)], base_offset=0, timestamp_ms=START_MS))
    files.put(1, Share(number, [data]))
    files.publish()
    with SqlEngine(Source(files.place.url)) as engine:
        found = rows_of_statement(engine, "SELECT key, key_text, value, value_text FROM t")
    assert found == [(b"\xff", None, None, None)]


def test_aggregates_joins_and_names_in_quotes(ask: Ask) -> None:
    assert ask("SELECT count(*), count(DISTINCT key) FROM orders") == [(20_000, 10_000)]
    assert ask('SELECT count(*) FROM orders a JOIN ORDERS b USING ("offset")') == [(40_000,)]
    assert ask('SELECT key_text FROM "my.topic"') == [("k0",)]
    assert ask("show tables") == [("my.topic", 1), ("orders", 2)]


@pytest.mark.slow
def test_filters_leave_segments_unread(
    ask: Ask, engine: SqlEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    inner = read_task

    def noting(source: Any, places: Any, task: Any, *rest: Any, **more: Any) -> Any:
        opened.extend(piece.key for part in task.parts for piece in part.pieces)
        return inner(source, places, task, *rest, **more)

    monkeypatch.setattr(topic_dataset, "read_task", noting)
    for condition, rows, segments in (
        ("true", 20_000, 20),
        ("partition = 1", 10_000, 10),
        ("topic = 'other'", 0, 0),
        ('"offset" >= 8500', 3000, 4),
        ('"offset" BETWEEN 999 AND 1000 AND partition IN (0, 7)', 2, 2),
        ('"offset" IN (5, 7777)', 4, 4),
        ('"offset" = 5 OR partition = 1 AND "offset" = 9999', 3, 3),
        ('partition <> 0 AND "offset" < 10', 10, 1),
        (f"timestamp >= make_timestamptz({(START_MS + 9500) * 1000})", 1000, 2),
        ("timestamp > TIMESTAMPTZ '2099-01-01 00:00:00+00'", 0, 0),
        ("timestamp < TIMESTAMPTZ '1999-01-01 00:00:00+00'", 0, 20),
        ("key_text = 'k3'", 2, 20),
    ):
        opened.clear()
        assert ask(f"SELECT count(*) FROM orders WHERE {condition}") == [(rows,)], condition
        [scan] = engine.scans
        assert (scan.segments, scan.of_segments) == (segments, 20), condition
        assert len(opened) == segments, condition


def test_each_read_of_a_topic_has_its_own_filter(ask: Ask, engine: SqlEngine) -> None:
    found = ask(
        'SELECT (SELECT count(*) FROM orders WHERE "offset" < 10), '
        '(SELECT count(*) FROM orders WHERE "offset" >= 9990)'
    )
    assert found == [(20, 20)]
    assert [scan.segments for scan in engine.scans] == [2, 2]


def test_limit_ends_reading(engine: SqlEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream: the first rows are returned while most is unread."""
    read: list[int] = []
    inner = read_task

    def counting(*given: Any, **more: Any) -> Any:
        for each in inner(*given, **{**more, "batch_rows": 100}):
            read.append(each.num_rows)
            yield each

    monkeypatch.setattr(topic_dataset, "read_task", counting)
    assert len(rows_of_statement(engine, "SELECT value FROM orders LIMIT 3")) == 3
    engine.close()
    assert sum(read) < 20_000


def test_aborted_records_are_left_out(files: Files) -> None:
    [number] = files.topic("t")
    made = [batch(0, 5, producer_id=7, attributes=0x10), marker(5, 7, commits=False), batch(6, 4)]
    files.put(1, Share(number, made, aborted=[(7, 0, 5)]))
    files.publish()
    with SqlEngine(Source(files.place.url)) as engine:
        assert rows_of_statement(engine, 'SELECT min("offset"), count(*) FROM t') == [(6, 4)]
    with SqlEngine(Source(files.place.url, isolation="read_uncommitted")) as engine:
        assert rows_of_statement(engine, 'SELECT min("offset"), count(*) FROM t') == [(0, 9)]


def test_damage_is_reported_as_the_source_reports_it(files: Files, tmp_path: Path) -> None:
    [number] = files.topic("t")
    file = tmp_path / "tier" / files.put(1, Share(number, [batch(0, 10)]))
    data = bytearray(file.read_bytes())
    data[at_batch(0) + 200] ^= 1
    file.write_bytes(data)
    files.publish()
    with SqlEngine(Source(files.place.url)) as engine, pytest.raises(DamagedData) as raised:
        rows_of_statement(engine, "SELECT value FROM t")
    assert "partition 0 of topic 't'" in str(raised.value)


def test_rejected_statements_are_one_sentence(ask: Ask) -> None:
    for statement, part in (
        ("selec 1", 'syntax error at or near "selec"'),
        ("SELECT offset FROM orders", 'write the column as "offset"'),
        ("SELECT nosuch FROM orders", '"nosuch" not found'),
        ("SELECT * FROM orderz", "there is no topic 'orderz'; there is \"orders\""),
        (
            "SELECT * FROM my.topic",
            'a name with dots or dashes goes into double quotes: "my.topic"',
        ),
        ("SELECT 1; SELECT 2", "there must be one statement, not 2"),
        ("-- nothing", "there must be one statement, not 0"),
        ("CREATE TABLE x AS SELECT 1", "CREATE is not a query"),
        ("COPY (SELECT 1) TO 'x.csv'", "COPY is not a query"),
        ("SELECT CAST(key_text AS INT) FROM orders", "Could not convert string"),
    ):
        with pytest.raises(SqlError) as raised:
            ask(statement)
        assert part in str(raised.value)
        assert "\n" not in str(raised.value)


def test_python_variables_are_no_tables(ask: Ask) -> None:
    import pyarrow as pa

    secret = pa.table({"a": [1]})
    with pytest.raises(SqlError, match="there is no topic 'secret'"):
        ask("SELECT * FROM secret")
    assert secret.num_rows == 1


def test_topics_that_differ_in_case(files: Files) -> None:
    for number, name in enumerate(("orders", "Orders")):
        [partition] = files.topic(name)
        files.put(number, Share(partition, [batch(0, number + 1)]))
    files.publish()
    with SqlEngine(Source(files.place.url)) as engine:
        assert rows_of_statement(engine, "SELECT count(*) FROM orders") == [(1,)]
        assert rows_of_statement(engine, 'SELECT count(*) FROM "Orders"') == [(2,)]
        with pytest.raises(SqlError, match="differ only in case"):
            rows_of_statement(engine, "SELECT 1 FROM orders, Orders")


def test_source_that_cannot_be_read(files: Files) -> None:
    with pytest.raises(SourceError, match="manifest"):
        SqlEngine(Source(files.place.url))


@pytest.mark.slow
def test_spark_and_numba_are_not_imported_for_a_few_rows(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [100] * 10)))
    files.publish()
    code = (
        "import sys\n"
        "from kafkawire.reading.model.source import Source\n"
        "from kafkawire.sql.engine import SqlEngine\n"
        f"with SqlEngine(Source({files.place.url!r})) as engine:\n"
        "    rows = sum(len(each) for each in engine.run('SELECT * FROM t')[1])\n"
        "    sys.exit(rows != 1000 or bool({'pyspark', 'numba'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
