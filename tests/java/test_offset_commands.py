"""`kafkawire offsets` and `consume` against Apache Kafka: the commands work with any broker."""

from __future__ import annotations

import uuid

from tests.kit.cli import NEW_YEAR_MS, Typed, produce


def test_offset_commands_work_with_apache_kafka(kafka: str) -> None:
    topic = f"commands-{uuid.uuid4()}"
    # Apache Kafka deletes records older than retention.ms, also while a test reads them.
    made = Typed(kafka, "topics", "create", topic, "--partitions", "2", "--config",
                 "retention.ms=-1")  # fmt: skip
    assert (made.code, made.err) == (0, "")
    produce(kafka, topic, {0: 10, 1: 3})
    rows = Typed(kafka, "offsets", "describe", topic, "--json").json
    assert [(row["log_start"], row["log_end"]) for row in rows] == [(0, 10), (0, 3)]
    rows = Typed(kafka, "offsets", "validate", topic, "--json").json
    assert [(row["records"], row["missing"], row["problems"]) for row in rows] == [
        (10, 0, []),
        (3, 0, []),
    ]
    rows = Typed(kafka, "offsets", "stats", topic, "--json").json
    assert [row["offsets"] for row in rows] == [10, 3]
    assert all(row["bytes"] > 0 for row in rows)
    place = f"time:{NEW_YEAR_MS + 7_500}"
    lines = Typed(kafka, "consume", topic, "--from", place, "--json").lines
    assert [(line["partition"], line["offset"]) for line in lines] == [(0, 8), (0, 9)]
    resume = ("consume", topic, "--from", "resume", "--group", topic, "--json")
    assert len(Typed(kafka, *resume, "--limit", "7").lines) == 7
    assert len(Typed(kafka, *resume).lines) == 6
    assert Typed(kafka, *resume).lines == []
