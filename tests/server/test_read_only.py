"""`broker.read.only`: clients read, and change neither records nor topics.

Covers: kafkawire.broker.read_only.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of, running
from tests.kit.waiting import WITHIN_S
from tests.server.test_metrics import ask, of, scrape

TOPIC, BROKER = 2, 4


async def alter(client: Client, kind: int, name: str, **settings: str) -> ErrorCode:
    configs = [
        AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value)
        for key, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    return ErrorCode(answer.responses[0].error_code)


async def read_only(client: Client, value: str = "true", **more: str) -> None:
    code = await alter(client, BROKER, "", broker_read_only=value, **more)
    assert code is ErrorCode.NONE


async def produced(client: Client, value: bytes = b"x") -> ErrorCode:
    answer = await client.call(produce("t", batch(value)), 9)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def read(client: Client) -> list[bytes]:
    answer = await client.call(fetch("t", 0), 11)
    return values(answer.responses[0].partitions[0])


@asynccontextmanager
async def connected(folder: Path, **settings: str) -> AsyncIterator[tuple[Server, Client]]:
    async with running(folder, **settings) as server:
        client = await Client.connect(port_of(server))
        yield server, client
        await client.close()


async def codes_of_changes(client: Client) -> dict[str, int]:
    """The error of each change of topics and records."""
    made = await client.call(CreateTopicsRequest(topics=[CreatableTopic("new", 1, 1)]), 7)
    grown = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="t", count=2, assignments=None)]
    )
    gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
    row = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 0)])
    deleted: Any = await client.call(DeleteRecordsRequest(topics=[row]), 2)
    return {
        "create": made.topics[0].error_code,
        "partitions": (await client.call(grown, 3)).results[0].error_code,
        "records": deleted.topics[0].partitions[0].error_code,
        "settings": await alter(client, TOPIC, "t", retention_ms="5"),
        "delete": (await client.call(gone, 6)).responses[0].error_code,
    }


async def test_clients_read_and_change_nothing(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        await make(client, "t")
        assert await produced(client) is ErrorCode.NONE
        await read_only(client)
        assert await produced(client) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await read(client) == [b"x"]
        codes = await codes_of_changes(client)
        assert set(codes.values()) == {ErrorCode.POLICY_VIOLATION}, codes
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="auto")])
        found = (await client.call(asked, 9)).topics[0].error_code
        assert found == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # What the broker needs itself is created, here for the first group.
        asked_group = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        assert (await client.call(asked_group, 4)).coordinators[0].error_code == 0
        assert set(server.broker.catalog.by_name) == {"t", "__consumer_offsets"}
        await read_only(client, "false")
        assert await produced(client, b"y") is ErrorCode.NONE
        assert await read(client) == [b"x", b"y"]
        assert set((await codes_of_changes(client)).values()) == {ErrorCode.NONE}


async def test_records_that_wait_in_the_write_batch_are_written(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        await make(client, "t")
        broker = server.broker
        partition = await broker.table.load_partition("t", 0)
        partition.append(memoryview(bytearray(batch(b"waiting"))), broker.env.clock.now_ms())
        committed = asyncio.create_task(broker.log.commit_log.wait_until_committed())
        assert partition.high_watermark == 0, "it is not written yet"
        await broker.topics.configs.replace_static({"broker.read.only": "true"})
        await committed
        assert await produced(client) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await read(client) == [b"waiting"]


async def test_a_start_with_the_setting_reads_only(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await make(client, "t")
        assert await produced(client) is ErrorCode.NONE
        await read_only(client)
    async with connected(tmp_path) as (_, client):
        assert await produced(client) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert await read(client) == [b"x"]


async def test_commits_have_a_switch_of_their_own(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        await make(client, "t")
        row = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 5)])
        commit = OffsetCommitRequest(group_id="g", topics=[row])

        async def committed() -> ErrorCode:
            answer = await client.call(commit, 8)
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        await client.call(asked, 4)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        end = time.monotonic() + WITHIN_S
        while await committed() is loading:  # the coordinator begins
            assert time.monotonic() < end, "it still loads"
        await read_only(client)
        assert await committed() is ErrorCode.NONE
        await read_only(client, broker_read_only_commits="true")
        assert await committed() is loading
        gone = await client.call(DeleteGroupsRequest(groups_names=["g"]), 2)
        assert gone.results[0].error_code == ErrorCode.POLICY_VIOLATION
        await read_only(client, "false")
        assert await committed() is ErrorCode.NONE
        gone = await client.call(DeleteGroupsRequest(groups_names=["g"]), 2)
        assert gone.results[0].error_code == ErrorCode.NONE


async def test_refused_requests_are_not_kept_by_their_common_error(tmp_path: Path) -> None:
    async with connected(tmp_path) as (server, client):
        await make(client, "t")
        await read_only(client)
        for _ in range(3):
            assert await produced(client) is ErrorCode.NOT_ENOUGH_REPLICAS
        error = server.broker.log.commit_log.refusal
        assert error is not None
        assert error.__traceback__ is None


async def test_monitors_see_it_and_do_not_restart_the_broker(tmp_path: Path) -> None:
    settings = {"metrics_listener": "127.0.0.1:0", "cluster_name": "shop"}
    async with connected(tmp_path, **settings) as (server, client):
        await make(client, "t")
        await read_only(client)
        assert server.monitors is not None
        port = server.monitors[1]

        async def health() -> tuple[str, Any]:
            status, body = await ask(port, b"GET /health HTTP/1.1\r\n\r\n")
            return status, json.loads(body)

        status, facts = await health()
        assert status == "HTTP/1.1 200 OK"
        assert (facts["status"], facts["read_only"], facts["cluster_name"]) == ("ok", True, "shop")
        found = await scrape(port)
        assert of(found, "kafkawire_read_only") == 1
        assert "shop" in str(found)
        # Trouble is not hidden by the choice of an operator.
        log = server.broker.log.commit_log
        full = KafkaError(ErrorCode.POLICY_VIOLATION, "99 % of the disk is used")
        log.refuse_appends("disk", full)
        status, facts = await health()
        assert (status, facts["reason"]) == (
            "HTTP/1.1 503 Service Unavailable", "99 % of the disk is used",
        )  # fmt: skip
        log.refuse_appends("disk", None)
        assert await produced(client) is ErrorCode.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize("name", ["x" * 101, "two\nlines"])
async def test_a_name_of_the_cluster_fits_in_a_line(name: str, tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        assert await alter(client, BROKER, "", cluster_name=name) is ErrorCode.INVALID_REQUEST
