"""A view topic with Java's classic and new consumer: matches, offsets, ranges without matches.

Covers: kafkawire.handlers.fetch.view_reads.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.java.conftest import Tool
from tests.java.test_tools import rows

pytestmark = pytest.mark.usefixtures("ours_only")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_console_consumer_reads_a_view_to_its_end(
    tool: Tool, bootstrap: str, name: str, isolation: str, protocol: str
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    view = f"{name}-view"
    configs = {"view.source.topic": name, "view.filter": "value.number in (700, 1200)"}
    for topic in (NewTopic(name, 1), NewTopic(view, -1, config=configs)):
        admin.create_topics([topic])[topic.topic].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 10})
    for number in range(2_000):
        producer.produce(name, b'{"number": %d}' % number)
    assert producer.flush(60) == 0
    given = ("--topic", view, "--group", name, "--from-beginning", "--timeout-ms", "3000")
    more = ("--isolation-level", isolation, "--consumer-property", f"group.protocol={protocol}")
    show = ("--formatter-property", "print.offset=true")
    small = ("--consumer-property", "max.partition.fetch.bytes=2000")
    found = tool("ConsoleConsumer", *given, *more, *show, *small, code=None)
    lines = [line for line in found.splitlines() if line.startswith("Offset:")]
    assert lines == ['Offset:700\t{"number": 700}', 'Offset:1200\t{"number": 1200}']
    table = tool("ConsumerGroupCommand", "--describe", "--group", name)
    (row,) = rows(table)
    assert (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) == ("2000", "2000", "0")
