"""`kafkawire produce` against a broker; the choice of partitions and lines without one.

Covers: kafkawire.cli.records.produce, kafkawire.client.producer.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer

from kafkawire.cli.app import app
from kafkawire.cli.records import produce
from kafkawire.cli.records.produce import STICKY_RECORDS, Chooser, lines_of
from kafkawire.client.errors import ClientError
from kafkawire.client.record_text import RecordError
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, no_environment, run  # noqa: F401  (a fixture, by name)


def test_partitions_are_chosen() -> None:
    chooser = Chooser("t", 5)
    spread = [chooser.choose(None, None)[1] for _ in range(5 * STICKY_RECORDS)]
    assert {spread.count(index) for index in range(5)} == {STICKY_RECORDS}
    assert chooser.choose(b"k", None) == chooser.choose(b"k", None)
    assert chooser.choose(b"k", 3) == ("t", 3)
    assert Chooser("t", 5, 2).choose(b"k", None) == ("t", 2)
    with pytest.raises(RecordError, match="topic t has no partition 5"):
        chooser.choose(None, 5)


def test_lines_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "CHUNK_BYTES", 3)
    path = tmp_path / "a"
    path.write_bytes(b"one\n\ntwo\r\n\xff\x00 three")
    idle: list[None] = []
    found = list(lines_of([str(path)], lambda: idle.append(None)))
    assert [line for _, line in found] == [b"one", b"", b"two\r", b"\xff\x00 three"]
    assert found[3][0] == "line 4"
    whole = list(lines_of([str(path)] * 2, lambda: None, whole=True))
    assert [data for _, data in whole] == [path.read_bytes()] * 2
    monkeypatch.setattr(produce, "MAX_LINE_BYTES", 7)
    with pytest.raises(ClientError, match="line 4 is longer than"):
        list(lines_of([str(path)], lambda: None))
    with pytest.raises(ClientError, match="is larger than"):
        list(lines_of([str(path)], lambda: None, whole=True))
    for name in (str(tmp_path), str(tmp_path / "none"), "nul\0"):
        with pytest.raises(ClientError, match="cannot be read"):
            list(lines_of([name], lambda: None))


def test_waiting_input_is_reported_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "IDLE_S", 0)
    reader, writer = os.pipe()
    with open(reader, "rb") as stream:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
        os.write(writer, b"a\n")

        def idle() -> None:
            os.write(writer, b"after idle\n")
            os.close(writer)

        found = lines_of([], idle)
        assert [line for _, line in found] == [b"a", b"after idle"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("produce")) as broker:
        yield broker.bootstrap


def produced(server: str, topic: str, text: str | bytes, *words: str) -> Any:
    Typed(server, "topics", "create", topic, "--partitions", "3")
    return run(app, ["produce", topic, *words, "--server", server], input=text)


def read(server: str, topic: str) -> list[Any]:
    return Typed(server, "consume", topic, "--json").lines


@pytest.mark.real
def test_lines_become_records(server: str, tmp_path: Path) -> None:
    result = produced(server, "lines", "a\nb\n\nlast", "--partition", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line["value"] for line in read(server, "lines")] == ["a", "b", "", "last"]
    words = ("--key-separator", ": ", "--header", "h=v", "--compression", "zstd", "-Z")
    assert produced(server, "keys", "k: v: w\nk2: \n", *words).exit_code == 0
    rows = read(server, "keys")
    assert sorted(
        (row["key"], row["value"], str(row["headers"])) for row in rows if row["value"]
    ) == [("k", "v: w", "[['h', 'v']]")]
    assert [row["key"] for row in rows if row["value"] is None] == ["k2"]
    (tmp_path / "f").write_bytes(b"\x00\xff\nall of it")
    files = [str(tmp_path / "f")] * 2
    assert produced(server, "whole", "", *files, "--whole", "--key", "k").exit_code == 0
    (first, second) = read(server, "whole")
    assert first["value"] == second["value"] == {"base64": "AP8KYWxsIG9mIGl0"}
    assert first["partition"] == second["partition"]


@pytest.mark.real
@pytest.mark.parametrize("words", [("--acks", "0"), ("--acks", "1"), ("--not-idempotent",)])
def test_acks(server: str, words: tuple[str, ...]) -> None:
    topic = f"acks-{'-'.join(word.strip('-') for word in words)}"
    assert produced(server, topic, "a\nb\n", "--partition", "0", *words).exit_code == 0
    assert produced(server, topic, "c\n", "--partition", "0").exit_code == 0
    assert sorted(row["value"] for row in read(server, topic)) == ["a", "b", "c"]


@pytest.mark.real
def test_output_of_consume_is_input_of_produce(server: str) -> None:
    lines = [
        {"key": "k", "value": "v", "timestamp": 1000, "partition": 2, "headers": [["h", None]]},
        {"key": {"base64": "/w=="}, "value": None, "timestamp": 2000, "partition": 0},
    ]
    text = "\n".join(map(json.dumps, lines))
    assert produced(server, "from", text, "--json").exit_code == 0
    first = Typed(server, "consume", "from", "--json").out
    assert produced(server, "to", first, "--json").exit_code == 0
    assert Typed(server, "consume", "to", "--json").out == first.replace('"from"', '"to"')


@pytest.mark.real
def test_failed_records_are_counted(server: str) -> None:
    text = '{"value": "a"}\nnonsense\n{"value": "b", "partition": 7}\n{"value": "c"}\n'
    assert produced(server, "some", text, "--json").exit_code == 1
    assert sorted(row["value"] for row in read(server, "some")) == ["a", "c"]
    huge = "x" * 2_000_000
    result = produced(server, "some", f"fits\n{huge}\nfits too\n", "--partition", "0")
    assert result.exit_code == 1
    assert "record 2: some:0: the broker answered MESSAGE_TOO_LARGE" in result.stderr
    assert "1 of 3 records failed" in result.stderr


@pytest.mark.real
def test_other_clients_read_what_was_produced(server: str) -> None:
    assert produced(server, "other", "k\tv\n", "--key-separator", "\t",
                    "--compression", "snappy", "--header", "a=b").exit_code == 0  # fmt: skip
    consumer = KafkaConsumer(
        "other", bootstrap_servers=server, auto_offset_reset="earliest", consumer_timeout_ms=90_000
    )
    record = next(iter(consumer))
    consumer.close()
    assert (record.key, record.value, record.headers) == (b"k", b"v", [("a", b"b")])
