"""The group service where partitions of the offsets topic are lost and gained.

Covers: kafkawire.groups.service.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kafkawire.codec.control import COMMIT, TransactionMarker
from kafkawire.codec.errors import ErrorCode
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.groups.model.request import HEARTBEAT, JOIN, OFFSET_COMMIT, OFFSET_FETCH
from kafkawire.groups.service import Client
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup
from tests.kit.groups.broker import ELSEWHERE, HERE, House, joining
from tests.kit.groups.desk import commit_of
from tests.kit.groups.log import FakePartition
from tests.kit.waiting import until

ME = Client("c", "/h")
BEAT = HeartbeatRequest(group_id=HERE, member_id="m", generation_id=1)
MARKER = TransactionMarker(1, 0, 0, COMMIT)
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


async def with_offset() -> House:
    """A group with an offset of "t", in partition 1, which is lost after that."""
    house = House()
    await house.groups.open()
    request: Any = commit_of({("t", 0): 42}, group=HERE)
    stored = await house.groups.handle_request(OFFSET_COMMIT, ME, 8, request)
    assert stored.topics[0].partitions[0].error_code == 0
    await house.groups.resign([1])
    return house


async def offset(house: House, group: str = HERE) -> tuple[int, int]:
    """The error code of the group, and its offset of t-0."""
    request = OffsetFetchRequestGroup(group_id=group, topics=None)
    found = await house.groups.handle_request(OFFSET_FETCH, ME, 8, request)
    offsets = [part.committed_offset for topic in found.topics for part in topic.partitions]
    return found.error_code, offsets[0] if offsets else -1


async def loaded(house: House) -> None:
    await until(lambda: not house.groups.gained)
    await until(lambda: all(c.phase is CoordinatorPhase.ACTIVE for c in house.groups.list_led()))


def end(house: House) -> None:
    for coordinator in house.groups.list_led():
        coordinator.timers.clear()


async def test_lost_groups_are_refused_and_gained_ones_loaded() -> None:
    house = await with_offset()
    groups = house.groups
    assert (await groups.handle_request(JOIN, ME, 9, joining())).error_code == NOT_COORDINATOR
    assert groups.heartbeat_now(BEAT) is NOT_COORDINATOR
    assert await offset(house) == (NOT_COORDINATOR, -1)
    assert await groups.write_marker(1, MARKER) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await groups.lead([1])
    assert (await groups.handle_request(JOIN, ME, 9, joining())).error_code == LOADING
    assert groups.heartbeat_now(BEAT) is ErrorCode.NONE  # a client would end with LOADING
    assert (await groups.handle_request(HEARTBEAT, ME, 4, BEAT)).error_code == 0
    assert (await groups.activity(HERE, lambda: asyncio.sleep(0))).error_code == LOADING
    assert await groups.write_marker(1, MARKER) is LOADING
    listed = await groups.list_groups(ME, 4, ListGroupsRequest())
    assert listed.error_code == LOADING
    await loaded(house)
    assert await offset(house) == (0, 42)
    listed = await groups.list_groups(ME, 4, ListGroupsRequest())
    assert [each.group_id for each in listed.groups] == [HERE]
    end(house)


async def test_a_topic_deleted_before_its_coordinator_exists_is_forgotten() -> None:
    """Its name may be that of a new topic by the time when the coordinator loads."""
    house = await with_offset()
    await house.groups.lead([1])
    house.groups.topic_deleted("t", b"t" * 16)
    await loaded(house)
    assert await offset(house) == (0, -1)
    end(house)


async def test_a_topic_deleted_before_the_partition_was_gained_is_not() -> None:
    house = await with_offset()
    house.groups.topic_deleted("t", b"t" * 16)
    await house.groups.lead([1])
    await loaded(house)
    assert await offset(house) == (0, 42)
    end(house)


async def test_a_topic_of_another_broker_opens_the_service() -> None:
    house = House()
    await house.internal()
    assert house.groups.heartbeat_now(BEAT) is NOT_COORDINATOR
    await house.groups.lead([0, 1, 3])
    assert (await house.groups.handle_request(JOIN, ME, 9, joining())).error_code == LOADING
    await loaded(house)
    assert len(house.groups.list_led()) == 3
    end(house)


async def test_a_partition_that_another_broker_led_before_is_gained() -> None:
    house = House()
    await house.groups.open()
    house.partitions[ELSEWHERE] = FakePartition(house.log, ELSEWHERE)
    await house.groups.lead([ELSEWHERE])
    await loaded(house)
    assert len(house.groups.list_led()) == 4
    await house.groups.close()
    assert house.groups.heartbeat_now(BEAT) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await house.groups.lead([1])
    assert not house.groups.gained
