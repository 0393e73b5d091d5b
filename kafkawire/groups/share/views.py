"""A share group as described by ShareGroupDescribe. Pure.

The handler adds authorized operations, and hides groups whose topics the sender may not see.
"""

from __future__ import annotations

from kafkawire.groups.consumer.views import list_assignment
from kafkawire.groups.model.request import Settings
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.share.group import ShareGroup
from kafkawire.messages.share_group_describe import DescribedGroup, Member


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
