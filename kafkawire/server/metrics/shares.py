"""Metric families of the share partitions that this broker leads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import MAX_SERIES, counter, counters, gauge, gauges
from kafkawire.share.states import AcknowledgeType, RecordState

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker

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
