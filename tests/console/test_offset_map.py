"""Where records are: from ListOffsets, and from the segments of a kafkawire broker.

Covers: kafkawire.handlers.offset_map, kafkawire.handlers.tier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kafkawire.client.cluster import Cluster
from kafkawire.client.tier import CommandRefused, send_command
from kafkawire.console.views.offset_map import (
    MAX_SPANS,
    MapSpan,
    PartitionMap,
    RecordPlace,
    share_in,
    spans_of_bounds,
    spans_of_segments,
)
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.topics import TopicDetail, describe_topic
from kafkawire.console.web.rendering import MIN_WIDTH, WIDTH, bars
from kafkawire.security.acls.model import Operation, ResourceKind
from tests.handlers.test_access import allow, guarded
from tests.kit.access_cases import rule
from tests.kit.server import port_of
from tests.kit.tier.commands import (
    URL,
    Typed,
    all_uploaded,
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
    tiered,
)
from tests.kit.tier.fake_bucket import FakeBucket

JOURNAL, LOCAL, BOTH = RecordPlace.JOURNAL, RecordPlace.LOCAL, RecordPlace.BOTH
REMOTE, BROKER, GAP = RecordPlace.REMOTE, RecordPlace.BROKER, RecordPlace.GAP
Spans = list[tuple[int, int, RecordPlace]]


def short(spans: tuple[MapSpan, ...]) -> Spans:
    return [(span.start, span.end, span.place) for span in spans]


@pytest.mark.parametrize(
    ("bounds", "spans"),
    [
        ((0, 100, None, None), [(0, 100, BROKER)]),
        ((0, 100, 0, None), [(0, 100, BROKER)]),
        ((0, 100, 40, 60), [(0, 40, REMOTE), (40, 60, BOTH), (60, 100, BROKER)]),
        ((10, 100, 100, 100), [(10, 100, REMOTE)]),
        ((0, 0, 0, None), []),
        ((None, 100, 0, None), []),
        ((50, 100, 10, 20), [(50, 100, BROKER)]),
        ((0, 100, 40, 40), [(0, 40, REMOTE), (40, 100, BROKER)]),
    ],
)
def test_spans_of_any_kafka(bounds: tuple[int | None, ...], spans: Spans) -> None:
    assert short(spans_of_bounds(*bounds)) == spans


def answer(segments: list[list[Any]], **values: int) -> dict[str, Any]:
    known = {"log_start": 5, "journals_from": 40, "high_watermark": 50, "segments_left_out": 0}
    return known | values | {"segments": segments}


def test_spans_of_segments_with_gaps() -> None:
    found = spans_of_segments(
        answer(
            [
                [0, 10, 1, 100, False, "a" * 32, 1],
                [12, 20, 2, 100, True, "b" * 32, 1],
                [20, 30, 3, 100, True, None, 1],
            ]
        ),
        compacted=True,
    )
    assert short(found) == [
        (5, 10, REMOTE), (10, 12, GAP), (12, 20, BOTH), (20, 30, LOCAL), (30, 40, GAP),
        (40, 50, JOURNAL),
    ]  # fmt: skip
    assert found[1].reason == "compaction removed them"
    assert (found[2].segment, found[2].object) == (2, "b" * 32)
    assert share_in(found, REMOTE) == 5 / 33


def test_many_segments_are_joined_and_cover_the_same_offsets() -> None:
    rows = [[n, n + 1, n, 10, n % 2 == 0 or n > 10, None, 1] for n in range(2 * MAX_SPANS)]
    end = 2 * MAX_SPANS
    found = spans_of_segments(
        answer(rows, log_start=0, journals_from=end, high_watermark=end), compacted=False
    )
    assert len(found) < MAX_SPANS
    assert sum(span.segments for span in found) == len(rows)
    assert found[0].start == 0
    assert found[-1].end == end
    assert all(a.end == b.start for a, b in pairwise(found))


def test_bars_fill_the_width_and_stay_inside() -> None:
    spans = (MapSpan(0, 10**12 - 1, LOCAL), MapSpan(10**12 - 1, 10**12, JOURNAL))
    drawn = bars(PartitionMap(0, 1, (1,), (1,), 0, 10**12, 7, spans), {"g": 10**12, "behind": -5})
    assert (drawn.spans[0].x, drawn.spans[0].width) == (0, WIDTH)
    assert drawn.spans[1].width == MIN_WIDTH
    assert drawn.spans[1].x + MIN_WIDTH <= WIDTH
    assert [mark.x for mark in drawn.marks] == [0, WIDTH, 0]
    assert [mark.slug for mark in drawn.marks] == ["group", "group", "stable"]


def describe(tier: Typed) -> TopicDetail:
    with Cluster(tier.address) as cluster:
        return describe_topic(cluster, OwnBroker(), "t")


async def until(tier: Typed, settled: Callable[[Spans], bool]) -> TopicDetail:
    """Describe the topic until the spans of its first partition satisfy a condition."""
    while True:
        found = await asyncio.to_thread(describe, tier)
        if settled(short(found.maps[0].spans)):
            return found
        await asyncio.sleep(0.05)


@pytest.mark.real
async def test_map_follows_records_from_journal_to_bucket(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="600000") as tier:
        await tier.produce("t", 3)
        first = (await until(tier, bool)).maps[0]
        assert (short(first.spans), first.exact) == ([(0, 3, JOURNAL)], True)
        await tier.until(all_uploaded, "why")
        uploaded = await until(tier, lambda spans: spans == [(0, 3, BOTH)])
        (span,) = uploaded.maps[0].spans
        assert span.object is not None
        keys = [key.replace("-", "") for key in buckets[URL].objects]
        assert any(span.object in key for key in keys)
        await tier.produce("t", 2)
        mixed = await until(tier, lambda spans: len(spans) == 2)
        assert short(mixed.maps[0].spans) == [(0, 3, BOTH), (3, 5, JOURNAL)]
        assert mixed.maps[1].spans == ()


@pytest.mark.real
async def test_map_shows_what_is_only_in_the_bucket(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    quick = {"journal_roll_ms": "50", "log_retention_check_interval_ms": "50"}
    async with tiered(tmp_path / "data", **quick) as tier:
        await tier.produce("t", 3, local_retention_ms="1")
        found = await until(tier, lambda spans: spans == [(0, 3, REMOTE)])
        assert found.remote_share == 1


async def test_map_needs_the_right_to_describe_the_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, _):

        def refusal(command: str, **arguments: Any) -> str:
            with Cluster(f"127.0.0.1:{port_of(server)}") as cluster:
                try:
                    send_command(cluster, command, **arguments)
                except CommandRefused as refused:
                    return str(refused)
            return ""

        for topic in ("t", "absent"):  # which topics exist is hidden
            text = await asyncio.to_thread(refusal, "map", topic=topic, partitions=[0])
            assert text == f"tier map: topic {topic!r} does not exist"
        await allow(server, rule(Operation.DESCRIBE, ResourceKind.TOPIC, "t"))
        assert await asyncio.to_thread(refusal, "map", topic="t", partitions=[0]) == ""
        # All other commands are for administrators.
        text = await asyncio.to_thread(refusal, "why")
        assert "CLUSTER_AUTHORIZATION_FAILED" in text
