"""Bytes after a JSON value are counted, in bytes of any kind."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire_spark.pipeline.values.json import trailing_bytes

TEXTS = st.text(alphabet="{}[]\"'\\ a,", max_size=6)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def found(*payloads: bytes | None) -> dict[int, int]:
    return trailing_bytes(pa.array(payloads, pa.binary()))


@given(st.dictionaries(TEXTS, DOCUMENTS, max_size=3), TEXTS, st.sampled_from(["", " ", "\r\n\t"]))
def test_bytes_after_the_value_are_counted(
    value: dict[str, object], after: str, space: str
) -> None:
    text = json.dumps(value) + space
    after = after.strip()
    expected = {1: len(after)} if after else {}
    assert found(None, (text + after).encode(), text.encode()) == expected


@given(st.lists(st.none() | st.binary(max_size=20), max_size=5))
def test_any_bytes_are_read_within_their_bounds(payloads: list[bytes | None]) -> None:
    for row, count in found(*payloads).items():
        assert 0 < count < len(payloads[row] or b"")


@pytest.mark.parametrize("payload", [b"", b"{", b'"', b"\\", b'{"a\\', b"{'", b"}"])
def test_no_complete_value_has_nothing_after_it(payload: bytes) -> None:
    assert found(payload) == {}


def test_slices_and_large_offsets() -> None:
    payloads = [b"{}", b"{}x", None, b"{} ", b"{}{}"]
    assert trailing_bytes(pa.array(payloads, pa.binary()).slice(1)) == {0: 1, 3: 2}
    assert trailing_bytes(pa.array(payloads, pa.large_binary())) == {1: 1, 4: 2}
    assert trailing_bytes(pa.array([], pa.binary())) == {}
