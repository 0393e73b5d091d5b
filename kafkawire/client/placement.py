"""Which broker leads which partition: moves of partitions, and a plan that makes brokers even."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kafkawire.client.admin import TopicResult
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import check
from kafkawire.client.offsets import Partition

ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 45, 46
TIMEOUT_MS = 30_000
DRAINING, DECOMMISSIONING = "broker.draining", "broker.decommissioning"


class PlannedMove(NamedTuple):
    """A partition that is to be moved from its leader to another broker."""

    partition: Partition
    leader: int
    target: int


def leaders(cluster: Cluster) -> dict[Partition, int]:
    """Return the leader of each partition, -1: none, in the order of topics and indexes."""
    rows = sorted(cluster.metadata(None).topics, key=lambda topic: topic.name)
    return {
        (topic.name, row.partition_index): row.leader_id
        for topic in rows
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
    }


def move(cluster: Cluster, targets: Mapping[Partition, int]) -> dict[Partition, TopicResult]:
    """Ask for the moves of partitions to other brokers; return the result of each. BrokerError if
    all are refused."""
    from kafkawire.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )

    topics: dict[str, list[ReassignablePartition]] = {}
    for (name, index), target in targets.items():
        topics.setdefault(name, []).append(ReassignablePartition(index, [target]))
    rows = [ReassignableTopic(*item) for item in topics.items()]
    asked = AlterPartitionReassignmentsRequest(TIMEOUT_MS, False, rows)
    answer = cluster.request(ALTER_REASSIGNMENTS, asked)
    check("AlterPartitionReassignments", answer.error_code, answer.error_message)
    return {
        (topic.name, row.partition_index): TopicResult(row.error_code, row.error_message)
        for topic in answer.responses
        for row in topic.partitions
    }


def list_reassignments(cluster: Cluster) -> list[tuple[str, Any]]:
    """Return topic and OngoingPartitionReassignment of the moves that have not ended, sorted.
    BrokerError."""
    from kafkawire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest

    answer = cluster.request(LIST_REASSIGNMENTS, ListPartitionReassignmentsRequest(TIMEOUT_MS))
    check("ListPartitionReassignments", answer.error_code, answer.error_message)
    return [
        (topic.name, row)
        for topic in sorted(answer.topics, key=lambda topic: topic.name)
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
    ]


def planned_moves(cluster: Cluster) -> list[PlannedMove]:
    """Return the moves that have not ended. BrokerError."""
    return [
        PlannedMove(
            (name, row.partition_index), _only(row.removing_replicas), _only(row.adding_replicas)
        )
        for name, row in list_reassignments(cluster)
    ]


def _only(replicas: Sequence[int]) -> int:
    return replicas[0] if replicas else -1


def even(led: Mapping[Partition, int], brokers: Iterable[int]) -> list[PlannedMove]:
    """Return the fewest moves after which each of `brokers` leads the same number of partitions,
    or one more. A broker that leads too many gives away the same share of each topic. Partitions
    without a leader, and those of other brokers, stay."""
    counts = dict.fromkeys(sorted(brokers), 0)
    by_leader: dict[int, list[Partition]] = {node: [] for node in counts}
    for partition, leader in led.items():
        if leader in counts:
            counts[leader] += 1
            by_leader[leader].append(partition)
    if not counts:
        return []
    share, larger = divmod(sum(counts.values()), len(counts))
    # Those that lead most keep one more: this needs the fewest moves.
    ranked = sorted(counts, key=lambda node: (-counts[node], node))
    wanted = {node: share + (at < larger) for at, node in enumerate(ranked)}
    free = [node for node in ranked for _ in range(wanted[node] - counts[node])]
    moves: list[PlannedMove] = []
    for node in ranked:
        surplus = _surplus(by_leader[node], counts[node] - wanted[node])
        moves += [PlannedMove(partition, node, free.pop()) for partition in surplus]
    return sorted(moves)


def _surplus(partitions: Sequence[Partition], count: int) -> list[Partition]:
    """Return `count` of the partitions of a broker, about the same share of each topic."""
    totals: Counter[str] = Counter(topic for topic, _ in partitions)
    taken: Counter[str] = Counter()
    ranked: list[tuple[float, Partition]] = []
    for topic, index in partitions:
        ranked.append(((taken[topic] + 0.5) / totals[topic], (topic, index)))
        taken[topic] += 1
    return [partition for _, partition in sorted(ranked)[: max(0, count)]]


def switched_on(known: Mapping[str, str | None]) -> set[str]:
    """Return the names of settings that are true."""
    return {name for name, value in known.items() if value == "true"}
