"""Keys and values of `__consumer_offsets`, `__transaction_state` and `__share_group_state`, and the
group metadata of consumers.

The formats are Kafka's own, so that its tools read our topics. A key or value on disk starts with
its version as int16: `codec.compile.encode_versioned` and `decode_versioned`. For keys the version
is the kind of record: 0 and 1 an offset (0 is only read), 2 a classic group, 3 to 8 and 16 a group
with the consumer protocol (KIP-848), 10 to 15 a share group (KIP-932), 17 to 23 a streams group
(KIP-1071); in `__transaction_state` 0 a transactional id; in `__share_group_state` 0 the state of a
share partition, 1 a change of it. A null value is a tombstone.
"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, since, stored_message, struct, tag, until
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int8, int16, int32, int64, uuid
from kafkawire.messages.streams_group_describe import Endpoint, KeyValue, TaskIds
from kafkawire.messages.streams_group_heartbeat import Subtopology


@stored_message(versions=(0, 1))
class OffsetCommitKey:
    """Which group committed which partition. Kafka writes v1 and still reads v0, its equal."""

    group: str = ""
    topic: str = ""
    partition: int32 = 0


@stored_message(versions=(0, 4), flexible_from=4)
class OffsetCommitValue:
    """A committed offset.

    v1 has an expiry of its own and is written only for requests that ask for one. v3 adds the
    leader epoch and is what every reader since Kafka 2.1 takes. v4 is flexible and may carry the
    topic id.
    """

    offset: int64 = 0
    leader_epoch: Annotated[int32, since(3), ignorable] = -1
    metadata: str = ""
    commit_timestamp: int64 = 0
    expire_timestamp: Annotated[int64, since(1), until(1), ignorable] = -1
    topic_id: Annotated[uuid, since(4), tag(0), ignorable] = ZERO_UUID
    unknown_tags: UnknownTags = None


@stored_message(versions=(2, 2))
class GroupMetadataKey:
    """Which classic group the value describes."""

    group: str = ""


@struct
class MemberMetadata:
    """One member of a classic group; subscription and assignment are the client's own bytes."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, since(3), ignorable] = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: Annotated[int32, since(1), ignorable] = -1
    session_timeout: int32 = 0
    subscription: bytes = b""
    assignment: bytes = b""
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 4), flexible_from=4)
class GroupMetadataValue:
    """A classic group after a rebalance.

    v1 adds the members' rebalance timeout, v2 the time of the last state change, v3 static member
    ids. v4 is flexible.
    """

    protocol_type: str = ""
    generation: int32 = 0
    protocol: str | None = ""
    leader: str | None = ""
    current_state_timestamp: Annotated[int64, since(2), ignorable] = -1
    members: list[MemberMetadata] = []
    unknown_tags: UnknownTags = None


@struct
class TopicPartition:
    """Partitions of one topic: owned ones in a subscription, given ones in an assignment."""

    topic: str = ""
    partitions: list[int32] = []


@stored_message(versions=(0, 3))
class ConsumerProtocolSubscription:
    """Subscription of a consumer, sent when it joins. v1 adds owned partitions, v2 their
    generation, v3 rack.

    Kafka's readers take a subscription of a newer version as one of the newest they know.
    """

    topics: list[str] = []
    user_data: bytes | None = None
    owned_partitions: Annotated[list[TopicPartition], since(1), ignorable] = []
    generation_id: Annotated[int32, since(2), ignorable] = -1
    rack_id: Annotated[str | None, since(3), ignorable] = None


@stored_message(versions=(0, 3))
class ConsumerProtocolAssignment:
    """Assignment of one consumer, made by the leader of its group. All versions are the same
    bytes."""

    assigned_partitions: list[TopicPartition] = []
    user_data: bytes | None = None


@stored_message(versions=(3, 8))
class ConsumerGroupKey:
    """A group with the consumer protocol, in records of types 3 (its epoch), 4 (its topics) and 6
    (the epoch of its target assignment)."""

    group: str = ""


@stored_message(versions=(5, 16))
class ConsumerGroupNamedKey:
    """A member of such a group, in records of types 5 (its metadata), 7 (its target assignment) and
    8 (its current assignment); a pattern in type 16."""

    group: str = ""
    name: str = ""


@stored_message(versions=(0, 0), flexible_from=0)
class ConsumerGroupMetadataValue:
    """The epoch of a group, and a hash of the topics that it subscribes to (key type 3)."""

    epoch: int32 = 0
    metadata_hash: Annotated[int64, tag(0)] = 0
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ConsumerGroupMemberMetadataValue:
    """A member and its subscription (key type 5). Tag 0 is a ClassicMemberMetadata, after a byte 1
    that says that it is not null; here it is an unknown tag, as structs of tags have no such byte
    elsewhere."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int32 = -1
    server_assignor: str | None = None
    unknown_tags: UnknownTags = None


@struct
class ClassicProtocol:
    """A protocol that a member with the classic protocol has, and its subscription."""

    name: str = ""
    metadata: bytes = b""
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ClassicMemberMetadata:
    """The classic part of a member of a group with the consumer protocol."""

    session_timeout_ms: int32 = 0
    supported_protocols: list[ClassicProtocol] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch of the target assignment (key type 6), and when it was computed; 0: unknown."""

    assignment_epoch: int32 = 0
    assignment_timestamp: Annotated[int64, tag(0)] = 0
    unknown_tags: UnknownTags = None


@struct
class TargetTopicPartitions:
    """Partitions of a topic that a member is to have."""

    topic_id: uuid = ZERO_UUID
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ConsumerGroupTargetAssignmentMemberValue:
    """The target assignment of a member (key type 7)."""

    topic_partitions: list[TargetTopicPartitions] = []
    unknown_tags: UnknownTags = None


@struct
class CurrentTopicPartitions:
    """Partitions of a topic that a member has, and the epoch in which it got each (KIP-1251);
    None: written before Kafka 4.3."""

    topic_id: uuid = ZERO_UUID
    partitions: list[int32] = []
    assignment_epochs: Annotated[list[int32] | None, tag(0)] = None
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ConsumerGroupCurrentMemberAssignmentValue:
    """The epoch, state and partitions of a member (key type 8)."""

    member_epoch: int32 = 0
    previous_member_epoch: int32 = 0
    state: int8 = 0
    assigned_partitions: list[CurrentTopicPartitions] = []
    partitions_pending_revocation: list[CurrentTopicPartitions] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ConsumerGroupRegularExpressionValue:
    """The topics that a pattern matched, the version of the topics then, and when (key type 16)."""

    topics: list[str] = []
    version: int64 = 0
    timestamp: int64 = 0
    unknown_tags: UnknownTags = None


@stored_message(versions=(11, 15))
class ShareGroupKey:
    """A share group, in records of types 11 (its epoch), 12 (the epoch of its target assignment)
    and 15 (the partitions whose state is initialized)."""

    group: str = ""


@stored_message(versions=(10, 14))
class ShareGroupMemberKey:
    """A member of a share group, in records of types 10 (its metadata), 13 (its target assignment)
    and 14 (its current assignment)."""

    group: str = ""
    name: str = ""


@stored_message(versions=(0, 0), flexible_from=0)
class ShareGroupMemberMetadataValue:
    """A member of a share group and its subscription (key type 10)."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ShareGroupMetadataValue:
    """The epoch of a share group, and a hash of the topics that it subscribes to (key type 11)."""

    epoch: int32 = 0
    metadata_hash: int64 = 0
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ShareGroupTargetAssignmentMetadataValue:
    """The epoch of the target assignment (key type 12), and when it was computed; 0: unknown."""

    assignment_epoch: int32 = 0
    assignment_timestamp: Annotated[int64, tag(0)] = 0
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ShareGroupTargetAssignmentMemberValue:
    """The target assignment of a member of a share group (key type 13)."""

    topic_partitions: list[TargetTopicPartitions] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ShareGroupCurrentMemberAssignmentValue:
    """The epoch, state and partitions of a member of a share group (key type 14)."""

    member_epoch: int32 = 0
    previous_member_epoch: int32 = 0
    state: int8 = 0
    assigned_partitions: list[TargetTopicPartitions] = []
    unknown_tags: UnknownTags = None


@struct
class NamedTopicPartitions:
    """Partitions of a topic, with its name at the time."""

    topic_id: uuid = ZERO_UUID
    topic_name: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class NamedTopic:
    """A topic, with its name at the time."""

    topic_id: uuid = ZERO_UUID
    topic_name: str = ""
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ShareGroupStatePartitionMetadataValue:
    """The partitions whose state as share partitions is being initialized, is initialized, or is
    being deleted (key type 15)."""

    initializing_topics: list[NamedTopicPartitions] = []
    initialized_topics: list[NamedTopicPartitions] = []
    deleting_topics: list[NamedTopic] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(17, 23))
class StreamsGroupKey:
    """A streams group, in records of types 17 (its epoch), 20 (the epoch of its target assignment)
    and 23 (its topology)."""

    group: str = ""


@stored_message(versions=(19, 22))
class StreamsGroupMemberKey:
    """A member of a streams group, in records of types 19 (its metadata), 21 (its target
    assignment) and 22 (its current assignment)."""

    group: str = ""
    name: str = ""


@stored_message(versions=(0, 0), flexible_from=0)
class StreamsGroupMetadataValue:
    """The epoch of a streams group, a hash of its topics, and what its last assignment was made
    from (key type 17). `validated_topology_epoch`: of the topology whose topics all exist; -1: they
    do not. The last two are written by Kafka for a plugin."""

    epoch: int32 = 0
    metadata_hash: int64 = 0
    validated_topology_epoch: Annotated[int32, tag(0)] = -1
    last_assignment_configs: Annotated[list[KeyValue] | None, tag(1)] = None
    stored_description_topology_epoch: Annotated[int32, tag(2)] = -1
    failed_description_topology_epoch: Annotated[int32, tag(3)] = -1
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class StreamsGroupMemberMetadataValue:
    """A member of a streams group (key type 19): one stream thread of a process."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int32 = -1
    topology_epoch: int32 = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class StreamsGroupTargetAssignmentMetadataValue:
    """The epoch of the target assignment (key type 20), and when it was computed; 0: unknown."""

    assignment_epoch: int32 = 0
    assignment_timestamp: Annotated[int64, tag(0)] = 0
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class StreamsGroupTargetAssignmentMemberValue:
    """The target assignment of a member of a streams group (key type 21)."""

    active_tasks: list[TaskIds] = []
    standby_tasks: list[TaskIds] = []
    warmup_tasks: list[TaskIds] = []
    unknown_tags: UnknownTags = None


@struct
class CurrentTaskIds:
    """Tasks that a member has, and the epoch in which it got each; None for other than active ones
    (KIP-1251)."""

    subtopology_id: str = ""
    partitions: list[int32] = []
    assignment_epochs: Annotated[list[int32] | None, tag(0)] = None
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class StreamsGroupCurrentMemberAssignmentValue:
    """The epoch, state and tasks of a member of a streams group (key type 22)."""

    member_epoch: int32 = 0
    previous_member_epoch: int32 = 0
    state: int8 = 0
    active_tasks: list[CurrentTaskIds] = []
    standby_tasks: list[CurrentTaskIds] = []
    warmup_tasks: list[CurrentTaskIds] = []
    active_tasks_pending_revocation: list[CurrentTaskIds] = []
    standby_tasks_pending_revocation: list[CurrentTaskIds] = []
    warmup_tasks_pending_revocation: list[CurrentTaskIds] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class StreamsGroupTopologyValue:
    """The topology of a streams group, as its first member sent it (key type 23)."""

    epoch: int32 = 0
    subtopologies: list[Subtopology] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 1))
class ShareStateKey:
    """A share partition, in records of types 0 (its whole state) and 1 (a change of it)."""

    group: str = ""
    topic_id: uuid = ZERO_UUID
    partition: int32 = 0


@struct
class ShareStateBatch:
    """The offsets from the first to the last one, in one delivery state."""

    first_offset: int64 = 0
    last_offset: int64 = 0
    delivery_state: int8 = 0
    delivery_count: int16 = 0
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ShareSnapshotValue:
    """The whole state of a share partition (key type 0). `delivery_complete_count`: offsets from
    the start on whose delivery is complete (KIP-1226)."""

    snapshot_epoch: int32 = 0
    state_epoch: int32 = 0
    leader_epoch: int32 = 0
    start_offset: int64 = 0
    delivery_complete_count: Annotated[int32, tag(0)] = -1
    create_timestamp: int64 = 0
    write_timestamp: int64 = 0
    state_batches: list[ShareStateBatch] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0), flexible_from=0)
class ShareUpdateValue:
    """A change of a share partition since its last snapshot (key type 1)."""

    snapshot_epoch: int32 = 0
    leader_epoch: int32 = 0
    start_offset: int64 = 0
    delivery_complete_count: Annotated[int32, tag(0)] = -1
    state_batches: list[ShareStateBatch] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0))
class TransactionLogKey:
    """The transactional id that the value describes."""

    transactional_id: str = ""


@struct
class TransactionLogPartitions:
    """Partitions of one topic in a transaction."""

    topic: str = ""
    partition_ids: list[int32] = []
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 1), flexible_from=1)
class TransactionLogValue:
    """The state of a transactional id (Kafka: TransactionLogValue.json).

    v1 is flexible (KIP-915, KIP-890); the producer ids before and after a change of id and the
    version of the client's protocol are tags of it. `next_producer_epoch` is never written.
    """

    producer_id: int64 = 0
    previous_producer_id: Annotated[int64, since(1), tag(0), ignorable] = -1
    next_producer_id: Annotated[int64, since(1), tag(1), ignorable] = -1
    producer_epoch: int16 = 0
    transaction_timeout_ms: int32 = 0
    transaction_status: int8 = 0
    transaction_partitions: list[TransactionLogPartitions] | None = []
    transaction_last_update_timestamp_ms: int64 = 0
    transaction_start_timestamp_ms: int64 = 0
    client_transaction_version: Annotated[int16, since(1), tag(2), ignorable] = 0
    next_producer_epoch: Annotated[int16, since(1), tag(3), ignorable] = -1
    unknown_tags: UnknownTags = None


@stored_message(versions=(0, 0))
class ScheduleStateKey:
    """The partition of a schedule topic that the value describes; of `__schedule_state`, a topic of
    our own."""

    topic_id: uuid = ZERO_UUID
    partition: int32 = 0


@struct
class ScheduleCorner:
    """A corner of what is delivered: all below offset `end`, due at or before (`due_ms`,
    `offset`)."""

    end: int64 = 0
    due_ms: int64 = 0
    offset: int64 = 0


@struct
class ScheduleHeld:
    """A record that is due and could not be delivered yet."""

    due_ms: int64 = 0
    offset: int64 = 0


@struct
class ScheduleDelivery:
    """A batch of the last step: to which partition, with which first sequence number, of which
    records."""

    topic_id: uuid = ZERO_UUID
    partition: int32 = 0
    base_sequence: int32 = 0
    offsets: list[int64] = []
    due_ms: list[int64] = []


@stored_message(versions=(0, 0))
class ScheduleStateValue:
    """The state of a schedule partition: its producer, what was delivered, what is held, and the
    batches of the last step, which may be missing from their partitions after a crash."""

    producer_id: int64 = -1
    producer_epoch: int16 = 0
    corners: list[ScheduleCorner] = []
    held: list[ScheduleHeld] = []
    deliveries: list[ScheduleDelivery] = []
