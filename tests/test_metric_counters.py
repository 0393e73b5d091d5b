"""Counters per topic: never decreasing, a bounded number of names."""

from __future__ import annotations

import pytest

from kafkawire import metric_counters as module
from kafkawire.metric_counters import Traffic


def added(traffic: Traffic, topic: str, count: int = 1) -> None:
    found = traffic.counters_of_topic(topic)
    found.in_bytes += 10 * count
    found.in_records += count
    found.out_bytes += 5 * count


def reported(traffic: Traffic) -> tuple[dict[str, int], int]:
    named, others = traffic.report()
    return {topic: each.in_records for topic, each in named.items()}, others.in_records


def test_topics_above_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOPICS", 2)
    traffic = Traffic()
    traffic.counters_of_topic("idle")
    for topic in "abc":
        added(traffic, topic)
    assert reported(traffic) == ({"a": 1, "b": 1}, 1)
    added(traffic, "idle", 7)
    assert reported(traffic) == ({"a": 1, "b": 1}, 8)
    traffic.remove_topic("a")
    added(traffic, "d", 2)
    assert reported(traffic) == ({"b": 1}, 10), "what is in the sum stays there"
    traffic.remove_topic("d")
    traffic.remove_topic("unknown")
    assert reported(traffic) == ({"b": 1}, 10)


def test_number_of_counters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTED", 2)
    traffic = Traffic()
    for topic in "abcd":
        added(traffic, topic)
        added(traffic, topic)
    assert reported(traffic) == ({"a": 2, "b": 2}, 4)
    assert traffic.counters_of_topic("c") is traffic.counters_of_topic("d")
