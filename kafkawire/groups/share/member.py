"""One member of a share group: an immutable value, and its records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kafkawire.groups.consumer.member import NO_TARGET, Target
from kafkawire.groups.model.records import ShareGroupRecord, ShareKind
from kafkawire.messages.stored import (
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataValue,
    ShareGroupTargetAssignmentMemberValue,
    TargetTopicPartitions,
)

STABLE = 0
"""The state of a member in its records; share groups have no other (Kafka: MemberState)."""


@dataclass(frozen=True, slots=True)
class ShareMember:
    """One member. `topics`: its subscription; `assigned`: the partitions that it reads."""

    id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Target = field(default_factory=lambda: NO_TARGET)

    @property
    def instance_id(self) -> None:
        """Return None: share groups have no static members."""
        return


def metadata_record(group_id: str, member: ShareMember) -> ShareGroupRecord:
    value = ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        # Sorted here and below: the order of a set differs between processes.
        subscribed_topic_names=sorted(member.topics),
    )
    return ShareGroupRecord(ShareKind.MEMBER, group_id, member.id, value)


def current_record(group_id: str, member: ShareMember) -> ShareGroupRecord:
    value = ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=STABLE,
        assigned_partitions=_store(member.assigned),
    )
    return ShareGroupRecord(ShareKind.CURRENT, group_id, member.id, value)


def target_record(group_id: str, member_id: str, target: Target) -> ShareGroupRecord:
    value = ShareGroupTargetAssignmentMemberValue(topic_partitions=_store(target))
    return ShareGroupRecord(ShareKind.TARGET_MEMBER, group_id, member_id, value)


def member_tombstones(group_id: str, member_id: str) -> list[ShareGroupRecord]:
    """Return the records that remove one member, in Kafka's order."""
    kinds = (ShareKind.CURRENT, ShareKind.TARGET_MEMBER, ShareKind.MEMBER)
    return [ShareGroupRecord(kind, group_id, member_id, None) for kind in kinds]


def with_metadata(member: ShareMember, value: ShareGroupMemberMetadataValue) -> ShareMember:
    return replace(
        member,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
    )


def with_current(member: ShareMember, value: ShareGroupCurrentMemberAssignmentValue) -> ShareMember:
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        assigned=restore_partitions(value.assigned_partitions),
    )


def restore_partitions(stored: Iterable[TargetTopicPartitions]) -> Target:
    return {topic.topic_id: frozenset(topic.partitions) for topic in stored}


def _store(partitions: Target) -> list[TargetTopicPartitions]:
    return [
        TargetTopicPartitions(topic_id=topic_id, partitions=sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
    ]
