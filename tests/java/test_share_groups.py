"""Share groups with Java's KafkaShareConsumer and kafka-share-groups (KIP-932)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer

from kafkawire.client.cluster import Cluster
from kafkawire.codec.java_hash import group_partition_of, partition_of
from tests.java.committed import topic_partitions
from tests.java.conftest import Tool
from tests.java.internal_topics import FORMATTERS, parse
from tests.java.test_tools import fill
from tests.real.conftest import MakeTopic

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
