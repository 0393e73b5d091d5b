"""The coordinator partition of a name, by known values of java.lang.String.hashCode."""

from __future__ import annotations

import pytest

from kafkawire.codec.java_hash import (
    REMEMBERED_CHARS,
    group_partition_of,
    partition_of,
)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 3105),
        ("polygenelubricants", -(2**31)),
        ("hello world", 1794106052),
        ("my-app", -1061206400),
        ("wordcount-1", -173184855),
        ("\U0001f600", 1772899),  # two UTF-16 units
        ("a" * (REMEMBERED_CHARS + 1), None),
    ],
)
def test_the_partition_follows_javas_hash_code(name: str, code: int | None) -> None:
    if code is None:  # 97 * (31^n - 1) / 30, as Java's int
        code = 97 * ((31 ** len(name) - 1) // 30)
        code = (code + 2**31) % 2**32 - 2**31
    absolute = 0 if code == -(2**31) else abs(code)  # Utils.abs
    for count in (50, 2**31 - 1):
        assert partition_of(name, count) == absolute % count
        assert group_partition_of(name, count) == (code & 0x7FFFFFFF) % count


def test_negative_hash_of_a_transactional_id() -> None:
    assert (partition_of("wordcount-1", 50), group_partition_of("wordcount-1", 50)) == (5, 43)
