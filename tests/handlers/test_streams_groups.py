"""The APIs of streams groups over sockets: 88, 89 and those of all groups.

Covers: kafkawire.handlers.streams_group_heartbeat, kafkawire.handlers.streams_group_describe,
kafkawire.broker.streams_topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.describe_groups import DescribeGroupsRequest
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.streams_group_describe import StreamsGroupDescribeRequest, TopicInfo
from kafkawire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from kafkawire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.groups.streams import word_count
from tests.kit.produce_fetch import make
from tests.kit.server import port_of, running

SMALL = {
    "offsets_topic_num_partitions": "1",
    "group_streams_initial_rebalance_delay_ms": "0",
    "group_streams_assignment_interval_ms": "0",
}


@pytest.fixture(name="broker")
async def start(tmp_path: Path) -> AsyncIterator[tuple[Server, Client]]:
    async with running(tmp_path / "data", **SMALL) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t", 2)
        await client.call(FindCoordinatorRequest("g"), 3)
        yield server, client
        await client.close()


async def beat(
    client: Client, epoch: int = 0, member: str = "m", topology: Topology | None = None
) -> Any:
    joins = epoch == 0
    request = StreamsGroupHeartbeatRequest(
        "g",
        member,
        epoch,
        rebalance_timeout_ms=30_000 if joins else -1,
        topology=(topology or word_count()) if joins else None,
        active_tasks=[] if joins else None,
        standby_tasks=[] if joins else None,
        warmup_tasks=[] if joins else None,
        process_id=f"process-{member}" if joins else None,
    )
    return await client.call(request, 1)


async def joined(client: Client, member: str = "m") -> Any:
    """Join, and wait for the internal topics and for tasks; the answer with them."""
    answer = await beat(client, member=member)
    while not answer.active_tasks:
        assert not answer.error_code
        await asyncio.sleep(0)
        answer = await beat(client, answer.member_epoch, member)
    return answer


async def test_a_member_gets_tasks_once_the_internal_topics_are_created(
    broker: tuple[Server, Client],
) -> None:
    server, client = broker
    first = await beat(client)
    assert first.active_tasks == []
    assert [(each.status_code, each.status_detail) for each in first.status] == [
        (3, "Internal topics are missing: c, r")
    ]
    answer = await joined(client)
    tasks = [(each.subtopology_id, each.partitions) for each in answer.active_tasks]
    assert tasks == [("0", [0, 1]), ("1", [0, 1])]
    assert answer.status == []
    topics = server.broker.catalog.by_name
    assert [len(topics[name].partitions) for name in ("r", "c")] == [2, 2]
    assert topics["c"].configs == {"cleanup.policy": "compact"}


async def test_the_group_is_described_listed_and_deleted(broker: tuple[Server, Client]) -> None:
    _, client = broker
    answer = await joined(client)
    described = await client.call(StreamsGroupDescribeRequest(["g", "none", ""], True, True), 1)
    invalid, group, unknown = described.groups
    assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "sticky")
    assert group.group_epoch == group.assignment_epoch == answer.member_epoch
    assert (group.topology_description, group.topology_description_status) == (None, 1)
    assert group.authorized_operations != -(2**31)
    zero, one = group.topology.subtopologies
    assert (zero.source_topics, zero.repartition_sink_topics) == (["t"], ["r"])
    assert [(each.name, each.partitions) for each in one.state_changelog_topics] == [("c", 2)]
    (member,) = group.members
    assert (member.member_id, member.process_id) == ("m", "process-m")
    assert member.assignment.active_tasks == member.target_assignment.active_tasks
    assert (unknown.error_code, unknown.error_message) == (
        E.GROUP_ID_NOT_FOUND, "Group none not found.",
    )  # fmt: skip
    assert invalid.error_code == E.INVALID_GROUP_ID
    (listed,) = (await client.call(ListGroupsRequest([], ["Streams"]), 5)).groups
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        "g", "streams", "Stable", "streams",
    )  # fmt: skip
    classic = (await client.call(DescribeGroupsRequest(["g"]), 6)).groups[0]
    assert classic.error_code == E.GROUP_ID_NOT_FOUND
    delete = DeleteGroupsRequest(["g"])
    assert (await client.call(delete, 2)).results[0].error_code == E.NON_EMPTY_GROUP
    assert (await beat(client, -1)).member_epoch == -1
    assert (await client.call(delete, 2)).results[0].error_code == E.NONE
    assert (await client.call(ListGroupsRequest(), 5)).groups == []


async def test_commits_need_the_epoch_of_a_member(broker: tuple[Server, Client]) -> None:
    _, client = broker
    epoch = (await joined(client)).member_epoch

    async def commit(member: str, at: int, version: int = 9) -> int:
        topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 5)])
        request = OffsetCommitRequest("g", at, member, topics=[topic])
        answer = await client.call(request, version)
        return int(answer.topics[0].partitions[0].error_code)

    assert await commit("m", epoch) == E.NONE
    assert await commit("m", epoch, 8) == E.UNSUPPORTED_VERSION
    assert await commit("m", epoch + 1) == E.STALE_MEMBER_EPOCH
    assert await commit("x", epoch) == E.UNKNOWN_MEMBER_ID
    assert await commit("", -1) == E.UNKNOWN_MEMBER_ID


async def test_internal_topics_that_cannot_be_created(broker: tuple[Server, Client]) -> None:
    _, client = broker
    changelogs = [TopicInfo(f"c{number}", 0, 9) for number in range(4)]
    topology = Topology(0, [Subtopology("0", ["t"], state_changelog_topics=changelogs)])
    answer = await beat(client, topology=topology)
    while "Creation failed" not in answer.status[0].status_detail:
        assert answer.active_tasks == [] or answer.active_tasks is None
        await asyncio.sleep(0)
        answer = await beat(client, answer.member_epoch)
    detail = answer.status[0].status_detail
    assert detail.startswith(
        "Internal topics are missing: c0, c1, c2 and 1 additional topics; Creation failed: "
        "c0 (Unable to replicate the partition 9 time(s)"
    )
    assert detail.endswith(" and 1 more.")


@pytest.mark.parametrize(
    ("subtopology", "text"),
    [
        (
            Subtopology("0", ["__consumer_offsets"]),
            "Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is "
            "prohibited.",
        ),
        (Subtopology("0", ["t", "a b"]), "Topic names a b are not valid topic names."),
        (
            Subtopology("0", ["t"], state_changelog_topics=[TopicInfo("c", 3)]),
            "Changelog topic c must have an undefined partition count, but it is set to 3.",
        ),
    ],
)
async def test_topologies_that_are_not_valid(
    broker: tuple[Server, Client], subtopology: Subtopology, text: str
) -> None:
    answer = await beat(broker[1], topology=Topology(0, [subtopology]))
    assert (answer.error_code, answer.error_message) == (E.STREAMS_INVALID_TOPOLOGY, text)


async def test_without_the_feature_nothing_is_served(broker: tuple[Server, Client]) -> None:
    _, client = broker
    key = FeatureUpdateKey("streams.version", 0, upgrade_type=2)
    assert not (await client.call(UpdateFeaturesRequest(feature_updates=[key]), 2)).error_code
    assert (await beat(client)).error_code == E.UNSUPPORTED_VERSION
    described = await client.call(StreamsGroupDescribeRequest(["g"]), 1)
    assert described.groups[0].error_code == E.UNSUPPORTED_VERSION
