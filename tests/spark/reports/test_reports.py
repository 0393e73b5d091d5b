"""The computations of the reports, without Spark: inequality, lateness, texts, plots."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.reading.model.source import ABORTED, COMPACTED, LOST, Account, PartitionRange
from kafkawire_spark.measures import (
    CELLS,
    DAY_MS,
    LATE_EDGES_MS,
    WIDTHS_MS,
    Strip,
    duration,
    gini,
    largest_share,
    lateness_labels,
    lorenz,
    number,
    quantile_class,
    size,
    text_of,
    width_for,
)
from kafkawire_spark.reports import ends
from kafkawire_spark.reports import late as latetables
from kafkawire_spark.reports.continuity import compare_with_account
from kafkawire_spark.reports.lag import series
from kafkawire_spark.reports.late import CLASSES, Lateness, by_partition, to_read_again
from kafkawire_spark.reports.plots import common as plots
from kafkawire_spark.reports.plots import continuity as plot_continuity
from kafkawire_spark.reports.plots import lag as plot_lag
from kafkawire_spark.reports.plots import late as plot_late
from kafkawire_spark.reports.plots import sizes as plot_sizes
from kafkawire_spark.reports.report import Report, csv, table_of
from kafkawire_spark.reports.sizes import by_topic


def test_gini_of_small_examples() -> None:
    assert gini([]) == 0
    assert gini([(0, 5)]) == 0
    assert gini([(7, 4)]) == pytest.approx(0)
    assert gini([(1, 1), (2, 1), (3, 1)]) == pytest.approx(2 / 9)
    assert gini([(0, 99), (5, 1)]) == pytest.approx(0.99)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_gini_equals_half_relative_mean_difference(values: list[int]) -> None:
    mean = sum(values) / len(values)
    wanted = 0.0
    if mean:
        differences = sum(abs(a - b) for a in values for b in values) / len(values) ** 2
        wanted = differences / (2 * mean)
    assert gini([(value, 1) for value in values]) == pytest.approx(wanted)
    grouped = [(value, values.count(value)) for value in set(values)]
    assert gini(grouped) == pytest.approx(wanted)


def test_concentration_begins_with_the_largest() -> None:
    assert lorenz([(1, 2), (8, 1)]) == ([0, 1 / 3, 1], [0, 0.8, 1])
    assert largest_share([1, 1, 8]) == 0.8
    assert largest_share([]) == 0


def test_bucket_widths_cover_any_range() -> None:
    assert width_for(0) == WIDTHS_MS[0]
    assert width_for(3_600_000, 60) == 60_000
    assert width_for(3_600_001, 60) == 300_000
    assert width_for(10**15) == WIDTHS_MS[-1]


def test_classes_of_lateness_have_labels() -> None:
    labels = lateness_labels()
    assert len(labels) == len(LATE_EDGES_MS) + 1
    assert labels[0] == "in order"
    assert labels[1] == "to 10 ms"
    assert labels[-1] == "over 7 d"
    assert quantile_class([90, 5, 5], 0.9) == 0
    assert quantile_class([90, 5, 5], 0.99) == 2
    assert quantile_class([0, 0], 0.99) == 0


def test_figures_are_formatted() -> None:
    assert [duration(ms) for ms in (5, 1500, 60_000, 2 * DAY_MS)] == [
        "5 ms",
        "1.5 s",
        "1 min",
        "2 d",
    ]
    assert [size(n) for n in (0, 1536, 3 << 30, 5 << 50)] == [
        "0 B",
        "1.5 KiB",
        "3.0 GiB",
        "5120.0 TiB",
    ]
    assert [number(n) for n in (950, 12_340, 4_560_000)] == ["950", "12.3k", "4.56M"]
    assert text_of(b"", 0) == "(empty)"
    assert text_of(b"k\xc3\xa9y", 4) == "kéy"
    assert text_of("é".encode() * 30, 60) == "é" * 30
    assert text_of(b"\xff\x00", 2) == "0xff00"
    assert text_of(b"a\nb", 3) == "0x610a62"
    assert text_of(b"x" * 128, 1000) == "x" * 48 + "…"
    assert text_of(b"\xff" * 128, 1000) == "0x" + "ff" * 48 + "…"


RANGE = PartitionRange("orders", 0, 100, 200)


def strip_of(offsets: list[int], at_a_time: int = 7) -> Strip:
    strip = Strip(RANGE, 0, 400)
    for start in range(0, len(offsets), at_a_time):
        strip.add(np.array(offsets[start : start + at_a_time], np.int64))
    return strip


def test_strip_counts_offsets() -> None:
    strip = strip_of(list(range(100, 200)))
    assert (strip.first, strip.last, strip.records) == (100, 199, 100)
    assert (strip.duplicates, strip.outside) == (0, 0)
    assert strip.cells.sum() == 100
    assert list(strip.cells.nonzero()[0]) == list(range(CELLS // 4, CELLS // 2))


@given(
    st.lists(st.integers(90, 210), max_size=60),
    st.integers(1, 20),
)
def test_strip_finds_repeated_and_stray_offsets(offsets: list[int], at_a_time: int) -> None:
    strip = strip_of(offsets, at_a_time)
    highest, records, duplicates = -1, 0, 0
    inside = [offset for offset in offsets if 100 <= offset < 200]
    for offset in inside:
        if offset > highest:
            records, highest = records + 1, offset
        else:
            duplicates += 1
    assert (strip.records, strip.duplicates) == (records, duplicates)
    assert strip.outside == len(offsets) - len(inside)


def test_range_is_compared_with_its_account() -> None:
    account = Account(RANGE, rows=90)
    account.add_gap(120, 125, COMPACTED)
    account.add_gap(150, 155, LOST)
    there = [*range(100, 120), *range(125, 150), *range(155, 200)]
    row = compare_with_account(strip_of(there), account)
    assert (row["records"], row["compacted"], row["lost"], row["unexplained"]) == (90, 5, 5, 0)
    assert row["gaps"][1] == {"base": 150, "end": 155, "reason": LOST}
    assert (
        compare_with_account(strip_of(there[:-3]), account)["unexplained"] == 3
    )  # they were counted, but no row was received
    assert compare_with_account(strip_of([*there, 130]), account)["duplicates"] == 1
    nothing = compare_with_account(strip_of([]), Account(RANGE, counts={ABORTED: 100}))
    assert (nothing["first"], nothing["records"], nothing["unexplained"]) == (None, 0, 0)


UNTIL = 80_000


def lateness_of(stamps: list[int], newest: int = -1, at_a_time: int = 5) -> Lateness:
    lateness = Lateness(newest, UNTIL, [(3, 5_000), (len(stamps), 90_000)])
    for start in range(0, len(stamps), at_a_time):
        some = np.array(stamps[start : start + at_a_time], np.int64)
        offsets = np.arange(start, start + len(some), dtype=np.int64)
        lateness.add(offsets, some, np.zeros(len(some), np.int32))
    return lateness


@given(st.lists(st.integers(-1, 100_000), max_size=40), st.integers(-1, 80_000))
def test_lateness_is_relative_to_newest_earlier_record(stamps: list[int], newest: int) -> None:
    lateness = lateness_of(stamps, newest)
    counts, arrived = [0] * CLASSES, [0] * CLASSES
    highest, latest = newest, 0
    for offset, stamp in enumerate(stamps):
        if not 0 <= stamp <= UNTIL:
            continue
        highest = max(highest, stamp)
        latest = max(latest, highest - stamp)
        counts[sum(highest - stamp > edge for edge in LATE_EDGES_MS)] += 1
        age = max((5_000 if offset < 3 else 90_000) - stamp, 0)
        arrived[sum(age > edge for edge in LATE_EDGES_MS)] += 1
    assert list(lateness.counts) == counts
    assert list(lateness.arrived) == arrived
    assert lateness.latest == latest
    assert lateness.newest == highest
    assert lateness.timeless == sum(stamp < 0 for stamp in stamps)
    assert lateness.future == sum(stamp > UNTIL for stamp in stamps)
    (row,) = by_partition([lateness.row(PartitionRange("t", 0, 0, 9))])
    assert (row["records"], row["late"]) == (sum(counts), sum(counts[1:]))


def test_ranges_with_older_first_records_are_read_again() -> None:
    names = ("topic", "partition", "base", "end", "first", "newest")
    rows = [("t", 0, 20, 30, 8, 9), ("t", 0, 0, 10, 1, 9), ("t", 0, 10, 20, -1, -1),
            ("t", 0, 30, 40, 9, 12), ("t", 0, 40, 50, 11, 12), ("t", 1, 0, 9, 4, 4)]  # fmt: skip
    reported = [dict(zip(names, row, strict=True)) for row in rows]
    assert to_read_again(reported) == {
        PartitionRange("t", 0, 20, 30): 9,
        PartitionRange("t", 0, 40, 50): 12,
    }


def late_rows(**more: Any) -> list[dict[str, Any]]:
    row: dict[str, Any] = {"topic": "t", "partition": 0, "latest": 0, "timeless": 0, "future": 0,
                           "append_time": 0, "counts": [0] * CLASSES}  # fmt: skip
    return by_partition([row | more])


def test_lateness_in_sentences() -> None:
    def sentences(**more: Any) -> str:
        report = Report("late")
        latetables.fill(report, late_rows(**more), known=False)
        return " ".join(report.sentences)

    orderly = [100, *[0] * (CLASSES - 1)]
    assert "0 of 100 records (0 %) are late" in sentences(counts=orderly)
    assert "99 % are in order, the latest by 5 ms, in t-0." in sentences(
        counts=[999, 1, *orderly[2:]], latest=5
    )
    assert "99 % are late by 10 ms at most" in sentences(counts=[9, 1, *orderly[2:]], latest=5)
    assert "99 % are late by over 7 d, the latest by 9 d" in sentences(
        counts=[*[0] * (CLASSES - 1), 3], latest=9 * DAY_MS
    )
    assert (
        "Dated in the future, and left out, since all that follow would be late: 2."
        in sentences(counts=orderly, future=2)
    )
    nothing = sentences(timeless=7)
    assert nothing.startswith("No record has a timestamp that says when")
    assert "Without a timestamp, and left out: 7." in nothing


def test_line_ends_where_group_has_no_offset() -> None:
    rows = [("a", 1, 5), ("a", 2, 6), ("b", 2, 0), ("b", 3, 1)]
    reported = [dict(zip(("group_id", "at", "lag"), row, strict=True)) for row in rows]
    assert series(reported) == {"a": [(1, 5), (2, 6), (3, None)], "b": [(2, 0), (3, 1)]}


def partition_row(topic: str, partition: int, records: int) -> dict[str, Any]:
    return {
        "topic": topic, "partition": partition, "records": records, "bytes": records * 10,
        "stored_bytes": records * 3, "first_ms": 1000 if records else None,
        "last_ms": 9000 if records else None, "timeless": 0,
    }  # fmt: skip


def test_topics_are_summed_with_skew() -> None:
    rows = [partition_row("t", 0, 90), partition_row("t", 1, 10), partition_row("u", 0, 0)]
    found = {"topic": "t", "keys": 41, "keyless": 40, "gini": 0.31234, "top": [{"records": 20}]}
    t, u = by_topic(rows, [found])
    assert (t["records"], t["largest_partition"], t["largest_share"]) == (100, 0, 0.9)
    assert (t["keys"], t["keyless"], t["largest_key_share"]) == (41, 40, 0.2)
    assert t["gini_keys"] == 0.3123
    assert (u["records"], u["keys"], u["gini_keys"], u["first_ms"]) == (0, 0, None, None)


def test_columns_keep_their_types_without_a_value() -> None:
    rows = [{"topic": None, "records": None, "share": None}]
    assert table_of(rows).schema.types == [pa.string(), pa.int64(), pa.float64()]
    assert ends.table([]).schema.types == [pa.string(), pa.int32(), pa.int64(), pa.int64()]


def test_csv_has_bytes_as_hex_and_no_lists() -> None:
    import pyarrow as pa

    data = pa.table({"n": [1, None], "key": [b"\xff", None], "many": [[1], [2]]})
    assert csv(data).decode().split() == ['"n","key"', '1,"ff"', ","]


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use plots of fewer pixels, which are drawn faster."""
    monkeypatch.setattr(plots, "DPI", 40)


def picture(png: bytes) -> Any:
    """Pixels [height, width, 4] of a PNG."""
    from matplotlib.image import imread

    return imread(io.BytesIO(png), format="png")


def has(png: bytes, colour: str) -> int:
    """The number of pixels of this colour."""
    wanted = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return int((np.abs(picture(png)[:, :, :3] - wanted).max(axis=2) < 0.004).sum())


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("partitions", [1, 20, 520])
def test_map_shows_problems(partitions: int) -> None:
    rows, cells = [], {}
    for number_ in range(partitions):
        row: dict[str, Any] = dict.fromkeys(("lost", "damaged", "unexplained", "duplicates"), 0)
        row |= {"topic": "orders", "partition": number_, "start": 0, "end": 1600, "records": 1600}
        rows.append(row)
        cells["orders", number_] = [10] * CELLS
    clean = plot_continuity.draw(rows, cells, {}, "")
    rows[-1] |= {"lost": 400}
    broken = plot_continuity.draw(rows, cells, {("orders", partitions - 1): [(800, 1200)]}, "")
    assert has(clean, plot_continuity.PRESENT) > 2_000
    legend = has(clean, plot_continuity.WRONG)
    assert has(broken, plot_continuity.WRONG) > legend + 5


def test_strip_of_small_partition_is_filled() -> None:
    share = plot_continuity.shares(
        3, [1 if size_ else 0 for size_ in plot_continuity.cell_sizes(3)]
    )
    assert (share == 1).all()
    assert list(np.unique(plot_continuity.shares(3, [0] * CELLS))) == [0]


@pytest.mark.usefixtures("coarse")
def test_number_of_group_lines_is_bounded() -> None:
    many = {f"g{i:02}": [(1000, i), (2000, None)] for i in range(30)}
    lines = plot_lag.fold_small_groups(many)
    assert list(lines)[:2] == ["g29", "g28"]
    assert lines["23 others, the largest"] == [(1000, 22), (2000, 0)]
    now = [
        {"group_id": "g29", "topic": "t", "partition": 0, "committed": 1, "log_end": 30, "lag": 29}
    ]
    drawn = plot_lag.draw(many, {"g29": 1500}, now, "")
    assert has(drawn, plots.COLOURS[0]) > 100


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_plots_of_few_and_many_values_are_drawn() -> None:
    counts = [90, 5, 0, 0, 0, 0, 1, 0, 0, 0, 0, 4]
    late = [
        {
            "topic": "t",
            "partition": i,
            "records": 100,
            "late": 10,
            "max_late_ms": 9,
            "counts": counts,
        }
        for i in range(60)
    ]
    assert has(plot_late.draw(late, counts, ""), plots.COLOURS[0]) > 1_000
    assert has(plot_late.draw(late[:1], None, ""), plots.COLOURS[0]) > 1_000
    rows = [partition_row(f"t{i % 12}", i, 10 + i) for i in range(60)]
    rates = [
        {"topic": f"t{i % 12}", "bucket": 1000 * i, "records": 5, "bytes": 1} for i in range(60)
    ]
    keys = [{"topic": "t1", "key": "$k", "records": 5, "bytes": 1, "share": 0.5}]
    span = plot_sizes.TimeSpan(0, 60_000, 1000)
    drawn = plot_sizes.draw(rows, rates, {"t1": [(1, 4), (5, 1)]}, keys, span, "")
    assert has(drawn, plots.COLOURS[0]) > 1_000
    assert has(plot_sizes.draw(rows[:1], rates[:1], {}, [], span, ""), plots.COLOURS[0]) > 1_000
    far = [*rates, {"topic": "t1", "bucket": 10**14, "records": 1, "bytes": 1}]
    assert plot_sizes.draw(rows, far, {}, [], span, "") != drawn  # and no steps until then
