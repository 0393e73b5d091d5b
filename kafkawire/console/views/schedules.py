"""Schedule topics: the records that wait for their time, and those that are not delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.schedules import schedules_led_by
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.parts import ListPage, ask_brokers, page_of

MAX_UNDELIVERED = 200
"""Records that are due and not delivered, of one page."""


class ScheduleRow(NamedTuple):
    """A schedule topic or, with `partition`, one partition. `held`: records that are due and wait
    for their target; `late_ms`: of the last delivery; counts since the broker's start."""

    topic: str
    partition: int | None
    target: str
    waiting: int
    held: int
    next_due_ms: int | None
    late_ms: int
    delivered: int
    undeliverable: int


class UndeliveredRow(NamedTuple):
    """A record that is due and not delivered."""

    partition: int
    offset: int
    due_ms: int | None
    reason: str


class Schedules(NamedTuple):
    """Schedule topics, or the partitions of one: then with the records due by hour, (begin in ms,
    records), and `more` undelivered ones that are not listed."""

    rows: ListPage[ScheduleRow]
    hours: Sequence[tuple[int, int]]
    undelivered: Sequence[UndeliveredRow]
    more: int
    refused: Sequence[str]


def read_schedules(
    cluster: Cluster, own: OwnBroker, refused: list[str], topic: str = ""
) -> list[Any]:
    """Return a SchedulePartition for each partition of all schedule topics, or of `topic` with its
    records, in order; none if it is another topic."""
    answers = ask_brokers(
        cluster, own, refused, lambda at: schedules_led_by(at, topic or None, details=bool(topic))
    )
    rows = (row for answer in answers for row in answer)
    return sorted(rows, key=lambda row: (row.topic, row.partition))


def describe_waiting(cluster: Cluster, own: OwnBroker, topic: str = "", page: int = 1) -> Schedules:
    """Return all schedule topics, or the partitions of `topic`."""
    refused: list[str] = []
    found = read_schedules(cluster, own, refused, topic)
    grouped: dict[Any, list[Any]] = {}
    for row in found:
        grouped.setdefault(row.partition if topic else row.topic, []).append(row)
    hours: Counter[int] = Counter()
    for row in found:
        hours.update({hour.start_ms: hour.records for hour in row.hours})
    undelivered = [
        UndeliveredRow(
            row.partition, each.offset, each.due_ms if each.due_ms >= 0 else None, each.reason
        )
        for row in found
        for each in row.undelivered
    ]
    return Schedules(
        page_of([_sum(rows, bool(topic)) for rows in grouped.values()], page),
        sorted(hours.items()),
        undelivered[:MAX_UNDELIVERED],
        max(0, len(undelivered) - MAX_UNDELIVERED),
        refused,
    )


def _sum(rows: Sequence[Any], single: bool) -> ScheduleRow:
    first = rows[0]
    return ScheduleRow(
        first.topic,
        first.partition if single else None,
        first.target_topic or f"header {first.target_header}",
        sum(each.waiting for each in rows),
        sum(each.held for each in rows),
        min((each.next_due_ms for each in rows if each.next_due_ms >= 0), default=None),
        max(each.late_ms for each in rows),
        sum(each.delivered for each in rows),
        sum(each.undeliverable for each in rows),
    )
