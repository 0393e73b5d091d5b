"""Filters that Spark pushes down: applied completely, used for pruning only, or returned."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from kafkawire.reading.model.columns import DEFAULT, NATIVE
from kafkawire.reading.model.source import PartitionRange
from kafkawire.reading.pushdown import Pruning

KINDS = {column.name: column.kind for column in (*DEFAULT.fields(), *NATIVE.fields())}
ALL = [
    PartitionRange("orders", 0, 0, 100),
    PartitionRange("orders", 1, 50, 60),
    PartitionRange("bills", 0, 0, 10),
]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def times_of(wanted: Sequence[tuple[str, int, int]]) -> list[int | None]:
    """A timestamp of offset * 10 for every offset."""
    return [-(-ms // 10) if ms < 10_000 else None for _, _, ms in wanted]


def pruned(*filters: spark.Filter) -> tuple[list[PartitionRange], list[spark.Filter]]:
    pruning = Pruning()
    rest = pruning.push(filters, KINDS)
    pruning = pickle.loads(pickle.dumps(pruning))  # as it is sent to the tasks with its reader
    return pruning.prune_ranges(ALL, times_of), rest


ORDERS_0, ORDERS_1, BILLS = ALL


def orders(**bounds: Any) -> list[PartitionRange]:
    return [ORDERS_0._replace(**bounds), ORDERS_1._replace(**bounds)]


USED_UP = [
    (spark.EqualTo(("topic",), "orders"), [ORDERS_0, ORDERS_1]),
    (spark.EqualTo(("_topic",), "nothing"), []),
    (spark.Not(spark.EqualTo(("topic",), "orders")), [BILLS]),
    (spark.In(("topic",), ("bills", "x")), [BILLS]),
    (spark.StringStartsWith(("topic",), "or"), [ORDERS_0, ORDERS_1]),
    (spark.StringContains(("topic",), "ill"), [BILLS]),
    (spark.Not(spark.StringEndsWith(("topic",), "s")), []),
    (spark.GreaterThan(("partition",), 0), [ORDERS_1]),
    (spark.Not(spark.In(("_partition",), (0,))), [ORDERS_1]),
    (spark.EqualTo(("offset",), 55), orders(base=55, end=56)),
    (spark.GreaterThan(("offset",), 57), orders(base=58)),
    (spark.GreaterThanOrEqual(("_offset",), 99), [ORDERS_0._replace(base=99)]),
    (spark.LessThan(("offset",), 1), [ORDERS_0._replace(end=1), BILLS._replace(end=1)]),
    (spark.LessThanOrEqual(("offset",), -1), []),
    (spark.IsNotNull(("offset",)), ALL),
]  # fmt: skip


@pytest.mark.parametrize(("filter_", "left"), USED_UP)
def test_filters_decided_by_planning_are_consumed(
    filter_: spark.Filter, left: list[PartitionRange]
) -> None:
    assert pruned(filter_) == (left, [])


HANDED_BACK = [
    (spark.EqualTo(("key",), b"x"), ALL),
    (spark.IsNotNull(("key",)), ALL),
    (spark.IsNull(("offset",)), ALL),
    (spark.EqualTo(("headers", "key"), "x"), ALL),
    (spark.Not(spark.EqualTo(("offset",), 5)), ALL),
    (spark.Not(spark.In(("topic",), ("orders", None))), ALL),
    (spark.In(("topic",), ()), ALL),
    (spark.EqualTo(("partition",), 0.5), ALL),
    (spark.In(("offset",), (57, 52)), orders(base=52, end=58)),
    (spark.GreaterThanOrEqual(("timestamp",), at(551)), orders(base=56)),
    (
        spark.EqualTo(("timestamp",), at(50)),
        [ORDERS_0._replace(base=5), ORDERS_1, BILLS._replace(base=5)],
    ),
    (spark.GreaterThan(("timestamp",), at(20_000)), []),
    (spark.GreaterThan(("timestamp",), at(-5)), ALL),
    (spark.LessThan(("timestamp",), at(0)), ALL),
    (spark.Not(spark.GreaterThan(("timestamp",), at(500))), ALL),
]  # fmt: skip


@pytest.mark.parametrize(("filter_", "left"), HANDED_BACK)
def test_other_filters_are_returned_to_spark(
    filter_: spark.Filter, left: list[PartitionRange]
) -> None:
    ranges, rest = pruned(filter_)
    assert ranges == left
    assert len(rest) == 1
    assert rest[0] is filter_  # Spark knows them by identity


def test_several_filters_are_combined() -> None:
    ranges, rest = pruned(
        spark.EqualTo(("topic",), "orders"),
        spark.GreaterThanOrEqual(("offset",), 52),
        spark.LessThan(("offset",), 55),
        spark.EqualTo(("value",), b"x"),
        spark.EqualTo(("partition",), 1),
    )
    assert ranges == [PartitionRange("orders", 1, 52, 55)]
    assert rest == [spark.EqualTo(("value",), b"x")]


COMPARISONS = st.sampled_from(
    [spark.EqualTo, spark.GreaterThan, spark.GreaterThanOrEqual, spark.LessThan,
     spark.LessThanOrEqual]
)  # fmt: skip


@given(st.lists(st.tuples(COMPARISONS, st.integers(-5, 105)), max_size=4))
def test_offset_bounds_select_exactly_matching_offsets(
    bounds: list[tuple[type[spark.Filter], int]],
) -> None:
    ranges, rest = pruned(*(kind(("offset",), value) for kind, value in bounds))  # type: ignore[call-arg]
    holds = {
        spark.EqualTo: int.__eq__, spark.GreaterThan: int.__gt__, spark.LessThan: int.__lt__,
        spark.GreaterThanOrEqual: int.__ge__, spark.LessThanOrEqual: int.__le__,
    }  # fmt: skip
    wanted = {
        (whole.topic, whole.partition, offset)
        for whole in ALL
        for offset in range(whole.base, whole.end)
        if all(holds[kind](offset, value) for kind, value in bounds)
    }
    left = {
        (each.topic, each.partition, offset)
        for each in ranges
        for offset in range(each.base, each.end)
    }
    assert (left, rest) == (wanted, [])


def keys_of(*filters: spark.Filter) -> set[bytes] | None:
    pruning = Pruning()
    assert pruning.push(filters, KINDS) == list(filters)  # Spark checks them, too
    return None if pruning.keys is None else set(pruning.keys)


def test_keys_are_those_of_all_filters() -> None:
    one, two = spark.EqualTo(("key",), b"a"), spark.In(("_key",), (b"a", b"b"))
    assert keys_of(one) == {b"a"}
    assert keys_of(spark.EqualNullSafe(("key",), bytearray(b"a"))) == {b"a"}
    assert keys_of(two) == {b"a", b"b"}
    assert keys_of(two, one) == {b"a"}
    assert keys_of(one, spark.EqualTo(("key",), b"c")) == set()


@pytest.mark.parametrize(
    "filter_",
    [
        spark.Not(spark.EqualTo(("key",), b"a")),
        spark.In(("key",), (b"a", None)),
        spark.EqualNullSafe(("key",), None),
        spark.GreaterThan(("key",), b"a"),
        spark.EqualTo(("value",), b"a"),
        spark.EqualTo(("headers", "key"), "a"),
    ],
)
def test_other_filters_do_not_choose_keys(filter_: spark.Filter) -> None:
    assert keys_of(filter_) is None
