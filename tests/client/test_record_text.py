"""Records as JSON lines: what is written is read again, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.client.record_text import MAX_HEADERS, RecordError, as_json, record_of
from kafkawire.codec.batches import Record

data = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode())
names = st.text(max_size=10)


@given(data, data, st.lists(st.tuples(names, data), max_size=4), st.integers(-1, 2**63 - 1))
def test_round_trip(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp: int,
) -> None:
    record = Record(7, timestamp, key, value, headers)
    line = json.dumps(as_json(("t", 3), record), ensure_ascii=False)
    assert "\n" not in line
    parsed = record_of(line)
    assert (parsed.key, parsed.value, parsed.headers) == (key, value, headers)
    assert (parsed.partition, parsed.timestamp) == (3, timestamp)


def test_short_forms() -> None:
    parsed = record_of('{"key": 5, "value": {"a": [1, "é"]}, "headers": {"h": "v", "n": null}}')
    assert (parsed.key, parsed.value) == (b"5", '{"a":[1,"é"]}'.encode())
    assert parsed.headers == [("h", b"v"), ("n", None)]
    assert (parsed.partition, parsed.timestamp) == (None, None)
    assert record_of('{"value": null}').value is None


def test_deeply_nested_line() -> None:
    with pytest.raises(RecordError, match="not JSON"):
        record_of("[" * 100_000)


def test_number_of_headers_is_bounded() -> None:
    line = json.dumps({"value": "v", "headers": [["h", "v"]] * (MAX_HEADERS + 1)})
    with pytest.raises(RecordError, match="at most 10000"):
        record_of(line)
