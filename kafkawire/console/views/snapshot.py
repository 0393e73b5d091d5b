"""All topics and groups of a cluster at one time, from a few requests for each broker.

Lists and the overview are made from it, so 10,000 topics cost no more requests than one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.groups import GroupListing, list_groups
from kafkawire.client.lag import GroupLag, known_offsets, lag_of
from kafkawire.client.offsets import EARLIEST, LATEST, Partition
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.pool import ClusterPool

LIST_OFFSETS = 2
EARLIEST_LOCAL, LATEST_TIERED = -4, -5
SINCE_LOCAL, SINCE_TIERED = 8, 9
"""The versions of ListOffsets with these (KIP-405, KIP-1005)."""


class PartitionSnapshot(NamedTuple):
    """A partition. None: its leader did not say. `tiered_end`: the offset after the last one in the
    remote tier."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    log_start: int | None
    log_end: int | None
    local_start: int | None
    tiered_end: int | None


@dataclass(frozen=True)
class TopicSnapshot:
    """A topic; offsets that compaction removed count as records."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[PartitionSnapshot, ...]

    @cached_property
    def records(self) -> int:
        """Return the offsets from log start to end of all partitions."""
        return sum(max(0, (p.log_end or 0) - (p.log_start or 0)) for p in self.partitions)

    @cached_property
    def written(self) -> int:
        """Return the sum of the log end offsets."""
        return sum(p.log_end or 0 for p in self.partitions)

    @cached_property
    def tier_share(self) -> float | None:
        """Return the share of its offsets that are in the remote tier; None if it has none."""
        if not self.records or all(p.tiered_end is None for p in self.partitions):
            return None
        tiered = sum(max(0, (p.tiered_end or 0) - (p.log_start or 0)) for p in self.partitions)
        return min(1.0, tiered / self.records)

    @property
    def without_leader(self) -> int:
        return sum(p.leader < 0 for p in self.partitions)

    @property
    def out_of_sync(self) -> int:
        """Return the partitions of which a replica is not in sync."""
        return sum(len(p.in_sync) < len(p.replicas) for p in self.partitions)


class GroupSnapshot(NamedTuple):
    """A group. `lag`: None if it could not be read, with the reason in `error`; `topics`: the lag
    of each topic that it reads; `committed`: its position in each partition."""

    group: str
    state: str
    kind: str
    members: int
    lag: int | None
    topics: Mapping[str, int]
    committed: Mapping[Partition, int]
    error: str = ""


class NodeState(NamedTuple):
    """A broker of the cluster, by the address it advertises."""

    node: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True)
class ClusterSnapshot:
    """A cluster at `at_ms`. `tier`: see OwnBroker.read_tier; `refused`: sentences on what could not
    be read, such as for lack of a right."""

    at_ms: int
    cluster_id: str
    controller: int
    nodes: tuple[NodeState, ...]
    topics: Mapping[str, TopicSnapshot]
    groups: Mapping[str, GroupSnapshot]
    tier: Mapping[str, Any] | None = None
    refused: tuple[str, ...] = ()

    @cached_property
    def lag(self) -> int:
        """Return the lag of all groups together."""
        return sum(group.lag or 0 for group in self.groups.values())

    @cached_property
    def written(self) -> int:
        """Return the sum of the log end offsets of topics that are not internal."""
        return sum(topic.written for topic in self.topics.values() if not topic.internal)

    @cached_property
    def readers(self) -> Mapping[str, list[tuple[str, int]]]:
        """Return the groups of each topic with their lag, the largest first."""
        found: dict[str, list[tuple[str, int]]] = {}
        for group in self.groups.values():
            for topic, lag in group.topics.items():
                found.setdefault(topic, []).append((group.group, lag))
        for rows in found.values():
            rows.sort(key=lambda row: (-row[1], row[0]))
        return found

    def flags(self, topic: str) -> dict[int, dict[str, int]]:
        """Return the positions of groups in the partitions of a topic, by partition and group."""
        found: dict[int, dict[str, int]] = {}
        for group, _ in self.readers.get(topic, ()):
            for (name, index), offset in self.groups[group].committed.items():
                if name == topic:
                    found.setdefault(index, {})[group] = offset
        return found


def take_snapshot(cluster: Cluster, own: OwnBroker) -> ClusterSnapshot:
    """Read all topics and groups. ClientError if the broker does not answer; what it refuses is
    named in the result."""
    answer = cluster.metadata(None)
    at_ms = time.time_ns() // 1_000_000
    topics = read_topics(cluster, [row for row in answer.topics if not row.error_code])
    refused: list[str] = []
    groups: dict[str, GroupSnapshot] = {}
    try:
        groups = _read_groups(cluster, list_groups(cluster))
    except BrokerError as error:
        refused.append(str(error))
    return ClusterSnapshot(
        at_ms=at_ms,
        cluster_id=answer.cluster_id or "",
        controller=answer.controller_id,
        nodes=tuple(
            NodeState(row.node_id, row.host, row.port, row.rack)
            for row in sorted(answer.brokers, key=lambda row: row.node_id)
        ),
        topics=topics,
        groups=groups,
        tier=own.read_tier(cluster),
        refused=tuple(refused),
    )


def read_topics(cluster: Cluster, rows: list[Any]) -> dict[str, TopicSnapshot]:
    """Return the state of topics, by name; `rows`: of a MetadataResponse."""
    led_by: dict[Partition, int] = {
        (topic.name, row.partition_index): row.leader_id
        for topic in rows
        for row in topic.partitions
    }
    version = cluster.first.version(LIST_OFFSETS)
    starts = known_offsets(cluster, led_by, EARLIEST, led_by)
    ends = known_offsets(cluster, led_by, LATEST, led_by)
    local = tiered = dict[Partition, int]()
    if version >= SINCE_LOCAL:
        local = known_offsets(cluster, led_by, EARLIEST_LOCAL, led_by)
    if version >= SINCE_TIERED:
        tiered = known_offsets(cluster, led_by, LATEST_TIERED, led_by)

    def partition(name: str, row: Any) -> PartitionSnapshot:
        place = name, row.partition_index
        at = tiered.get(place, -1)
        return PartitionSnapshot(
            row.partition_index,
            row.leader_id,
            tuple(row.replica_nodes),
            tuple(row.isr_nodes),
            starts.get(place),
            ends.get(place),
            local.get(place),
            at + 1 if at >= 0 else None,
        )

    return {
        topic.name: TopicSnapshot(
            topic.name,
            topic.topic_id,
            topic.is_internal,
            tuple(
                partition(topic.name, row)
                for row in sorted(topic.partitions, key=lambda row: row.partition_index)
            ),
        )
        for topic in sorted(rows, key=lambda topic: topic.name)
    }


def _read_groups(cluster: Cluster, listed: list[GroupListing]) -> dict[str, GroupSnapshot]:
    try:
        found = lag_of(cluster, [(row.group, row.coordinator) for row in listed], activity=False)
    except BrokerError:  # one of them, such as a group that was deleted meanwhile
        return {row.group: _read_group(cluster, row) for row in listed}
    return {row.group: _group_state(row, each) for row, each in zip(listed, found, strict=True)}


def _read_group(cluster: Cluster, listed: GroupListing) -> GroupSnapshot:
    try:
        (found,) = lag_of(cluster, [(listed.group, listed.coordinator)], activity=False)
    except BrokerError as error:
        return GroupSnapshot(listed.group, listed.state, listed.kind, 0, None, {}, {}, str(error))
    return _group_state(listed, found)


def _group_state(listed: GroupListing, found: GroupLag) -> GroupSnapshot:
    description = found.description
    topics = {name: sum(row.lag or 0 for row in rows) for name, rows in found.by_topic().items()}
    return GroupSnapshot(
        listed.group,
        description.state or listed.state,
        listed.kind or description.kind,
        len(description.members),
        found.totals().lag,
        topics,
        {row.partition: row.committed for row in found.partitions if row.committed is not None},
    )


# Snapshots are shared: however many pages are open, the cluster is asked once.


FRESH_S = 2.0
"""A snapshot of this age is shown as it is."""
REST = 10
"""A snapshot of a large cluster is shown for this many times as long as it took, so that the
console keeps the brokers busy for a tenth of the time at most."""
STALE_S = 15.0
"""A snapshot that is this much older is not shown: a page waits for the next."""
PATIENCE_S = 5.0
"""How long a page waits for another thread's snapshot, as of a broker that does not answer."""
MAX_SAMPLES = 900
"""Points of the plots: half an hour of one every two seconds."""


class Sample(NamedTuple):
    """A point of the plots. `rate`: records written per second since the point before."""

    at_ms: int
    rate: float
    lag: int


@dataclass
class Known:
    """The facts that pages show: the newest snapshot, None before the first; the sentence of the
    failure since; records per second of each topic; and the points of the plots."""

    snapshot: ClusterSnapshot | None = None
    failure: str = ""
    rates: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    @property
    def rate(self) -> float:
        """Return the records written per second to topics that are not internal."""
        return self.samples[-1].rate if self.samples else 0.0


class SnapshotCache:
    """The newest snapshot of a cluster. It is taken when a page needs one, by one thread at a time,
    and never while no page is open."""

    def __init__(
        self,
        pool: ClusterPool,
        own: OwnBroker,
        clock: Callable[[], float] = time.monotonic,
        take: Callable[[Cluster, OwnBroker], ClusterSnapshot] = take_snapshot,
    ) -> None:
        self._pool = pool
        self._own = own
        self._clock = clock
        self._take = take
        self._known = Known()
        self._until = clock() - STALE_S
        self._taking = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def read(self) -> Known:
        """Return what is known, taking a snapshot if the last is not fresh. While another thread
        takes one, the last is returned unless it is too old."""
        late_s = self._clock() - self._until
        if late_s < 0:
            return self._known
        if not self._taking.acquire(timeout=PATIENCE_S if late_s >= STALE_S else 0):
            return self._known
        try:
            begun = self._clock()
            if begun >= self._until:
                self._known = self._refresh()
                now = self._clock()
                self._until = now + max(FRESH_S, REST * (now - begun))
            return self._known
        finally:
            self._taking.release()

    def _refresh(self) -> Known:
        last = self._known
        try:
            with self._pool.lend() as cluster:
                snapshot = self._take(cluster, self._own)
        except ClientError as failure:
            return Known(last.snapshot, str(failure), last.rates, last.samples)
        rates: dict[str, float] = {}
        total = 0.0
        if last.snapshot is not None:
            seconds = max(0.001, (snapshot.at_ms - last.snapshot.at_ms) / 1000)
            for name, topic in snapshot.topics.items():
                before = last.snapshot.topics.get(name)
                if before is not None and before.topic_id == topic.topic_id:
                    rates[name] = max(0, topic.written - before.written) / seconds
                    total += 0 if topic.internal else rates[name]
            self._samples.append(Sample(snapshot.at_ms, total, snapshot.lag))
        return Known(snapshot, "", rates, tuple(self._samples))
