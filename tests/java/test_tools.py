"""Topics, records, groups, settings and offsets through Apache Kafka's tools."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.java.conftest import Tool
from tests.java.internal_topics import formatted
from tests.real.conftest import START_MS, MakeTopic


def fill(bootstrap: str, topic: str, count: int, partitions: int = 1) -> None:
    """Produce records quickly with librdkafka, where the tool under test is another one."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for i in range(count):
        producer.produce(topic, b"%d" % i, partition=i % partitions, timestamp=START_MS + i)
    assert producer.flush(90) == 0


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def rows(table: str) -> list[dict[str, str]]:
    """The rows of a tool's table by its header line."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    head = next(i for i, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[head], line, strict=False)) for line in lines[head + 1 :]]


def test_topics_tool(tool: Tool, name: str) -> None:
    config = ("--config", "retention.ms=3600000", "--config", "cleanup.policy=compact")
    tool("TopicCommand", "--create", "--topic", name, "--partitions", "3", *config)
    refused = tool("TopicCommand", "--create", "--topic", name, code=1, stderr=True)
    assert "TopicExistsException" in refused
    tool("TopicCommand", "--alter", "--topic", name, "--partitions", "5")
    described = tool("TopicCommand", "--describe", "--topic", name)
    assert "PartitionCount: 5" in described
    assert "ReplicationFactor: 1" in described
    assert "retention.ms=3600000" in described
    assert "cleanup.policy=compact" in described
    assert (
        len(re.findall(r"Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 5
    )
    assert name in tool("TopicCommand", "--list").split()
    tool("TopicCommand", "--delete", "--topic", name)
    gone = tool("TopicCommand", "--describe", "--topic", name, code=1, stderr=True)
    assert "does not exist" in gone


def test_console_producer_and_consumer(tool: Tool, name: str) -> None:
    """The producer creates the topic by asking for it; the consumer is a member of a group."""
    lines = "".join(f"h:{i}\tkey{i}\tvalue {i}\n" for i in range(50))
    parse = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    tool("ConsoleProducer", "--topic", name, "--compression-codec", "zstd", *parse, data=lines)
    show = ("--formatter-property", "print.key=true", "--formatter-property", "print.headers=true")
    limits = ("--from-beginning", "--max-messages", "50", "--timeout-ms", "30000")
    found = tool("ConsoleConsumer", "--topic", name, "--group", name, *limits, *show)
    assert sorted(found.splitlines()) == sorted(lines.splitlines())
    (row,) = rows(tool("ConsumerGroupCommand", "--describe", "--group", name))
    assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == ("50", "50", "0")


def test_verifiable_producer_and_consumer(tool: Tool, make_topic: MakeTopic, name: str) -> None:
    topic = make_topic(2)
    sent = events(
        tool("VerifiableProducer", "--topic", topic, "--max-messages", "2000", "--acks", "-1")
    )
    assert sum(event["name"] == "producer_send_success" for event in sent) == 2000
    assert (sent[-1]["name"], sent[-1]["acked"]) == ("tool_data", 2000)
    assert not [event for event in sent if event["name"] == "producer_send_error"]
    limits = ("--max-messages", "2000", "--reset-policy", "earliest")
    read = events(tool("VerifiableConsumer", "--topic", topic, "--group-id", name, *limits))
    assert sum(e.get("count", 0) for e in read if e["name"] == "records_consumed") == 2000
    commits = [e for e in read if e["name"] == "offsets_committed"]
    assert commits
    assert all(e["success"] for e in commits)
    assert [e for e in read if e["name"] == "partitions_assigned"]


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_consumer_groups_tool(tool: Tool, make_topic: MakeTopic, bootstrap: str, name: str) -> None:
    topic = make_topic()
    fill(bootstrap, topic, 10)
    commit(bootstrap, name, topic, 7)
    assert name in tool("ConsumerGroupCommand", "--list").split()
    (row,) = rows(tool("ConsumerGroupCommand", "--describe", "--group", name))
    assert (row["TOPIC"], row["CURRENT-OFFSET"], row["LAG"]) == (topic, "7", "3")
    state = tool("ConsumerGroupCommand", "--describe", "--group", name, "--state")
    assert "Empty" in state
    reset = ("--reset-offsets", "--group", name, "--topic", topic, "--execute")
    (row,) = rows(tool("ConsumerGroupCommand", *reset, "--to-earliest"))
    assert row["NEW-OFFSET"] == "0"
    record_4 = datetime.fromtimestamp((START_MS + 4) / 1000, UTC)
    stamp = record_4.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    (row,) = rows(tool("ConsumerGroupCommand", *reset, "--to-datetime", stamp))
    assert row["NEW-OFFSET"] == "4"
    offsets = ("--delete-offsets", "--group", name, "--topic", topic)
    assert "Successful" in tool("ConsumerGroupCommand", *offsets)
    commit(bootstrap, name, topic, 2)
    assert "successful" in tool("ConsumerGroupCommand", "--delete", "--group", name)
    assert name not in tool("ConsumerGroupCommand", "--list").split()


def test_consumer_groups_tool_describes_members(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, name: str
) -> None:
    topic = make_topic(3)
    settings = {"bootstrap.servers": bootstrap, "group.id": name, "client.id": "the-member"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    (row,) = rows(tool("ConsumerGroupCommand", "--describe", "--group", name, "--members"))
    assert (row["CLIENT-ID"], row["#PARTITIONS"]) == ("the-member", "3")
    refused = tool("ConsumerGroupCommand", "--delete", "--group", name, code=None, stderr=True)
    assert "NotEmpty" in refused or "not empty" in refused
    consumer.close()


def test_consumer_of_the_consumer_protocol(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, name: str
) -> None:
    """The Java consumer with group.protocol=consumer (KIP-848), and its group as tools show it."""
    topic = make_topic(3)
    fill(bootstrap, topic, 30, 3)
    limits = ("--from-beginning", "--max-messages", "30", "--timeout-ms", "60000")
    new = ("--command-property", "group.protocol=consumer")
    found = tool("ConsoleConsumer", "--topic", topic, "--group", name, *limits, *new)
    assert sorted(map(int, found.split())) == list(range(30))
    assert name in tool("ConsumerGroupCommand", "--list", "--type", "consumer").split()
    described = rows(tool("ConsumerGroupCommand", "--describe", "--group", name))
    assert {(row["CURRENT-OFFSET"], row["LAG"]) for row in described} == {("10", "0")}
    settings = {"bootstrap.servers": bootstrap, "group.id": name, "group.protocol": "consumer"}
    consumer = Consumer({**settings, "client.id": "the-member"})
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    members = ("--describe", "--group", name, "--members", "--verbose")
    (row,) = rows(tool("ConsumerGroupCommand", *members))
    assert (row["CLIENT-ID"], row["#PARTITIONS"]) == ("the-member", "3")
    assert "Stable" in tool("ConsumerGroupCommand", "--describe", "--group", name, "--state")
    consumer.close()


def test_settings_of_groups(tool: Tool, name: str) -> None:
    place = ("--entity-type", "groups", "--entity-name", name)
    tool("ConfigCommand", "--alter", *place, "--add-config", "consumer.session.timeout.ms=50000")
    found = tool("ConfigCommand", "--describe", *place)
    assert "consumer.session.timeout.ms=50000" in found
    assert "DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000" in found
    tool("ConfigCommand", "--alter", *place, "--delete-config", "consumer.session.timeout.ms")
    assert "50000" not in tool("ConfigCommand", "--describe", *place)


def test_configs_tool(tool: Tool, make_topic: MakeTopic) -> None:
    topic = make_topic()
    place = ("--entity-type", "topics", "--entity-name", topic)
    added = "retention.ms=123456,max.message.bytes=5000"
    tool("ConfigCommand", "--alter", *place, "--add-config", added)
    found = tool("ConfigCommand", "--describe", *place)
    assert "retention.ms=123456" in found
    assert "max.message.bytes=5000" in found
    tool("ConfigCommand", "--alter", *place, "--delete-config", "retention.ms")
    found = tool("ConfigCommand", "--describe", *place, "--all")
    assert "retention.ms=604800000" in found
    assert "max.message.bytes=5000" in found
    bad = ("--alter", *place, "--add-config", "retention.ms=soon")
    assert "InvalidConfigurationException" in tool("ConfigCommand", *bad, code=1, stderr=True)


def test_configs_tool_changes_broker_settings(tool: Tool) -> None:
    place = ("--entity-type", "brokers", "--entity-default")
    tool("ConfigCommand", "--alter", *place, "--add-config", "log.index.interval.bytes=4097")
    assert "log.index.interval.bytes=4097" in tool("ConfigCommand", "--describe", *place)
    tool("ConfigCommand", "--alter", *place, "--delete-config", "log.index.interval.bytes")
    assert "log.index.interval.bytes=4097" not in tool("ConfigCommand", "--describe", *place)


def test_get_offsets_and_delete_records_tools(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, tmp_path: Path
) -> None:
    topic = make_topic(2)
    fill(bootstrap, topic, 20, 2)
    plan = tmp_path / "delete.json"
    wanted = {"topic": topic, "partition": 1, "offset": 4}
    plan.write_text(json.dumps({"partitions": [wanted], "version": 1}))
    deleted = tool("DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert "low_watermark: 4" in deleted
    for time, expected in (
        ("earliest", ["0", "4"]),
        ("latest", ["10", "10"]),
        ("max-timestamp", ["9", "9"]),
        (str(START_MS + 10), ["5", "5"]),
    ):
        found = tool("GetOffsetShell", "--topic", topic, "--time", time).split()
        assert found == [f"{topic}:{p}:{offset}" for p, offset in enumerate(expected)]
    assert tool("GetOffsetShell", "--topic", topic, "--time", str(START_MS + 20)).strip() == ""


def test_cluster_tools(tool: Tool, make_topic: MakeTopic) -> None:
    topic = make_topic()
    assert "Cluster ID" in tool("ClusterTool", "cluster-id")
    described = tool("LogDirsCommand", "--describe", "--topic-list", topic)
    found = json.loads(next(li for li in described.splitlines() if li.startswith("{")))
    (folder,) = found["brokers"][0]["logDirs"]
    assert folder["error"] is None
    assert [place["partition"] for place in folder["partitions"]] == [f"{topic}-0"]
    quorum = tool("MetadataQuorumCommand", "describe", "--status")
    assert re.search(r"LeaderId: +1\n", quorum), quorum
    assert re.search(r"MaxFollowerLag: +0\n", quorum), quorum
    (row,) = tool("MetadataQuorumCommand", "describe", "--replication").splitlines()[1:]
    assert row.split()[0] == "1"
    assert row.split()[-1] == "Leader"
    versions = tool("BrokerApiVersionsCommand")
    for line in ("Produce(0): 0 to 13", "Fetch(1): 4 to 18", "ApiVersions(18): 0 to 5"):
        assert line in versions


def test_offsets_topic_is_in_kafkas_format(
    tool: Tool, make_topic: MakeTopic, bootstrap: str, name: str
) -> None:
    """Its offsets, members and tombstones as Kafka's own formatters print them."""
    topic = make_topic()
    fill(bootstrap, topic, 3)
    settings = {"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "client.id": "the-member", "enable.auto.commit": False})
    consumer.subscribe([topic])
    assert len(consumer.consume(3, 20)) == 3
    consumer.commit(offsets=[TopicPartition(topic, 0, 3, metadata="here")], asynchronous=False)
    consumer.close()
    kept = ("__consumer_offsets", name)
    offsets = formatted(tool, bootstrap, "OffsetsMessageFormatter", *kept)
    key = {"type": 1, "data": {"group": name, "topic": topic, "partition": 0}}
    (row,) = [row for row in offsets if row["key"] == key]
    assert row["value"]["version"] in (3, 4)
    assert row["value"]["data"]["offset"] == 3
    assert row["value"]["data"]["metadata"].rstrip("\0") == "here"  # confluent-kafka adds a zero
    groups = formatted(tool, bootstrap, "GroupMetadataMessageFormatter", *kept)
    assert {row["key"]["data"]["group"] for row in groups} == {name}
    stable, empty = groups[-2]["value"]["data"], groups[-1]["value"]["data"]
    assert (stable["protocolType"], stable["protocol"], stable["generation"]) == (
        "consumer",
        "range",
        1,
    )
    assert [member["clientId"] for member in stable["members"]] == ["the-member"]
    assert (empty["members"], empty["generation"]) == ([], 2)
