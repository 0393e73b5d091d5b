"""Share groups with Java's KafkaShareConsumer and kafka-share-groups (KIP-932), and dead letters
(KIP-1191)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafkawire.client.cluster import Cluster
from kafkawire.codec.java_hash import group_partition_of, partition_of
from tests.java.committed import CommittedReader, topic_partitions
from tests.java.conftest import Program, Tool
from tests.java.internal_topics import FORMATTERS, parse
from tests.java.test_tools import fill
from tests.real.conftest import MakeTopic
from tests.real.members import wait_for

Hash = Callable[[str, int], int]
STATES = (
    "__share_group_state",
    "group.share.ShareGroupStateMessageFormatter",
    partition_of,
)
GROUPS = ("__consumer_offsets", "ShareGroupMessageFormatter", group_partition_of)


def rows(table: str) -> list[dict[str, str]]:
    """The rows of a tool's table by its header line."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    head = next(i for i, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[head], line, strict=False)) for line in lines[head + 1 :]]


def test_share_consumer_and_tool(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, name: str
) -> None:
    topic = make_topic(3)
    place = ("--entity-type", "groups", "--entity-name", name)
    tool("ConfigCommand", "--alter", *place, "--add-config", "share.auto.offset.reset=earliest")
    fill(bootstrap, topic, 30, 3)
    limits = ("--max-messages", "30", "--timeout-ms", "60000")
    found = tool("ConsoleShareConsumer", "--topic", topic, "--group", name, *limits)
    assert sorted(map(int, found.split())) == list(range(30))
    assert name in tool("ShareGroupCommand", "--list").split()
    described = rows(tool("ShareGroupCommand", "--describe", "--group", name))
    assert {(row["TOPIC"], row["START-OFFSET"], row["LAG"]) for row in described} == {
        (topic, "10", "0")
    }
    assert "Empty" in tool("ShareGroupCommand", "--describe", "--group", name, "--state")
    # Three of the records again, and then all of a group without offsets.
    reset = ("--reset-offsets", "--group", name, "--topic", topic, "--execute")
    tool("ShareGroupCommand", *reset, "--to-earliest")
    described = rows(tool("ShareGroupCommand", "--describe", "--group", name))
    assert {(row["START-OFFSET"], row["LAG"]) for row in described} == {("0", "10")}
    found = tool("ConsoleShareConsumer", "--topic", topic, "--group", name, *limits)
    assert sorted(map(int, found.split())) == list(range(30))
    offsets = ("--delete-offsets", "--group", name, "--topic", topic)
    assert "Successful" in tool("ShareGroupCommand", *offsets)
    assert "successful" in tool("ShareGroupCommand", "--delete", "--group", name)
    assert name not in tool("ShareGroupCommand", "--list").split()


def test_records_are_in_kafkas_format(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, name: str
) -> None:
    """The state of a share partition, and the group, as Kafka's own formatters print them."""
    topic = make_topic()
    place = ("--entity-type", "groups", "--entity-name", name)
    tool("ConfigCommand", "--alter", *place, "--add-config", "share.auto.offset.reset=earliest")
    fill(bootstrap, topic, 7, 1)
    limits = ("--max-messages", "7", "--timeout-ms", "60000")
    tool("ConsoleShareConsumer", "--topic", topic, "--group", name, *limits)
    with Cluster(bootstrap) as cluster:
        topic_id = urlsafe_b64encode(cluster.metadata([topic]).topics[0].topic_id).decode()[:22]
    states = [
        row
        for row in read(tool, bootstrap, STATES, f"{name}:{topic_id}:0")
        if row["key"]["data"] == {"groupId": name, "topicId": topic_id, "partition": 0}
    ]
    first, last = states[0], states[-1]
    assert [row["key"]["type"] for row in states] == [0] + [1] * (len(states) - 1)
    assert (first["value"]["data"]["stateEpoch"], first["value"]["data"]["startOffset"]) == (1, -1)
    assert (last["value"]["data"]["startOffset"], last["value"]["data"]["stateBatches"]) == (7, [])
    found: dict[int, list[Any]] = defaultdict(list)
    for row in read(tool, bootstrap, GROUPS, name):
        if row["key"]["data"]["groupId"] == name:
            found[row["key"]["type"]].append((row["value"] or {}).get("data"))
    assert sorted(found) == list(range(10, 16))
    members, epochs, targets, assigned, kept, shares = (found[kind] for kind in sorted(found))
    assert (members[0]["subscribedTopicNames"], members[-1]) == ([topic], None)
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    assert [target["assignmentEpoch"] for target in targets] == [1, 2, 3]
    places = [{"topicId": topic_id, "partitions": [0]}]
    assert [each and each["topicPartitions"] for each in assigned] == [[], places, None]
    assert [each and each["assignedPartitions"] for each in kept] == [[], places, None]
    named = [{"topicId": topic_id, "topicName": topic, "partitions": [0]}]
    states_of = ("initializingTopics", "initializedTopics", "deletingTopics")
    assert [[share[each] for each in states_of] for share in shares] == [
        [named, [], []],
        [[], named, []],
    ]


REASONS = {
    "reject": "Offset rejected by client.",
    "release": "Offset delivery count exceeded the threshold.",
}
"""The reasons in dead letters."""


@pytest.mark.parametrize("copied", [True, False], ids=["with the record", "without"])
def test_dead_letters(
    newer_program: Program,
    tool: Tool,
    make_topic: MakeTopic,
    bootstrap: str,
    name: str,
    copied: bool,
) -> None:
    """Of records that are rejected, and of those that are released until they were delivered too
    often: one for each, which names its record, in the partition with the number of its record's
    modulo the partitions of the dead-letter topic."""
    topic, dead = make_topic(3), f"dlq.{name}"
    config = {"errors.deadletterqueue.group.enable": "true"}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(dead, 2, 1, config=config)])[dead].result(60)
    configs = {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": "3",
        "errors.deadletterqueue.topic.name": dead,
        "errors.deadletterqueue.copy.record.enable": str(copied).lower(),
    }
    place = ("--entity-type", "groups", "--entity-name", name)
    added = ",".join(f"{key}={value}" for key, value in configs.items())
    tool("ConfigCommand", "--alter", *place, "--add-config", added)
    kinds = ("accept", "reject", "release")
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(90):
        value = f"{kinds[number // 3 % 3]}-{number}"
        producer.produce(topic, value, f"key-{number}", number % 3)
    assert producer.flush(60) == 0
    member = newer_program("ShareMember", bootstrap, name, topic)
    member.start()

    def lags() -> set[str]:
        described = rows(tool("ShareGroupCommand", "--describe", "--group", name))
        return {row["LAG"] for row in described}

    member.wait_for_line("settled", 30 + 30 + 3 * 30)
    wait_for(lambda: lags() == {"0"}, what=lambda: f"{lags()}: {member.output[-3000:]}")
    member.kill()
    assert "failed" not in member.output
    lines = [line.split()[1:] for line in member.output.splitlines() if line.startswith("settled")]
    deliveries = Counter((partition, offset) for partition, offset, *_ in lines)
    values = {(partition, offset): value for partition, offset, value, _ in lines}
    assert len(values) == 90
    expected = {}
    for at, value in values.items():
        kind, _, sent = value.partition("-")
        assert deliveries[at] == (3 if kind == "release" else 1)
        if kind == "accept":
            continue
        headers = {
            "__dlq.errors.topic": topic,
            "__dlq.errors.partition": at[0],
            "__dlq.errors.offset": at[1],
            "__dlq.errors.group": name,
            "__dlq.errors.delivery.count": str(deliveries[at]),
            "__dlq.errors.message": REASONS[kind],
        }
        content = (f"key-{sent}".encode(), value.encode()) if copied else (None, None)
        expected[at] = (int(at[0]) % 2, *content, headers)
    letters = CommittedReader(bootstrap, dead).to_end()
    assert len(letters) == len(expected)
    found = {}
    for letter in letters:
        headers = headers_of(letter)
        at = headers["__dlq.errors.partition"], headers["__dlq.errors.offset"]
        found[at] = (letter.partition(), letter.key(), letter.value(), headers)
    assert found == expected


def headers_of(letter: Message) -> dict[str, str]:
    """Return the headers of a dead letter, each of which is there once."""
    headers = letter.headers() or []
    assert len({key for key, _ in headers}) == len(headers)
    return {key: (value or b"").decode() for key, value in headers}


def read(tool: Tool, bootstrap: str, kind: tuple[str, str, Hash], key: str) -> list[dict[str, Any]]:
    """The records of the partition of an internal topic that has a key, as a formatter prints
    them."""
    topic, formatter, hash_of = kind
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    partition = hash_of(key, len(topic_partitions(consumer, topic)))
    consumer.close()
    place = ("--topic", topic, "--partition", str(partition), "--from-beginning")
    classes = ("--formatter", FORMATTERS + formatter)
    return parse(tool("ConsoleConsumer", *place, "--timeout-ms", "3000", *classes, code=None))
