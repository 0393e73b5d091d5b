"""Values of columns for JSON: a column at a time gives what a value at a time gives."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.cli.shared.query_rows import plain
from kafkawire.cli.sql.output import json_text, plain_values

MOMENTS = st.datetimes(timezones=st.just(UTC))
KINDS: tuple[tuple[pa.DataType, st.SearchStrategy[Any]], ...] = (
    (pa.binary(), st.binary(max_size=4)),
    (pa.binary(), st.text(max_size=4).map(str.encode)),
    (pa.string(), st.text(max_size=4)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), MOMENTS),
    (pa.timestamp("us", "UTC"), MOMENTS.map(lambda at: at.replace(microsecond=123_000))),
    (pa.timestamp("us"), st.datetimes()),
    (pa.list_(pa.binary()), st.lists(st.binary(max_size=2), max_size=2)),
)


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(
    st.just(kind[0]), st.lists(st.none() | kind[1], max_size=5)
)))  # fmt: skip
def test_columns_give_the_values_of_rows(drawn: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = drawn
    found = plain_values(pa.array(values, kind))
    assert list(found) == [plain(value) for value in values]
    for value in found:
        assert json.loads(json_text(value)) == value
        assert json_text(value) == json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("year", [1, 1969, 1970, 9999])
def test_times_at_the_bounds(year: int) -> None:
    for at in (datetime(year, 1, 1, tzinfo=UTC), datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)):
        for moment in (at, at + timedelta(milliseconds=7), at + timedelta(microseconds=7)):
            assert list(plain_values(pa.array([moment, None], pa.timestamp("us", "UTC")))) == [
                plain(moment), None,
            ]  # fmt: skip


def test_whole_decimals_are_numbers() -> None:
    column = pa.array([Decimal("10.0"), Decimal("1.5"), None])
    assert list(plain_values(column)) == [10, "1.5", None]
    assert list(plain_values(pa.array([date(2026, 1, 2)]))) == ["2026-01-02"]
