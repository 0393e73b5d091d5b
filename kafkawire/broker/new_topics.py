"""Validation of new topics: names, partition counts, replica assignments.

Pure: validates a request against existing topics, and returns the leaders of the new partitions or
raises a KafkaError. broker.topics writes the transaction and the log; broker.overrides validates
config values. The rules are those of Kafka's controller (ReplicationControlManager,
common.internals.Topic).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from kafkawire.codec.configs.view_rules import VIEW_SOURCE
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata.catalog import Catalog, alike_key

if TYPE_CHECKING:
    from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic

T = TypeVar("T")

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SCHEDULE_STATE_TOPIC = "__schedule_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset(
    {GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SCHEDULE_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC}
)

# As in Kafka: name, "-" and an index must fit into a file name of 255 characters
MAX_NAME_CHARS = 249
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

# Kafka's MAX_PARTITIONS_PER_BATCH: one request is one transaction and one response, and 10,000 rows
# delay other requests by a few hundred milliseconds.
MAX_PARTITIONS_PER_REQUEST = 10_000
# Of the whole catalog: an unused partition takes 400 bytes in memory (metadata.directory) and 4 us
# of a start, so this is 4 GB and most of a minute, the maximum for one broker.
MAX_PARTITIONS = 10_000_000


def name_fault(name: str) -> str | None:
    """Return why `name` is not a valid topic name, in Kafka's words; None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > MAX_NAME_CHARS:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed "
            f"length {MAX_NAME_CHARS}"
        )
    if not _LEGAL.issuperset(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def missing_topic_error(name: str) -> ErrorCode:
    """Return the error for a topic that does not exist: INVALID_TOPIC_EXCEPTION for an invalid
    name, so that clients stop retrying (Kafka: MetadataCache)."""
    if name_fault(name) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.INVALID_TOPIC_EXCEPTION


def duplicates(names: Iterable[T]) -> set[T]:
    """Return the values that occur more than once in a request."""
    return {name for name, count in Counter(names).items() if count > 1}


def check_name(name: str, existing: Catalog, taken: Mapping[str, str]) -> None:
    """Raise KafkaError unless a topic of this name may be created. `existing` knows the existing
    topics; `taken`: the earlier topics of this request, by `alike_key`."""
    fault = name_fault(name)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if name == CLUSTER_METADATA_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
        )
    if name in existing.by_name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = existing.alike(name) or taken.get(alike_key(name))
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {other}",
        )


def check_source(topic: CreatableTopic, source: str, existing: Catalog) -> None:
    """Raise KafkaError unless a topic may be created as a view of `source`."""
    info = existing.by_name.get(source)
    fault = None
    if info is None:
        fault = "there is no such topic"
    elif info.configs.get(VIEW_SOURCE):
        fault = "the topic is a view itself"
    elif info.internal:
        fault = "the topic is internal to the broker"
    if info is None or fault is not None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{VIEW_SOURCE}={source}: {fault}")
    count = len(info.partitions)
    if topic.assignments or topic.num_partitions not in (-1, count):
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"A view has the partitions of its source, {count} of {source}: create it without a "
            "number of partitions and without an assignment.",
        )


def leaders_of(
    topic: CreatableTopic,
    brokers: Collection[int],
    live: Sequence[int],
    first: int,
    default_partitions: int,
    default_replication_factor: int,
) -> list[int]:
    """Return the leader of each partition of a new topic: without a manual assignment the `live`
    brokers in turn, from position `first` on."""
    if topic.assignments:
        return _assigned_leaders(topic, brokers)
    factor = topic.replication_factor
    if factor < -1 or factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    count = topic.num_partitions
    if count < -1 or count == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    count = default_partitions if count == -1 else count
    check_partition_count(count)
    check_replication_factor(default_replication_factor if factor == -1 else factor, brokers)
    return spread(live, first, count)


def spread(live: Sequence[int], first: int, count: int) -> list[int]:
    """Return `count` leaders: the live brokers one after the other, from position `first` on
    (Kafka: StripedReplicaPlacer)."""
    return [live[at % len(live)] for at in range(first, first + count)]


def check_partition_count(count: int) -> None:
    """Check the limit of one request before anything of that size is allocated."""
    if count > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Excessively large number of partitions per request: {count} is more than "
            f"{MAX_PARTITIONS_PER_REQUEST}.",
        )


def check_total(existing: int, additional: int) -> None:
    """Check the limit of the whole catalog."""
    if existing + additional > MAX_PARTITIONS:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{additional} more partitions would make {existing + additional}; "
            f"this cluster holds at most {MAX_PARTITIONS}.",
        )


def check_replication_factor(factor: int, brokers: Collection[int]) -> None:
    """Check the replication factor (Kafka: StripedReplicaPlacer)."""
    if factor > len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication "
            f"factor of {factor} cannot be reached because only {len(brokers)} broker(s) are "
            "registered.",
        )


def check_replicas(replicas: Sequence[int], brokers: Collection[int], factor: int | None) -> None:
    """Check one partition of a manual assignment; `factor`: the replica count of the others, if
    any."""
    fault = None
    if not replicas:
        fault = "The manual partition assignment includes an empty replica list."
    elif missing := sorted(set(replicas) - set(brokers)):
        fault = (
            f"The manual partition assignment includes broker {missing[0]}, but no such broker "
            "is registered."
        )
    elif twice := sorted(duplicates(replicas)):
        fault = f"The manual partition assignment includes the broker {twice[0]} more than once."
    elif factor is not None and len(replicas) != factor:
        fault = (
            f"The manual partition assignment includes a partition with {len(replicas)} "
            "replica(s), but this is not consistent with previous partitions, which have "
            f"{factor} replica(s)."
        )
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)


def _assigned_leaders(topic: CreatableTopic, brokers: Collection[int]) -> list[int]:
    for what, value in (
        ("replication factor", topic.replication_factor),
        ("numPartitions", topic.num_partitions),
    ):
        if value != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    check_partition_count(len(topic.assignments))
    by_index: dict[int, CreatableReplicaAssignment] = {}
    factor: int | None = None
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in by_index:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        check_replicas(assignment.broker_ids, brokers, factor)
        factor = len(assignment.broker_ids)
        by_index[index] = assignment
    if set(by_index) != set(range(len(by_index))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [by_index[index].broker_ids[0] for index in range(len(by_index))]
