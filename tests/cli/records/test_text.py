"""Records as JSON lines: what is written is read again, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.cli.records.text import MAX_HEADERS, RecordError, as_json, record_of
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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"key": "k"}', 'has no "value"'),
        ('{"value": {"base64": "x"}}', "its value is not valid base64"),
        ('{"value": "\\ud800"}', "its value is not valid Unicode"),
        ('{"value": "v", "partition": -1}', "whole number from 0 to"),
        ('{"value": "v", "partition": true}', "whole number from 0 to"),
        ('{"value": "v", "timestamp": 1e3}', "whole number from -9223372036854775807 to"),
        ('{"value": "v", "timestamp": 9223372036854775808}', "whole number from -92"),
        ('{"value": "v", "headers": [["a"]]}', '"headers" must be a list'),
        ('{"value": "v", "headers": "ab"}', '"headers" must be a list'),
        ('{"value": "v", "headers": [["\\udfff", "x"]]}', "its header is not valid Unicode"),
    ],
)
def test_wrong_lines(line: str, said: str) -> None:
    with pytest.raises(RecordError, match=said.replace("(", r"\(")):
        record_of(line)


def test_number_of_headers_is_bounded() -> None:
    line = json.dumps({"value": "v", "headers": [["h", "v"]] * (MAX_HEADERS + 1)})
    with pytest.raises(RecordError, match="at most 10000"):
        record_of(line)
