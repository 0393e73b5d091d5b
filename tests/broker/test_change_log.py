"""Log lines of changes of topics and settings: what, by which client, at a bounded rate.

Covers: kafkawire.log_lines.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kafkawire.broker import change_log
from kafkawire.broker.change_log import BURST, LINES_PER_S, ChangeLog
from kafkawire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.security.audit import NoAudit
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of, running

TOPIC, BROKER = 2, 4


def alter(kind: int, name: str, key: str, value: str | None) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name=key, config_operation=0 if value is not None else 1, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource])


async def test_changes_name_the_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=change_log.__name__)
    async with running(tmp_path / "data") as server:
        client = await Client.connect(port_of(server))
        await make(client, "orders", 3, retention_ms="60000")
        await client.call(produce("orders", batch(b"x", b"y")), 9)
        asked = CreatePartitionsTopic(name="orders", count=5, assignments=None)
        await client.call(CreatePartitionsRequest(topics=[asked]), 3)
        await client.call(alter(TOPIC, "orders", "retention.ms", "7"), 1)
        await client.call(alter(TOPIC, "orders", "retention.ms", None), 1)
        await client.call(alter(BROKER, "", "tier.paused", "true"), 1)
        await client.call(alter(BROKER, "1", "some.secret", "s3cr3t"), 1)
        row = DeleteRecordsPartition(partition_index=0, offset=1)
        topics = [DeleteRecordsTopic(name="orders", partitions=[row])]
        await client.call(DeleteRecordsRequest(topics=topics, timeout_ms=5000), 2)
        gone = [DeleteTopicState(name="orders")]
        await client.call(DeleteTopicsRequest(topics=gone, timeout_ms=5000), 6)
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
        wanted.allow_auto_topic_creation = True
        await client.call(wanted, 9)
        await client.close()
    by = "client test at 127.0.0.1"
    assert [record.getMessage() for record in caplog.records] == [
        f"topic orders created by {by}: 3 partitions, retention.ms=60000",
        f"topic orders has 5 partitions instead of 3, added by {by}",
        f"topic orders: retention.ms is now '7', was '60000'; set by {by}",
        f"topic orders: retention.ms is now its default, was '7'; set by {by}",
        f"all brokers: tier.paused is now 'true', was its default; set by {by}",
        f"broker 1: stored some.secret for {by}, but this broker does not know the setting: it has "
        "no effect",
        f"records of orders-0 below offset 1 deleted by {by}",
        f"topic orders deleted by {by}: it had 5 partitions",
        f"topic new created by Metadata of {by}: 1 partition",
    ]


def test_rate_of_lines_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=change_log.__name__)
    now = 0.0
    log = ChangeLog(lambda: now, NoAudit())
    for _ in range(BURST + 10):
        log.report_records_deleted("t", 0, 1, "client c at 10.0.0.1")
    assert len(caplog.records) == BURST
    now += 1.0
    for _ in range(20):
        log.report_records_deleted("t", 0, 1, "client c at 10.0.0.1")
    lines = [record.getMessage() for record in caplog.records][BURST:]
    assert lines[0] == "10 changes of topics were not logged: too many at a time"
    assert len(lines) == 1 + LINES_PER_S
