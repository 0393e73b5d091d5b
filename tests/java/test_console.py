"""Every page of the console on Apache Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from starlette.routing import Route
from starlette.testclient import TestClient

from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import call_coordinator, commit
from kafkawire.console.app import PAGES, application
from kafkawire.console.web.frame import ConsoleOptions, PageFrame
from kafkawire.testing import TopicProducer, create_topic
from kafkawire.testing.topics import unique_name
from tests.kit.waiting import wait_until

RECORDS = 20


@pytest.mark.slow
def test_every_page_works_with_apache_kafka(newer_kafka: str) -> None:
    topic, group = unique_name("console"), unique_name("group")
    create_topic(newer_kafka, topic, partitions=2)
    sender = TopicProducer(newer_kafka)
    for number in range(RECORDS):
        sender.send(topic, b'{"number": %d}' % number, key=b"key-%d" % number, partition=number % 2)
    with Cluster(newer_kafka) as cluster:
        # The codes of partitions say that their coordinator is loading.
        wait_until(
            lambda: (
                set(call_coordinator(lambda: commit(cluster, group, {(topic, 0): 3})).values())
                == {0}
            ),
            "the commit",
        )
    producer = Producer({"bootstrap.servers": newer_kafka, "transactional.id": topic})
    producer.init_transactions(60)
    for outcome in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic, "moved", partition=1)
        producer.flush(60)
        outcome(60)
    options = ConsoleOptions(newer_kafka, ("127.0.0.1",))
    with TestClient(application(options), base_url="http://127.0.0.1") as pages:

        def read(path: str) -> str:
            answer = pages.get(path)
            assert answer.status_code == 200, (path, answer.status_code, answer.text[-2000:])
            return answer.text

        overview = read("/")
        assert "does not answer" not in overview
        assert "Brokers" in overview
        assert topic in read(f"/topics?q={topic}")
        wait_until(lambda: f"name={group}" in read(f"/groups?q={group}"), "the group")
        shown = read(f"/topics/{topic}")
        assert "Map of partition 1" in shown
        assert "does not answer" not in shown
        assert group in shown
        lag = RECORDS // 2 - 3
        assert f"lag {lag} over 1 partition." in read(f"/group?name={group}")
        newest = read(f"/topics/{topic}/records?partition=1")
        assert "committed transaction" in newest
        assert "aborted transaction" in newest
        found = read(f"/topics/{topic}/records?filter=value.number+%3E%3D+15&pattern=key-1")
        assert ": 5 matches" in found
        assert ": 1 match" in read(f"/search?q={topic}+key%3Dkey-7")
        assert len(read(f"/topics/{topic}/records/file").splitlines()) == RECORDS + 2
        assert read(f"/topics/{topic}/records/bytes?partition=0&offset=0") == '{"number": 0}'
        assert group in read(f"/topics/__consumer_offsets/records?text={group}")
        state = read(f"/topics/__transaction_state/records?text={topic}")
        assert "&#34;transactional_id&#34;" in state
    # Pages that are not named above, and streams, which end at once.
    frame = PageFrame(options, lambda: True)
    with TestClient(application(options, lambda: True), base_url="http://127.0.0.1") as pages:
        for route in (route for each in PAGES for route in each(frame).routes()):
            if isinstance(route, Route) and "GET" in (route.methods or ()):
                path = route.path.replace("{topic}", topic)
                if "{" not in path:
                    assert pages.get(path).status_code < 500, path
    frame.close()
