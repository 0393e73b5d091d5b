"""The APIs of share groups over sockets: 76, 77, 90, 91, 92 and those of all groups.

Covers: kafkawire.handlers.share_group_heartbeat, kafkawire.handlers.share_group_describe,
kafkawire.handlers.describe_share_group_offsets, kafkawire.handlers.alter_share_group_offsets,
kafkawire.handlers.delete_share_group_offsets, kafkawire.broker.other_brokers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.types import ZERO_UUID
from kafkawire.handlers.alter_share_group_offsets import MAX_STATES
from kafkawire.handlers.delete_share_group_offsets import MAX_TOPICS
from kafkawire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from kafkawire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.share_group_describe import ShareGroupDescribeRequest
from kafkawire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kafkawire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of, running

SMALL = {
    "share_coordinator_state_topic_num_partitions": "2",
    "offsets_topic_num_partitions": "1",
}


@pytest.fixture(name="broker")
async def start(tmp_path: Path) -> AsyncIterator[tuple[Server, Client]]:
    async with running(tmp_path / "data", **SMALL) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t", 2)
        await client.call(FindCoordinatorRequest("g"), 3)
        yield server, client
        await client.close()


async def beat(client: Client, epoch: int = 0, member: str = "m", group: str = "g") -> Any:
    topics = ["t"] if epoch == 0 else None
    return await client.call(ShareGroupHeartbeatRequest(group, member, epoch, None, topics), 1)


async def assigned(client: Client) -> tuple[int, list[int]]:
    """Join, and wait for partitions; the epoch and the partitions of "t"."""
    answer = await beat(client)
    epoch = answer.member_epoch
    while answer.assignment is None or not answer.assignment.topic_partitions:
        answer = await beat(client, epoch)
        assert not answer.error_code
        epoch = answer.member_epoch
    return epoch, answer.assignment.topic_partitions[0].partitions


def describe(
    group: str = "g", topics: dict[str, list[int]] | None = None
) -> DescribeShareGroupOffsetsRequest:
    asked = None
    if topics is not None:
        asked = [DescribeShareGroupOffsetsRequestTopic(*each) for each in topics.items()]
    return DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group, asked)])


def alter(offsets: dict[int, int], topic: str = "t") -> AlterShareGroupOffsetsRequest:
    partitions = [AlterShareGroupOffsetsRequestPartition(*each) for each in offsets.items()]
    return AlterShareGroupOffsetsRequest(
        "g", [AlterShareGroupOffsetsRequestTopic(topic, partitions)]
    )


async def offsets(
    client: Client, request: Any, version: int = 1
) -> dict[int, tuple[int, int, int]]:
    """Start offset, lag and code by partition of "t"."""
    (group,) = (await client.call(request, version)).groups
    assert not group.error_code
    return {
        each.partition_index: (each.start_offset, each.lag, each.error_code)
        for topic in group.topics
        for each in topic.partitions
    }


async def test_life_of_a_group(broker: tuple[Server, Client]) -> None:
    server, client = broker
    epoch, partitions = await assigned(client)
    assert partitions == [0, 1]
    (group,) = (await client.call(ShareGroupDescribeRequest(["g"], True), 1)).groups
    assert (group.group_state, group.group_epoch) == ("Stable", epoch)
    assert group.members[0].assignment.topic_partitions[0].topic_name == "t"
    assert group.authorized_operations != -2147483648
    (listed,) = (await client.call(ListGroupsRequest([], ["share"]), 5)).groups
    assert (listed.group_id, listed.group_type) == ("g", "share")
    assert await offsets(client, describe()) == {0: (-1, -1, 0), 1: (-1, -1, 0)}
    refused = await client.call(DeleteGroupsRequest(["g"]), 2)
    assert refused.results[0].error_code == E.NON_EMPTY_GROUP
    assert (await beat(client, -1)).member_epoch == -1
    # A restart of the coordinators keeps the group.
    (coordinator,) = server.broker.groups.list_led()
    coordinator.reload()
    while (await client.call(ListGroupsRequest(), 5)).error_code:
        pass
    (group,) = (await client.call(ShareGroupDescribeRequest(["g"]), 1)).groups
    assert (group.group_state, group.members) == ("Empty", [])
    assert (await client.call(DeleteGroupsRequest(["g"]), 2)).results[0].error_code == 0
    (group,) = (await client.call(ShareGroupDescribeRequest(["g"]), 1)).groups
    assert group.error_code == E.GROUP_ID_NOT_FOUND
    assert not any(each.shard.partitions for each in server.broker.share_states.list_led())


async def test_offsets_are_altered_described_and_deleted(broker: tuple[Server, Client]) -> None:
    server, client = broker
    records = build([(None, b"x")] * 3, timestamp_ms=1)
    (written,) = (await client.call(produce("t", bytes(records)), 9)).responses
    assert written.partition_responses[0].error_code == 0
    answer = await client.call(alter({0: 1, 1: 0, 7: 0}), 0)
    (topic,) = answer.responses
    assert topic.topic_id == server.broker.catalog.by_name["t"].id
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
        (0, 0), (1, 0), (7, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]  # fmt: skip
    assert await offsets(client, describe()) == {0: (1, 2, 0), 1: (0, 0, 0)}
    wanted = describe(topics={"t": [1, 0], "none": [5]})
    assert await offsets(client, wanted) == {1: (0, 0, 0), 0: (1, 2, 0), 5: (-1, -1, 0)}
    assert (await offsets(client, wanted, 0))[0] == (1, -1, 0)
    (group,) = (await client.call(describe(topics={}), 1)).groups
    assert (group.error_code, group.topics) == (0, [])
    unknown = await client.call(alter({0: 0}, "none"), 0)
    (topic,) = unknown.responses
    assert (topic.topic_id, topic.partitions[0].error_code) == (ZERO_UUID, 3)
    topics = [DeleteShareGroupOffsetsRequestTopic(name) for name in ("t", "none")]
    deleted = await client.call(DeleteShareGroupOffsetsRequest("g", topics), 0)
    assert [(each.topic_name, each.error_code) for each in deleted.responses] == [
        ("t", 0), ("none", E.UNKNOWN_TOPIC_OR_PARTITION),
    ]  # fmt: skip
    assert await offsets(client, describe()) == {}


async def test_more_partitions_than_are_altered_at_once(broker: tuple[Server, Client]) -> None:
    """One answer for each topic and partition; the parts do not wait for each other's topic."""
    _, client = broker
    count = 2 * MAX_STATES + 6
    await make(client, "wide", count)
    (topic,) = (await client.call(alter({at: 0 for at in range(count + 1)}, "wide"), 0)).responses
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [
        *((at, 0) for at in range(count)), (count, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]  # fmt: skip
    assert len(await offsets(client, describe())) == count
    names = ["wide", *(f"none-{at}" for at in range(MAX_TOPICS))]
    topics = [DeleteShareGroupOffsetsRequestTopic(name) for name in names]
    deleted = await client.call(DeleteShareGroupOffsetsRequest("g", topics), 0)
    assert [each.topic_name for each in deleted.responses] == names
    assert await offsets(client, describe()) == {}


async def test_groups_that_do_not_exist(broker: tuple[Server, Client]) -> None:
    _, client = broker
    assert await offsets(client, describe("none")) == {}
    answer = await client.call(DeleteShareGroupOffsetsRequest("none", []), 0)
    assert (answer.error_code, answer.error_message) == (
        E.GROUP_ID_NOT_FOUND, "Share group none not found.",
    )  # fmt: skip
    groups = (await client.call(ShareGroupDescribeRequest(["", "none"]), 1)).groups
    assert [each.error_code for each in groups] == [E.INVALID_GROUP_ID, E.GROUP_ID_NOT_FOUND]


@pytest.mark.parametrize("member", ["", "m" * 37])
async def test_member_ids_that_are_not_valid(broker: tuple[Server, Client], member: str) -> None:
    answer = await beat(broker[1], member=member)
    assert (answer.error_code, answer.error_message) == (
        E.INVALID_REQUEST, "Invalid member id in the request.",
    )  # fmt: skip


async def test_without_the_feature_nothing_is_served(broker: tuple[Server, Client]) -> None:
    _, client = broker
    key = FeatureUpdateKey("share.version", 0, upgrade_type=2)
    assert not (await client.call(UpdateFeaturesRequest(feature_updates=[key]), 2)).error_code
    off = E.UNSUPPORTED_VERSION
    assert (await beat(client)).error_code == off
    assert (await client.call(ShareGroupDescribeRequest(["g"]), 1)).groups[0].error_code == off
    assert (await client.call(describe(), 1)).groups[0].error_code == off
    assert (await client.call(alter({0: 0}), 0)).error_code == off
    assert (await client.call(DeleteShareGroupOffsetsRequest("g"), 0)).error_code == off
