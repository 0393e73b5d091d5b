"""The group service and its handlers: finding coordinators, describing groups, restart, close.

Covers: kafkawire.groups.classic.views.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.java_hash import group_partition_of
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.groups.model.request import LEAVE
from kafkawire.groups.service import Client
from kafkawire.handlers.delete_groups import delete_groups
from kafkawire.handlers.describe_groups import describe_groups
from kafkawire.handlers.find_coordinator import find_coordinator
from kafkawire.handlers.join_group import join_group
from kafkawire.handlers.list_groups import list_groups
from kafkawire.handlers.offset_commit import offset_commit
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.describe_groups import DescribeGroupsRequest
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.list_groups import ListGroupsRequest
from tests.kit.groups.broker import (
    ELSEWHERE,
    HERE,
    PARTITIONS,
    THERE,
    House,
    alone,
    group_at,
    joining,
    open_house,  # noqa: F401  (a fixture, by name)
)
from tests.kit.groups.desk import commit_of
from tests.kit.waiting import until

# -- FindCoordinator --------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_creates_offsets_topic(version: int) -> None:
    house = House()
    request = FindCoordinatorRequest(key=HERE, coordinator_keys=[HERE])
    if version >= 4:
        (found,) = (
            await house.ask(
                find_coordinator, FindCoordinatorRequest(coordinator_keys=[HERE]), version
            )
        ).coordinators
        assert (found.key, found.error_message) == (HERE, None)
    else:
        found = await house.ask(find_coordinator, FindCoordinatorRequest(key=HERE), version)
    assert (found.error_code, found.node_id) == (0, 1)
    assert (found.host, found.port) == ("advertised", 9092)
    assert house.made == 1
    assert request.key == HERE


async def test_coordinator_is_leader_of_groups_partition(house: House) -> None:
    keys = FindCoordinatorRequest(coordinator_keys=[THERE, HERE])
    found = (await house.ask(find_coordinator, keys, 4)).coordinators
    assert [(c.node_id, c.host) for c in found] == [(2, "host2"), (1, "advertised")]
    house.catalog.brokers.clear()
    found = (await house.ask(find_coordinator, keys, 4)).coordinators
    assert [c.error_code for c in found] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2


async def test_concurrent_find_coordinator_creates_topic_once() -> None:
    house = House()
    keys = FindCoordinatorRequest(coordinator_keys=[HERE])
    await asyncio.gather(*(house.ask(find_coordinator, keys, 6) for _ in range(5)))
    assert house.made == 1


@pytest.mark.parametrize(
    ("key_type", "code"),
    [
        (2, ErrorCode.INVALID_REQUEST),
        (9, ErrorCode.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("version", [1, 3, 4, 6])
async def test_group_of_other_broker_is_not_coordinator(
    key_type: int, code: int, version: int
) -> None:
    house = House()
    if version >= 4:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"])
        (found,) = (await house.ask(find_coordinator, request, version)).coordinators
    else:
        request = FindCoordinatorRequest(key_type=key_type, key="x")
        found = await house.ask(find_coordinator, request, version)
    assert (found.error_code, found.node_id, found.port) == (code, -1, -1)
    assert "not served" in found.error_message
    assert house.made == 0


async def test_failed_topic_creation_is_coordinator_not_available() -> None:
    house = House()
    house.refuse = ErrorCode.KAFKA_STORAGE_ERROR
    found = await house.ask(find_coordinator, FindCoordinatorRequest(key=HERE), 3)
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert found.error_message == "no room"


# -- describe, list, delete -------------------------------------------------------------------


async def test_groups_are_described_in_request_order(house: House) -> None:
    member, _ = await alone(house)
    ids = ["zz", HERE, THERE]
    request = DescribeGroupsRequest(groups=ids, include_authorized_operations=True)
    found = (await house.ask(describe_groups, request, 6)).groups
    assert [g.group_id for g in found] == ids
    assert [g.error_code for g in found] == [
        ErrorCode.NOT_COORDINATOR
        if group_partition_of(g, PARTITIONS) == ELSEWHERE
        else (0 if g == HERE else ErrorCode.GROUP_ID_NOT_FOUND)
        for g in ids
    ]
    assert found[1].members[0].member_id == member
    assert found[1].authorized_operations == 3400  # read, delete, describe, both configs
    assert found[2].authorized_operations == -(2**31)
    request.include_authorized_operations = False
    found = (await house.ask(describe_groups, request, 5)).groups
    assert found[1].authorized_operations == -(2**31)


async def test_list_and_delete_groups(house: House) -> None:
    await alone(house)
    await house.ask(offset_commit, commit_of({("u", 0): 8}, group=group_at(3)), 8)
    listed = await house.ask(list_groups, ListGroupsRequest(states_filter=["Stable"]), 5)
    assert [(g.group_id, g.group_state, g.group_type) for g in listed.groups] == [
        (HERE, "Stable", "classic")
    ]
    assert len((await house.ask(list_groups, ListGroupsRequest(), 0)).groups) == 2
    request = DeleteGroupsRequest(groups_names=[group_at(3), HERE, group_at(3), THERE])
    results = (await house.ask(delete_groups, request, 2)).results
    assert [(r.group_id, r.error_code) for r in results] == [
        (group_at(3), 0),
        (HERE, ErrorCode.NON_EMPTY_GROUP),
        (THERE, ErrorCode.NOT_COORDINATOR),
    ]


# -- life -------------------------------------------------------------------------------------


async def test_restart_loads_groups_in_background(house: House) -> None:
    member, generation = await alone(house)
    await house.groups.close()
    assert (await house.ask(join_group, joining(), 9)).error_code == 15
    house.groups = house.service()
    house.log.reads.clear()
    await house.groups.start()
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await house.ask(list_groups, ListGroupsRequest(), 5)).error_code == loading
    house.log.reads.set()
    beat = HeartbeatRequest(group_id=HERE, member_id=member, generation_id=generation)
    await until(lambda: all(c.phase is CoordinatorPhase.ACTIVE for c in house.groups.list_led()))
    assert (await house.beat(beat)) == 0
    client = Client("c", "/h")
    left = await house.groups.handle_request(
        LEAVE,
        client,
        3,
        LeaveGroupRequest(group_id=HERE, members=[MemberIdentity(member_id=member)]),
    )
    assert left.members[0].error_code == 0


async def test_close_answers_parked_requests_and_is_final(house: House) -> None:
    waiting = house.env.spawn(house.ask(join_group, joining(), 3), "join")
    house.settings.group_initial_rebalance_delay_ms = 60_000
    await asyncio.sleep(0)
    await house.groups.close()
    await house.groups.close()
    assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
    found = await house.ask(find_coordinator, FindCoordinatorRequest(key=HERE), 3)
    assert found.error_code == 0  # coordinator moved: another broker may take over
