"""GroupActivity: who has joined a rebalance, and when offsets were committed.

Covers: kafkawire.handlers.group_activity.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups import activity
from kafkawire.groups.model.request import OFFSET_COMMIT
from kafkawire.groups.service import Client
from kafkawire.handlers.group_activity import group_activity
from kafkawire.handlers.join_group import join_group
from kafkawire.messages.group_activity import GroupActivityRequest
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


async def asked(house: House, group: str = HERE) -> Any:
    return await house.ask(group_activity, GroupActivityRequest(group_id=group), 0)


async def test_unknown_groups_and_those_of_other_brokers_are_errors(house: House) -> None:
    assert (await asked(house)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (await asked(house, THERE)).error_code == ErrorCode.NOT_COORDINATOR
    await house.groups.close()
    assert (await asked(house)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_time_of_each_commit(house: House, monkeypatch: Any) -> None:
    monkeypatch.setattr(activity, "AT_ONCE", 1)  # several slices
    member, generation = await alone(house)
    stored = commit_of(
        {("t", 0): 5, ("t", 2): 6, ("u", 0): 7}, group=HERE, generation=generation, member=member
    )
    await house.groups.handle_request(OFFSET_COMMIT, Client("c", "/h"), 8, stored)
    found = await asked(house)
    assert (found.error_code, found.group_state, found.generation) == (0, "Stable", generation)
    assert found.since_timestamp == house.env.clock.now_ms()
    rows = {
        (topic.name, row.partition_index): (row.committed_offset, row.commit_timestamp)
        for topic in found.topics
        for row in topic.partitions
    }
    now = house.env.clock.now_ms()
    assert rows == {("t", 0): (5, now), ("t", 2): (6, now), ("u", 0): (7, now)}
    (row,) = found.members
    assert (row.member_id, row.client_host, row.session_timeout_ms) == (member, "/1.2.3.4", 6000)
    assert (row.rejoined, row.synced) == (False, True)


async def test_member_that_has_not_rejoined(house: House) -> None:
    member, _ = await alone(house)
    newcomer = (await house.ask(join_group, joining(), 9)).member_id
    parked = house.parked
    waiting = asyncio.create_task(house.ask(join_group, joining(newcomer), 9))
    await until(lambda: house.parked > parked)
    found = await asked(house)
    assert found.group_state == "PreparingRebalance"
    assert {row.member_id: row.rejoined for row in found.members} == {member: False, newcomer: True}
    again = asyncio.create_task(house.ask(join_group, joining(member), 9))
    await until(lambda: waiting.done() and again.done())
    found = await asked(house)
    assert (found.group_state, found.leader) == ("CompletingRebalance", member)
    assert [row.synced for row in found.members] == [False, False]
