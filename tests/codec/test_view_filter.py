"""Filters of views against a slow reading of the same expressions."""

from __future__ import annotations

import contextlib
import json
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import Record, pack, payload, read_head
from kafkawire.codec.record_columns import RecordColumns
from kafkawire.codec.view_filter import (
    MAX_COMPARISONS,
    MAX_DEPTH,
    MAX_JSON_BYTES,
    Filter,
    FilterError,
    Row,
    parse_filter,
)
from kafkawire.handlers.fetch import view_reads
from kafkawire.handlers.fetch.view_reads import keep_records, make_skip
from kafkawire.log.io.slices import run_at_once

ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
Reference = Callable[[Record], bool]
TEXTS = ["", "a", "ab", "é", "it's", 'a"b', "\\", "\n"]
texts = st.sampled_from(TEXTS)
scalars = st.one_of(texts, st.integers(-3, 3), st.sampled_from([0.5, 1e3, True, False, None]))


def quote(literal: object) -> str:
    if isinstance(literal, str):
        return "'" + literal.replace("'", "''") + "'"
    return json.dumps(literal)


def header(record: Record, name: str) -> bytes | None:
    found = [value for each, value in record.headers if each == name]
    return found[-1] if found else None


def field(record: Record, path: list[str]) -> Any:
    try:
        found = json.loads((record.value or b"").decode())
    except ValueError:
        return None
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return None if isinstance(found, (dict, list)) else found


def same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) is isinstance(other, bool)


def ordered(one: Any, other: Any) -> bool:
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (one, other))
    return numbers or (isinstance(one, (str, bytes)) and type(one) is type(other))


@st.composite
def comparisons(draw: st.DrawFn) -> tuple[str, Reference]:
    kind = draw(st.sampled_from(["key", "value", "header", "field", "timestamp"]))
    convert: Callable[[Any], Any] = lambda literal: None if literal is None else literal.encode()  # noqa: E731
    literals: Any = st.one_of(texts, st.none())
    read: Callable[[Record], Any]
    if kind == "key":
        text, read = kind, lambda record: record.key
    elif kind == "value":
        text, read = kind, lambda record: record.value
    elif kind == "timestamp":
        text, read, literals = kind, lambda record: record.timestamp, st.integers(990, 1010)
        convert = lambda literal: literal  # noqa: E731
    elif kind == "header":
        name = draw(st.sampled_from(["h", "other"]))
        text, read = f"header('{name}')", lambda record: header(record, name)
    else:
        path = draw(st.sampled_from([["a"], ["b", "c"], ["b", "with space"]]))
        text = "value" + "".join(f".{x}" if x.isalpha() else f"['{x}']" for x in path)
        read, literals, convert = lambda record: field(record, path), scalars, lambda each: each
    how = draw(st.sampled_from(["==", "!=", "in", "<", "<=", ">", ">=", "startswith"]))
    if how == "in":
        some = draw(st.lists(literals, min_size=1, max_size=3))
        wanted = [convert(each) for each in some]
        text += f" in ({', '.join(map(quote, some))})"
        return text, lambda record: any(same(read(record), each) for each in wanted)
    if how == "startswith":
        if kind == "timestamp":
            how = ">="
        else:
            literals = texts
    literal = draw(literals)
    one: Any = convert(literal)
    text += f" {how} {quote(literal)}"
    if how == "==":
        return text, lambda record: same(read(record), one)
    if how == "!=":
        return text, lambda record: not same(read(record), one)
    if how == "startswith":

        def starts(record: Record) -> bool:
            found: Any = read(record)
            return type(found) is type(one) and bool(found.startswith(one))

        return text, starts
    return text, lambda record: ordered(read(record), one) and ORDERS[how](read(record), one)


def combine(children: st.SearchStrategy[tuple[str, Reference]]) -> Any:
    def both(pair: Any) -> tuple[str, Reference]:
        (one, first), (other, second) = pair
        return f"({one}) and {other}", lambda record: first(record) and second(record)

    def either(pair: Any) -> tuple[str, Reference]:
        (one, first), (other, second) = pair
        return f"({one} or {other})", lambda record: first(record) or second(record)

    def negation(one: Any) -> tuple[str, Reference]:
        return f"not ({one[0]})", lambda record: not one[1](record)

    pairs = st.tuples(children, children)
    return st.one_of(
        st.tuples(children.map(lambda each: (f"({each[0]})", each[1])), children).map(both),
        pairs.map(either), children.map(negation),
    )  # fmt: skip


# `x or y and z` binds as in Python: only parenthesized operands are generated above.
filters = st.recursive(
    comparisons().map(lambda each: (f"({each[0]})", each[1])), combine, max_leaves=5
)
values = st.one_of(
    st.none(),
    st.sampled_from([b"", b"a", b"\xff", b"{", b"[1]", b'"a"']),
    st.fixed_dictionaries(
        {}, optional={"a": scalars, "b": st.one_of(scalars, st.fixed_dictionaries(
            {}, optional={"c": scalars, "with space": scalars}))}
    ).map(lambda each: json.dumps(each).encode()),
)  # fmt: skip
keys = st.one_of(st.none(), texts.map(str.encode))
records = st.lists(
    st.tuples(
        st.integers(995, 1005), keys, values,
        st.lists(st.tuples(st.sampled_from(["h", "other", "x"]), keys), max_size=3),
    ),
    min_size=1, max_size=12,
).map(lambda rows: [Record(7 + 2 * n, *row) for n, row in enumerate(rows)])  # fmt: skip


@given(filters, records, st.sampled_from([0, 4]))
def test_a_filter_keeps_what_it_says(
    expression: tuple[str, Reference], rows: list[Record], codec: int
) -> None:
    text, reference = expression
    wanted = parse_filter(text)
    batch = bytes(pack(rows, codec=codec))
    head = read_head(batch)
    data = bytes(payload(batch, 0, head))
    kept = run_at_once(keep_records([data], head, wanted))
    expected = [record for record in rows if reference(record)]
    columns = RecordColumns(data, 0)
    columns.read(len(data), head.count)
    parts = [
        data[columns.record_start(at) : columns.stops[at]]
        for at, row in enumerate(rows)
        if row in expected
    ]
    assert (kept.records, bytes(kept.body)) == (len(expected), b"".join(parts))
    if expected:
        assert kept.newest_ms == max(record.timestamp for record in expected)
    for record, part in zip(expected, parts, strict=True):
        assert wanted.hints.keys is None or record.key in wanted.hints.keys
        assert wanted.hints.since_ms is None or record.timestamp >= wanted.hints.since_ms
        needles = wanted.hints.needles
        assert needles is None or any(
            needle in part if isinstance(needle, bytes) else needle.search(part)
            for needle in needles
        )


@given(st.data(), st.integers(1, 3))
def test_needles_are_found_wherever_they_are(data: st.DataObject, step: int) -> None:
    """Across the ends of what is searched and walked at a time."""
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=40))
    marked = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    rows = [
        Record(n, 1000, b"yes" if n in marked else b"no!", b"yes" * (size // 3))
        for n, size in enumerate(sizes)
    ]
    batch = bytes(pack(rows))
    head = read_head(batch)
    wanted = parse_filter("key == 'yes'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(view_reads, "_SEARCHED_BYTES", 16 * step)
        patch.setattr(view_reads, "_LENGTHS_AT_ONCE", step)
        kept = run_at_once(keep_records([bytes(payload(batch, 0, head))], head, wanted))
    assert kept.records == len(marked)


def test_precedence_and_times() -> None:
    text = "key == 'a' or key == 'b' and timestamp >= '1970-01-01T00:00:02' and not value == null"
    wanted = parse_filter(text)
    rows = [
        Record(0, 0, b"a", None), Record(1, 2000, b"b", b""), Record(2, 1999, b"b", b""),
        Record(3, 2000, b"b", None),
    ]  # fmt: skip
    assert [record.offset for record in rows if matches(wanted, record)] == [0, 1]
    assert wanted.hints.keys == frozenset([b"a", b"b"])
    assert parse_filter("timestamp > '2026-01-01T00:00:00+01:00'").hints.since_ms == 1767222000001


def matches(wanted: Filter, record: Record) -> bool:
    batch = bytes(pack([record]))
    columns = RecordColumns(batch, 61)
    columns.read(len(batch), 1)
    return wanted.matches(Row(columns, 0, record.timestamp, None))


def test_large_values_have_no_fields() -> None:
    wanted = parse_filter("value.a == 1")
    value = b'{"a": 1, "pad": "%s"}'
    assert matches(wanted, Record(0, 0, None, value % b""))
    assert not matches(wanted, Record(0, 0, None, value % (b"x" * MAX_JSON_BYTES)))
    deep = b'{"a": 1, "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert not matches(wanted, Record(0, 0, None, deep))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "ends at character 1"),
        ("key", "ends at character 4"),
        ("key = 'a'", "unexpected \"= 'a'\" at character 5"),
        ("key == a", "unexpected 'a' at character 8"),
        ("key == 5", "a string in single quotes or null"),
        ("key == 'a", "at character 8"),
        ("key == 'a' value", "'and', 'or' or the end"),
        ("value.a == 1 and", "ends at character 17"),
        ("header(h) == 'a'", "a string in single quotes"),
        ("value. == 1", "the name of a field"),
        ("timestamp == 'soon'", "is no time"),
        ("timestamp startswith 'a'", "no time"),
        ("__import__('os')", "unexpected '__import__'"),
        ("value.a == 1" + "0" * 5_000, "5012 characters"),
        ("(" * (MAX_DEPTH + 1) + "key == 'a'" + ")" * (MAX_DEPTH + 1), "nested more than 32"),
        ("not " * (MAX_DEPTH + 1) + "key == 'a'", "nested more than 32"),
    ],
)
def test_what_is_no_filter(text: str, why: str) -> None:
    with pytest.raises(FilterError, match=re.escape(why)):
        parse_filter(text)


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    with contextlib.suppress(FilterError):
        parse_filter(text)


def test_the_longest_filter_is_evaluated() -> None:
    text = " or ".join(["key<'a'"] * MAX_COMPARISONS)
    assert not matches(parse_filter(text), Record(0, 0, b"b", None))
    with pytest.raises(FilterError, match="more than 32 comparisons"):
        parse_filter(f"{text} or key == 'b'")
    wanted = parse_filter(f"value.a in ({', '.join(map(str, range(800)))})")
    assert matches(wanted, Record(0, 0, None, b'{"a": 799}'))


def test_the_batch_after_a_range_without_matches() -> None:
    batch = make_skip(1 << 40, 7)
    head = read_head(batch)
    assert (head.last_offset, head.leader_epoch, head.attributes) == ((1 << 40) - 1, 7, 0x20)
    assert len(batch) == head.size_bytes == 72
