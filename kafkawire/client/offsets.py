"""Offsets of partitions and groups: log start and end, by time, committed; and commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, check
from kafkawire.codec.errors import ErrorCode

T = TypeVar("T")

OFFSET_FETCH = 9
LATEST = -1
EARLIEST = -2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
"""Kafka's numbers of the isolation levels."""

Partition = tuple[str, int]
"""Topic name and index."""


def partitions_text(partitions: Iterable[Partition]) -> list[str]:
    """Return partitions as one `TOPIC:0,1,4-6` per topic."""
    by_topic = groupby(sorted(set(partitions)), key=lambda each: each[0])
    return [f"{topic}:{_indexes_text([index for _, index in each])}" for topic, each in by_topic]


def partition_text(partition: Partition) -> str:
    """Return one partition as `TOPIC:0`."""
    return f"{partition[0]}:{partition[1]}"


def _indexes_text(indexes: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    pieces = [[str(n) for n in run] if len(run) < 3 else [f"{run[0]}-{run[-1]}"] for run in runs]
    return ",".join(piece for each in pieces for piece in each)


def leaders(cluster: Cluster, topics: Iterable[str]) -> dict[Partition, int]:
    """Return the leader of each partition of these topics (-1: none). BrokerError for an unknown
    topic."""
    found: dict[Partition, int] = {}
    names = sorted(set(topics))
    if names:
        for topic in cluster.metadata(names).topics:
            check(f"topic {topic.name}", topic.error_code)
            for row in topic.partitions:
                found[topic.name, row.partition_index] = row.leader_id
    return found


def list_offsets(
    cluster: Cluster,
    wanted: Mapping[Partition, int],
    led_by: Mapping[Partition, int],
    isolation: int = READ_UNCOMMITTED,
) -> dict[Partition, int]:
    """Return per partition the offset for its timestamp in `wanted` (LATEST, EARLIEST or ms since
    1970: the first record from then on, -1 if there is none). LATEST is the last stable offset with
    READ_COMMITTED, else the high watermark. Partitions without a leader are left out."""
    found: dict[Partition, int] = {}
    for partition, row in ask_offsets(cluster, wanted, led_by, isolation):
        check(f"{partition[0]}-{partition[1]}", row.error_code)
        found[partition] = row.offset
    return found


def ask_offsets(
    cluster: Cluster,
    wanted: Mapping[Partition, int],
    led_by: Mapping[Partition, int],
    isolation: int = READ_UNCOMMITTED,
) -> Iterator[tuple[Partition, Any]]:
    """Yield the ListOffsetsPartitionResponse of each partition, which may have an error code; see
    list_offsets. One request to each leader."""
    from kafkawire.messages.list_offsets import (
        ListOffsetsPartition,
        ListOffsetsRequest,
        ListOffsetsTopic,
    )

    by_node: dict[int, dict[str, list[Any]]] = {}
    for (topic, index), timestamp in wanted.items():
        node = led_by.get((topic, index), -1)
        if node >= 0:
            row = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
            by_node.setdefault(node, {}).setdefault(topic, []).append(row)
    for node, topics in by_node.items():
        asked = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[ListOffsetsTopic(name, rows) for name, rows in topics.items()],
        )
        for answer in cluster.node(node).request(2, asked).topics:
            for row in answer.partitions:
                yield (answer.name, row.partition_index), row


def fetch_committed_offsets(
    cluster: Cluster, group: str, *, stable: bool = False, node: int | None = None
) -> dict[Partition, tuple[int, str | None]]:
    """Return offset and metadata of all commits of a group; empty for an unknown group.

    `stable`: raise BrokerError (UNSTABLE_OFFSET_COMMIT) while an open transaction has offsets of
    the group (KIP-447). Otherwise the offsets of open transactions are left out. `node`: the
    coordinator; None: it is looked up.
    """
    if node is None:
        node = cluster.coordinator_id(group)
    found = fetch_committed_offsets_of(cluster, [group], node, stable=stable)[group]
    if isinstance(found, BrokerError):
        raise found
    return found


Commits = dict[Partition, tuple[int, str | None]]
"""Offset and metadata by partition."""


def fetch_committed_offsets_of(
    cluster: Cluster, groups: Sequence[str], node: int, *, stable: bool = False
) -> dict[str, Commits | BrokerError]:
    """Return the commits of groups that the broker `node` coordinates by one request, or why those
    of one cannot be read. An old broker, before version 8, is asked once for each group."""
    from kafkawire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

    coordinator = cluster.node(node)
    # at most v9: v10 uses topic ids (KIP-848), which would need another request
    if coordinator.version(OFFSET_FETCH, 9) >= 8:
        rows = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
        asked = OffsetFetchRequest(groups=rows, require_stable=stable)
        answer = coordinator.request(OFFSET_FETCH, asked, at_most=9)
        return {row.group_id: _read_commits(row.group_id, row) for row in answer.groups}
    found: dict[str, Commits | BrokerError] = {}
    for group in groups:
        asked = OffsetFetchRequest(group_id=group, topics=None, require_stable=stable)
        found[group] = _read_commits(group, coordinator.request(OFFSET_FETCH, asked))
    return found


def _read_commits(group: str, answer: Any) -> Commits | BrokerError:
    found: Commits = {}
    if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return found
    try:
        check(f"group {group}", answer.error_code)
        for topic in answer.topics:
            for row in topic.partitions:
                check(f"group {group}, {topic.name}-{row.partition_index}", row.error_code)
                if row.committed_offset >= 0:
                    found[topic.name, row.partition_index] = (row.committed_offset, row.metadata)
    except BrokerError as error:
        return error
    return found


def commit(
    cluster: Cluster,
    group: str,
    offsets: Mapping[Partition, int],
    *,
    member: str = "",
    generation: int = -1,
    node: int | None = None,
) -> dict[Partition, int]:
    """Commit offsets, without joining the group unless a `member` is given; return error codes by
    partition. `node`: the coordinator if it is known."""
    from kafkawire.messages.offset_commit import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )

    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, index), offset in offsets.items():
        topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name, partitions=[]))
        topic.partitions.append(
            OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        )
    asked = OffsetCommitRequest(group, generation, member, topics=list(topics.values()))
    at = cluster.coordinator(group) if node is None else cluster.node(node)
    answer = at.request(8, asked, at_most=9)
    return {
        (topic_answer.name, row.partition_index): row.error_code
        for topic_answer in answer.topics
        for row in topic_answer.partitions
    }


COMING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
COORDINATOR_S, RETRY_S = 15.0, 0.2
"""Time limit and interval of the search for a coordinator."""


def call_coordinator(call: Callable[[], T]) -> T:
    """Result of `call`, retried until the coordinator is available: the first group of a new
    cluster creates the topic that coordinators need."""
    deadline = time.monotonic() + COORDINATOR_S
    while True:
        try:
            return call()
        except BrokerError as error:
            if error.code not in COMING or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
