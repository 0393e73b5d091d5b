"""Convert a group with members from the classic to the consumer protocol, and back (KIP-848).

Up when the first member with the consumer protocol joins, down when the last one is gone, as far as
group.consumer.migration.policy allows. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from kafkawire.codec.compile import decode, encode_versioned, version_of
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.schema import info_of
from kafkawire.codec.types import DecodeError
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.classic.rebalance import reopen
from kafkawire.groups.classic.working_copy import Draft, join_error, sync_error
from kafkawire.groups.consumer.group import ConsumerGroup, epoch_record, target_epoch_record
from kafkawire.groups.consumer.member import (
    NO_TARGET,
    ClassicPart,
    ConsumerMember,
    MemberState,
    Target,
    current_record,
    metadata_record,
    target_record,
)
from kafkawire.groups.consumer.subscription import hash_topics
from kafkawire.groups.model.changes import Put
from kafkawire.groups.model.decision import (
    JOIN,
    SYNC,
    CancelTimer,
    Decision,
    Reply,
    SetTimer,
    join_again,
    rebalance,
    session,
    sync_after,
)
from kafkawire.groups.model.member import CONSUMER, Member
from kafkawire.groups.model.records import GroupRecord
from kafkawire.groups.model.request import Settings
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.messages.stored import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataValue,
    MemberMetadata,
    TopicPartition,
)

UPGRADES = frozenset({"bidirectional", "upgrade"})
DOWNGRADES = frozenset({"bidirectional", "downgrade"})


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode the subscription of a JoinGroup. Raises DecodeError."""
    # One of a newer version is read as one of the newest known, as by Kafka.
    version = min(version_of(metadata), info_of(ConsumerProtocolSubscription).max_version)
    return decode(ConsumerProtocolSubscription, version, metadata[2:])


def write_assignment(target: Target, subscription: bytes, topics: ClusterTopics) -> bytes:
    """Encode an assignment for a member with this subscription, whose version it gets."""
    newest = info_of(ConsumerProtocolAssignment).max_version
    found = [
        TopicPartition(topic=name, partitions=sorted(partitions))
        for topic_id, partitions in target.items()
        if (name := topics.topic_name(topic_id)) is not None
    ]
    found.sort(key=lambda each: each.topic)
    value = ConsumerProtocolAssignment(assigned_partitions=found)
    return encode_versioned(value, min(version_of(subscription), newest))


def to_partitions(stored: Collection[TopicPartition], topics: ClusterTopics) -> Target:
    found: dict[bytes, frozenset[int]] = {}
    for each in stored:
        topic_id = topics.topic_id(each.topic)
        if topic_id is not None:
            found[topic_id] = found.get(topic_id, frozenset()) | frozenset(each.partitions)
    return found


def upgrade(
    classic: ClassicGroup, topics: ClusterTopics, settings: Settings, now_ms: int
) -> tuple[Decision, ConsumerGroup]:
    """Return the decision that converts a classic group with members, and the group as it will be.
    Raises GROUP_ID_NOT_FOUND if that is not possible."""
    _check_upgrade(classic, settings)
    group_id, epoch = classic.group_id, classic.generation
    decision = Decision(group_id)
    members: list[ConsumerMember] = []
    owners: dict[bytes, set[int]] = {}
    for member in classic.members.values():
        members.append(_convert(member, classic, topics, owners))
        # They join again, and find themselves in the other protocol.
        if member.join is not None:
            error = join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.id)
            decision.effects.append(Reply(member.join, error))
        if member.sync is not None:
            error_of_sync = sync_error(ErrorCode.REBALANCE_IN_PROGRESS)
            decision.effects.append(Reply(member.sync, error_of_sync))
        decision.effects.append(SetTimer(session(member.id), now_ms + member.session_timeout_ms))
    decision.effects += [CancelTimer(JOIN), CancelTimer(SYNC)]
    names = {name for member in members for name in member.topics}
    records = [
        *(metadata_record(group_id, member) for member in members),
        epoch_record(group_id, epoch, hash_topics(names, topics)),
        *(target_record(group_id, member.id, _target_of(member)) for member in members),
        target_epoch_record(group_id, epoch, 0),
        *(current_record(group_id, member) for member in members),
    ]
    group = ConsumerGroup(group_id)
    for record in records:
        group.apply(record)
    if classic.recorded is not None:
        decision.steps.append(GroupRecord(group_id, None))
    decision.steps += records
    return decision, group


def _check_upgrade(classic: ClassicGroup, settings: Settings) -> None:
    why = ""
    if settings.group_consumer_migration_policy not in UPGRADES:
        why = "online upgrade is disabled"
    elif classic.protocol_type != CONSUMER:
        why = "the group does not use the consumer embedded protocol"
    elif len(classic.members) > settings.group_consumer_max_size:
        why = "the group size exceeds the consumer group maximum size"
    if why:
        raise _refuse(classic, why)


def _refuse(classic: ClassicGroup, why: str) -> KafkaError:
    text = f"Cannot upgrade classic group {classic.group_id} to consumer group because {why}."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _convert(
    member: Member, classic: ClassicGroup, topics: ClusterTopics, owners: dict[bytes, set[int]]
) -> ConsumerMember:
    # In its first round the group has no protocol yet, and all of a member have its subscription.
    metadata = member.metadata(classic.protocol) or member.protocols[0][1]
    assigned: dict[bytes, dict[int, int]] = {}
    try:
        subscription = read_subscription(metadata)
        if member.assignment:
            data = member.assignment
            version = min(version_of(data), info_of(ConsumerProtocolAssignment).max_version)
            assignment = decode(ConsumerProtocolAssignment, version, data[2:])
            if assignment.user_data:
                raise _refuse(classic, "an unsupported custom assignor is in use")
            for topic_id, found in to_partitions(assignment.assigned_partitions, topics).items():
                # What a client's assignor gave to two members belongs to the first.
                taken = owners.setdefault(topic_id, set())
                free = sorted(found - taken)
                taken.update(free)
                if free:
                    assigned[topic_id] = dict.fromkeys(free, classic.generation)
    except DecodeError:
        raise _refuse(classic, "the embedded consumer protocol is malformed") from None
    return ConsumerMember(
        member.id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=frozenset(subscription.topics),
        classic=ClassicPart(member.session_timeout_ms, member.protocols),
        epoch=classic.generation,
        previous_epoch=classic.generation,
        state=MemberState.STABLE,
        assigned=assigned,
    )


def _target_of(member: ConsumerMember) -> Target:
    return {topic_id: frozenset(found) for topic_id, found in member.assigned.items()}


def may_downgrade(
    group: ConsumerGroup, settings: Settings, gone: Collection[ConsumerMember]
) -> bool:
    """Return whether, without these members, a group is to be converted to a classic one."""
    staying = len(group.members) - len(gone)
    classic = group.classic_members - sum(member.classic is not None for member in gone)
    return (
        0 < staying <= settings.group_max_size
        and classic == staying
        # Otherwise it was so before: a static member has replaced the last of the other protocol.
        and settings.group_consumer_migration_policy in DOWNGRADES
    )


def downgrade(
    decision: Decision,
    group: ConsumerGroup,
    topics: ClusterTopics,
    settings: Settings,
    gone: Collection[ConsumerMember],
    now_ms: int,
) -> None:
    """Add the steps that convert a group to a classic one, which rebalances at once."""
    left = {member.id for member in gone}
    parts: dict[str, ClassicPart] = {}
    scratch = ClassicGroup(group.group_id, settings)
    for member in group.members.values():
        if member.id not in left and member.classic is not None:
            parts[member.id] = member.classic
            scratch.apply(Put(_to_classic(member, member.classic), CONSUMER))
    protocol = scratch.select_protocol()
    draft = Draft(ClassicGroup(group.group_id, settings), now_ms)
    draft.do(_group_record(group, scratch, protocol, topics, now_ms))
    # The record has only the protocol of the group.
    for id_, part in parts.items():
        converted = draft.group.members[id_]
        if converted.protocols != part.protocols:
            draft.do(Put(replace(converted, protocols=part.protocols)))
        draft.cancel(rebalance(id_))
        draft.cancel(join_again(id_))
        draft.cancel(sync_after(id_))
        draft.expect(converted)
    reopen(draft, "the last member with the consumer protocol is gone")
    decision.steps += group.tombstones()
    decision.steps += draft.decision.steps
    decision.effects += draft.decision.effects
    decision.events += draft.decision.events


def _group_record(
    group: ConsumerGroup,
    classic: ClassicGroup,
    protocol: str,
    topics: ClusterTopics,
    now_ms: int,
) -> GroupRecord:
    """Return the record of the classic group: each member has its target assignment."""
    members: list[MemberMetadata] = []
    for member in classic.members.values():
        subscription = member.metadata(protocol) or b""
        target = group.target.get(member.id, NO_TARGET)
        members.append(
            MemberMetadata(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=subscription,
                assignment=write_assignment(target, subscription, topics),
            )
        )
    value = GroupMetadataValue(
        protocol_type=CONSUMER,
        generation=group.epoch,
        protocol=protocol,
        leader=classic.leader,
        current_state_timestamp=now_ms,
        members=members,
    )
    return GroupRecord(group.group_id, value)


def _to_classic(member: ConsumerMember, part: ClassicPart) -> Member:
    return Member(
        member.id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        part.session_timeout_ms,
        part.protocols,
    )
