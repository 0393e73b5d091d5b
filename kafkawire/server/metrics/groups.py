"""Metric families of consumer groups: number by state, members, lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import gauge, gauges, within_bound

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.groups.service import GroupService

Lag = tuple[list[str], int]
MAX_SCANNED = 10_000
"""Committed offsets whose lag is computed for one page: ten milliseconds of event-loop time."""


def group_families(broker: Broker) -> Iterator[Metric]:
    """Yield the families: none before a client uses groups, and no lags if there are too many
    offsets."""
    if "groups" not in broker.__dict__:
        return
    groups = broker.groups
    states: Counter[str] = Counter()
    members = 0
    for coordinator in groups.led():
        for group in coordinator.shard.groups.values():
            states[group.state.value] += 1
            members += len(group.members)
    yield gauges("groups", "Consumer groups by state.", ["state"], _by_name(states))
    yield gauge("group_members", "Members of all groups.", members)
    lags = list(islice(lags_of(broker, groups), MAX_SCANNED + 1))
    if len(lags) > MAX_SCANNED:
        return
    yield gauge(
        "group_lag_records_sum",
        "Sum of the lag of all groups over all partitions in memory.",
        sum(lag for _, lag in lags),
    )
    yield gauges(
        "group_lag_records",
        "Records of a partition that a group has not committed yet (consumer lag).",
        ["group", "topic", "partition"],
        within_bound(lags),
    )


def lags_of(broker: Broker, groups: GroupService) -> Iterator[Lag]:
    """Return ([group, topic, partition], record lag) of every committed offset."""
    for coordinator in groups.led():
        for group_id, topics in coordinator.shard.offsets.by_group.items():
            for topic, partitions in topics.items():
                for index, offset in partitions.items():
                    info = broker.catalog.by_name.partition_of(topic, index)
                    found = broker.log.partitions.get(info.number) if info is not None else None
                    if found is not None:
                        behind = max(0, found.high_watermark - offset.offset)
                        yield [group_id, topic, str(index)], behind


def _by_name(states: Counter[str]) -> Iterator[tuple[list[str], int]]:
    return (([name], number) for name, number in sorted(states.items()))
