"""Metric families of schedule topics: what waits, what is held, how late deliveries are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from kafkawire.server.metrics.families import counters, gauges

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.schedules.deliverer import Deliverer

SOON_MS = 60_000


def schedule_families(broker: Broker) -> Iterator[Metric | None]:
    """Yield the families, each with the sum of a topic's partitions, if there are schedule topics.
    None: other tasks may run."""
    service = broker.schedules.service
    if service is None:
        return
    by_topic: dict[str, list[Deliverer]] = {}
    for each in service.deliverers.values():
        by_topic.setdefault(each.topic, []).append(each)
    now_ms = broker.env.clock.now_ms()
    soon: dict[str, int] = {}
    for topic, deliverers in by_topic.items():
        soon[topic] = 0
        for each in deliverers:
            soon[topic] += each.backlog.due_until(now_ms + SOON_MS)
            yield None

    def sum_by_topic(figure: Callable[[Deliverer], float]) -> list[tuple[list[str], float]]:
        return [([topic], sum(map(figure, every))) for topic, every in by_topic.items()]

    yield gauges(
        "schedule_waiting",
        "Records of a schedule topic that are not delivered yet.",
        ["topic"],
        sum_by_topic(lambda each: each.backlog.waiting),
    )
    yield gauges(
        "schedule_due_soon",
        "Records of a schedule topic that are due within a minute; at most 1,000 a partition are "
        "counted.",
        ["topic"],
        [([topic], number) for topic, number in soon.items()],
    )
    yield gauges(
        "schedule_held",
        "Records of a schedule topic that are due and wait for their target topic.",
        ["topic"],
        sum_by_topic(lambda each: len(each.state.held) if each.state is not None else 0),
    )
    yield gauges(
        "schedule_late_seconds",
        "How late the oldest record of the last delivery was, of the partition that was latest.",
        ["topic"],
        [
            ([topic], max(each.counts.late_ms for each in every) / 1000)
            for topic, every in by_topic.items()
        ],
    )
    yield gauges(
        "schedule_overdue_seconds",
        "For how long the oldest record is due that is not delivered now; 0: none is.",
        ["topic"],
        [
            ([topic], max(each.backlog.overdue_ms(now_ms) for each in every) / 1000)
            for topic, every in by_topic.items()
        ],
    )
    yield counters(
        "schedule_delivered",
        "Records delivered to their targets.",
        ["topic"],
        sum_by_topic(lambda each: each.counts.delivered),
    )
    yield counters(
        "schedule_undeliverable",
        "Records of a schedule topic that cannot be delivered, such as those with invalid times "
        "from before it was a schedule topic.",
        ["topic"],
        sum_by_topic(lambda each: each.counts.invalid),
    )
