"""The pages of the cluster and of one broker.

Covers: kafkawire.console.pages.cluster, kafkawire.console.views.cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from kafkawire.client.cluster import Cluster
from kafkawire.client.quotas import alter_quotas
from kafkawire.client.security import security_of
from kafkawire.console.app import application
from kafkawire.console.views.cluster import describe_broker, describe_cluster, list_brokers
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.snapshot import (
    ClusterSnapshot,
    NodeState,
    PartitionSnapshot,
    TopicSnapshot,
    take_snapshot,
)
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.testing import InProcessBroker, TopicProducer, broker, create_topic
from tests.console.test_pages import check_page
from tests.kit.fake_kafka import serving

RACK = "<b>rack</b>"


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessBroker]:
    users = {"alice": "secret"}
    settings = {"broker.rack": RACK, "log.retention.ms": "123456789", "audit.log": "log"}
    with broker(users=users, acls=[], settings=settings) as started:
        create_topic(started.bootstrap, "t", partitions=3)
        yield started


@pytest.fixture
def pages(running: InProcessBroker) -> Iterator[TestClient]:
    app = application(ConsoleOptions(running.bootstrap, ("127.0.0.1",)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def test_cluster_page_has_brokers_features_and_quorum(pages: TestClient) -> None:
    text = pages.get("/cluster").text
    check_page(text)
    assert "&lt;b&gt;rack&lt;/b&gt;" in text
    assert "(controller)" in text
    assert "transaction.version" in text
    assert "No partition is being moved." in text
    assert 'href="/brokers/1"' in text


def test_broker_page_has_settings_with_source_and_default(pages: TestClient) -> None:
    text = pages.get("/brokers/1").text
    check_page(text)
    assert "<td>0</td><td>static</td><td>3000</td><td>by a restart</td>" in text
    assert "<td>123456789</td><td>static</td><td></td><td>at run time</td>" in text
    assert "delete.topic.enable" not in text
    assert "delete.topic.enable" in pages.get("/brokers/1?all=1").text
    filtered = pages.get("/brokers/1?q=TOPIC.enable").text
    assert "delete.topic.enable" in filtered
    assert "123456789" not in filtered
    assert "of the volume are free" in text
    assert "ApiVersions" in text


def test_quotas_in_use_are_on_the_page_of_a_broker(
    running: InProcessBroker, pages: TestClient
) -> None:
    assert "No client with a quota was active" in pages.get("/brokers/1").text
    with Cluster(running.bootstrap) as cluster:
        alter_quotas(cluster, {"client-id": None}, {"producer_byte_rate": 1 << 20})
    TopicProducer(running.bootstrap).send("t", b"v" * 5_000)
    text = pages.get("/brokers/1").text
    check_page(text)
    assert re.search(
        r">producer_byte_rate</th>.*[1-9][0-9.]* [Ki]*B/s</td><td class=\"n\">1.0 MiB/s</td>", text
    )


def test_changes_of_the_last_hour_are_on_the_overview(pages: TestClient) -> None:
    text = pages.get("/").text
    check_page(text)
    assert "<td>topic created</td>" in text
    assert re.search(r"<td>topic: t +.*partitions: 3", text), text


def test_settings_of_a_topic_have_source_and_default(
    running: InProcessBroker, pages: TestClient
) -> None:
    create_topic(running.bootstrap, "own", settings={"retention.ms": "1000"})
    assert 'href="/topics/own/settings"' in pages.get("/topics/own").text
    text = pages.get("/topics/own/settings").text
    check_page(text)
    assert "<td>1000</td><td>topic</td><td>" in text
    assert "cleanup.policy" not in text
    assert (
        "<td>delete</td><td>default</td><td>delete</td>"
        in pages.get("/topics/own/settings?q=CLEANUP").text
    )


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/absent/settings", 404),
        ("/brokers/9", 404),
        ("/brokers/x", 400),
        ("/brokers/-1", 400),
        ("/cluster?page=0", 400),
    ],
)
def test_wrong_requests_get_a_sentence(pages: TestClient, path: str, status: int) -> None:
    answer = pages.get(path)
    assert answer.status_code == status
    check_page(answer.text)


def test_refused_rights_are_sentences(running: InProcessBroker) -> None:
    given = running.client_settings("alice")
    with Cluster(given["bootstrap.servers"], security=security_of(given)) as cluster:
        snapshot = take_snapshot(cluster, OwnBroker())
        found = describe_cluster(cluster, snapshot)
        detail = describe_broker(cluster, OwnBroker(), snapshot, 1)
    assert any("CLUSTER_AUTHORIZATION_FAILED" in each for each in found.refused)
    assert found.features
    assert (detail.settings.rows, detail.log_dirs) == ([], [])
    assert len(detail.refused) == 3


def test_broker_with_few_requests_has_a_page() -> None:
    with serving({}) as fake, Cluster(fake.address) as cluster:
        snapshot = ClusterSnapshot(0, "c", 1, (NodeState(1, "h", 1, None),), {}, {})
        found = describe_cluster(cluster, snapshot)
    assert [row.node for row in found.brokers] == [1]
    assert any("does not support DescribeCluster" in each for each in found.refused)


def test_brokers_are_counted_by_what_they_lead_and_hold() -> None:
    def partition(index: int, leader: int, in_sync: tuple[int, ...]) -> PartitionSnapshot:
        return PartitionSnapshot(index, leader, (1, 2), in_sync, 0, 1, 0, None)

    topic = TopicSnapshot("t", bytes(16), False, (partition(0, 1, (1, 2)), partition(1, 1, (1,))))
    snapshot = ClusterSnapshot(0, "c", 1, (NodeState(1, "h", 1, None),), {"t": topic}, {})
    first, second = list_brokers(snapshot, {1: True, 2: False})
    assert (first.leads, first.holds, first.out_of_sync) == (2, 2, 0)
    assert (second.state, second.alive, second.out_of_sync) == (None, False, 1)
