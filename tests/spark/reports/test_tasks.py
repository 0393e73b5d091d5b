"""The results of the reports' tasks, compared with plain Python over the same records; without
Spark.

Covers: kafkawire_spark.reports.keys, kafkawire_spark.reports.runs.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import Source, Task
from kafkawire.reading.plan import plan_tasks
from kafkawire_spark.measures import DAY_MS, LATE_EDGES_MS, WIDTHS_MS, gini
from kafkawire_spark.reports import ends, late, sizes, tally
from kafkawire_spark.reports.buckets import ROOM, Buckets, window
from kafkawire_spark.reports.jobs import prepare_scope
from kafkawire_spark.reports.keys import Keys, thin_curve
from kafkawire_spark.reports.plots import common as plots
from kafkawire_spark.reports.scope import ReportScope, Request, Work
from tests.kit.spark.reports import T0, Record, tier

TASK_BYTES = 900
NO_TIME, FUTURE = -1 - T0, 400 * 365 * DAY_MS


def made_up(chance: random.Random) -> list[Record]:
    """Three topics of uneven partitions; timestamps out of order, missing, and far in the past."""
    records: list[Record] = []
    for topic, partition, count in [("a", 0, 300), ("a", 2, 90), ("b", 0, 40), ("c", 1, 1)]:
        for offset in range(count):
            ms = 50 * offset - (chance.randrange(3000) if chance.random() < 0.3 else 0)
            ms = chance.choices([ms, NO_TIME, FUTURE], [50, 1, 1])[0]
            key = chance.choice([None, b"", b"hot", b"k%d" % chance.randrange(40), b"\xff" * 300])
            value = chance.choice([None, b"", b"v" * chance.randrange(60)])
            records.append((topic, partition, offset, ms, key, value))
    return records


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return made_up(random.Random(5))


@pytest.fixture(scope="module")
def scope(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReportScope]:
    url = str(tmp_path_factory.mktemp("reports") / "tier")
    tier(url, records, partitions=3)
    made = prepare_scope("sizes", Request(Source(url)))
    yield made
    made.close()


def done(
    scope: ReportScope, work: Work, tasks: Sequence[Task] | None = None
) -> list[dict[str, Any]]:
    """The results of all tasks, the last one first."""
    tasks = plan_tasks(scope.parts, task_bytes=TASK_BYTES) if tasks is None else tasks
    assert len(tasks) > 10 or len(tasks) == 1
    found: list[dict[str, Any]] = []
    for task in reversed(tasks):
        for rows in work(scope.catalog.source, scope.catalog.places, task):
            assert isinstance(rows, list)
            found += rows
    return found


def test_sizes_and_keys_match_plain_counting(scope: ReportScope, records: list[Record]) -> None:
    found = sorted(done(scope, tally.tally), key=lambda row: row["topic"])
    topics = {row["topic"]: row for row in tally.merge_tallies(iter(found))}
    assert sorted(topics) == ["a", "b", "c"]
    for topic, row in topics.items():
        own = [record for record in records if record[0] == topic]
        of = {partition["partition"]: partition for partition in row["partitions"]}
        assert sum(part["records"] for part in of.values()) == len(own)
        for number, part in of.items():
            rows = [record for record in own if record[1] == number]
            times = [T0 + record[3] for record in rows if T0 + record[3] >= 0]
            assert part["records"] == len(rows)
            assert part["bytes"] == sum(map(size, rows))
            assert part["timeless"] == len(rows) - len(times)
            assert (part["first_ms"], part["last_ms"]) == (min(times), max(times))
        keys = Counter(record[4] for record in own)
        assert row["keyless"] == keys.pop(None, 0)
        assert row["keys"] == len(keys)
        assert row["gini"] == pytest.approx(gini((count, 1) for count in keys.values()))
        curve = Counter(keys.values())
        assert dict(zip(row["curve_records"], row["curve_keys"], strict=True)) == curve
        for top in row["top"]:
            (key,) = [key for key in keys if key is not None and key[:128] == top["text"]]
            assert (top["length"], top["records"]) == (len(key), keys[key])
            assert top["bytes"] == sum(size(record) for record in own if record[4] == key)
            assert top["records_off"] == top["bytes_off"] == 0


def size(record: Record) -> int:
    return len(record[4] or b"") + len(record[5] or b"")


@pytest.mark.slow
def test_report_lists_unusual_records_and_plots_others(
    scope: ReportScope, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "DPI", 40)
    found = list(
        tally.merge_tallies(iter(sorted(done(scope, tally.tally), key=lambda r: r["topic"])))
    )
    report = sizes.sizes_report(found, scope)
    (rates,) = [table.data.to_pylist() for table in report.tables if table.name == "sizes-rates"]
    timeless = sum(record[3] == NO_TIME for record in records)
    assert sum(row["records"] for row in rates) == len(records) - timeless
    said = " ".join(report.sentences)
    assert f"{timeless} records have no timestamp" in said
    assert "dated in the future, the last in" in said
    assert report.plot[:4] == b"\x89PNG"


def test_records_without_timestamp_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "DPI", 40)
    url = str(tmp_path / "tier")
    tier(url, [("a", 0, offset, NO_TIME, None, b"v") for offset in range(3)])
    scope = prepare_scope("sizes", Request(Source(url)))
    tasks = plan_tasks(scope.parts)
    report = sizes.sizes_report(
        list(tally.merge_tallies(iter(done(scope, tally.tally, tasks)))), scope
    )
    assert report.write(open_place(str(tmp_path / "out")))[-1] == "sizes.png"
    assert [table.name for table in report.tables] == ["sizes", "sizes-partitions"]
    rows = late.by_partition(done(scope, late.counter(T0, {}), tasks))
    assert (rows[0]["records"], rows[0]["timeless"]) == (0, 3)
    scope.close()


def test_lateness_matches_plain_counting(scope: ReportScope, records: list[Record]) -> None:
    until = T0 + 10 * DAY_MS
    found = done(scope, late.counter(until, {}))
    again = late.to_read_again(found)
    assert again, "some ranges begin with late records"
    parts = scope.catalog.parts(sorted(again))
    found += done(scope, late.corrector(again, until), [Task(tuple(parts))])
    rows = {(row["topic"], row["partition"]): row for row in late.by_partition(found)}
    for place in {record[:2] for record in records}:
        newest, counts, latest, timeless, future = -1, [0] * late.CLASSES, 0, 0, 0
        for record in sorted(record for record in records if record[:2] == place):
            stamp = T0 + record[3]
            timeless += stamp < 0
            future += stamp > until
            if 0 <= stamp <= until:
                newest = max(newest, stamp)
                latest = max(latest, newest - stamp)
                counts[sum(newest - stamp > edge for edge in LATE_EDGES_MS)] += 1
        row = rows[place]
        assert (row["counts"], row["max_late_ms"]) == (counts, latest)
        assert (row["timeless"], row["future"]) == (timeless, future)


def test_range_that_stays_late_is_read_whole(
    scope: ReportScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late, "SOON", 3)
    until = T0 + 10 * DAY_MS
    (part,) = [part for part in scope.parts if part.range[:2] == ("b", 0)]
    source, places = scope.catalog.source, scope.catalog.places
    more = late.correction(source, places, part, T0 + 5 * DAY_MS, until)
    (alone,) = done(scope, late.counter(until, {}), [Task((part,))])
    total = np.add(more["counts"], alone["counts"]).tolist()
    counted = sum(alone["counts"])
    assert total[LATE_EDGES_MS.index(7 * DAY_MS)] == counted == sum(total)  # 1 to 7 days late
    none = late.correction(source, places, part, -1, until)
    assert not any(none["counts"])


def test_ends_match_list_offsets(scope: ReportScope, records: list[Record]) -> None:
    first, until = T0 + 2_000, T0 + 10 * DAY_MS
    found = sorted(done(scope, ends.finder(first, until)), key=lambda row: row["topic"])
    rows = {(row["topic"], row["partition"]): row for row in ends.merge_ends(iter(found))}
    for place, row in rows.items():
        wanted: dict[int, int] = {}
        times = []
        for record in sorted(record for record in records if record[:2] == place):
            stamp = T0 + record[3]
            if first <= stamp <= until:
                times.append(stamp)
                wanted.setdefault(stamp - stamp % WIDTHS_MS[row["level"]], record[2])
        assert dict(zip(row["starts"], row["firsts"], strict=True)) == wanted
        assert row["newest"] == max(times, default=-1)
    assert ends.table(list(rows.values())).num_rows == sum(len(r["starts"]) for r in rows.values())


@given(st.lists(st.lists(st.integers(0, 10**13), max_size=30), max_size=6), st.integers(1, 40))
def test_buckets_are_independent_of_merge_order(stamps: list[list[int]], room: int) -> None:
    parts, whole = [Buckets(room=room) for _ in stamps], Buckets(room=room)
    for part, times in zip(parts, stamps, strict=True):
        part.add(np.array(times, np.int64), np.array(times, np.int64) % 97)
        whole.merge(part.level, part.starts.tolist(), part.records, part.values)
    width = whole.width
    counts, sums = Counter[int](), defaultdict[int, int](int)
    for stamp in (stamp for times in stamps for stamp in times):
        counts[stamp - stamp % width] += 1
        sums[stamp - stamp % width] += stamp % 97
    assert whole.starts.tolist() == sorted(counts)
    assert whole.records.tolist() == [counts[start] for start in sorted(counts)]
    assert whole.values.tolist() == [sums[start] for start in sorted(counts)]
    assert len(whole.starts) <= room or width == WIDTHS_MS[-1]


def test_widths_are_multiples_of_each_other() -> None:
    assert all(b % a == 0 for a, b in pairwise(WIDTHS_MS))


def test_outliers_do_not_set_the_scale() -> None:
    times = np.arange(T0, T0 + 100_000, 50, dtype=np.int64)
    buckets = Buckets()
    buckets.add(times, times)
    level, first, end = window(buckets)
    assert (first, end, WIDTHS_MS[level]) == (T0, T0 + 100_000, 1000)
    buckets.add(np.array([0, T0 + FUTURE]), np.array([1, 1]))
    assert window(buckets) == (level, first, end)
    assert len(buckets.starts) <= ROOM
    assert window(Buckets()) == (0, 0, 0)


def keys_of(words: Sequence[bytes], room: int) -> Keys:
    """Counted in tasks of 500 records, and merged."""
    whole = Keys(room)
    for start in range(0, len(words), 500):
        part = Keys(room)
        for at in range(start, min(start + 500, len(words)), 100):
            some = words[at : min(at + 100, start + 500)]
            part.add(pa.array(some, pa.binary()), np.array([len(w) for w in some], np.int64))
        whole.merge(part.pack())
    return whole


@settings(max_examples=30)
@given(st.integers(0, 1 << 32), st.sampled_from([0.02, 0.3, 1.0]))
def test_memory_of_many_keys_is_bounded(seed: int, skew: float) -> None:
    chance = random.Random(seed)
    words = [b"%d" % min(int(chance.paretovariate(skew)), 10**9) for _ in range(2500)]
    counted, found = Counter(words), keys_of(words, 256)
    sizes = {word: len(word) * count for word, count in counted.items()}
    records, keys = found.curve()
    if len(counted) <= 256:
        assert (found.level, found.records_off) == (0, 0)
        assert dict(zip(records.tolist(), keys.tolist(), strict=True)) == Counter(counted.values())
    tops = found.top(20)
    for top in tops:
        assert top.records <= counted[top.text] <= top.records + top.records_off
        assert top.bytes <= sizes[top.text] <= top.bytes + top.bytes_off
    shown = {top.text for top in tops}
    for word, count in counted.most_common(5):
        assert word in shown or count <= max(found.records_off, counted.most_common(20)[-1][1])
    assert found.records_off * 256 <= 8 * 2 * len(words)  # each task's, and the merge's


def test_estimate_is_within_error() -> None:
    chance = random.Random(3)
    words = [b"u%d" % i for i in range(15_000)] + [b"hot"] * 3000 + [b"warm"] * 1000
    chance.shuffle(words)
    found = keys_of(words, 1024)
    records, keys = found.curve()
    assert found.level > 3
    assert sum(keys) == pytest.approx(15_002, rel=0.2)  # three standard errors of 256
    tops = {top.text: top.records for top in found.top(2)}
    assert tops[b"hot"] >= 3000 - found.records_off
    exact = gini([(1, 15_000), (3000, 1), (1000, 1)])
    assert gini(zip(records.tolist(), keys.tolist(), strict=True)) == pytest.approx(exact, abs=0.08)
    short = thin_curve(np.arange(1, 10_001), np.ones(10_000, np.int64))
    assert len(short[0]) == 2000
    assert (short[0] * short[1]).sum() == pytest.approx(10_000 * 10_001 / 2)
