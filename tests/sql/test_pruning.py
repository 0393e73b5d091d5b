"""Parts of a topic that a filter can select: nothing that it selects is left out."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.reading.model.columns import DEFAULT_HEADERS
from kafkawire.reading.model.source import PartitionRange
from kafkawire.sql.pruning import Span, TopicFilter, narrow

PARTITIONS, OFFSETS = 3, 400
SCHEMA = DEFAULT_HEADERS.arrow_schema()
ROWS = pa.table(
    {
        "topic": ["t"] * PARTITIONS * OFFSETS,
        "partition": pa.array([p for p in range(PARTITIONS) for _ in range(OFFSETS)], pa.int32()),
        "offset": pa.array(list(range(OFFSETS)) * PARTITIONS, pa.int64()),
        "timestamp": pa.array(
            [n * 1000 for n in range(OFFSETS)] * PARTITIONS, pa.timestamp("us", tz="UTC")
        ),
    }
)


def terms() -> st.SearchStrategy[pc.Expression]:
    """Comparisons as DuckDB passes them, joined by AND, OR and NOT."""
    offset, partition, time = (pc.field(name) for name in ("offset", "partition", "timestamp"))
    numbers = st.integers(-5, OFFSETS + 5)

    def among(values: list[int]) -> pc.Expression:
        return pc.if_else(offset.is_valid(), offset.isin(pa.array(values, pa.int64())), None)

    def at(number: int) -> pa.Scalar:
        return pa.scalar(number * 1000, pa.timestamp("us", tz="UTC"))

    leaves = st.one_of(
        numbers.map(lambda n: offset >= n),
        numbers.map(lambda n: offset < n),
        numbers.map(lambda n: offset == n),
        numbers.map(lambda n: offset != n),
        st.lists(numbers, min_size=1, max_size=4).map(among),
        st.integers(-1, PARTITIONS).map(lambda p: partition == pa.scalar(p, pa.int32())),
        numbers.map(lambda n: time >= at(n)),
        numbers.map(lambda n: time < at(n)),
        st.sampled_from(["t", "u"]).map(lambda name: pc.field("topic") == name),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
            st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
            inner.map(lambda one: ~one),
        ),
        max_leaves=5,
    )


@pytest.mark.slow
@given(terms())
def test_no_selected_row_is_left_out(expression: pc.Expression) -> None:
    asked = TopicFilter(SCHEMA, "t", expression)
    found = asked.find_needed(PARTITIONS, 0, OFFSETS)
    ranges = [
        PartitionRange("t", p, base, base + 50)
        for p in range(PARTITIONS)
        for base in range(0, OFFSETS, 50)
    ]
    kept = [ranges[at] for at in asked.keeps(ranges)]
    selected = ds.InMemoryDataset(ROWS).to_table(filter=expression)
    for row in selected.to_pylist():
        assert row["partition"] in found.partitions
        assert found.low <= row["offset"] < found.high
        assert row["timestamp"].timestamp() * 1000 >= found.since_ms
        assert any(
            each.partition == row["partition"] and each.base <= row["offset"] < each.end
            for each in kept
        )


def test_bounds_are_the_narrowest() -> None:
    offset, time = pc.field("offset"), pc.field("timestamp")
    high = 1 << 62
    within = TopicFilter(SCHEMA, "t", (offset >= 12_345) & (offset <= 1 << 40))
    assert within.find_needed(1, 0, high)[:3] == ([0], 12_345, (1 << 40) + 1)
    moment = pa.scalar(1_600_000_000_123_456, pa.timestamp("us", tz="UTC"))
    assert (
        TopicFilter(SCHEMA, "t", time > moment).find_needed(1, 0, 9).since_ms == 1_600_000_000_123
    )
    assert TopicFilter(SCHEMA, "t", time < moment).find_needed(1, 0, 9) == ([0], 0, 9, -1)
    assert TopicFilter(SCHEMA, "t", offset < 0).find_needed(1, 0, 9)[1:3] == (0, 0)


def test_named_columns() -> None:
    expression = (pc.field("key") == b"a") | (pc.field("partition") > 1)
    assert TopicFilter(SCHEMA, "t", expression).columns == {"key", "partition"}


@given(st.sets(st.integers(0, 10_000)), st.integers(1, 10_000))
def test_narrowed_range_has_all_and_no_more(wanted: set[int], high: int) -> None:
    inside = sorted(each for each in wanted if each < high)

    def keep(spans: Sequence[Span]) -> list[int]:
        return [n for n, (a, b) in enumerate(spans) if any(a <= each < b for each in inside)]

    low, end = narrow(keep, (0, high))
    assert (low, end) == ((inside[0], inside[-1] + 1) if inside else (0, 0))
