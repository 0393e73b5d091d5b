"""Records of coordinators' topics as Apache Kafka's own formatters print them."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from kafkawire.codec.java_hash import group_partition_of, partition_of
from tests.java.committed import topic_partitions
from tests.java.conftest import Tool

FORMATTERS = "org.apache.kafka.tools.consumer."
NAME_FIELDS = {"__consumer_offsets": "group", "__transaction_state": "transactionalId"}
"""Where the key of a record has the name of its group or transactional id."""

PARTITION_OF = {"__consumer_offsets": group_partition_of, "__transaction_state": partition_of}


def formatted(
    tool: Tool, bootstrap: str, formatter: str, topic: str, name: str
) -> list[dict[str, Any]]:
    """Return what a formatter prints of a topic for one group or transactional id."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    partition = PARTITION_OF[topic](name, len(topic_partitions(consumer, topic)))
    start, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 20)
    consumer.close()
    # Of one partition: in a group of its own the tool would count the records of that group, too.
    # Markers and what compaction removed are not printed: the timeout ends it then.
    place = ("--topic", topic, "--partition", str(partition), "--from-beginning")
    limits = ("--max-messages", str(end - start), "--timeout-ms", "5000")
    classes = ("--formatter", FORMATTERS + formatter)
    rows = parse(tool("ConsoleConsumer", *place, *limits, *classes, code=None))
    return [row for row in rows if row["key"]["data"].get(NAME_FIELDS[topic]) == name]


def parse(output: str) -> list[dict[str, Any]]:
    """Return the JSON objects of the output, which has no line ends between them."""
    parsed: list[dict[str, Any]] = []
    at = output.find("{")
    while at >= 0:
        row, end = json.JSONDecoder().raw_decode(output, at)
        parsed.append(row)
        at = output.find("{", end)
    return parsed
