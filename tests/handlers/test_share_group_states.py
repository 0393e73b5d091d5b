"""The APIs of share states, 83 to 87, and their coordinators, over sockets.

Covers: kafkawire.handlers.share_group_states, kafkawire.handlers.find_coordinator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.types import uuid_text
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kafkawire.server.run import Server
from kafkawire.share.persister import SharePartitionKey, StateBatch
from kafkawire.share.state.machine import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    StateRequest,
    WriteState,
)
from kafkawire.share.state.wire import FORMATS, format_message, parse_response
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.server import port_of, running

SMALL = {
    "share_coordinator_state_topic_num_partitions": "3",
    "offsets_topic_num_partitions": "1",
}


@pytest.fixture(name="broker")
async def start(tmp_path: Path) -> AsyncIterator[tuple[Server, Client]]:
    async with running(tmp_path / "data", **SMALL) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t", 4)
        yield server, client
        await client.close()


async def ask(client: Client, *requests: StateRequest) -> dict[int, Any]:
    """The answers by partition."""
    version = 1 if FORMATS[type(requests[0])].key in (85, 87) else 0
    response = await client.call(format_message(requests), version)
    return {partition: answer for (_, partition), answer in parse_response(response).items()}


def keys_of(server: Server) -> list[SharePartitionKey]:
    topic_id = server.broker.catalog.by_name["t"].id
    return [SharePartitionKey("g", topic_id, index) for index in range(4)]


async def find(client: Client, key: str, version: int = 6) -> tuple[int, int]:
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
    (found,) = (await client.call(request, version)).coordinators
    return found.error_code, found.node_id


async def until_loaded(client: Client, key: SharePartitionKey) -> None:
    while (await ask(client, ReadSummary(key)))[key.partition].code in (
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.NOT_COORDINATOR,
    ):
        pass


async def test_life_of_states(broker: tuple[Server, Client]) -> None:
    server, client = broker
    keys = keys_of(server)
    topic_id = uuid_text(keys[0].topic_id)
    assert (await ask(client, ReadSummary(keys[0])))[0].code is E.NOT_COORDINATOR
    assert await find(client, f"a:b:{topic_id}:0") == (0, 1)
    config = server.broker.catalog.by_name["__share_group_state"].configs
    assert (config["cleanup.policy"], config["retention.ms"]) == ("delete", "-1")
    made = await ask(client, *(InitializeState(key, 1, 5) for key in keys))
    assert {index: answer.code for index, answer in made.items()} == dict.fromkeys(range(4), E.NONE)
    batch = (StateBatch(5, 9, 2, 1),)
    assert (await ask(client, WriteState(keys[1], 1, 0, 5, 5, batch)))[1].code is E.NONE
    read = (await ask(client, ReadState(keys[1], 3)))[1]
    assert (read.state.start_offset, read.state.batches) == (5, batch)
    fenced = (await ask(client, WriteState(keys[1], 1, 2, 5, 5, ())))[1]
    assert (fenced.code, fenced.message) == (
        E.FENCED_LEADER_EPOCH, E.FENCED_LEADER_EPOCH.sentence,
    )  # fmt: skip
    summary = (await ask(client, ReadSummary(keys[1])))[1].state
    assert (summary.leader_epoch, summary.delivery_complete_count) == (3, 5)
    assert (await ask(client, DeleteState(keys[1])))[1].code is E.NONE
    assert (await ask(client, ReadState(keys[1], 3)))[1].code is E.INVALID_REQUEST
    # Of a topic that is deleted, the states are, too.
    await server.broker.topics.delete([keys[0].topic_id])
    assert not any(each.shard.partitions for each in server.broker.share_states.list_led())


async def test_a_restart_keeps_states(tmp_path: Path) -> None:
    async with running(tmp_path / "data", **SMALL) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t", 4)
        keys = keys_of(server)
        await find(client, f"g:{uuid_text(keys[0].topic_id)}:0")
        await ask(client, *(InitializeState(key, 1, 5) for key in keys))
        await ask(client, ReadState(keys[2], 7))
        await client.close()
    async with running(tmp_path / "data", **SMALL) as server:
        client = await Client.connect(port_of(server))
        for key in keys:
            await until_loaded(client, key)
        assert (await ask(client, WriteState(keys[2], 1, 6, 5, 5, ())))[
            2
        ].code is E.FENCED_LEADER_EPOCH
        assert (await ask(client, ReadState(keys[3], 0)))[3].state.start_offset == 5
        await client.close()


async def test_incomplete_requests_have_empty_answers(broker: tuple[Server, Client]) -> None:
    server, client = broker
    key = keys_of(server)[0]
    await find(client, f"g:{uuid_text(key.topic_id)}:0")
    for request in (ReadState(key, 0), WriteState(key, 1, 0, 0, 0, ()), InitializeState(key, 1, 0)):
        message = format_message([request])
        message.topics[0].partitions = []
        assert (await client.call(message, 0)).results == []
        message.topics = []
        assert (await client.call(message, 0)).results == []
        message = format_message([request])
        message.group_id = ""
        assert (await client.call(message, 0)).results == []


@pytest.mark.parametrize(
    "key", ["", "g", "g:1", "g:{}", ":{}:0", " :{}:0", "g:{}:", "g:{}:x", "g:{}x:0", "g:{}:1:1 "]
)
async def test_keys_that_are_none(broker: tuple[Server, Client], key: str) -> None:
    server, client = broker
    assert await find(client, key.format(uuid_text(b"T" * 16))) == (E.INVALID_REQUEST, -1)
    assert "__share_group_state" not in server.broker.catalog.by_name


async def test_the_key_type_is_of_version_6(broker: tuple[Server, Client]) -> None:
    _, client = broker
    key = f"g:{uuid_text(b'T' * 16)}:0"
    assert await find(client, key, 5) == (E.INVALID_REQUEST, -1)
    assert await find(client, key) == (0, 1)


async def test_without_the_feature_nothing_is_served(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as server:
        client = await Client.connect(port_of(server))
        await make(client, "t", 1)
        off = FeatureUpdateKey("share.version", 0, upgrade_type=2)
        await client.call(UpdateFeaturesRequest(feature_updates=[off]), 2)
        key = keys_of(server)[0]
        assert await find(client, f"g:{uuid_text(key.topic_id)}:0") == (E.INVALID_REQUEST, -1)
        assert (await ask(client, ReadSummary(key)))[0].code is E.UNSUPPORTED_VERSION
        await client.close()
