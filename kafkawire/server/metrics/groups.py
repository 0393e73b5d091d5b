"""Metric families of groups, number by type and state, members and lag, and of the share partitions
that this broker leads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import (
    MAX_SERIES,
    counter,
    counters,
    gauge,
    gauges,
    histogram,
)
from kafkawire.share.states import AcknowledgeType, RecordState

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.groups.offsets import Topics
    from kafkawire.groups.service import GroupService


Lag = tuple[list[str], int]
CLASSIC = "classic"
"""The type of classic groups, as ListGroups has it."""
MAX_SCANNED = 100_000
"""Committed offsets whose lag is computed for one page: a tenth of a second, in slices."""
SLICE = 5_000
"""Committed offsets whose lag is computed in one event-loop iteration: five milliseconds."""


def group_families(broker: Broker) -> Iterator[Metric | None]:
    """Yield the families; none before a client uses groups. None: let other tasks run."""
    if "groups" not in broker.__dict__:
        return
    groups = broker.groups
    states: Counter[tuple[str, str]] = Counter()
    members: Counter[str] = Counter()
    for coordinator in groups.list_led():
        for group in coordinator.shard.groups.values():
            states[CLASSIC, group.state.value] += 1
            members[CLASSIC] += len(group.members)
        for kind, others in coordinator.shard.kinds.values():
            for other in others.values():
                states[kind.name, other.state.value] += 1
                members[kind.name] += len(other.members)
    by_state = ((list(key), number) for key, number in sorted(states.items()))
    yield gauges("groups", "Groups by type and state.", ["type", "state"], by_state)
    yield gauges("group_members", "Members of all groups by type.", ["type"], _by_name(members))
    events = groups.events
    yield counter("group_rebalances", "Rebalances that began, of all groups.", events.rebalances)
    yield histogram("group_rebalance_seconds", "Duration of complete rebalances.", events.durations)
    yield counters(
        "group_evictions",
        "Members removed without having left: no heartbeat (session_timeout), not rejoined in time "
        "(rebalance_timeout), assignment not requested (sync_timeout), group too large (max_size).",
        ["reason"],
        _by_name(events.evictions),
    )
    yield from _lag_families(broker, groups)


def _lag_families(broker: Broker, groups: GroupService) -> Iterator[Metric | None]:
    """Yield the lag per partition, per group and of all groups.

    An incomplete family would mislead: partitions are left out if there are more than MAX_SERIES,
    then groups, and the sum if more than MAX_SCANNED offsets are committed.
    """
    partitions: list[Lag] = []
    by_group: Counter[str] = Counter()
    total = scanned = 0
    for coordinator in groups.list_led():
        for group_id, topics in list(coordinator.shard.offsets.by_group.items()):
            lags = list(lags_of(broker, group_id, topics))
            scanned += len(lags)
            if scanned > MAX_SCANNED:
                return
            if scanned // SLICE != (scanned - len(lags)) // SLICE:
                yield None
            by_group[group_id] = sum(lag for _, lag in lags)
            total += by_group[group_id]
            if scanned <= MAX_SERIES:
                partitions += lags
    yield gauge(
        "groups_lag_records",
        "Sum of the lag of all groups over all partitions in memory.",
        total,
    )
    yield gauges(
        "group_lag_records",
        "Sum of a group's lag over all partitions in memory.",
        ["group"],
        (([group], lag) for group, lag in by_group.items()) if len(by_group) <= MAX_SERIES else [],
    )
    yield gauges(
        "group_partition_lag_records",
        "Records of a partition that a group has not committed yet (consumer lag).",
        ["group", "topic", "partition"],
        partitions if scanned <= MAX_SERIES else [],
    )


def lags_of(broker: Broker, group_id: str, topics: Topics) -> Iterator[Lag]:
    """Return ([group, topic, partition], record lag) of every committed offset of a group whose
    partition is in memory."""
    for topic, partitions in topics.items():
        for index, offset in partitions.items():
            info = broker.catalog.by_name.partition_of(topic, index)
            found = broker.log.partitions.get(info.number) if info is not None else None
            if found is not None:
                yield [group_id, topic, str(index)], max(0, found.high_watermark - offset.offset)


def _by_name(states: Counter[str]) -> Iterator[tuple[list[str], int]]:
    return (([name], number) for name, number in sorted(states.items()))


SLICE = 1_000
"""Share partitions that are summed in one event-loop iteration: a millisecond."""


def share_families(broker: Broker) -> Iterator[Metric | None]:
    """Yield the families; none before a member of a share group fetches. None: other tasks may
    run."""
    if "shares" not in broker.__dict__:
        return
    shares, counts = broker.shares, broker.shares.counts
    in_flight: Counter[tuple[str, str]] = Counter()
    for number, leader in enumerate(shares.list_leaders()):
        machine = leader.machine
        for state in RecordState if machine is not None else ():
            if machine is not None and (records := machine.count_in(state)):
                in_flight[leader.key.group_id, state.name.lower()] += records
        if number % SLICE == SLICE - 1:
            yield None
    yield gauge("share_partitions", "Share partitions in memory.", len(shares))
    yield gauge("share_sessions", "Members of share groups that fetch.", len(shares.sessions))
    yield gauges(
        "share_in_flight_records",
        "Records of a share group between the first that is not done and the last that was "
        "acquired, by state.",
        ["group", "state"],
        ((list(key), records) for key, records in sorted(in_flight.items()))
        if len(in_flight) <= MAX_SERIES
        else [],
    )
    yield counter("share_acquired_records", "Deliveries to share groups.", counts.acquired)
    yield counters(
        "share_acknowledged_records",
        "Records that members of share groups have acknowledged, by type.",
        ["type"],
        (([kind.name.lower()], counts.acknowledged[kind]) for kind in AcknowledgeType),
    )
    yield counter("share_expired_locks", "Records whose lock has expired.", counts.expired)
    yield counters(
        "share_dead_letters",
        "Records that were written to a dead-letter topic, or that it did not take (lost).",
        ["result"],
        ((["written"], counts.letters_written), (["lost"], counts.letters_lost)),
    )
