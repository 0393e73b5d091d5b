"""Files of records: what is exported is imported again, byte for byte.

Covers: kafkawire.cli.records.files, kafkawire.cli.records.export,
kafkawire.cli.records.import_file.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire import testing
from kafkawire.cli.app import app
from kafkawire.cli.records import files
from kafkawire.cli.records.files import FORMATS, format_of_file, rows_of, writer_of
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from kafkawire.client.producer import Producer
from kafkawire.client.record_text import Parsed, RecordError
from kafkawire.codec.batches import Record
from tests.kit.cli import Typed, no_environment, run  # noqa: F401  (a fixture, by name)

PLACE = ("t", 3)
data = (
    st.none()
    | st.binary(max_size=30)
    | st.text(max_size=20).map(lambda text: text.encode())
    | st.sampled_from([b"", b"\r\n", b"\0", b'"', b",", b"\n", b"null", "\ufeff".encode(), b" "])
)
headers = st.lists(st.tuples(st.text(max_size=8), data), max_size=3)
rows = st.lists(
    st.tuples(data, data, headers, st.sampled_from([-1, 0, 2**63 - 1]) | st.integers(0, 2**62)),
    max_size=5,
)


def written(kind: str, records: list[Record]) -> io.BytesIO:
    stream = io.BytesIO()
    writer = writer_of(kind, stream)
    for record in records:
        writer.write(PLACE, record)
    writer.close()
    return io.BytesIO(stream.getvalue())


def parsed(kind: str, stream: io.BytesIO | bytes) -> list[Parsed]:
    source = io.BytesIO(stream) if isinstance(stream, bytes) else stream
    found = []
    for where, row in rows_of(kind, source):
        assert isinstance(row, Parsed), (where, row)
        found.append(row)
    return found


@pytest.mark.parametrize("kind", FORMATS)
@given(rows=rows)
def test_round_trip(kind: str, rows: list[Any]) -> None:
    records = [
        Record(number, at_ms, key, value, pairs)
        for number, (key, value, pairs, at_ms) in enumerate(rows)
    ]
    assert parsed(kind, written(kind, records)) == [
        Parsed(key, value, pairs, 3, at_ms) for key, value, pairs, at_ms in rows
    ]


def test_row_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ROWS", 4)
    monkeypatch.setattr(files, "MAX_BYTES", 100)
    records = [Record(n, n, None, bytes(10 if n < 10 else 200)) for n in range(12)]
    stream = written("parquet", records)
    assert pyarrow.parquet.ParquetFile(stream).num_row_groups == 4
    assert [row.timestamp for row in parsed("parquet", stream)] == list(range(12))


def test_foreign_files() -> None:
    (row,) = parsed("csv", b"value\nv\n")
    assert row == Parsed(None, b"v", [])
    (row,) = parsed("csv", b"key,value\n,\n")
    assert (row.key, row.value) == (b"", b"")
    table = pyarrow.table({"value": ["a", None], "timestamp": pyarrow.array([1_500, 2_500_000],
                           pyarrow.timestamp("us"))})  # fmt: skip
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream)
    assert parsed("parquet", stream.getvalue()) == [
        Parsed(None, b"a", [], None, 1), Parsed(None, None, [], None, 2500),
    ]  # fmt: skip


def test_parquet_without_values() -> None:
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"key": [b"k"]}), stream)
    with pytest.raises(ClientError, match='no column "value"'):
        list(rows_of("parquet", io.BytesIO(stream.getvalue())))
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"value": [1.5], "headers": ["h"]}), stream)
    ((_, wrong),) = rows_of("parquet", io.BytesIO(stream.getvalue()))
    assert isinstance(wrong, RecordError)


def test_length_of_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_CELL_CHARS", 20)
    before = csv.field_size_limit()
    try:
        with pytest.raises(ClientError, match="line 1 is longer"):
            list(rows_of("jsonl", io.BytesIO(b"x" * 30)))
        with pytest.raises(ClientError, match="line 2 is not CSV"):
            list(rows_of("csv", io.BytesIO(b"value\n" + b"x" * 30)))
    finally:
        csv.field_size_limit(before)  # it is one of the process


def test_formats_of_files() -> None:
    assert format_of_file("--format", None, "a.JSONL") == "jsonl"
    assert format_of_file("--format", None, "-") == "jsonl"
    assert format_of_file("--format", "CSV", "a.parquet") == "csv"
    for name, path in [(None, "a"), ("xml", "a.csv"), ("parquet", "-")]:
        with pytest.raises(OptionError):
            format_of_file("--format", name, path)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with testing.broker() as broker:
        yield broker.bootstrap


def filled(server: str) -> None:
    if Typed(server, "topics", "create", "t", "--partitions", "2").code:
        return  # by an earlier test
    failed: list[Any] = []
    with Cluster(server) as cluster:
        writer = Producer(cluster, failed=failed.append)
        for n in range(50):
            key = None if n % 5 == 0 else b"\xff%d" % n
            value = None if n % 7 == 0 else b"v\r\n%d" % n
            writer.send(("t", n % 2), Record(0, 1000 + n, key, value, [("h", b"\0"), ("h", None)]))
        writer.flush()
    assert not failed


def read(server: str, topic: str) -> list[Any]:
    lines = Typed(server, "consume", topic, "--json").lines
    return [{**line, "topic": None} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_exported_topic_is_imported(server: str, tmp_path: Path, kind: str) -> None:
    filled(server)
    path = str(tmp_path / f"t.{kind}")
    done = Typed(server, "export", "t", path)
    assert (done.code, done.out) == (0, "")
    assert f"50 records of t written to {path}" in done.err
    assert list(tmp_path.iterdir()) == [Path(path)]
    Typed(server, "topics", "create", f"new-{kind}", "--partitions", "2")
    done = Typed(server, "import", f"new-{kind}", path)
    assert (done.code, done.err) == (0, "")
    assert read(server, f"new-{kind}") == read(server, "t")


@pytest.mark.slow
def test_pipes(server: str) -> None:
    filled(server)
    for kind in ("jsonl", "csv"):
        out = run(app, ["export", "t", "-", "--format", kind, "--server", server]).stdout_bytes
        name = f"piped-{kind}"
        Typed(server, "topics", "create", name, "--partitions", "2")
        words = ["import", name, "-", "--format", kind, "--server", server]
        assert run(app, words, input=out).exit_code == 0
        assert read(server, name) == read(server, "t")


@pytest.mark.slow
def test_part_of_a_topic(server: str, tmp_path: Path) -> None:
    filled(server)
    path = tmp_path / "part.jsonl"
    words = ("export", "t:1", str(path), "--from", "@1010", "--until", "@1020")
    assert Typed(server, *words).code == 0
    times = [json.loads(line)["timestamp"] for line in path.read_text().split("\n") if line]
    assert times == [1011, 1013, 1015, 1017, 1019]
    assert Typed(server, *words, "--force").code == 0


@pytest.mark.slow
def test_failed_export_leaves_nothing(server: str, tmp_path: Path) -> None:
    path = str(tmp_path / "a.csv")
    assert Typed(server, "export", "none", path).code == 1
    filled(server)
    assert Typed(server, "export", "t", f"{tmp_path}/a\0.csv").code == 1
    assert not list(tmp_path.iterdir())
