"""All topics and groups of a cluster at one time, from a few requests for each broker.

Lists and the overview are made from it, so 10,000 topics cost no more requests than one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.groups import GroupListing, list_groups
from kafkawire.client.lag import (
    GroupLag,
    complete,
    find_subscribed_topics,
    known_offsets,
    observe_groups,
    set_bounds,
)
from kafkawire.client.offsets import EARLIEST, LATEST, Partition
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.parts import ClusterFinding, sentence_of
from kafkawire.console.views.pool import ClusterPool
from kafkawire.console.views.traffic import BrokerTraffic

LIST_OFFSETS = 2
EARLIEST_LOCAL, LATEST_TIERED = -4, -5
SINCE_LOCAL, SINCE_TIERED = 8, 9
"""The versions of ListOffsets with these (KIP-405, KIP-1005)."""
MAX_COUNTED_AT_ONCE = 1000
"""Partitions and groups of a cluster whose first snapshot has numbers, which take about 50
microseconds each; with more, the first has names only."""


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
    coordinator: int = -1
    error: str = ""


class NodeState(NamedTuple):
    """A broker of the cluster, by the address it advertises."""

    node: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True)
class ClusterSnapshot:
    """A cluster at `at_ms`. `tier`, `traffic`: see OwnBroker; `refused`: sentences on what could
    not be read, such as for lack of a right; `counted`: whether it has offsets and lags, or only
    names and states."""

    at_ms: int
    cluster_id: str
    controller: int
    nodes: tuple[NodeState, ...]
    topics: Mapping[str, TopicSnapshot]
    groups: Mapping[str, GroupSnapshot]
    tier: Mapping[str, Any] | None = None
    traffic: BrokerTraffic | None = None
    refused: tuple[str, ...] = ()
    counted: bool = True

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
    """Read all topics and groups; of a large cluster without numbers, which `count_snapshot` adds.
    ClientError if the broker does not answer; what it refuses is named in the result."""
    answer = cluster.metadata(None)
    at_ms = time.time_ns() // 1_000_000
    topics = _read_names(row for row in answer.topics if not row.error_code)
    refused: list[str] = []
    listed: list[GroupListing] = []
    try:
        listed = list_groups(cluster)
    except BrokerError as error:
        refused.append(str(error))
    found = ClusterSnapshot(
        at_ms=at_ms,
        cluster_id=answer.cluster_id or "",
        controller=answer.controller_id,
        nodes=tuple(
            NodeState(row.node_id, row.host, row.port, row.rack)
            for row in sorted(answer.brokers, key=lambda row: row.node_id)
        ),
        topics=topics,
        groups={
            row.group: GroupSnapshot(
                row.group, row.state, row.kind, 0, None, {}, {}, row.coordinator
            )
            for row in listed
        },
        refused=tuple(refused),
        counted=False,
    )
    size = len(listed) + sum(len(topic.partitions) for topic in topics.values())
    return count_snapshot(cluster, own, found) if size <= MAX_COUNTED_AT_ONCE else found


def count_snapshot(cluster: Cluster, own: OwnBroker, found: ClusterSnapshot) -> ClusterSnapshot:
    """Return a snapshot with the offsets of its topics and the lags of its groups as they are now.
    ClientError."""
    at_ms = time.time_ns() // 1_000_000
    tier = own.read_tier(cluster)
    topics = _read_offsets(cluster, found.topics, tiered=tier is not None or not own.known)
    return replace(
        found,
        at_ms=at_ms,
        topics=topics,
        groups=_read_groups(cluster, found.groups, topics),
        tier=tier,
        traffic=own.read_traffic(cluster),
        counted=True,
    )


def read_topics(cluster: Cluster, rows: Iterable[Any]) -> dict[str, TopicSnapshot]:
    """Return the state of topics, by name; `rows`: of a MetadataResponse."""
    return _read_offsets(cluster, _read_names(rows))


def _read_names(rows: Iterable[Any]) -> dict[str, TopicSnapshot]:
    """Return topics without offsets, by name in order; `rows`: of a MetadataResponse."""
    return {
        topic.name: TopicSnapshot(
            topic.name,
            topic.topic_id,
            topic.is_internal,
            tuple(
                PartitionSnapshot(
                    row.partition_index, row.leader_id, tuple(row.replica_nodes),
                    tuple(row.isr_nodes), None, None, None, None,
                )
                for row in sorted(topic.partitions, key=lambda row: row.partition_index)
            ),
        )
        for topic in sorted(rows, key=lambda topic: topic.name)
    }  # fmt: skip


def _read_offsets(
    cluster: Cluster, topics: Mapping[str, TopicSnapshot], tiered: bool = True
) -> dict[str, TopicSnapshot]:
    """Return topics with the offsets of their partitions. `tiered`: some may have a remote tier."""
    led_by: dict[Partition, int] = {
        (name, row.partition): row.leader
        for name, topic in topics.items()
        for row in topic.partitions
    }
    version = cluster.first.version(LIST_OFFSETS)
    starts = known_offsets(cluster, led_by, EARLIEST, led_by)
    ends = known_offsets(cluster, led_by, LATEST, led_by)
    last_tiered = local = dict[Partition, int]()
    if tiered and version >= SINCE_TIERED:
        last_tiered = known_offsets(cluster, led_by, LATEST_TIERED, led_by)
    if tiered and version >= SINCE_LOCAL:
        # What has nothing in the remote tier is local from its log start on.
        some = led_by if version < SINCE_TIERED else {p for p, at in last_tiered.items() if at >= 0}
        local = known_offsets(cluster, some, EARLIEST_LOCAL, led_by)

    def partition(name: str, row: PartitionSnapshot) -> PartitionSnapshot:
        place = name, row.partition
        at = last_tiered.get(place, -1)
        return row._replace(
            log_start=starts.get(place),
            log_end=ends.get(place),
            local_start=local.get(place),
            tiered_end=at + 1 if at >= 0 else None,
        )

    return {
        name: replace(topic, partitions=tuple(partition(name, row) for row in topic.partitions))
        for name, topic in topics.items()
    }


def _read_groups(
    cluster: Cluster, groups: Mapping[str, GroupSnapshot], topics: Mapping[str, TopicSnapshot]
) -> dict[str, GroupSnapshot]:
    """Return groups with their lags, by the log ends of the topics."""
    observed = observe_groups(cluster, [(each.group, each.coordinator) for each in groups.values()])
    known = [each for each in observed.values() if not isinstance(each, BrokerError)]
    leaders, starts, ends = dict[Partition, int](), dict[Partition, int](), dict[Partition, int]()
    read = {row.partition[0] for each in known for row in each.partitions}
    read |= {topic for each in known for topic in find_subscribed_topics(each.description)}
    for name in read & topics.keys():
        for row in topics[name].partitions:
            place = name, row.partition
            leaders[place] = row.leader
            if row.log_start is not None:
                starts[place] = row.log_start
            if row.log_end is not None:
                ends[place] = row.log_end
    complete(known, leaders)
    set_bounds(known, leaders, starts, ends, {})
    return {name: _group_state(group, observed[name]) for name, group in groups.items()}


def _group_state(listed: GroupSnapshot, found: GroupLag | BrokerError) -> GroupSnapshot:
    if isinstance(found, BrokerError):  # such as a group that was deleted meanwhile
        return listed._replace(error=str(found))
    description = found.description
    return listed._replace(
        state=description.state or listed.state,
        kind=listed.kind or description.kind,
        members=len(description.members),
        lag=found.totals().lag,
        topics={name: sum(row.lag or 0 for row in rows) for name, rows in found.by_topic().items()},
        committed={
            row.partition: row.committed for row in found.partitions if row.committed is not None
        },
    )


# Snapshots are shared: however many pages are open, the cluster is asked once.


FRESH_S = 2.0
"""A snapshot of this age is shown as it is."""
REST, REST_LARGE = 10, 60
"""A snapshot is shown for this many times as long as it took, so that the console keeps the brokers
busy for a tenth of the time at most; with a large cluster it would be each produce in ten that
waits, so it is about half a minute."""
STALE_S = 15.0
"""A snapshot that is this much older is not shown: a page waits for the next."""
PATIENCE_S = 5.0
"""How long a page waits for another thread's snapshot, as of a broker that does not answer."""
FOUND_S = 10.0
"""Findings of this age are shown as they are: they take more requests than a snapshot."""
MAX_SAMPLES = 900
"""Points of the plots: half an hour of one every two seconds."""


class Sample(NamedTuple):
    """A point of the plots. `rate`: records written per second since the point before; `sent`:
    bytes sent to consumers per second, and `p99_ms` of Produce requests, None where the brokers do
    not say it."""

    at_ms: int
    rate: float
    lag: int
    sent: float | None = None
    p99_ms: float | None = None


@dataclass
class Known:
    """The facts that pages show: the newest snapshot, None before the first; the sentence of the
    failure since; records per second of each topic; the points of the plots; and what is wrong
    that the snapshot does not have."""

    snapshot: ClusterSnapshot | None = None
    failure: str = ""
    rates: Mapping[str, float] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    found: tuple[ClusterFinding, ...] = ()

    @property
    def rate(self) -> float:
        """Return the records written per second to topics that are not internal."""
        return self.samples[-1].rate if self.samples else 0.0

    def require(self, newest: bool = False) -> ClusterSnapshot:
        """Return the snapshot. ClientError before the first, with `newest` also after a failure."""
        if self.snapshot is None or (newest and self.failure):
            raise ClientError(self.failure or "nothing is known of the broker yet")
        return self.snapshot


FindProblems = Callable[[Cluster, OwnBroker, ClusterSnapshot, list[str]], Iterable[ClusterFinding]]


class SnapshotCache:
    """The newest snapshot of a cluster. It is taken when a page needs one, by one thread at a time,
    and never while no page is open. Numbers of a large cluster are read by a thread of its own,
    while pages show names, or the numbers before."""

    def __init__(
        self,
        pool: ClusterPool,
        own: OwnBroker,
        clock: Callable[[], float] = time.monotonic,
        take: Callable[[Cluster, OwnBroker], ClusterSnapshot] = take_snapshot,
        count: Callable[[Cluster, OwnBroker, ClusterSnapshot], ClusterSnapshot] = count_snapshot,
        find: FindProblems | None = None,
    ) -> None:
        """`find`: reads what is wrong that a snapshot does not have."""
        self._pool = pool
        self._own = own
        self._clock = clock
        self._take = take
        self._count = count
        self._find = find
        self._found: tuple[ClusterFinding, ...] = ()
        self._found_until = clock()
        self._known = Known()
        self._counted: ClusterSnapshot | None = None
        self._large = False
        self._until = clock() - STALE_S
        self._taking = threading.Lock()
        self._counting: threading.Thread | None = None
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def read(self) -> Known:
        """Return what is known, taking a snapshot if the last is not fresh. While another thread
        takes one, the last is returned unless it is too old."""
        late_s = self._clock() - self._until
        if late_s < 0:
            return self._known
        stale = late_s >= STALE_S
        if not self._taking.acquire(timeout=PATIENCE_S if stale else 0):
            return self._known
        going_on = False
        try:
            begun = self._clock()
            if begun >= self._until:
                snapshot, going_on = None, True
                if stale or not self._large:
                    snapshot = self._ask(self._take_next, begun)
                    going_on = snapshot is not None and not snapshot.counted
                if going_on:
                    self._counting = threading.Thread(
                        target=self._count_and_release, args=(snapshot, begun), daemon=True
                    )
                    self._counting.start()
            return self._known
        finally:
            if not going_on:
                self._taking.release()

    def close(self) -> None:
        """Wait until no thread uses the connections."""
        if self._counting is not None:
            self._counting.join(PATIENCE_S)

    def _count_and_release(self, snapshot: ClusterSnapshot | None, begun: float) -> None:
        """Add numbers to a snapshot, or take one with numbers."""

        def read(cluster: Cluster) -> ClusterSnapshot:
            found = self._take_next(cluster) if snapshot is None else snapshot
            return found if found.counted else self._count(cluster, self._own, found)

        try:
            self._ask(read, begun)
        finally:
            self._taking.release()

    def _take_next(self, cluster: Cluster) -> ClusterSnapshot:
        found = self._take(cluster, self._own)
        self._large = not found.counted
        return found

    def _ask(
        self, read: Callable[[Cluster], ClusterSnapshot], begun: float
    ) -> ClusterSnapshot | None:
        """Read a snapshot and publish it, or why there is none."""
        last = self._known
        snapshot = None
        try:
            with self._pool.lend() as cluster:
                snapshot = read(cluster)
        except ClientError as failure:
            self._known = replace(last, failure=str(failure))
            self._found_until = self._clock()  # what was wrong may have been repaired meanwhile
        else:
            self._read_findings(snapshot)
            self._known = self._publish(snapshot)
        now = self._clock()
        if snapshot is not None and not snapshot.counted:
            self._until = now  # until it has numbers, which are being read
        else:
            rest = REST_LARGE if self._large else REST
            self._until = now + max(FRESH_S, rest * (now - begun))
        return snapshot

    def _read_findings(self, snapshot: ClusterSnapshot) -> None:
        if self._find is None or not snapshot.counted or self._clock() < self._found_until:
            return
        try:
            with self._pool.lend() as cluster:
                # What the user may not read is not wrong.
                self._found = tuple(self._find(cluster, self._own, snapshot, []))
        except ClientError as failure:
            self._found = (ClusterFinding(False, sentence_of(failure)),)
        self._found_until = self._clock() + FOUND_S

    def _publish(self, snapshot: ClusterSnapshot) -> Known:
        rates: dict[str, float] = {}
        total, sent, p99_ms = 0.0, None, None
        last = self._counted
        if snapshot.counted and last is not None:
            seconds = max(0.001, (snapshot.at_ms - last.at_ms) / 1000)
            for name, topic in snapshot.topics.items():
                before = last.topics.get(name)
                if before is not None and before.topic_id == topic.topic_id:
                    rates[name] = max(0, topic.written - before.written) / seconds
                    total += 0 if topic.internal else rates[name]
            if snapshot.traffic is not None and last.traffic is not None:
                sent = snapshot.traffic.sent_since(last.traffic, seconds)
                p99_ms = snapshot.traffic.p99_ms_since(last.traffic)
            self._samples.append(Sample(snapshot.at_ms, total, snapshot.lag, sent, p99_ms))
        if snapshot.counted:
            self._counted = snapshot
        return Known(snapshot, "", rates, tuple(self._samples), self._found)
