"""Pages of the console about a whole cluster, on Apache Kafka."""

from __future__ import annotations

from uuid import uuid4

import pytest
from confluent_kafka import Producer
from starlette.testclient import TestClient

from kafkawire.console.app import application
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.testing import create_topic
from tests.console.test_pages import check_page


@pytest.mark.slow
def test_pages_of_a_cluster_work_with_apache_kafka(newer_kafka: str) -> None:
    topic = f"held-{uuid4()}"
    create_topic(newer_kafka, topic)
    producer = Producer({"bootstrap.servers": newer_kafka, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, "v")
    producer.flush(60)
    options = ConsoleOptions(newer_kafka, ("127.0.0.1",))
    with TestClient(application(options), base_url="http://127.0.0.1") as pages:

        def read(path: str) -> str:
            answer = pages.get(path)
            assert answer.status_code == 200, (path, answer.text)
            check_page(answer.text)
            return answer.text

        opened = read("/transactions")
        assert f'<th scope="row">{topic}</th>' in opened
        assert f'<a href="/topics/{topic}">{topic}</a>:0' in opened
        for path in ("/tier", "/schedules"):
            assert "Only a kafkawire broker answers this" in read(path)
        cluster = read("/cluster")
        assert "metadata.version" in cluster
        assert "leader" in cluster
        assert '<p class="banner">' not in cluster
        settings = read("/brokers/1")
        assert "<td>0</td><td>static</td><td>3000</td>" in settings
        assert "kafka.server" in settings
        assert '<p class="banner">' not in settings
        assert "No Authorizer is configured" in read("/security")
        assert "broker: " in read("/")
    producer.abort_transaction(60)
