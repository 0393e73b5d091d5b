"""The activity of one group: which members have joined, when each offset was committed.

Used by kafkawire.groups.service for GroupActivity; modifies nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.offsets import Offsets
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.messages.group_activity import (
    ActiveMember,
    CommittedPartition,
    CommittedTopic,
    GroupActivityResponse,
    PendingProducer,
)

AT_ONCE = 500
"""Partitions or members per slice: about a millisecond."""


async def activity(
    group: ClassicGroup | ConsumerGroup | StreamsGroup | None,
    group_id: str,
    offsets: Offsets,
    give_way: Callable[[], Awaitable[None]],
) -> GroupActivityResponse:
    """Return the activity of a group; GROUP_ID_NOT_FOUND if it has neither members nor offsets. The
    members of a consumer or streams group are left out: ConsumerGroupDescribe and
    StreamsGroupDescribe have all about them."""
    if group is None:
        return GroupActivityResponse(error_code=int(ErrorCode.GROUP_ID_NOT_FOUND))
    if not isinstance(group, ClassicGroup):
        response = GroupActivityResponse(group_state=group.state.value, generation=group.epoch)
    else:
        response = await _describe_classic(group, give_way)
    for name, partitions in list(offsets.committed_offsets(group_id).items()):
        topic = CommittedTopic(name=name)
        response.topics.append(topic)
        found = list(partitions.items())
        for start in range(0, len(found), AT_ONCE):
            topic.partitions += [
                CommittedPartition(index, value.offset, value.committed_at_ms)
                for index, value in found[start : start + AT_ONCE]
            ]
            await give_way()
    response.pending_producers = _pending(offsets, group_id)
    return response


async def _describe_classic(
    group: ClassicGroup, give_way: Callable[[], Awaitable[None]]
) -> GroupActivityResponse:
    response = GroupActivityResponse(
        group_state=group.state.value,
        since_timestamp=group.since_ms,
        generation=group.generation,
        leader=group.leader or "",
        joining_members=len(group.pending),
    )
    # Copies, as the group may change between two slices: the answer shows no single moment.
    members = list(group.members.values())
    for start in range(0, len(members), AT_ONCE):
        response.members += [
            ActiveMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                rejoined=member.join is not None,
                synced=member.id not in group.unsynced,
            )
            for member in members[start : start + AT_ONCE]
        ]
        await give_way()
    return response


def _pending(offsets: Offsets, group_id: str) -> list[PendingProducer]:
    counts: dict[int, int] = {}
    for producers in offsets.pending.pending_partitions(group_id).values():
        for producer_id in producers:
            counts[producer_id] = counts.get(producer_id, 0) + 1
    return [PendingProducer(*item) for item in sorted(counts.items())]
