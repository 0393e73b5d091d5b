"""From options to offsets of partitions: subscriptions, limits, lost offsets, rate limits."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest

from kafkawire.reading.model.source import DataLoss, PartitionRange, Source, SourceError
from kafkawire_spark.source import ranges
from kafkawire_spark.source.options import SourceOptions, parse_options


class Ends(NamedTuple):
    start: int
    end: int


class Facts(NamedTuple):
    internal: bool


@dataclass
class Contents:
    """A catalog of a few partitions; the timestamp of a record is its offset * 10."""

    ends: dict[tuple[str, int], Ends]
    source: Source = field(default_factory=lambda: Source("/data"))

    @property
    def topics(self) -> dict[str, int]:
        names = dict.fromkeys(topic for topic, _ in self.ends)
        return {name: sum(topic == name for topic, _ in self.ends) for name in names}

    def facts(self, topic: str) -> Facts:
        return Facts(topic.startswith("__"))

    def bounds(self, topic: str, partition: int) -> Ends:
        return self.ends[topic, partition]

    def offsets_for_times(self, wanted: Sequence[tuple[str, int, int]]) -> list[int | None]:
        found: list[int | None] = []
        for topic, partition, ms in wanted:
            start, end = self.ends[topic, partition]
            at = max(start, -(-ms // 10))
            found.append(at if at < end else None)
        return found


def contents(**source: bool) -> Contents:
    return Contents(
        {
            ("orders", 0): Ends(0, 100),
            ("orders", 1): Ends(10, 30),
            ("bills", 0): Ends(0, 0),
            ("__consumer_offsets", 0): Ends(0, 5),
        },
        Source("/data", fail_on_data_loss=source.get("fail", True)),
    )


def options(streaming: bool = False, **given: str) -> SourceOptions:
    said = {"source": "/data", **given}
    if not {"subscribe", "subscribePattern", "assign"} & said.keys():
        said["subscribe"] = "orders"
    return parse_options(said, streaming=streaming)


def batch(there: Contents | None = None, /, **given: str) -> list[tuple[int, int]]:
    """The ranges of `orders`."""
    found = ranges.batch_ranges(there or contents(), options(streaming=False, **given))
    return [(base, end) for _, _, base, end in found]


def test_subscription_selects_partitions() -> None:
    def assigned(**given: str) -> list[tuple[str, int]]:
        return ranges.list_subscribed_partitions(
            contents(), options(streaming=False, **given).subscription
        )

    assert assigned(subscribe="orders, bills") == [
        ("bills", 0),
        ("orders", 0),
        ("orders", 1),
    ]
    assert assigned(subscribePattern=".*") == [("bills", 0), ("orders", 0), ("orders", 1)]
    assert assigned(subscribePattern="order") == []  # the whole name is to match
    assert assigned(assign='{"orders": [1]}') == [("orders", 1)]
    assert assigned(subscribe="__consumer_offsets") == [("__consumer_offsets", 0)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscribe": "order"}, "no topic 'order' in /data; did you mean 'orders'"),
        ({"subscribe": "zzz"}, "it has __consumer_offsets, bills, orders"),
        ({"assign": '{"orders": [2]}'}, "orders-2, but orders has 2 partitions"),
        ({"startingOffsets": '{"orders": {"0": 1}}'}, "orders-1 missing"),
        ({"endingOffsets": '{"orders": {"0": 1, "1": 2, "7": 1}}'}, "not read: orders-7"),
        ({"startingTimestamp": "5000"}, "no record of orders-0 is of 5000 or later"),
    ],
)
def test_missing_topics_are_reported(given: dict[str, str], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        batch(**given)


def test_batch_reads_available_offsets() -> None:
    assert batch() == [(0, 100), (10, 30)]
    assert batch(startingOffsets='{"orders":{"0":7,"1":-2}}') == [(7, 100), (10, 30)]
    assert batch(endingOffsets='{"orders":{"0":7,"1":-1}}') == [(0, 7), (10, 30)]
    assert batch(startingTimestamp="150", endingTimestamp="250") == [(15, 25), (15, 25)]
    assert batch(endingTimestamp="500") == [(0, 50), (10, 30)]
    by_time = '{"orders":{"0":150,"1":290}}'
    assert batch(startingOffsetsByTimestamp=by_time) == [(15, 100), (29, 30)]
    late = batch(startingTimestamp="500", startingOffsetsByTimestampStrategy="latest")
    assert late == [(50, 100), (30, 30)]


LOSSES = [
    ({"startingOffsets": '{"orders":{"0":0,"1":5}}'}, r"\[5, 10\) of or", [(0, 100), (10, 30)]),
    ({"startingOffsets": '{"orders":{"0":101,"1":10}}'}, "offset 101", [(100, 100), (10, 30)]),
    ({"endingOffsets": '{"orders":{"0":101,"1":10}}'}, "up to 101", [(0, 100), (10, 10)]),
    (
        {"startingOffsets": '{"orders":{"0":0,"1":2}}',
         "endingOffsets": '{"orders":{"0":1,"1":4}}'},
        r"\[2, 4\)", [(0, 1), (10, 10)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "words", "rest"), LOSSES)
def test_lost_offsets_fail_or_are_logged(
    given: dict[str, str], words: str, rest: list[tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLoss, match=words):
        batch(**given)
    with caplog.at_level(logging.WARNING, "kafkawire_spark"):
        assert batch(contents(fail=False), **given) == rest
    assert "going on without them" in caplog.text


def test_micro_batch_reads_from_start_to_end() -> None:
    there = contents()
    start, end = {("orders", 0): 5, ("orders", 1): 30}, {("orders", 0): 50, ("orders", 1): 30}
    assert ranges.stream_ranges(there, start, end) == [PartitionRange("orders", 0, 5, 50)]
    new = {**end, ("bills", 0): 0}
    assert ranges.stream_ranges(there, start, new) == [PartitionRange("orders", 0, 5, 50)]


STREAM_LOSSES = [
    ({("orders", 1): 5}, {("orders", 1): 20}, r"\[5, 10\) of orders-1", [("orders", 1, 10, 20)]),
    ({("old", 0): 5}, {}, "old-0 gone", []),
    ({("old", 0): 5}, {("old", 0): 9}, "old-0 was deleted", []),
    ({}, {("orders", 1): 20}, "is new, but begins at offset 10", [("orders", 1, 10, 20)]),
    (
        {("orders", 0): 500},
        {("orders", 0): 100},
        "deleted and created again",
        [("orders", 0, 0, 100)],
    ),
]


@pytest.mark.parametrize(("start", "end", "words", "rest"), STREAM_LOSSES)
def test_stream_fails_or_continues_at_lost_offsets(
    start: ranges.Positions,
    end: ranges.Positions,
    words: str,
    rest: list[tuple[str, int, int, int]],
) -> None:
    with pytest.raises(DataLoss, match=words):
        ranges.stream_ranges(contents(), start, end)
    assert [tuple(row) for row in ranges.stream_ranges(contents(fail=False), start, end)] == rest


def test_reason_of_a_shorter_partition_depends_on_the_isolation_level() -> None:
    """A stream that changes to read_committed may have read what is in an open transaction."""
    committed = contents().source
    assert committed.isolation == "read_committed"
    reason = ranges.why_shorter(committed, 45)
    assert "deleted and created again, or" in reason
    assert "read_uncommitted while a transaction was open that begins at offset 45" in reason
    dirty = replace(committed, isolation="read_uncommitted")
    assert ranges.why_shorter(dirty, 45) == "it was deleted and created again"


def test_stream_never_begins_after_the_end() -> None:
    assert [ranges.begin_at(contents(), ("orders", 1), at) for at in (0, 20, 30)] == [0, 20, 30]
    with pytest.raises(DataLoss, match="offset 31 of orders-1 is asked for, which ends at 30"):
        ranges.begin_at(contents(), ("orders", 1), 31)
    assert ranges.begin_at(contents(fail=False), ("orders", 1), 31) == 30


def test_deleted_topic_does_not_end_stream() -> None:
    wanted = options(streaming=True, subscribe="orders,gone").subscription
    assert ranges.ends_of(contents(), wanted) == {("orders", 0): 100, ("orders", 1): 30}
    gone = options(streaming=True, assign='{"gone": [0]}').subscription
    assert ranges.ends_of(contents(), gone) == {}


def test_rate_limit_is_shared_without_starvation() -> None:
    there = Contents({("a", 0): Ends(0, 900), ("a", 1): Ends(0, 100), ("a", 2): Ends(5, 6)})
    latest = ranges.ends_of(there, options(subscribe="a").subscription)
    start = {("a", 0): 0, ("a", 1): 0}
    cut = ranges.limit_offsets(there, start, latest, 100)
    assert cut == {("a", 0): 89, ("a", 1): 9, ("a", 2): 6}
    assert ranges.limit_offsets(there, start, latest, 10_000) == latest
    seen, batches = start, 0
    while seen != latest:
        following = ranges.limit_offsets(there, seen, latest, 100)
        assert all(following[key] >= seen.get(key, 0) for key in following)
        assert following != seen
        seen, batches = following, batches + 1
    assert batches <= 12


def test_stream_offsets_are_stored_like_connectors() -> None:
    positions = {("b", 10): 3, ("a", 0): 1, ("b", 2): 7}
    stored = ranges.to_json(positions)
    assert stored == {"a": {"0": 1}, "b": {"2": 7, "10": 3}}
    assert ranges.from_json(stored) == positions
    assert ranges.waiting({("a", 0): 1}, {("a", 0): 5, ("b", 0): 2}) == 6
    with pytest.raises(SourceError, match="checkpoint has"):
        ranges.from_json({"a": 5})  # type: ignore[dict-item]
