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
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real

NAME = "log.retention.ms"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configs")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[str]:
    with BrokerProcess(data, settings={"log.retention.ms": "777000"}) as broker:
        assert Typed(broker.bootstrap, "topics", "create", "one", "--partitions", "3").code == 0
        yield broker.bootstrap


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


@pytest.mark.skipif("KAFKAWIRE_TEST_BOOTSTRAP" not in os.environ, reason="no other cluster named")
def test_other_kafka_cluster_is_described() -> None:
    other = os.environ["KAFKAWIRE_TEST_BOOTSTRAP"]
    reported = Typed(other, "cluster", "describe", "--json").json
    broker = str(reported["brokers"][0]["broker"])
    shown = Typed(other, "configs", "describe", "--broker", broker, "--all", "--json").json
    assert {row["name"] for row in shown} >= {"log.retention.ms", "message.max.bytes"}


def test_a_changed_file_takes_effect_in_all_workers(tmp_path: Path) -> None:
    file = tmp_path / "kafkawire.toml"
    file.write_text("[settings]\nlog.retention.ms = 5\n")
    words = ["--workers", "2", "--config", str(file)]
    with BrokerProcess(tmp_path / "data", arguments=words) as broker:

        def values() -> set[str]:
            shown = (
                Typed(broker.bootstrap, "configs", "describe", "--broker", node, "--json").json
                for node in ("1", "2")
            )
            return {row["value"] for rows in shown for row in rows if row["name"] == NAME}

        wait_until(lambda: values() == {"5"}, "both workers serve")
        file.write_text("[settings]\nlog.retention.ms = 7\nnum.partitions = 3\n")
        wait_until(lambda: values() == {"7"}, "the value of the file")
        waits = f"{file}: changed, but needs a restart: num.partitions"
        wait_until(lambda: broker.output.count(waits) == 2, "a line of each worker")
