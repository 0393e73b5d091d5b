"""`kafkawire cluster` and `kafkawire configs`.

Covers: kafkawire.cli.cluster.configs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[str]:
    with BrokerProcess(data, settings={"log.retention.ms": "777000"}) as broker:
        assert Typed(broker.bootstrap, "topics", "create", "one", "--partitions", "3").code == 0
        yield broker.bootstrap


def test_topic_settings_are_set_shown_and_deleted(server: str) -> None:
    of = ("--topic", "one")
    assert Typed(server, "configs", "describe", *of, "--json").json == [
        {
            "name": "min.insync.replicas",  # as from Kafka 4.1 on (KIP-966)
            "value": "1",
            "source": "all brokers",
            "change": "dynamic",
            "sensitive": False,
        },
        {
            "name": "retention.ms",
            "value": "777000",
            "source": "static",
            "change": "dynamic",
            "sensitive": False,
        },
    ]
    done = Typed(server, "configs", "set", "retention.ms=5000", "cleanup.policy=compact", *of)
    assert done.code == 0
    assert "topic one: retention.ms=5000" in done.out
    shown = {r["name"]: r for r in Typed(server, "configs", "describe", *of, "--json").json}
    assert shown["retention.ms"]["value"] == "5000"
    assert shown["retention.ms"]["source"] == shown["cleanup.policy"]["source"] == "topic"
    every = Typed(server, "configs", "describe", *of, "--all", "--json").json
    assert len(every) > len(shown)
    gone = Typed(server, "configs", "unset", "retention.ms", "cleanup.policy", *of, "--json")
    assert gone.json[0] == {"name": "retention.ms", "value": None}
    left = Typed(server, "configs", "describe", *of, "--json").json
    assert [(row["name"], row["source"]) for row in left] == [
        ("min.insync.replicas", "all brokers"), ("retention.ms", "static"),
    ]  # fmt: skip


def test_broker_settings_are_set_and_shown(server: str) -> None:
    assert Typed(server, "configs", "set", "log.retention.ms=1234", "--brokers-default").code == 0
    shown = {
        row["name"]: row
        for row in Typed(server, "configs", "describe", "--broker", "1", "--all", "--json").json
    }
    assert (shown["log.retention.ms"]["value"], shown["log.retention.ms"]["source"]) == (
        "1234",
        "all brokers",
    )
    assert {row["change"] for row in shown.values()} == {"static", "dynamic"}
    defaults = Typed(server, "configs", "describe", "--brokers-default", "--json").json
    assert [row["name"] for row in defaults] == ["log.retention.ms", "min.insync.replicas"]
    assert Typed(server, "configs", "unset", "log.retention.ms", "--brokers-default").code == 0


def test_settings_of_groups_are_set_and_shown(server: str) -> None:
    of, name = ("--group", "billing"), "consumer.session.timeout.ms"
    done = Typed(server, "configs", "set", f"{name}=50s", *of)
    assert (done.code, done.out) == (0, f"group billing: {name}=50000\n")
    (row,) = (r for r in Typed(server, "configs", "describe", *of, "--json").json)
    assert (row["name"], row["value"], row["source"]) == (name, "50000", "group")
    refused = Typed(server, "configs", "set", f"{name}=1s", *of)
    assert (refused.code, "in the range 45000 to 60000" in refused.err) == (1, True)
    assert Typed(server, "configs", "unset", name, *of).code == 0
    assert Typed(server, "configs", "describe", *of, "--json").json == []


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["describe"], 2, "give exactly one of --topic"),
        (["describe", "--topic", "a", "--broker", "1"], 2, "give exactly one of --topic"),
        (["describe", "--topic", "none"], 1, "topic none"),
        (["describe", "--broker", "77"], 1, "there is no broker 77"),
        (["set", "log.retention.ms=1", "--broker", "77"], 1, "there is no broker 77"),
        (["set", "retention.ms", "--topic", "one"], 2, "NAME=VALUE"),
        (
            ["set", "retention.ms=soon", "--topic", "one"],
            2,
            "retention.ms=soon: it must be a ",
        ),
        (["set", "retention.ms=-2", "--topic", "one"], 1, "retention.ms"),
        (["set", "no.such=1", "--topic", "one"], 1, "no.such"),
    ],
)
def test_refused_setting_is_one_sentence(
    server: str, words: list[str], code: int, sentence: str
) -> None:
    done = Typed(server, "configs", *words)
    assert (done.code, done.out) == (code, "")
    assert done.err.count("\n") == 1
    assert sentence in done.err


def test_cluster_is_described_from_broker_and_from_folder(server: str, data: Path) -> None:
    reported = Typed(server, "cluster", "describe", "--json").json
    assert reported["controller"] == 1
    own = {"broker": 1, "address": server, "rack": None, "controller": True}
    assert reported["brokers"] == [{**own, "replicas": [1], "in_sync": [1]}]
    stored = Typed("", "cluster", "describe", "--source", str(data), "--json").json
    assert stored["cluster_id"] == reported["cluster_id"]
    (broker,) = stored["brokers"]
    assert (stored["topics"], stored["partitions"], broker["partitions"]) == (1, 3, 3)
    assert (broker["journals"], broker["segments"]) == (1, 0)
    assert list(broker["listeners"]) == ["PLAINTEXT"]
    assert reported["cluster_id"] in Typed(server, "cluster", "describe").out
    assert reported["cluster_id"] in Typed("", "cluster", "describe", "--source", str(data)).out
    none = Typed("", "cluster", "describe", "--data", str(data / "none"))
    assert (none.code, "--source=" in none.err, none.err.count("\n")) == (2, True, 1)


@pytest.mark.skipif("KAFKAWIRE_TEST_BOOTSTRAP" not in os.environ, reason="no other cluster named")
def test_other_kafka_cluster_is_described() -> None:
    other = os.environ["KAFKAWIRE_TEST_BOOTSTRAP"]
    reported = Typed(other, "cluster", "describe", "--json").json
    broker = str(reported["brokers"][0]["broker"])
    shown = Typed(other, "configs", "describe", "--broker", broker, "--all", "--json").json
    assert {row["name"] for row in shown} >= {"log.retention.ms", "message.max.bytes"}
