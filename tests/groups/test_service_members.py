"""Group members through the group service: joins, syncs, heartbeats, in every version of the
APIs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.java_hash import group_partition_of
from kafkawire.groups.model.request import OFFSET_COMMIT
from kafkawire.groups.service import Client
from kafkawire.handlers.join_group import join_group
from kafkawire.handlers.leave_group import leave_group
from kafkawire.handlers.list_groups import list_groups
from kafkawire.handlers.offset_fetch import offset_fetch
from kafkawire.handlers.sync_group import sync_group
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kafkawire.messages.sync_group import SyncGroupRequest
from tests.kit.groups.broker import (
    HERE,
    THERE,
    House,
    alone,
    joining,
    open_house,  # noqa: F401  (a fixture, by name)
)
from tests.kit.groups.desk import commit_of
from tests.kit.waiting import until


async def test_heartbeat_is_answered_synchronously(house: House) -> None:
    member, generation = await alone(house)
    beat = HeartbeatRequest(group_id=HERE, member_id=member, generation_id=generation)
    for version in range(5):
        assert house.start(beat, version).code(version) == 0
    beat.generation_id += 1
    assert house.start(beat).code(4) == ErrorCode.ILLEGAL_GENERATION
    assert house.start(HeartbeatRequest(group_id="")).code(4) == ErrorCode.INVALID_GROUP_ID
    unknown = house.start(HeartbeatRequest(group_id=HERE, member_id="x"))
    assert unknown.code(4) == ErrorCode.UNKNOWN_MEMBER_ID
    elsewhere = house.start(HeartbeatRequest(group_id=THERE, member_id="x"))
    assert elsewhere.code(4) == ErrorCode.NOT_COORDINATOR


async def test_heartbeat_waits_for_pending_commit(house: House) -> None:
    member, generation = await alone(house)
    house.log.by_itself = False
    stored = commit_of({("t", 0): 5}, group=HERE, generation=generation, member=member)
    committed = house.groups.handle_request(OFFSET_COMMIT, Client("c", "/h"), 8, stored)
    await until(lambda: bool(house.log.callbacks))
    beat = HeartbeatRequest(group_id=HERE, member_id=member, generation_id=generation)
    waiting, gone = house.start(beat), house.start(beat)
    gone.closed = True
    await asyncio.sleep(0)
    assert not waiting.answers
    house.log.commit()
    await until(committed.done)
    await asyncio.sleep(0)
    assert waiting.code(4) == 0
    assert not gone.answers


async def test_waiting_heartbeat_fails_with_failed_commit(house: House) -> None:
    member, generation = await alone(house)
    house.log.by_itself = False
    stored = commit_of({("t", 0): 5}, group=HERE, generation=generation, member=member)
    house.groups.handle_request(OFFSET_COMMIT, Client("c", "/h"), 8, stored)
    await until(lambda: bool(house.log.callbacks))
    beat = HeartbeatRequest(group_id=HERE, member_id=member, generation_id=generation)
    waiting = house.start(beat)
    house.log.fail()
    await until(lambda: bool(waiting.answers))
    assert waiting.code(4) == ErrorCode.NOT_COORDINATOR


def test_group_id_of_any_length_has_a_partition() -> None:
    """Hashes are cached for short ids only; both paths give what Java's hashCode does."""
    for text in ("", "a", "group", "é\U0001f600", "x" * 249, "x" * 250, "x" * 10_000):
        units = text.encode("utf-16-be")
        code = 0
        for at in range(0, len(units), 2):
            code = (code * 31 + int.from_bytes(units[at : at + 2], "big")) % 2**32
        assert [group_partition_of(text, 50) for _ in range(2)] == [code % 2**31 % 50] * 2


@pytest.mark.parametrize("version", range(10))
async def test_member_joins_syncs_and_leaves_in_every_version(house: House, version: int) -> None:
    member, generation = await alone(house, version)
    assert house.parked >= 1
    beat = HeartbeatRequest(group_id=HERE, member_id=member, generation_id=generation)
    assert (await house.beat(beat, min(version, 4))) == 0
    kept = house.groups.find_coordinator(HERE)
    assert kept is not None
    assert kept.shard.groups[HERE].members[member].client_host == "/1.2.3.4"
    timeout_ms = kept.shard.groups[HERE].members[member].rebalance_timeout_ms
    assert timeout_ms == (10_000 if version else 6000)
    v = min(version, 5)
    if v < 3:
        left = await house.ask(leave_group, LeaveGroupRequest(group_id=HERE, member_id=member), v)
        again = await house.ask(leave_group, LeaveGroupRequest(group_id=HERE, member_id=member), v)
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    else:
        one = LeaveGroupRequest(group_id=HERE, members=[MemberIdentity(member_id=member)])
        left = await house.ask(leave_group, one, v)
        assert left.members[0].error_code == 0
    assert left.error_code == 0


async def test_sync_v5_must_name_its_protocol(house: House) -> None:
    answer = await house.ask(sync_group, SyncGroupRequest(group_id=HERE, protocol_name="r"), 5)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    answer = await house.ask(sync_group, SyncGroupRequest(group_id=HERE), 4)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_requests_for_groups_of_other_brokers_are_not_coordinator(house: House) -> None:
    request = joining(group=THERE)
    assert (await house.ask(join_group, request, 9)).error_code == ErrorCode.NOT_COORDINATOR
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=THERE)])
    (group,) = (await house.ask(offset_fetch, fetch, 8)).groups
    assert group.error_code == ErrorCode.NOT_COORDINATOR


async def test_requests_without_offsets_topic_are_not_coordinator() -> None:
    house = House()
    await house.groups.start()
    assert (await house.ask(join_group, joining(), 9)).error_code == ErrorCode.NOT_COORDINATOR
    assert (await house.ask(list_groups, ListGroupsRequest(), 5)).groups == []
    assert house.made == 0


async def test_events_of_members_are_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kafkawire.groups.event_log")
    member, _ = await alone(house)
    identity = MemberIdentity(member_id=member, reason="the consumer is being closed")
    await house.ask(leave_group, LeaveGroupRequest(group_id=HERE, members=[identity]), 5)
    lines = [record.getMessage() for record in caplog.records]
    assert f"group {HERE}: member {member}" in lines[0]
    assert lines[0].endswith("joined")
    assert "rebalance started after generation 0 with 1 member" in lines[1]
    assert "rebalance completed in" in lines[2]
    assert lines[3].endswith("left: the consumer is being closed")
    assert lines[4].startswith(f"group {HERE}: has no members any more")
    assert house.groups.events.rebalances == 1
    assert sum(house.groups.events.durations.counts) == 1
