"""Thousands of groups at once: each joins, syncs, commits and beats; all commits are read back."""

from __future__ import annotations

import asyncio

from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.trials.context import Context
from tests.trials.kill.members import RETRY, committed, find_coordinator
from tests.trials.kill.world import Topic
from tests.trials.link import Link, link

CONNECTIONS = 40
SESSION_MS, REBALANCE_MS = 60_000, 5_000


async def join(client: Link, group: str, topic: Topic, offset: int) -> int:
    """One member of one group, from its join to its commit; the first error code, or 0."""
    protocol = JoinGroupRequestProtocol("trial", b"")
    request = JoinGroupRequest(group, SESSION_MS, REBALANCE_MS, "", None, "trial", [protocol])
    joined = await client.call(request, 3)
    while joined.error_code in RETRY:
        await find_coordinator(client, group)
        joined = await client.call(request, 3)
    if joined.error_code:
        return int(joined.error_code)
    me = joined.member_id
    assigned = [SyncGroupRequestAssignment(me, b"all")]
    sync = SyncGroupRequest(group, joined.generation_id, me, assignments=assigned)
    synced = await client.call(sync, 3)
    row = OffsetCommitRequestPartition(0, offset)
    asked = OffsetCommitRequestTopic(topic_id=topic.id, partitions=[row])
    commit = OffsetCommitRequest(group, joined.generation_id, me, topics=[asked])
    done = (await client.call(commit, 10)).topics[0].partitions[0]
    beat = await client.call(HeartbeatRequest(group, joined.generation_id, me), 3)
    return int(synced.error_code or done.error_code or beat.error_code)


async def storm(context: Context, port: int, topic: Topic, count: int) -> dict[str, int]:
    """Run `count` groups over a few connections; return what each committed."""
    offsets = {f"group-{number}": 1 + number % 7 for number in range(count)}
    names = list(offsets)

    async def some(part: list[str]) -> None:
        async with link(port, "groups") as client:
            for name in part:
                if code := await join(client, name, topic, offsets[name]):
                    context.broken(f"group {name}: refused with {code}")
                    return
                context.tried("groups joined and committed")

    await asyncio.gather(*(some(names[turn::CONNECTIONS]) for turn in range(CONNECTIONS)))
    return offsets


async def verify(context: Context, port: int, topic: Topic, offsets: dict[str, int]) -> None:
    """Check that every group has what it committed."""
    async with link(port, "groups") as client:
        for name, offset in offsets.items():
            found = (await committed(client, name, [(topic.id, 0)])).get((topic.id, 0))
            context.check(
                found == offset,
                "commits of groups verified",
                f"group {name}: committed offset {found}, {offset} was acked",
            )
