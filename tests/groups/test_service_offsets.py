"""Committed offsets through the group service: by name and by id, in every API version."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.java_hash import group_partition_of
from kafkawire.handlers.list_groups import list_groups
from kafkawire.handlers.offset_commit import offset_commit
from kafkawire.handlers.offset_delete import offset_delete
from kafkawire.handlers.offset_fetch import offset_fetch
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.kit.groups.broker import (
    ELSEWHERE,
    HERE,
    PARTITIONS,
    THERE,
    House,
    group_at,
    open_house,  # noqa: F401  (a fixture, by name)
)
from tests.kit.groups.desk import commit_of
from tests.kit.groups.desk import offset_delete as offset_delete_of


async def test_commits_of_topics_that_do_not_exist_are_refused(house: House) -> None:
    request = commit_of({("t", 0): 1, ("x", 0): 2, ("t", 9): 3, ("u", 0): 4}, group=HERE)
    request.topics[0].partitions += request.topics[2].partitions
    answer = await house.ask(offset_commit, request, 8)
    found = [(t.name, [p.error_code for p in t.partitions]) for t in answer.topics]
    assert found == [("t", [0, 3]), ("x", [3]), ("t", [3]), ("u", [0])]
    assert house.parked == 1
    nothing = await house.ask(offset_commit, commit_of({("x", 0): 2}, group=THERE), 8)
    assert nothing.topics[0].partitions[0].error_code == 3  # the group was not asked


async def test_offsets_by_topic_id(house: House) -> None:
    request = commit_of({("t", 0): 11, ("x", 0): 2}, group=HERE)
    request.topics[0].topic_id = house.catalog.by_name["t"].id
    request.topics[1].topic_id = b"?" * 16
    answer = await house.ask(offset_commit, request, 10)
    found = [(t.topic_id, t.partitions[0].error_code) for t in answer.topics]
    assert found == [(b"\1" * 16, 0), (b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID)]
    asked = OffsetFetchRequestGroup(
        group_id=HERE,
        topics=[
            OffsetFetchRequestTopics(topic_id=id_, partition_indexes=[0])
            for id_ in (b"\1" * 16, b"?" * 16)
        ],
    )
    (group,) = (await house.ask(offset_fetch, OffsetFetchRequest(groups=[asked]), 10)).groups
    rows = [
        (t.topic_id, t.partitions[0].committed_offset, t.partitions[0].error_code)
        for t in group.topics
    ]
    assert rows == [(b"\1" * 16, 11, 0), (b"?" * 16, -1, ErrorCode.UNKNOWN_TOPIC_ID)]
    everything = OffsetFetchRequestGroup(group_id=HERE, topics=None)
    (group,) = (await house.ask(offset_fetch, OffsetFetchRequest(groups=[everything]), 10)).groups
    assert [(t.topic_id, t.partitions[0].committed_offset) for t in group.topics] == [
        (b"\1" * 16, 11)
    ]


@pytest.mark.parametrize("version", range(1, 8))
async def test_offset_fetch_of_one_group(house: House, version: int) -> None:
    await house.ask(offset_commit, commit_of({("t", 1): 7}, group=HERE, metadata="m"), 8)
    request = OffsetFetchRequest(
        group_id=HERE, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[1, 2])]
    )
    answer = await house.ask(offset_fetch, request, version)
    rows = [
        (p.committed_offset, p.committed_leader_epoch, p.metadata)
        for p in answer.topics[0].partitions
    ]
    assert rows == [(7, 3 if version >= 5 else -1, "m"), (-1, -1, "")]
    request.group_id = THERE
    answer = await house.ask(offset_fetch, request, version)
    if version >= 2:
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        everything = OffsetFetchRequest(group_id=HERE, topics=None)
        answer = await house.ask(offset_fetch, everything, version)
        assert [(t.name, len(t.partitions)) for t in answer.topics] == [("t", 1)]
    else:
        codes = [p.error_code for p in answer.topics[0].partitions]
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2


@pytest.mark.parametrize("version", [8, 9])
async def test_offset_fetch_of_many_groups(house: House, version: int) -> None:
    other = group_at(3)
    await house.ask(offset_commit, commit_of({("t", 1): 7}, group=HERE), version)
    await house.ask(offset_commit, commit_of({("u", 0): 8}, group=other), version)
    request = OffsetFetchRequest(
        require_stable=True,
        groups=[OffsetFetchRequestGroup(group_id=g, topics=None) for g in (other, HERE, "unknown")],
    )
    found = (await house.ask(offset_fetch, request, version)).groups
    rows = [[(t.name, t.partitions[0].committed_offset) for t in g.topics] for g in found]
    unknown_here = group_partition_of("unknown", PARTITIONS) != ELSEWHERE
    assert rows == [[("u", 8)], [("t", 7)], []]
    assert found[2].error_code == (0 if unknown_here else ErrorCode.NOT_COORDINATOR)


async def test_offset_delete(house: House) -> None:
    await house.ask(offset_commit, commit_of({("t", 1): 7, ("u", 0): 8}, group=HERE), 8)
    request = offset_delete_of(("u", 0), ("x", 0), ("t", 9))
    request.group_id = HERE
    answer = await house.ask(offset_delete, request, 0)
    found = [(t.name, t.partitions[0].error_code) for t in answer.topics]
    assert found == [("u", 0), ("x", 3), ("t", 3)]
    request.group_id = "unknown" if group_partition_of("unknown", PARTITIONS) != ELSEWHERE else "no"
    answer = await house.ask(offset_delete, request, 0)
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


async def test_topic_deletion_removes_offsets_of_all_groups(house: House) -> None:
    for group in (HERE, group_at(3)):
        await house.ask(offset_commit, commit_of({("t", 1): 7}, group=group), 8)
    house.catalog.remove_topic(house.catalog.by_name["t"].id)
    house.groups.topic_deleted("t", b"\1" * 16)
    listed = await house.ask(list_groups, ListGroupsRequest(), 5)
    assert listed.groups == []
