"""A share group as described by ShareGroupDescribe and ListGroups. Pure.

The handler adds authorized operations, and hides groups whose topics the sender may not see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.consumer.views import list_assignment
from kafkawire.groups.model.request import Settings
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.share.group import ShareGroup
from kafkawire.messages.list_groups import ListedGroup
from kafkawire.messages.share_group_describe import DescribedGroup, Member

SHARE = "share"
"""The type of share groups, and their protocol type."""


def describe_unknown(group_id: str, *, exists: bool) -> DescribedGroup:
    """Describe a group that does not exist, or is of another type."""
    text = f"Group {group_id} is not a share group." if exists else f"Group {group_id} not found."
    code = int(ErrorCode.GROUP_ID_NOT_FOUND)
    return DescribedGroup(group_id=group_id, error_code=code, error_message=text)


def describe_group(group: ShareGroup, topics: ClusterTopics, settings: Settings) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=settings.group_share_assignors[0],
        members=[
            Member(
                member_id=member.id,
                rack_id=member.rack_id,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.topics),
                assignment=list_assignment(member.assigned, topics),
            )
            for member in group.members.values()
        ],
    )


def list_groups(
    groups: Iterable[ShareGroup], states: Collection[str], types: Collection[str]
) -> list[ListedGroup]:
    """List the groups in one of `states` and of one of `types`; an empty filter matches all."""
    if types and SHARE not in {kind.lower() for kind in types}:
        return []
    wanted = {state.lower() for state in states}
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=SHARE,
            group_state=group.state.value,
            group_type=SHARE,
        )
        for group in groups
        if not wanted or group.state.value.lower() in wanted
    ]
