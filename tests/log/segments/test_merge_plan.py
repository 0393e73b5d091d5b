"""Merges are size-tiered: with any traffic a byte is written fewer than three times, and a GiB has
fewer than 200 objects."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kafkawire.log.segments.merge.plan import (
    MAX_SMALL,
    MIB,
    MergeCandidate,
    limits_of,
    max_small,
    next_merge,
)
from kafkawire.tiering.cost.merge_model import merges_of, pays
from kafkawire.tiering.cost.prices import TABLES
from tests.kit.log.merging import GIB, START_MS, Merging

EVER = "delete/tiered/ever"
HOUR_MS = 3_600_000


def sizes(rng: random.Random, mean: int, spread: float, count: int) -> Iterator[int]:
    """Segments of about this many bytes, some of them many times larger than others."""
    for _ in range(count):
        yield 1 + int(mean * (rng.lognormvariate(0, spread) if spread else 1))


@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("mean", [1_000, 90_000, 400_000, 2_500_000, 7_000_000])
def test_byte_is_written_less_than_three_times(mean: int, spread: float) -> None:
    count = min(4_000, 3 * GIB // mean)
    found = Merging(EVER).run(sizes(random.Random(mean), mean, spread, count))
    assert found.amplification < 3
    assert found.live_per_gib < 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_traffic_stays_within_bounds(seed: int) -> None:
    rng = random.Random(seed)
    every_ms = rng.choice([2_000, 15_000, 150_000])
    # Below a kilobyte in a cut thousands of cuts make so little that it is merged once more.
    mean = int(2 ** rng.uniform(10.5, 23))
    days = rng.choice([0, 1, 7])
    kept_ms = days * 24 * HOUR_MS
    kind = f"delete/tiered/2^{kept_ms.bit_length()}ms" if days else EVER
    phases = [(max(1000, int(mean * 2 ** rng.uniform(-3, 3))), rng.random()) for _ in range(5)]
    found = Merging(kind, every_ms, kept_ms)
    count = min(60_000, 6 * GIB // mean) // len(phases)
    found.run(size for each, spread in phases for size in sizes(rng, each, spread, count))
    assert found.amplification < 3, (mean, every_ms, phases)
    assert found.live_per_gib < 200, (mean, every_ms, phases)


@pytest.mark.parametrize("hours", [1, 6, 24])
def test_short_retention_is_exceeded_by_at_most_an_eighth(hours: int) -> None:
    kept_ms = hours * HOUR_MS
    kind = f"delete/tiered/2^{kept_ms.bit_length()}ms"
    limits = limits_of(kind)
    assert limits.span_ms <= kept_ms / 8
    found = Merging(kind, 2000, kept_ms)
    taken: list[list[MergeCandidate]] = []
    merge = found._merge

    def watched(found: list[MergeCandidate]) -> None:
        taken.append(found)
        merge(found)

    found._merge = watched  # type: ignore[method-assign]
    found.run(sizes(random.Random(1), 5000, 0.5, 6000))
    assert taken
    for items in taken:
        assert items[-1].made_ms - items[0].made_ms <= limits.span_ms
    assert found.amplification < 3
    assert found.live_per_gib < 200


def items_of(*bytes_of: int, merges: int = 0) -> list[MergeCandidate]:
    return [MergeCandidate(at, size, START_MS + at, merges) for at, size in enumerate(bytes_of)]


def plan(items: list[MergeCandidate], now_ms: int = START_MS, kind: str = EVER) -> list[int]:
    return [item.id for item in next_merge(items, limits_of(kind), MAX_SMALL, now_ms)]


def test_large_segments_are_not_merged() -> None:
    assert plan(items_of(*[6 * MIB] * 50)) == []
    assert plan(items_of(*[12 * MIB] * 50, merges=1)) == []
    assert plan(items_of(*[4 * MIB] * 50, merges=2)) == []
    assert plan(items_of(*[6 * MIB] * 50), kind="delete/local/ever") == list(range(21))


def test_merge_takes_oldest_segments_up_to_target_size() -> None:
    assert plan(items_of(*[3 * MIB] * 5)) == []
    assert plan(items_of(*[3 * MIB] * 6)) == [0, 1, 2, 3, 4]
    assert plan(items_of(5 * MIB, 20 * MIB, *[3 * MIB] * 5)) == [0, 2, 3, 4]


def test_result_of_merge_is_not_merged_again_at_once() -> None:
    fresh = items_of(*[1000] * MAX_SMALL)
    assert plan(fresh) == list(range(MAX_SMALL))
    made = MergeCandidate(0, 1000 * MAX_SMALL, START_MS, 1)
    later = [MergeCandidate(at, 1000, START_MS + at) for at in range(1, MAX_SMALL)]
    assert plan([made, *later[:-1]]) == []
    assert plan([made, *later]) == list(range(1, MAX_SMALL))


def test_few_segments_are_merged_when_traffic_has_ended() -> None:
    few = items_of(*[1000] * 5)
    assert plan(few, START_MS + HOUR_MS // 2) == []
    assert plan(few, START_MS + 2 * HOUR_MS) == [0, 1, 2, 3, 4]
    assert plan(few[:3], START_MS + 2 * HOUR_MS) == []


def test_segments_expiring_soon_are_not_merged() -> None:
    kind = "delete/tiered/2^22ms"  # from 35 minutes on
    few = items_of(*[1000] * 5)
    assert plan(few, START_MS + 600_000, kind) == [0, 1, 2, 3, 4]
    assert plan(few, START_MS + 2_000_000, kind) == []


def test_larger_classes_collect_more_segments() -> None:
    assert max_small(0) == max_small(GIB) == MAX_SMALL
    assert max_small(2 * GIB) == 2 * MAX_SMALL
    assert max_small(100 * GIB) == max_small(1000 * GIB) == 448


@pytest.mark.parametrize(
    ("objects", "size_bytes", "away", "prices", "worth"),
    [
        (3, 15 * MIB, True, "aws-s3-standard", True),
        (2, 11 * MIB, True, "aws-s3-standard", False),
        (112, 16 * MIB, True, "cloudflare-r2", True),
        (112, 16 * MIB, True, "aws-s3-express-one-zone", False),
        (112, 1 * MIB, False, "aws-s3-express-one-zone", True),
        (2, 1000, True, "free", True),
    ],
)
def test_merge_runs_if_saved_requests_are_worth_it(
    objects: int, size_bytes: int, away: bool, prices: str, worth: bool
) -> None:
    fetched = (objects, size_bytes) if away else (0, 0)
    assert pays(objects, size_bytes, *fetched, 16 * MIB, TABLES[prices]) is worth


@pytest.mark.slow
@pytest.mark.parametrize("mean", [2_000, 10_000, 30_000, 70_000, 120_000, 600_000, 4_000_000])
@pytest.mark.parametrize("kept_h", [6, 168])
def test_closed_form_matches_plan(mean: int, kept_h: int) -> None:
    kind = f"delete/tiered/2^{(kept_h * HOUR_MS).bit_length()}ms"
    # In the steady state: a class that has all it keeps, in cuts of one size.
    count = min(30_000, kept_h * 1800)
    found = Merging(kind, 2000, kept_h * HOUR_MS)
    most = max_small(mean * kept_h * 1800)
    limits = limits_of(kind)
    items: list[MergeCandidate] = []
    merged_bytes = merges = 0
    for at in range(count):
        now_ms = START_MS + at * 2000
        items.append(MergeCandidate(at, mean, now_ms))
        while inputs := next_merge(items, limits, most, now_ms):
            found.items = items
            found._merge(inputs)
            items = [item for item in found.items if limits.is_small(item)]
            merged_bytes += sum(item.size_bytes for item in inputs)
            merges += 1
    model = merges_of(mean, 2.0, limits, kept_h * 3600)
    assert sum(one.per_cut for one in model) * count == pytest.approx(merges, rel=0.2, abs=2)
    written = sum(one.per_cut * one.size_bytes for one in model)
    assert 1 + written / mean == pytest.approx(1 + merged_bytes / mean / count, rel=0.1)
