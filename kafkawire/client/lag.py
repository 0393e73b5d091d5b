"""The lag of consumer groups: by partition, topic and group.

The lag of a partition is its log end offset minus the committed offset, as in Kafka's tools; of a
partition without a committed offset it is counted from the log start offset. Partitions of a group
are those with a committed offset, those that a member has, and, of a group of consumers, the others
of the same topics and of topics that a member subscribes to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    describe_group,
)
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Partition,
    fetch_committed_offsets,
    list_offsets,
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
        found = [_group(cluster, asked, name, node) for name, node in groups]
    topics = {row.partition[0] for each in found for row in each.partitions}
    topics |= {topic for each in found for topic in _find_subscribed_topics(each.description)}
    led_by = known_leaders(cluster, topics)
    for each in found:
        _complete(each, led_by)
    wanted = sorted({row.partition for each in found for row in each.partitions})
    starts = known_offsets(cluster, wanted, EARLIEST, led_by)
    ends = known_offsets(cluster, wanted, LATEST, led_by)
    stables = known_offsets(cluster, wanted, LATEST, led_by, READ_COMMITTED) if stable else {}
    for each in found:
        for row in each.partitions:
            row.leader = led_by.get(row.partition, NO_OFFSET)
            row.log_start = starts.get(row.partition)
            row.log_end = ends.get(row.partition)
            row.stable = stables.get(row.partition)
    return found


def _group(
    cluster: Cluster, reader: ActivityReader | None, name: str, node: int | None
) -> GroupLag:
    description = describe_group(cluster, name, node)
    shared = description.kind == SHARE
    if shared:
        rows = {
            partition: PartitionLag(partition, known.start, shared=True, left=known.lag)
            for partition, known in fetch_share_offsets(
                cluster, name, description.coordinator
            ).items()
        }
    else:
        rows = {
            partition: PartitionLag(partition, offset)
            for partition, (offset, _) in fetch_committed_offsets(
                cluster, name, node=description.coordinator
            ).items()
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


def _find_subscribed_topics(description: GroupDescription) -> set[str]:
    return {topic for member in description.members for topic in member.topics or ()}


def _complete(group: GroupLag, led_by: dict[Partition, int]) -> None:
    """Add the partitions that a group of consumers reads without having committed an offset."""
    if group.description.protocol_type in (CONSUMER, SHARE, STREAMS):
        known = {row.partition for row in group.partitions}
        topics = {topic for topic, _ in known} | _find_subscribed_topics(group.description)
        group.partitions += [
            PartitionLag(partition, shared=group.description.kind == SHARE)
            for partition in led_by
            if partition[0] in topics and partition not in known
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
    led_by: dict[Partition, int],
    isolation: int = READ_UNCOMMITTED,
) -> dict[Partition, int]:
    """Return offsets as `list_offsets` does; topics with an error are left out."""
    wanted = {partition: timestamp for partition in partitions if partition in led_by}
    try:
        return list_offsets(cluster, wanted, led_by, isolation)
    except BrokerError:
        pass  # one partition is enough: ask again topic by topic
    found: dict[Partition, int] = {}
    for topic in sorted({name for name, _ in wanted}):
        part = {key: at for key, at in wanted.items() if key[0] == topic}
        try:
            found.update(list_offsets(cluster, part, led_by, isolation))
        except BrokerError:
            continue
    return found
