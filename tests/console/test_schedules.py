"""The page of schedule topics.

Covers: kafkawire.console.pages.cluster, kafkawire.console.views.schedules,
kafkawire.client.schedules.
"""

from __future__ import annotations

import time

import pytest
from starlette.testclient import TestClient

from kafkawire.client.cluster import Cluster
from kafkawire.console.app import application
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.schedules import describe_waiting
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.testing import TopicProducer, broker, create_topic
from tests.console.test_pages import check_page
from tests.kit.fake_kafka import serving
from tests.kit.waiting import wait_until


@pytest.mark.real
def test_records_that_wait_and_those_that_are_held() -> None:
    with broker() as running:
        create_topic(running.bootstrap, "later", settings={"schedule.target.header": "<i>to</i>"})
        create_topic(running.bootstrap, "there")
        producer = TopicProducer(running.bootstrap)
        now_ms = time.time_ns() // 1_000_000
        far_ms = now_ms + 7_200_000
        producer.send("later", b"v", headers=[("<i>to</i>", b"there")], timestamp_ms=far_ms)

        def waiting() -> int:
            with Cluster(running.bootstrap) as cluster:
                rows = describe_waiting(cluster, OwnBroker()).rows.rows
            return sum(row.waiting for row in rows)

        wait_until(lambda: waiting() == 1, "a record that waits")
        app = application(ConsoleOptions(running.bootstrap, ("127.0.0.1",)))
        with TestClient(app, base_url="http://127.0.0.1") as pages:
            listed = pages.get("/schedules").text
            one = pages.get("/schedules?topic=later").text
            absent = pages.get("/schedules?topic=absent").text
        for text in (listed, one, absent):
            check_page(text)
        assert "header &lt;i&gt;to&lt;/i&gt;" in listed
        assert "All records that are due are delivered." in one
        assert '<td class="n">1</td>' in one
        assert "The topic absent does not exist." in absent


def test_another_kafka_is_named_in_one_sentence() -> None:
    with serving({}) as fake, Cluster(fake.address) as cluster:
        found = describe_waiting(cluster, OwnBroker())
    (sentence,) = found.refused
    assert "Only a kafkawire broker answers this" in sentence
