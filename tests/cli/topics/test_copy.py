"""`kafkawire topics copy`: every record exact, in its partition and order; resumed; to another
cluster.

Covers: kafkawire.client.copying, kafkawire.cli.topics.copy.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer as Other

from kafkawire import testing
from kafkawire.cli.topics import copy as commands
from kafkawire.client import copying
from kafkawire.client import producer as producing
from kafkawire.client.cluster import Cluster
from kafkawire.client.copying import Copier, PartitionCopy
from kafkawire.client.errors import ClientError
from kafkawire.client.lag import known_leaders
from kafkawire.client.producer import Producer, append
from kafkawire.codec.batches import Record
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture, by name)

pytestmark = pytest.mark.slow

T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with testing.broker() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def other() -> Iterator[str]:
    with testing.broker() as broker:
        yield broker.bootstrap


def filled(server: str, topic: str, count: int = 300, *words: str) -> None:
    """Three partitions of records of all kinds in batches of all sizes and compressions."""
    source = random.Random(topic)
    done = Typed(server, "topics", "create", topic, "--partitions", "3", *words)
    assert done.code == 0, done.err
    failed: list[Any] = []
    with Cluster(server) as cluster:
        for codec in range(5):
            writer = Producer(cluster, failed=failed.append, codec=codec)
            for number in range(count // 5):
                key = source.choice([None, b"", source.randbytes(5)])
                value = source.choice([None, b"", source.randbytes(20), source.randbytes(3000)])
                headers = [("h", source.randbytes(2)), ("h", None)] if number % 3 else []
                at_ms = T0 + source.randrange(1000)
                writer.send((topic, number % 2), Record(0, at_ms, key, value, headers))
            writer.flush()
    assert not failed


def read(server: str, topic: str, *words: str) -> list[Any]:
    lines = Typed(server, "consume", topic, "--json", *words).lines
    for line in lines:
        del line["topic"]
    return lines


def copied(server: str, *words: str) -> Any:
    done = Typed(server, "topics", "copy", *words, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_copy_is_exact(server: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "FORWARDED_BYTES", 20_000)  # some are forwarded, some collected
    filled(server, "a", 300, "--config", "retention.ms=-1")
    result = copied(server, "a", "b")
    assert (result["records"], result["same_offsets"], result["created"]) == (300, True, True)
    assert read(server, "b") == read(server, "a")
    (described,) = Typed(server, "topics", "describe", "b", "--json").json
    assert described["configs"] == {"retention.ms": "-1"}
    assert copied(server, "a", "a", "--to-server", other)["same_offsets"]
    assert read(other, "a") == read(server, "a")


def test_offsets_differ_after_a_gap(server: str) -> None:
    filled(server, "gap", 20)
    begin = ("topics", "delete-records", "gap:0", "--before-offset", "3", "--yes")
    assert Typed(server, *begin).code == 0
    result = copied(server, "gap", "gap-copy")
    assert not result["same_offsets"]
    assert [row["same_offsets"] for row in result["partitions"]] == [False, True, True]
    expected, found = read(server, "gap"), read(server, "gap-copy")
    for line in expected:
        line["offset"] -= 3 if line["partition"] == 0 else 0
    assert found == expected


@pytest.mark.real
def test_only_committed_records_are_copied(server: str) -> None:
    Typed(server, "topics", "create", "txn")
    writer = Other({"bootstrap.servers": server, "transactional.id": "copy"})
    writer.init_transactions()
    for value, commit in [(b"a", True), (b"b", False), (b"c", True)]:
        writer.begin_transaction()
        writer.produce("txn", value)
        writer.flush()
        if commit:
            writer.commit_transaction()
        else:
            writer.abort_transaction()
    writer.begin_transaction()
    writer.produce("txn", b"open")
    writer.flush()
    result = copied(server, "txn", "txn-copy")
    assert (result["records"], result["same_offsets"]) == (2, False)
    assert [line["value"] for line in read(server, "txn-copy")] == ["a", "c"]
    writer.commit_transaction()
    assert copied(server, "txn", "txn-copy", "--resume")["records"] == 1
    assert [line["value"] for line in read(server, "txn-copy")] == ["a", "c", "open"]
    result = copied(server, "txn", "txn-all", "--isolation-level", "read_uncommitted")
    assert result["records"] == 4


def test_timestamps_of_the_broker_are_kept(server: str) -> None:
    filled(server, "stamped", 50, "--config", "message.timestamp.type=LogAppendTime")
    assert copied(server, "stamped", "plain")["records"] == 50
    assert read(server, "plain") == read(server, "stamped")


def test_interrupted_copy_is_resumed(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(server, "long", 300)
    monkeypatch.setattr(producing, "BATCH_RECORDS", 7)
    sent = append
    calls: list[None] = []

    def failing(*arguments: Any, **more: Any) -> Any:
        calls.append(None)
        if len(calls) > 9:
            raise ClientError("the power is gone")
        return sent(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(producing, "append", failing)
        patched.setattr(producing, "RETRY_FOR_S", -1)
        failed = Typed(server, "topics", "copy", "long", "short")
    assert failed.code == 1
    assert "continue with --resume" in failed.err
    have = len(read(server, "short"))
    assert 0 < have < 300
    result = copied(server, "long", "short", "--resume")
    assert (result["records"], result["same_offsets"]) == (300 - have, True)
    assert read(server, "short") == read(server, "long")
    assert copied(server, "long", "short", "--resume")["records"] == 0


def test_other_records_are_not_continued(server: str) -> None:
    filled(server, "one", 20)
    filled(server, "two", 20)
    refused = Typed(server, "topics", "copy", "one", "two", "--resume")
    assert refused.code == 1
    assert "two:0 does not have the first 10 records of one:0" in refused.err
    filled(server, "more", 40)
    refused = Typed(server, "topics", "copy", "one", "more", "--resume")
    assert "more:0 does not have the first 20 records of one:0" in refused.err
    done = Typed(server, "topics", "delete-records", "two:0", "--before-offset", "2", "-y")
    assert done.code == 0
    refused = Typed(server, "topics", "copy", "one", "two", "--resume")
    assert "two:0 has lost its first records" in refused.err


def test_batches_that_are_too_large_are_divided(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(server, "large", 60)
    Typed(server, "topics", "create", "narrow", "--partitions", "3", "--config",
          "max.message.bytes=9000")  # fmt: skip
    monkeypatch.setattr(copying, "FORWARDED_BYTES", 100)
    assert copied(server, "large", "narrow")["records"] == 60
    assert read(server, "narrow") == read(server, "large")


def test_copy_waits_for_leaders_of_a_new_topic(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka answers CreateTopics before its brokers know the topic."""
    filled(server, "early", 5)
    known = known_leaders
    answers: list[dict[tuple[str, int], int]] = [{}, {}, {("late", 0): -1}]

    def leaders(cluster: Cluster, topics: list[str]) -> dict[tuple[str, int], int]:
        return answers.pop(0) if answers else known(cluster, topics)

    monkeypatch.setattr(commands, "known_leaders", leaders)
    monkeypatch.setattr(commands, "CREATION_POLL_S", 0)
    assert copied(server, "early", "late")["records"] == 5
    assert not answers
    answers = [{}] * 3
    monkeypatch.setattr(commands, "CREATION_S", -1)
    failed = Typed(server, "topics", "copy", "early", "later")
    assert (failed.code, "has no leaders after" in failed.err) == (1, True)


def test_rest_of_a_batch_is_copied(server: str) -> None:
    filled(server, "part", 100)
    Typed(server, "topics", "create", "rest", "--partitions", "3")
    failed: list[Any] = []
    with Cluster(server) as cluster:
        node = cluster.nodes()[0]
        part = PartitionCopy(("part", 0), ("rest", 0), node, 3, 17)
        writer = Producer(cluster, failed=failed.append)
        while not part.done:
            Copier(cluster, writer).step(part)
        writer.flush()
    assert (part.copied, part.last_offset, failed) == (14, 16, [])
    expected = [line for line in read(server, "part:0") if 3 <= line["offset"] < 17]
    found = read(server, "rest:0")
    assert sorted(str(line["value"]) for line in found) == sorted(
        str(line["value"]) for line in expected
    )
