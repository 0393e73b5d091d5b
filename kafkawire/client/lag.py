"""The lag of consumer groups: by partition, topic and group.

The lag of a partition is its log end offset minus the committed offset, as in Kafka's tools; of a
partition without a committed offset it is counted from the log start offset. Partitions of a group
are those with a committed offset, those that a member has, and, of a group of consumers, the others
of the same topics and of topics that a member subscribes to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError
from kafkawire.client.groups import (
    CONSUMER,
    SHARE,
    STREAMS,
    ActivityReader,
    GroupDescription,
    batched_groups,
    describe_groups,
)
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Commits,
    Partition,
    ask_offsets,
    fetch_committed_offsets_of,
)
from kafkawire.client.share_groups import fetch_share_offsets

NO_OFFSET = -1


@dataclass(slots=True)
class PartitionLag:
    """A partition of a group. None: not known (`committed`: there is none). `owner`: the member id;
    `committed_ms`: when the offset was committed. `shared`: of a share group, whose `committed` is
    the first record that it has not finished, `left` the records that its coordinator counts, and
    `owner` one of the members that share the partition."""

    partition: Partition
    committed: int | None = None
    committed_ms: int | None = None
    owner: str | None = None
    log_start: int | None = None
    log_end: int | None = None
    stable: int | None = None
    leader: int = NO_OFFSET
    shared: bool = False
    left: int | None = None

    @property
    def lag(self) -> int | None:
        """Return the records that are left to read; None if the log end offset is not known, or
        where a share group begins."""
        if self.left is not None:
            return self.left
        at = self.log_start if self.committed is None and not self.shared else self.committed
        return None if at is None or self.log_end is None else max(0, self.log_end - at)


@dataclass(slots=True)
class LagTotals:
    """Sums over partitions. `lag` counts partitions with a known lag only; the others are
    `unknown`. `last_commit_ms`: the newest; None if not known."""

    partitions: int = 0
    uncommitted: int = 0
    unknown: int = 0
    lag: int = 0
    last_commit_ms: int | None = None

    def add(self, row: PartitionLag) -> None:
        """Count one more partition."""
        self.partitions += 1
        self.uncommitted += row.committed is None
        self.unknown += row.lag is None
        self.lag += row.lag or 0
        if row.committed_ms is not None:
            self.last_commit_ms = max(self.last_commit_ms or 0, row.committed_ms)


@dataclass(slots=True)
class GroupLag:
    """A group with its partitions. `active`: a GroupActivityResponse, None if the broker does not
    have it."""

    description: GroupDescription
    partitions: list[PartitionLag] = field(default_factory=list)
    active: Any = None

    def totals(self) -> LagTotals:
        """Return the sums of the group."""
        return total(self.partitions)

    def by_topic(self) -> dict[str, list[PartitionLag]]:
        """Return the partitions of each topic, in order."""
        topics: dict[str, list[PartitionLag]] = {}
        for row in self.partitions:
            topics.setdefault(row.partition[0], []).append(row)
        return topics


def total(rows: Iterable[PartitionLag]) -> LagTotals:
    """Return the sums over some partitions."""
    sums = LagTotals()
    for row in rows:
        sums.add(row)
    return sums


def lag_of(
    cluster: Cluster,
    groups: Sequence[tuple[str, int | None]],
    *,
    stable: bool = False,
    activity: bool = True,
) -> list[GroupLag]:
    """Return the lag of groups, given with their coordinators (None: looked up). `stable`: ask for
    last stable offsets, too; `activity`: for the activity of groups, which other brokers than
    kafkawire log as an error. BrokerError for an unknown group."""
    with ActivityReader(cluster) as reader:
        asked = reader if activity else None
        observed = observe_groups(cluster, groups, asked)
    found: list[GroupLag] = []
    for name, _ in groups:
        each = observed[name]
        if isinstance(each, BrokerError):
            raise each
        found.append(each)
    topics = {row.partition[0] for each in found for row in each.partitions}
    topics |= {topic for each in found for topic in find_subscribed_topics(each.description)}
    led_by = known_leaders(cluster, topics)
    complete(found, led_by)
    wanted = sorted({row.partition for each in found for row in each.partitions})
    starts = known_offsets(cluster, wanted, EARLIEST, led_by)
    ends = known_offsets(cluster, wanted, LATEST, led_by)
    stables = known_offsets(cluster, wanted, LATEST, led_by, READ_COMMITTED) if stable else {}
    set_bounds(found, led_by, starts, ends, stables)
    return found


def set_bounds(
    groups: Iterable[GroupLag],
    led_by: Mapping[Partition, int],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    stables: Mapping[Partition, int],
) -> None:
    """Set leader, log start, log end and last stable offset of each partition of groups."""
    for each in groups:
        for row in each.partitions:
            row.leader = led_by.get(row.partition, NO_OFFSET)
            row.log_start = starts.get(row.partition)
            row.log_end = ends.get(row.partition)
            row.stable = stables.get(row.partition)


def observe_groups(
    cluster: Cluster,
    groups: Sequence[tuple[str, int | None]],
    reader: ActivityReader | None = None,
) -> dict[str, GroupLag | BrokerError]:
    """Return groups with the partitions that have a commit or a member, without log ends, by a few
    requests to each coordinator; or why one cannot be read. `groups`: see lag_of."""
    by_node: dict[int, list[str]] = {}
    for name, node in groups:
        by_node.setdefault(cluster.coordinator_id(name) if node is None else node, []).append(name)
    found: dict[str, GroupLag | BrokerError] = {}
    for node, names in by_node.items():
        described = describe_groups(cluster, names, node)
        with_offsets = [
            name
            for name, each in described.items()
            if not isinstance(each, BrokerError) and each.kind != SHARE
        ]
        commits: dict[str, Commits | BrokerError] = {}
        for part in batched_groups(with_offsets):
            commits.update(fetch_committed_offsets_of(cluster, part, node))
        for name, each in described.items():
            try:
                found[name] = _group(cluster, reader, each, commits.get(name))
            except BrokerError as error:
                found[name] = error
    return found


def _group(
    cluster: Cluster,
    reader: ActivityReader | None,
    description: GroupDescription | BrokerError,
    commits: Commits | BrokerError | None,
) -> GroupLag:
    """Return one group; `commits` None: it is a share group. BrokerError."""
    if isinstance(description, BrokerError):
        raise description
    if isinstance(commits, BrokerError):
        raise commits
    name, shared = description.group, commits is None
    if commits is None:
        rows = {
            partition: PartitionLag(partition, known.start, shared=True, left=known.lag)
            for partition, known in fetch_share_offsets(
                cluster, name, description.coordinator
            ).items()
        }
    else:
        rows = {
            partition: PartitionLag(partition, offset) for partition, (offset, _) in commits.items()
        }
    for member in description.members:
        for partition in member.assigned:
            row = rows.setdefault(partition, PartitionLag(partition, shared=shared))
            row.owner = member.member
    active = None if reader is None else reader.read(name, description.coordinator)
    if active is not None:
        for topic in active.topics:
            for commit in topic.partitions:
                known = rows.get((topic.name, commit.partition_index))
                if known is not None and commit.commit_timestamp >= 0:
                    known.committed_ms = commit.commit_timestamp
    return GroupLag(description, list(rows.values()), active)


def find_subscribed_topics(description: GroupDescription) -> set[str]:
    """Return the topics that members of a group subscribe to."""
    return {topic for member in description.members for topic in member.topics or ()}


def complete(groups: Iterable[GroupLag], led_by: Mapping[Partition, int]) -> None:
    """Add the partitions that groups of consumers read without having committed an offset, and sort
    all. `led_by`: the leader of each partition of their topics, at least."""
    indexes: dict[str, list[int]] = {}
    for topic, index in led_by:
        indexes.setdefault(topic, []).append(index)
    for group in groups:
        description, shared = group.description, group.description.kind == SHARE
        if description.protocol_type in (CONSUMER, SHARE, STREAMS):
            known = {row.partition for row in group.partitions}
            topics = {topic for topic, _ in known} | find_subscribed_topics(description)
            group.partitions += [
                PartitionLag((topic, index), shared=shared)
                for topic in topics
                for index in indexes.get(topic, ())
                if (topic, index) not in known
            ]
        group.partitions.sort(key=lambda row: row.partition)


def known_leaders(cluster: Cluster, topics: Iterable[str]) -> dict[Partition, int]:
    """Return the leader of each partition of those of the topics that exist (-1: none)."""
    names = sorted(topics)
    rows = cluster.metadata(names).topics if names else []
    return {
        (topic.name, row.partition_index): row.leader_id
        for topic in rows
        if not topic.error_code
        for row in topic.partitions
    }


def known_offsets(
    cluster: Cluster,
    partitions: Iterable[Partition],
    timestamp: int,
    led_by: Mapping[Partition, int],
    isolation: int = READ_UNCOMMITTED,
) -> dict[Partition, int]:
    """Return offsets as `list_offsets` does; partitions with an error are left out."""
    wanted = {partition: timestamp for partition in partitions if partition in led_by}
    return {
        partition: row.offset
        for partition, row in ask_offsets(cluster, wanted, led_by, isolation)
        if not row.error_code
    }
