"""Share groups and streams groups on the page of a group.

Covers: kafkawire.console.views.locks, kafkawire.handlers.share_locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer
from starlette.testclient import TestClient

from kafkawire.client.cluster import Cluster
from kafkawire.client.configs import GROUP, SET, alter
from kafkawire.client.groups import describe_group
from kafkawire.client.offsets import call_coordinator
from kafkawire.client.tier import CommandRefused, send_command
from kafkawire.console.app import application
from kafkawire.console.views.locks import ShareLocks, describe_locks
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.handlers import share_locks
from kafkawire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kafkawire.testing import InProcessBroker, TopicProducer, broker, create_topic
from tests.console.test_pages import check_page
from tests.kit.groups.streams import word_count
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real
STREAMS_HEARTBEAT = 88
GROUP_NAME, TOPIC, RECORDS = "<b>share</b>", "t", 9
QUICK = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
}


@pytest.fixture(scope="module")
def running() -> Iterator[InProcessBroker]:
    with broker(settings=QUICK) as started:
        create_topic(started.bootstrap, TOPIC)
        producer = TopicProducer(started.bootstrap)
        for _ in range(RECORDS):
            producer.send(TOPIC, b"v")
        yield started


def page(running: InProcessBroker, group: str) -> str:
    app = application(ConsoleOptions(running.bootstrap, ("127.0.0.1",)))
    with TestClient(app, base_url="http://127.0.0.1") as pages:
        answer = pages.get("/group", params={"name": group})
    assert answer.status_code == 200
    check_page(answer.text)
    return answer.text


def locks(running: InProcessBroker) -> list[ShareLocks]:
    with Cluster(running.bootstrap) as cluster:
        found, refused = describe_locks(cluster, OwnBroker(), describe_group(cluster, GROUP_NAME))
    assert refused == []
    return found


def test_locks_of_a_share_group(running: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(running.bootstrap) as cluster:
        alter(cluster, (GROUP, GROUP_NAME), [("share.auto.offset.reset", "earliest", SET)])
    consumer: Any = ShareConsumer(
        {"bootstrap.servers": running.bootstrap, "group.id": GROUP_NAME, "log_level": 0,
         "share.acknowledgement.mode": "explicit"}
    )  # fmt: skip
    consumer.subscribe([TOPIC])
    try:
        taken: list[Any] = []

        def acquired() -> bool:
            taken.extend(consumer.poll(0.2))
            return len(taken) == RECORDS

        wait_until(acquired, "all records")
        (found,) = locks(running)
        assert (found.topic, found.partition, found.start, found.end) == (TOPIC, 0, 0, RECORDS)
        assert {run.state for run in found.runs} == {"acquired"}
        assert sum(run.last - run.first + 1 for run in found.runs) == RECORDS
        assert all(run.member and run.deliveries == 1 and run.left_ms for run in found.runs)
        for message in taken:
            accepted = message.offset() > 0
            consumer.acknowledge(
                message, AcknowledgeType.ACCEPT if accepted else AcknowledgeType.RELEASE
            )
        consumer.commit_sync(30)
        states = {run.first: run.state for run in locks(running)[0].runs}
        assert states[1] == "acknowledged"
        text = page(running, GROUP_NAME)
        assert "1 to 8: acknowledged" in text
        monkeypatch.setattr(share_locks, "MAX_RUNS", 1)
        (short,) = locks(running)
        assert (len(short.runs), short.left_out) == (1, len(states) - 1)
    finally:
        consumer.close()


def test_command_for_locks_refuses_what_is_no_group(running: InProcessBroker) -> None:
    with Cluster(running.bootstrap) as cluster, pytest.raises(CommandRefused, match="group:"):
        send_command(cluster, "locks", group=7)


def test_tasks_of_a_streams_group(running: InProcessBroker) -> None:
    name, member = "streams", "<i>member</i>"
    with Cluster(running.bootstrap) as cluster:
        call_coordinator(lambda: cluster.coordinator_id(name))
        first = StreamsGroupHeartbeatRequest(
            name, member, 0, rebalance_timeout_ms=30_000, topology=word_count(), process_id="p",
            active_tasks=[], standby_tasks=[], warmup_tasks=[],
        )  # fmt: skip
        answer = cluster.coordinator(name).request(STREAMS_HEARTBEAT, first)
        assert not answer.error_code, answer.error_message

        def assigned() -> bool:
            beat = StreamsGroupHeartbeatRequest(name, member, answer.member_epoch)
            seen = cluster.coordinator(name).request(STREAMS_HEARTBEAT, beat)
            return bool(seen.active_tasks)

        wait_until(lambda: bool(answer.active_tasks) or assigned(), "tasks")
    text = page(running, name)
    assert "<h2>Topology</h2>" in text
    assert '<th scope="row">&lt;i&gt;member&lt;/i&gt;</th><td>p</td><td>0:0 1:0 </td>' in text
