"""Requests about many partitions of a group, which its coordinator decides in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.portions import MAX_ENTRIES
from kafkawire.log.io.slices import Slices
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kafkawire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.server import port_of, running
from tests.kit.waiting import until

MANY = MAX_ENTRIES * 3 + 7
TOPICS = ("a", "b")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path / "data", flush="commit") as server:
        connected = await Client.connect(port_of(server))
        for topic in TOPICS:
            await make(connected, topic, MANY)
        await connected.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
        groups = server.broker.groups
        await until(lambda: all(c.phase.name == "ACTIVE" for c in groups.list_led()))
        yield connected
        await connected.close()


async def commit_all(client: Client) -> None:
    """Commit offset = index in every partition; the last index of each topic does not exist."""
    topics = [
        OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequestPartition(partition_index=index, committed_offset=index)
                for index in range(MANY + 1)
            ],
        )
        for name in TOPICS
    ]
    answer = await client.call(OffsetCommitRequest(group_id="g", topics=topics), 8)
    for topic in answer.topics:
        codes = [row.error_code for row in topic.partitions]
        assert codes == [0] * MANY + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert [row.partition_index for row in topic.partitions] == list(range(MANY + 1))


async def test_commit_for_one_topic_is_answered_without_a_pause(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that commits of many groups that arrive together share a batch of their coordinator."""
    paused: list[str] = []
    pause = Slices.pause

    async def noted(slices: Slices) -> None:
        task = asyncio.current_task()
        paused.append(task.get_name() if task is not None else "")
        await pause(slices)

    monkeypatch.setattr(Slices, "pause", noted)
    rows = [OffsetCommitRequestPartition(partition_index=index) for index in range(3)]
    request = OffsetCommitRequest(
        group_id="g", topics=[OffsetCommitRequestTopic(name="a", partitions=rows)]
    )
    for _ in range(2):  # the first request of a version is decoded in slices
        paused.clear()
        await client.call(request, 8)
    assert [name for name in paused if name.startswith("OffsetCommit")] == []


async def offsets(client: Client, version: int, *, named: bool) -> dict[str, list[int]]:
    indexes = list(range(MANY))
    if version >= 8:
        group = OffsetFetchRequestGroup(group_id="g", topics=None)
        if named:
            group.topics = [
                OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name in TOPICS
            ]
        answer = await client.call(OffsetFetchRequest(groups=[group]), version)
        topics = answer.groups[0].topics
    else:
        request = OffsetFetchRequest(group_id="g", topics=None)
        if named:
            request.topics = [OffsetFetchRequestTopic(name, indexes) for name in TOPICS]
        topics = (await client.call(request, version)).topics
    return {topic.name: [row.committed_offset for row in topic.partitions] for topic in topics}


async def test_commits_of_many_partitions_can_be_fetched(client: Client) -> None:
    await commit_all(client)
    for version in (2, 7, 8, 9):
        for named in (True, False):
            found = await offsets(client, version, named=named)
            assert found == {name: list(range(MANY)) for name in TOPICS}, (version, named)


async def test_group_named_twice_is_answered_once(client: Client) -> None:
    await commit_all(client)
    groups = [OffsetFetchRequestGroup(group_id="g", topics=None) for _ in range(2)]
    first, second = (await client.call(OffsetFetchRequest(groups=groups), 8)).groups
    assert sum(len(topic.partitions) for topic in first.topics) == 2 * MANY
    assert (second.error_code, second.topics) == (ErrorCode.INVALID_REQUEST, [])


async def test_offset_delete_of_many_partitions(client: Client) -> None:
    await commit_all(client)
    entries = [OffsetDeleteRequestPartition(partition_index=index) for index in range(MANY + 1)]
    topics = [OffsetDeleteRequestTopic(name="a", partitions=entries)]
    answer = await client.call(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    assert [row.error_code for row in answer.topics[0].partitions] == [0] * MANY + [3]
    assert await offsets(client, 8, named=False) == {"b": list(range(MANY))}
    answer = await client.call(OffsetDeleteRequest(group_id="nobody", topics=topics), 0)
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


async def test_group_deletion_removes_all_offsets(client: Client) -> None:
    await commit_all(client)
    for code, message in ((0, None), (ErrorCode.GROUP_ID_NOT_FOUND, "There is no such group.")):
        (result,) = (await client.call(DeleteGroupsRequest(groups_names=["g"]), 3)).results
        assert (result.error_code, result.error_message) == (code, message)
    assert await offsets(client, 8, named=False) == {}
