"""The coordinator partition of a name, by known values of java.lang.String.hashCode."""

from __future__ import annotations

import pytest

from kafkawire.codec.java_hash import REMEMBERED_CHARS, partition_of


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 3105),
        ("polygenelubricants", -(2**31)),
        ("hello world", 1794106052),
        ("\U0001f600", 1772899),  # two UTF-16 units
        ("a" * (REMEMBERED_CHARS + 1), None),
    ],
)
def test_the_partition_follows_javas_hash_code(name: str, code: int | None) -> None:
    if code is None:  # 97 * (31^n - 1) / 30, as Java's int
        code = 97 * ((31 ** len(name) - 1) // 30)
    assert partition_of(name, 50) == (code & 0x7FFFFFFF) % 50
    assert partition_of(name, 2**31 - 1) == (code & 0x7FFFFFFF) % (2**31 - 1)
