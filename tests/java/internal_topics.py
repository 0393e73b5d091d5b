"""Records of coordinators' topics as Apache Kafka's own formatters print them."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.java.committed import topic_partitions
from tests.java.conftest import Tool

FORMATTERS = "org.apache.kafka.tools.consumer."
NAME_FIELDS = {"__consumer_offsets": "group", "__transaction_state": "transactionalId"}
"""Where the key of a record has the name of its group or transactional id."""


def formatted(
    tool: Tool, bootstrap: str, formatter: str, topic: str, name: str
) -> list[dict[str, Any]]:
    """Return what a formatter prints of a topic for one group or transactional id."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    count = 0
    for at in topic_partitions(consumer, topic):
        start, end = consumer.get_watermark_offsets(TopicPartition(*at), 20)
        count += end - start
    consumer.close()
    # Markers and what compaction removed are not printed: the timeout ends it then.
    limits = ("--from-beginning", "--max-messages", str(count), "--timeout-ms", "5000")
    classes = ("--formatter", FORMATTERS + formatter)
    rows = parse(tool("ConsoleConsumer", "--topic", topic, *limits, *classes, code=None))
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
