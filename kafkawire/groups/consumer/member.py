"""One member of a group with the consumer protocol: an immutable value, and its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from kafkawire.codec.compile import decode, encode
from kafkawire.codec.types import DecodeError
from kafkawire.groups.model.member import Protocols
from kafkawire.groups.model.records import ConsumerKind, ConsumerRecord
from kafkawire.messages.stored import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMemberValue,
    CurrentTopicPartitions,
    TargetTopicPartitions,
)

Partitions = Mapping[bytes, Mapping[int, int]]
"""Topic id -> partition -> the epoch of the member when it got the partition."""
Target = Mapping[bytes, frozenset[int]]
"""Topic id -> partitions that a member is to have."""

NO_PARTITIONS: Partitions = {}
NO_TARGET: Target = {}
STATIC_LEAVE = -2
"""The epoch of a static member that has left for a while: its partitions are kept for it."""
LEAVE = -1


CLASSIC_TAG = 0
"""The tag of a member's classic part."""
_PRESENT = b"\1"


@dataclass(frozen=True, slots=True)
class ClassicPart:
    """The session timeout and the protocols of a member that joined by JoinGroup."""

    session_timeout_ms: int
    protocols: Protocols


class MemberState(IntEnum):
    """How far a member has reached its target assignment (Kafka: MemberState).

    | from | event | to |
    |---|---|---|
    | any | it has something to revoke and has not confirmed that | UNREVOKED |
    | any | nothing to revoke, a partition of its target has another owner | UNRELEASED |
    | any | nothing to revoke, all of its target is assigned | STABLE |
    | UNREVOKED | its rebalance timeout passes | removed |

    STABLE is left only for a newer target or subscription, UNREVOKED only by a heartbeat whose
    owned partitions are without those to be revoked.
    """

    STABLE = 0
    UNREVOKED = 1
    """The member must stop using its pending partitions and confirm that; its epoch stays."""
    UNRELEASED = 2
    """The member waits for partitions that others have not released."""
    UNKNOWN = 127
    """Written by a later version: the member is fenced, and joins again."""


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member. `topics` and `pattern` are its subscription, their union counts. `assigned` and
    `pending` (to be revoked) are the partitions that it owns. `classic`: it has the classic
    protocol."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    assignor: str | None = None
    classic: ClassicPart | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=lambda: NO_PARTITIONS)
    pending: Partitions = field(default_factory=lambda: NO_PARTITIONS)

    def epoch_of(self, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch in which the member got a partition; None if it does not own it."""
        found = self.assigned.get(topic_id, {}).get(partition)
        return self.pending.get(topic_id, {}).get(partition) if found is None else found


def metadata_record(group_id: str, member: ConsumerMember) -> ConsumerRecord:
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        # Sorted here and below: the order of a set differs between processes.
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        unknown_tags=None
        if member.classic is None
        else {CLASSIC_TAG: _store_classic(member.classic)},
    )
    return ConsumerRecord(ConsumerKind.MEMBER, group_id, member.id, value)


def current_record(group_id: str, member: ConsumerMember) -> ConsumerRecord:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=int(member.state),
        assigned_partitions=_store(member.assigned),
        partitions_pending_revocation=_store(member.pending),
    )
    return ConsumerRecord(ConsumerKind.CURRENT, group_id, member.id, value)


def target_record(group_id: str, member_id: str, target: Target) -> ConsumerRecord:
    topics = [
        TargetTopicPartitions(topic_id=topic_id, partitions=sorted(target[topic_id]))
        for topic_id in sorted(target)
    ]
    value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics)
    return ConsumerRecord(ConsumerKind.TARGET_MEMBER, group_id, member_id, value)


def member_tombstones(group_id: str, member_id: str) -> list[ConsumerRecord]:
    """Return the records that remove one member, in Kafka's order."""
    kinds = (ConsumerKind.CURRENT, ConsumerKind.TARGET_MEMBER, ConsumerKind.MEMBER)
    return [ConsumerRecord(kind, group_id, member_id, None) for kind in kinds]


def with_metadata(
    member: ConsumerMember, value: ConsumerGroupMemberMetadataValue
) -> ConsumerMember:
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topics=frozenset(value.subscribed_topic_names),
        pattern=value.subscribed_topic_regex or "",
        assignor=value.server_assignor,
        classic=_restore_classic((value.unknown_tags or {}).get(CLASSIC_TAG, b"")),
    )


def with_current(
    member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue
) -> ConsumerMember:
    try:
        state = MemberState(value.state)
    except ValueError:
        state = MemberState.UNKNOWN
    epoch = value.member_epoch
    return replace(
        member,
        epoch=epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        assigned=_restore(value.assigned_partitions, epoch),
        pending=_restore(value.partitions_pending_revocation, epoch),
    )


def restore_target(value: ConsumerGroupTargetAssignmentMemberValue) -> Target:
    return {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions}


def _store_classic(part: ClassicPart) -> bytes:
    stored = ClassicMemberMetadata(
        session_timeout_ms=part.session_timeout_ms,
        supported_protocols=[ClassicProtocol(*pair) for pair in part.protocols],
    )
    return _PRESENT + encode(stored, 0)


def _restore_classic(data: bytes) -> ClassicPart | None:
    if not data.startswith(_PRESENT):
        return None
    try:
        stored = decode(ClassicMemberMetadata, 0, data[1:])
    # A member with an unreadable part is fenced when it next sends a request, and joins again.
    except DecodeError:
        return None
    pairs = tuple((each.name, each.metadata) for each in stored.supported_protocols)
    return ClassicPart(stored.session_timeout_ms, pairs)


def _store(partitions: Partitions) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=(indexes := sorted(partitions[topic_id])),
            assignment_epochs=[partitions[topic_id][index] for index in indexes],
        )
        for topic_id in sorted(partitions)
    ]


def _restore(stored: Iterable[CurrentTopicPartitions], epoch: int) -> Partitions:
    found: dict[bytes, dict[int, int]] = {}
    for topic in stored:
        epochs = topic.assignment_epochs
        # Without them, as Kafka wrote until 4.2, each partition counts as got in the last epoch.
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(epoch, 0)] * len(topic.partitions)
        found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found
