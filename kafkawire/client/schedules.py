"""Schedule topics of a running kafkawire broker: an API of our own."""

from __future__ import annotations

from typing import Any

from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.tier import CommandRefused, refusal
from kafkawire.messages.registry import DESCRIBE_SCHEDULES


def schedules_led_by(
    connection: ClientConnection, topic: str | None, *, details: bool
) -> list[Any]:
    """Return a SchedulePartition for each partition of schedule topics that a broker leads.
    CommandRefused, and ClientError if it is not kafkawire, which closes the connection."""
    from kafkawire.messages.describe_schedules import DescribeSchedulesRequest

    asked = DescribeSchedulesRequest(topic, details)
    answer = connection.request_own(DESCRIBE_SCHEDULES, asked)
    if answer.error_code:
        if answer.error_message:
            raise CommandRefused(answer.error_message)
        raise refusal("schedules", answer)
    return list(answer.partitions)


def describe_schedules(cluster: Cluster, topic: str | None, *, details: bool) -> list[Any]:
    """Return the partitions of schedule topics from all brokers. ClientError."""
    found: list[Any] = []
    for node in cluster.nodes():
        found += schedules_led_by(cluster.node(node), topic, details=details)
    return sorted(found, key=lambda row: (row.topic, row.partition))
