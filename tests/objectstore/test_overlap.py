"""Detection of tiers and data folders that share files or keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.objectstore.overlap import overlap, same_place, tier_in_data


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("s3://bucket/p", "s3://bucket/p", True),
        ("s3://bucket/p", "s3://bucket/p/q", True),
        ("s3://bucket", "s3://bucket/p", True),
        ("s3://bucket/p", "s3://bucket/pq", False),
        ("s3://bucket/p", "s3://other/p", False),
        ("s3://bucket/p?endpoint=http://h:1", "s3://bucket/p?endpoint=http://h:2", False),
        ("s3://bucket/p?region=eu-west-1", "s3://bucket/p/q", True),
        ("s3://bucket/p", "/bucket/p", False),
        ("/a/tier", "/a/tier/old", True),
        ("/a/tier", "/a/tier2", False),
        ("/a/tier", "file:///a/../a/tier", True),
        ("none of these\n", "/a", False),
    ],
)
def test_nested_tiers_overlap(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is expected
    assert overlap(other, one) is expected


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    assert overlap(str(tmp_path / "link" / "old"), str(tmp_path / "data"))
    assert tier_in_data(str(tmp_path / "link" / "tier"), str(tmp_path / "data"))
    assert tier_in_data(str(tmp_path), str(tmp_path / "data"))
    assert not tier_in_data(str(tmp_path / "tier"), str(tmp_path / "data"))
    assert not tier_in_data("s3://bucket", str(tmp_path))


def test_url_options_do_not_make_another_tier() -> None:
    assert same_place("s3://bucket/p?region=eu-west-1", "s3://bucket/p?sse=AES256")
    assert not same_place("s3://bucket/p", "s3://bucket/p/q")
    assert not same_place("s3://bucket/p", "/bucket/p")
    assert same_place("/a/b", "file:///a/b?create=false")
    assert not same_place("no\n", "/a")
