"""Kafka's tool creates client metrics subscriptions, and a Java producer pushes to the broker; the
settings of subscriptions compared with Kafka's.

Covers: kafkawire.telemetry.service, kafkawire.handlers.push_telemetry.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.messages.list_config_resources import ListConfigResourcesRequest
from tests.java.test_same_admin import ask_until_same
from tests.java.tools import Done, ToolServer
from tests.java.twins import Twins
from tests.kit.client_metrics import broker_with_page, pushed_latencies
from tests.kit.waiting import wait_until

TOOLS = "org.apache.kafka.tools."
CLIENT_METRICS = 16


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A broker: its address, and that of its metrics page."""
    with broker_with_page(tmp_path / "data", {}) as addresses:
        yield addresses


def test_java_producer_pushes_what_a_subscription_asks_for(
    tool_server: ToolServer, running: tuple[str, str]
) -> None:
    broker, url = running

    def metrics(*words: str) -> str:
        given = ["--bootstrap-server", broker, *words]
        done = tool_server.run(TOOLS + "ClientMetricsCommand", given, "", 90)
        assert done.code == 0, done.stdout + done.stderr
        return done.stdout

    metrics(
        "--alter", "--name", "m", "--metrics", "org.apache.kafka.producer.", "--interval", "200",
        "--match", "client_id=pushing-.*,client_software_name=apache-kafka-java",
    )  # fmt: skip
    shown = metrics("--describe", "--name", "m")
    assert "interval.ms=200" in shown
    assert "match=client_id=pushing-.*,client_software_name=apache-kafka-java" in shown
    assert metrics("--list").split() == ["m"]
    ended: list[Done] = []

    def produce() -> None:
        arguments = ["--topic", "t", "--num-records", "400", "--record-size", "10",
                     "--throughput", "40", "--bootstrap-server", broker,
                     "--command-property", "client.id=pushing-1"]  # fmt: skip
        ended.append(tool_server.run(TOOLS + "ProducerPerformance", arguments, "", 90))

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        pushed = ("request", "max")
        wait_until(
            lambda: ended or pushed in pushed_latencies(url).get("pushing-1", {}),
            "latencies of a push",
        )
        assert not ended, ended[0].stdout + ended[0].stderr
        found = pushed_latencies(url)["pushing-1"]
        assert {kind for kind, _ in found} >= {"request", "queue"}
        assert all(0 <= seconds < 60 for seconds in found.values())
    finally:
        producer.join()
    assert ended[0].code == 0, ended[0].stdout + ended[0].stderr
    wait_until(lambda: not pushed_latencies(url), "its connection is closed")
    metrics("--delete", "--name", "m")
    assert metrics("--list").split() == []


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("", [("metrics", 0, "*")]),
        ("m", [("metric", 0, "*")]),
        ("m", [("metrics", 0, None)]),
        ("m", [("metrics", 2, "a")]),
        ("m", [("interval.ms", 0, "99")]),
        ("m", [("interval.ms", 0, "3600001")]),
        ("m", [("interval.ms", 0, "soon")]),
        ("m", [("match", 0, "client_id")]),
        ("m", [("match", 0, "client_id=a=b")]),
        ("m", [("match", 0, "client=a")]),
        ("m", [("match", 0, "client_id=(")]),
        ("m", [("metrics", 0, "b,a"), ("match", 0, "client_id=.*, client_source_port=1")]),
    ],
)  # fmt: skip
def test_settings_of_subscriptions_match(
    twins: Twins, name: str, rows: list[tuple[str, int, str | None]]
) -> None:
    configs = [AlterableConfig(*row) for row in rows]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(CLIENT_METRICS, name, configs)])
    kafka, _ = twins.ask("IncrementalAlterConfigs", request, 1)
    if kafka.responses[0].error_code == 0:
        asked = DescribeConfigsRequest([DescribeConfigsResource(CLIENT_METRICS, name, None)], True)
        ask_until_same(twins, asked)
        twins.ask("ListConfigResources", ListConfigResourcesRequest([CLIENT_METRICS]), 1)
        twins.ask("ListConfigResources", ListConfigResourcesRequest(), 0)
        configs = [AlterableConfig(setting, 1, None) for setting, _, _ in rows]
        request.resources[0].configs = configs
        twins.ask("IncrementalAlterConfigs", request, 1)
