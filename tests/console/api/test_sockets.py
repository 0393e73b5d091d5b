"""WebSockets of the API: from an offset, as a member of a group, with produce, and bad peers.

Covers: kafkawire.console.api.sockets, kafkawire.console.views.group_member.
"""

from __future__ import annotations

import json
import socket as sockets
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from kafkawire.client.cluster import Cluster
from kafkawire.client.groups import assignment, describe_group
from kafkawire.client.offsets import fetch_committed_offsets
from kafkawire.console.views.group_member import TopicMember, assign_ranges
from kafkawire.testing import InProcessBroker, TopicProducer
from kafkawire.testing.process import BrokerProcess
from tests.console.api.conftest import console, curl
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real


def open_socket(url: str, topic: str, query: str = "", **options: Any) -> ClientConnection:
    """Open a WebSocket of a topic."""
    address = f"ws{url.removeprefix('http')}/api/topics/{topic}/socket?{query}"
    found: ClientConnection = connect(address, proxy=None, open_timeout=60, **options)
    return found


def receive(
    socket: ClientConnection, wanted: Callable[[dict[str, Any]], bool], timeout: float = 60
) -> list[dict[str, Any]]:
    """Return the messages up to the first that is wanted."""
    found = []
    while True:
        found.append(json.loads(socket.recv(timeout=timeout)))
        if wanted(found[-1]):
            return found


def records(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["record"] for each in messages if "record" in each]


def read(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    """Return `count` records."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += records(receive(socket, lambda message: "record" in message))
    return found


def send(socket: ClientConnection, **message: Any) -> None:
    socket.send(json.dumps(message))


def send_until_closed(socket: ClientConnection) -> None:
    while True:
        socket.send("x" * (3 << 20))


def acknowledge(socket: ClientConnection, record: dict[str, Any]) -> None:
    """Acknowledge a record, and wait until it is committed."""
    send(socket, ack={"partition": record["partition"], "offset": record["offset"]})
    end = {"partition": record["partition"], "offset": record["offset"] + 1}
    receive(socket, lambda message: end in message.get("committed", ()))


def committed(running: InProcessBroker, group: str, topic: str) -> dict[int, int]:
    with Cluster(running.bootstrap) as cluster:
        found = fetch_committed_offsets(cluster, group)
    return {index: at for (name, index), (at, _) in found.items() if name == topic}


def test_socket_tails_and_produces(url: str, topic: str) -> None:
    with open_socket(url, topic) as tail, open_socket(url, topic, "read=0") as writer:
        for number in range(20):
            send(writer, produce={"key": "k", "value": str(number)}, id=number)
        answers = [json.loads(writer.recv(timeout=60)) for _ in range(20)]
        assert [each["id"] for each in answers] == list(range(20))
        places = [(each["produced"]["partition"], each["produced"]["offset"]) for each in answers]
        found = read(tail, 20)
        assert [(each["partition"], each["offset"]) for each in found] == places
        assert [each["value"] for each in found] == [str(number) for number in range(20)]
    with open_socket(url, topic, "where=oldest&encoding=base64") as again:
        assert read(again, 20)[1]["value_base64"] == "MQ=="


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "body="),
        ("[]", "a JSON object"),
        ("[" * 100_000, "JSON"),
        ('{"nothing": 1}', "message=nothing"),
        ('{"produce": {"value": 1}, "id": "a"}', "produce.value=1"),
        ('{"produce": {"value": "x", "partition": 99}}', "has 3 partitions"),
        ('{"produce": {"value": "\\ud800"}}', "produce.value"),
        ('{"produce": {"value": "x"}, "id": {}}', "id="),
        ('{"ack": {"partition": 0, "offset": 0}}', "without a group"),
    ],
    ids=range(9),
)
def test_wrong_messages_get_a_sentence(url: str, topic: str, text: str, sentence: str) -> None:
    with open_socket(url, topic) as socket:
        socket.send(text)
        answer = json.loads(socket.recv(timeout=60))
        assert sentence in answer.get("error", answer.get("produced", {}).get("error"))
        send(socket, produce={"value": "good", "partition": 0})
        receive(socket, lambda message: "produced" in message)


def test_binary_and_large_messages_close_the_socket(url: str, topic: str) -> None:
    with open_socket(url, topic) as socket:
        socket.send(b"\x00")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003
    with open_socket(url, topic) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            send_until_closed(socket)
        # The connection may be reset before the client has read why.
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009


@pytest.mark.parametrize(
    ("topic", "query", "status"),
    [
        ("absent", "", 404),
        ("absent", "group=g", 404),
        ("absent", "nothing=1", 400),
        ("absent", "where=oldest&where=newest", 400),
        ("absent", "group=g&key=k", 400),
        ("absent", "group=g&where=offset", 400),
    ],
)
def test_sockets_are_refused_with_a_status(url: str, topic: str, query: str, status: int) -> None:
    with pytest.raises(InvalidStatus) as refused, open_socket(url, topic, query):
        pass
    assert refused.value.response.status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Cookie": "a=b"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_pages_of_other_sites_open_no_socket(
    url: str, topic: str, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        open_socket(url, topic, additional_headers=headers).close()
    assert refused.value.response.status_code == status
    with open_socket(url, topic, additional_headers={"Origin": url}):
        pass


def test_other_hosts_open_no_socket(url: str, topic: str) -> None:
    at = urlsplit(url)
    assert at.port is not None
    with sockets.create_connection(("127.0.0.1", at.port)) as raw:
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://evil.example/api/topics/{topic}/socket", sock=raw, proxy=None)
        assert refused.value.response.status_code == 421


def test_group_shares_partitions_with_a_real_consumer(
    running: InProcessBroker, url: str, topic: str
) -> None:
    producer = TopicProducer(running.bootstrap)
    for number in range(30):
        producer.send(topic, str(number).encode(), partition=number % 3)
    with open_socket(url, topic, "group=shared&where=oldest") as socket:
        messages = receive(socket, lambda message: "assigned" in message)
        assert messages[-1] == {"assigned": [0, 1, 2]}
        found = read(socket, 30)
        assert {each["value"] for each in found} == {str(number) for number in range(30)}
        for index in range(3):
            acknowledge(socket, [each for each in found if each["partition"] == index][-1])
        assert committed(running, "shared", topic) == {0: 10, 1: 10, 2: 10}
        consumer = Consumer({
            "bootstrap.servers": running.bootstrap, "group.id": "shared",
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        })  # fmt: skip
        try:
            consumer.subscribe([topic])
            wait_until(
                lambda: consumer.poll(0.1) is None and len(consumer.assignment()) > 0,
                "an assignment",
            )
            theirs = {each.partition for each in consumer.assignment()}
            (ours,) = receive(socket, lambda message: "assigned" in message)[-1].values()
            assert theirs
            assert ours
            assert theirs | set(ours) == {0, 1, 2}
            assert not theirs & set(ours)
            for index in range(3):
                producer.send(topic, f"later-{index}".encode(), partition=index)
            (record,) = consumer.consume(1, timeout=60)
            assert record.partition() in theirs
            assert record.offset() == 10, "what was acknowledged is not delivered again"
            assert read(socket, 1)[0]["partition"] in ours
            send(socket, ack={"partition": min(theirs), "offset": 10})
            refused = receive(socket, lambda message: "error" in message)[-1]
            assert "still has" in refused["error"]
        finally:
            consumer.close()
        messages = receive(socket, lambda message: "assigned" in message)
        assert messages[-1] == {"assigned": [0, 1, 2]}
    # The socket has left the group: another member needs no session timeout.
    with open_socket(url, topic, "group=shared") as socket:
        messages = receive(socket, lambda message: "assigned" in message, timeout=30)
        assert messages[-1] == {"assigned": [0, 1, 2]}


def test_what_is_not_acknowledged_is_delivered_again(
    running: InProcessBroker, url: str, topic: str
) -> None:
    producer = TopicProducer(running.bootstrap)
    for number in range(5):
        producer.send(topic, str(number).encode(), partition=0)
    with open_socket(url, topic, "group=again&where=oldest") as socket:
        acknowledge(socket, read(socket, 5)[1])
        send(socket, ack={"partition": 0, "offset": 5})
        refused = receive(socket, lambda message: "error" in message)[-1]
        assert "ack=" in refused["error"], "it was not sent"
    with open_socket(url, topic, "group=again&where=oldest") as socket:
        assert [each["value"] for each in read(socket, 3)] == ["2", "3", "4"]


def test_member_that_is_closed_leaves_its_group(running: InProcessBroker, topic: str) -> None:
    member = TopicMember(Cluster(running.bootstrap), "left", topic)
    wait_until(lambda: member.poll(100) and member.positions, "an assignment")
    with Cluster(running.bootstrap) as cluster:
        assert len(describe_group(cluster, "left").members) == 1
        member.close()
        assert describe_group(cluster, "left").members == []


def test_broker_that_is_killed_and_restarted_is_waited_for(kept: Any) -> None:
    with BrokerProcess(data=kept) as broker, console(broker.bootstrap, "--allow-changes") as url:
        curl(f"{url}/api/topics", data={"name": "kept", "partitions": 1}, status=201)
        with (
            open_socket(url, "kept", "group=g&where=oldest") as member,
            open_socket(url, "kept") as tail,
        ):
            receive(member, lambda message: "assigned" in message)
            send(tail, produce={"value": "before"})
            receive(tail, lambda message: "record" in message)
            acknowledge(member, read(member, 1)[0])
            broker.kill()
            broker.start()
            send(tail, produce={"value": "after"})
            assert read(tail, 1)[0]["value"] == "after"
            found = read(member, 1)[0]
            assert (found["value"], found["offset"]) == ("after", 1)
            acknowledge(member, found)


def test_leader_assigns_ranges_of_all_topics() -> None:
    topics = {"b": ["x", "y"], "a": ["x"], "c": ["y"]}
    found = {member: assignment(data) for member, data in
             assign_ranges(topics, {"x": 3, "y": 2}).items()}  # fmt: skip
    assert found == {
        "a": [("x", 0), ("x", 1)],
        "b": [("x", 2), ("y", 0)],
        "c": [("y", 1)],
    }
