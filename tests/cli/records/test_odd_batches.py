"""Batches that Kafka accepts although no usual client sends them: every command reads them.

Covers: kafkawire.client.record_text, kafkawire.client.copying, kafkawire.sql.topic_dataset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire import testing
from kafkawire.client.cluster import Cluster
from kafkawire.client.fetching import fetch, sound_records
from kafkawire.client.offsets import leaders
from kafkawire.client.producer import append
from kafkawire.client.record_text import as_json
from kafkawire.codec.batches import Record
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.codec.odd_batches import COUNT, ODD

pytestmark = pytest.mark.slow

TOPIC = "odd"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A broker with all odd batches in one partition, in this order."""
    with testing.broker() as broker:
        fill(broker.bootstrap, TOPIC)
        yield broker.bootstrap


def fill(server: str, topic: str, *words: str) -> None:
    assert Typed(server, "topics", "create", topic, *words).code == 0
    with Cluster(server) as cluster:
        [node] = leaders(cluster, [topic]).values()
        for name, odd in ODD.items():
            [result] = append(cluster, node, {(topic, 0): bytearray(odd.data)}).values()
            assert not result.code, (name, result)


def stored() -> list[Record]:
    """The records with the offsets that they have in the topic."""
    return [
        Record(batch * COUNT + each.offset, each.timestamp, each.key, each.value, each.headers)
        for batch, odd in enumerate(ODD.values())
        for each in odd.records
    ]


def test_consume_and_copy_keep_every_byte(server: str) -> None:
    expected = [as_json((TOPIC, 0), record) for record in stored()]
    assert Typed(server, "consume", TOPIC, "--json").lines == expected
    done = Typed(server, "topics", "copy", TOPIC, "copy", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["records"], result["same_offsets"]) == (len(expected), True)
    with Cluster(server) as cluster:
        [node] = leaders(cluster, ["copy"]).values()
        got = fetch(cluster, node, ("copy", 0), 0)
        assert list(sound_records(got, 0)) == stored()


def test_export_and_import_keep_every_byte(server: str, tmp_path: Path) -> None:
    expected = Typed(server, "consume", TOPIC, "--json").lines
    for number, form in enumerate(("jsonl", "csv")):
        path, topic = str(tmp_path / f"odd.{form}"), f"again-{number}"
        assert Typed(server, "topics", "create", topic).code == 0
        assert Typed(server, "export", TOPIC, path).code == 0
        done = Typed(server, "import", topic, path)
        assert done.code == 0, done.err
        found = Typed(server, "consume", topic, "--json").lines
        assert [{**line, "topic": TOPIC} for line in found] == expected
    assert Typed(server, "export", TOPIC, str(tmp_path / "odd.parquet")).code == 0


def test_every_record_is_found(server: str) -> None:
    shown = Typed(server, "consume", TOPIC, "--format", "%h\\n")
    assert shown.code == 0, shown.err
    for odd in ODD.values():
        key = (odd.records[5].key or b"").decode()
        found = Typed(server, "find", TOPIC, "--key", key, "--json").lines
        assert key in [line["key"] for line in found]
    rows = Typed(server, "sql", "--json", f"SELECT count(*) AS n, count(headers) AS h FROM {TOPIC}")
    [counted] = rows.lines
    assert counted == {"n": len(stored()), "h": sum(bool(each.headers) for each in stored())}
    for moment in ("1970-01-01", "2023-11-14"):
        assert Typed(server, "consume", TOPIC, "--from", moment, "--json").code == 0


def test_compacted_topic_takes_them(server: str) -> None:
    fill(server, "compacted", "--config", "cleanup.policy=compact")
    assert len(Typed(server, "consume", "compacted", "--json").lines) == len(stored())
