"""A consumer group as described by ConsumerGroupDescribe. Pure.

The handler adds authorized operations, and hides groups whose topics the sender may not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.consumer.member import NO_TARGET
from kafkawire.groups.consumer.target import select_assignor
from kafkawire.groups.model.request import Settings
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_PROTOCOL, NEW_PROTOCOL = 0, 1
"""Types of members: with the classic and with the consumer protocol."""


def describe_group(
    group: ConsumerGroup, topics: ClusterTopics, settings: Settings
) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=select_assignor(group, settings, None, None),
        members=[
            Member(
                member_id=member.id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.topics),
                # Empty, not null, as in Kafka, once it was given.
                subscribed_topic_regex=member.pattern or None,
                assignment=list_assignment(member.assigned, topics),
                target_assignment=list_assignment(group.target.get(member.id, NO_TARGET), topics),
                member_type=NEW_PROTOCOL if member.classic is None else CLASSIC_PROTOCOL,
            )
            for member in group.members.values()
        ],
    )


def list_assignment(partitions: Mapping[bytes, Iterable[int]], topics: ClusterTopics) -> Assignment:
    """List partitions with the names of their topics."""
    found = [
        TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
        # A deleted topic has no name.
        if (name := topics.topic_name(topic_id)) is not None
    ]
    return Assignment(topic_partitions=found)
