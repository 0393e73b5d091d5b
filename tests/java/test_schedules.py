"""A schedule topic with Java's producer, in transactions too, and Java's consumer.

Covers: kafkawire.schedules.deliverer.
"""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.java.conftest import Program
from tests.real.members import wait_for

pytestmark = pytest.mark.usefixtures("ours_only")


def test_records_are_delivered_when_they_are_due(
    program: Program, bootstrap: str, name: str
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    later = f"{name}-later"
    for topic, configs in ((name, {}), (later, {"schedule.target.topic": name})):
        admin.create_topics([NewTopic(topic, 1, 1, config=configs)])[topic].result(60)
    child = program("ScheduledRecords", bootstrap, later, name, name)
    child.start()
    wait_for(lambda: not child.running, what=lambda: child.output)
    lines = [line.split("|") for line in child.output.splitlines() if line.count("|") == 4]
    assert [(key, value) for key, value, *_ in lines] == [
        ("by delay", "a"),
        ("committed", "c"),
        ("by timestamp", "d"),
    ], child.output
    assert lines[0][2] == f"{later}-0-0"
    offsets = [int(line[2].removeprefix(f"{later}-0-")) for line in lines]
    assert offsets == sorted(offsets)
    for *_, due_ms, polled_ms in lines:
        assert int(due_ms) <= int(polled_ms), "never early"
