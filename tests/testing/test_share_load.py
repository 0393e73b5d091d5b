"""The checker of share groups accepts what the protocol allows, and names each violation."""

from __future__ import annotations

import pytest

from tests.kit.share_load import Settled, check_settled

AT = (0, 7)
ACCEPT, RELEASE = True, False
STORED, REFUSED, UNANSWERED = True, False, None


@pytest.mark.parametrize(
    "settled",
    [
        [Settled(AT, ACCEPT, 1.0, 2.0, STORED)],
        [Settled(AT, RELEASE, 1.0, 2.0, STORED), Settled(AT, ACCEPT, 3.0, 4.0, STORED)],
        [Settled(AT, ACCEPT, 1.0, 2.0, UNANSWERED)],
        [Settled(AT, ACCEPT, 1.0, 2.0, UNANSWERED), Settled(AT, ACCEPT, 3.0, 4.0, STORED)],
        [Settled(AT, ACCEPT, 1.0, 5.0, REFUSED), Settled(AT, ACCEPT, 2.0, 3.0, STORED)],
    ],
    ids=["accepted", "released", "unanswered", "again after no answer", "lock ended"],
)
def test_what_is_allowed_is_not_reported(settled: list[Settled]) -> None:
    assert check_settled({AT}, settled) == []


@pytest.mark.parametrize(
    ("settled", "text"),
    [
        ([], "not accepted"),
        ([Settled(AT, RELEASE, 1.0, 2.0, STORED)], "not accepted"),
        ([Settled(AT, ACCEPT, 1.0, 2.0, REFUSED)], "not accepted"),
        (
            [Settled(AT, ACCEPT, 1.0, 2.0, STORED), Settled(AT, RELEASE, 2.5, 3.0, REFUSED)],
            "delivered after",
        ),
        (
            [Settled(AT, ACCEPT, 1.0, 2.0, STORED), Settled((0, 8), ACCEPT, 1.0, 2.0, STORED)],
            "not acknowledged",
        ),
    ],
)
def test_each_violation_is_reported(settled: list[Settled], text: str) -> None:
    (found,) = check_settled({AT}, settled)
    assert text in found
