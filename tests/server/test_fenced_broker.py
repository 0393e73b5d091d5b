"""Two brokers with one bucket: the one that lost it refuses Produce requests and serves reads.

Covers: kafkawire.tiering.fence, kafkawire.server.http_pages.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of, running
from tests.kit.waiting import until
from tests.server.test_metrics import ask, of, scrape

QUICK = {
    "metrics_listener": "127.0.0.1:0",
    "tiering_max_lag_ms": "5000",
    "tiering_min_object_bytes": "1",
    "cut_interval_ms": "100",
    "journal_roll_ms": "300",
    "tier_cache_bytes": str(16 << 20),
}
HEALTH = b"GET /health HTTP/1.1\r\n\r\n"


async def produced(client: Client, topic: str = "t") -> ErrorCode:
    """Produce a record and return the error code of its partition."""
    answer = await client.call(produce(topic, batch(b"x")), 9)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def set_action(client: Client, node_id: int, value: str) -> None:
    config = AlterableConfig(name="tier.fenced.action", config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=4, resource_name=str(node_id), configs=[config])
    answer = await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0


@pytest.mark.slow
async def test_broker_that_lost_its_bucket_refuses_produces_and_serves_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = {**QUICK, "tier_url": str(tmp_path / "bucket")}
    async with running(tmp_path / "one", **settings) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        assert await produced(client) is ErrorCode.NONE
        await client.close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    async with running(tmp_path / "one", **settings) as first:
        tiering = first.broker.tiering
        assert tiering is not None
        await until(lambda: tiering.state == "attached", "attached")
        async with running(tmp_path / "two", **settings) as second:
            other = second.broker.tiering
            assert other is not None
            await until(lambda: other.state == "attached", "the copy took the bucket over")
            client = await Client.connect(port_of(first))
            assert await produced(client) is ErrorCode.NONE, "it does not know yet"
            await until(lambda: tiering.state == "owned by another", "its upload is refused")
            assert await produced(client) is ErrorCode.NOT_LEADER_OR_FOLLOWER
            read = await client.call(fetch("t", 0), 11)
            assert values(read.responses[0].partitions[0]) == [b"x", b"x"]
            assert first.monitors is not None
            status, body = await ask(first.monitors[1], HEALTH)
            assert status == "HTTP/1.1 503 Service Unavailable"
            reason = "this broker must not write to the remote tier: the tier was claimed by"
            assert reason in json.loads(body)["reason"]
            samples = await scrape(first.monitors[1])
            assert of(samples, "kafkawire_log_refusing") == 1
            assert of(samples, "kafkawire_tier_attached") == 0

            copied = await Client.connect(port_of(second))
            assert await produced(copied) is ErrorCode.NONE, "the owner accepts records"
            assert second.monitors is not None
            status, _ = await ask(second.monitors[1], HEALTH)
            assert status == "HTTP/1.1 200 OK"

            await set_action(client, first.broker.node_id, "serve")
            await until(lambda: first.broker.log.commit_log.refusal is None, "the setting is read")
            assert await produced(client) is ErrorCode.NONE
            status, _ = await ask(first.monitors[1], HEALTH)
            assert status == "HTTP/1.1 503 Service Unavailable"
            await set_action(client, first.broker.node_id, "refuse")
            await until(lambda: first.broker.log.commit_log.refusal is not None)
            await client.close()
            await copied.close()
    lines = [each.message for each in caplog.records if "NOT_LEADER_OR_FOLLOWER" in each.message]
    assert len(lines) == 2, "once for each time it began to refuse"
    assert "tier.fenced.action=serve" in lines[0]
