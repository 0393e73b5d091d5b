"""Every tool of `kafkawire mcp` on Apache Kafka.

Covers: kafkawire.cli.mcp.tools, kafkawire.console.views.findings.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import call_coordinator, commit
from kafkawire.testing import TopicProducer, create_topic
from kafkawire.testing.topics import unique_name
from tests.kit.mcp import McpSession
from tests.kit.waiting import wait_until

RECORDS, COMMITTED = 20, 3
LAG = RECORDS // 2 - COMMITTED


@pytest.mark.slow
def test_every_tool_answers_on_apache_kafka(newer_kafka: str) -> None:
    topic, group = unique_name("orders"), unique_name("group")
    create_topic(newer_kafka, topic, partitions=2)
    sender = TopicProducer(newer_kafka)
    for number in range(RECORDS):
        sender.send(topic, b'{"number": %d}' % number, key=b"key-%d" % number, partition=number % 2)
    with Cluster(newer_kafka) as cluster:

        def commits() -> bool:
            asked = {(topic, 0): COMMITTED}
            return not any(call_coordinator(lambda: commit(cluster, group, asked)).values())

        wait_until(commits, "the commit")  # its coordinator loads
    producer = Producer({"bootstrap.servers": newer_kafka, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, "open", partition=1)
    producer.flush(60)
    called = set()
    with McpSession(newer_kafka) as session:

        def ask(tool: str, **arguments: object) -> Any:
            called.add(tool)
            return session.call(tool, **arguments)

        def explain(tool: str, *words: str, **arguments: object) -> str:
            """The findings as text, without what only kafkawire has."""
            found = ask(tool, **arguments)["findings"]
            text = " ".join(f"{each['sentence']} {each['remedy']} {each['next']}" for each in found)
            assert "--tier" not in text
            for each in words:
                assert each in text, text
            return text

        held = f"stop at offset {RECORDS // 2} of {topic}:1"
        explain("why_cluster", held, "why_transaction()", f"why_group(group={group!r})")
        explain("why_topic", held, topic=topic)
        explain("why_group", "no members", f"left to read: {LAG}", group=group, observe_s=0)
        assert explain("why_tier", topic=topic).startswith("Only a kafkawire broker answers this")
        explain("why_transaction", held, "is Ongoing", transactional_id=topic)
        allowed = "may read topic t: the broker checks no access rules"
        explain("why_client", allowed, operation="read", name="t")
        (row,) = ask("list_topics", contains=topic)["rows"]
        assert (row["records"], row["worst"]) == (RECORDS + 1, [group, LAG])
        maps = ask("describe_topic", topic=topic)["topic"]["maps"]
        assert [(each["log_end"], each["stable"]) for each in maps] == [(10, 10), (11, 10)]
        assert [each["lag"] for each in ask("list_groups", contains=group)["rows"]] == [LAG]
        assert ask("describe_group", group=group)["lag"] == LAG
        newest = ask("read_records", topic=topic, limit=1)["records"]
        assert [each["value"] for each in newest] == [{"text": "open"}]
        found = ask("find_records", topic=topic, key="key-7")["records"]
        assert [each["value"] for each in found] == [{"json": {"number": 7}}]
        counted = ask("sql", statement=f'SELECT count(*) AS n FROM "{topic}"')
        assert counted["rows"] == [{"n": RECORDS}]  # committed ones
        assert called == {each.name for each in session.tools()}
    producer.abort_transaction(60)
