"""Due times, targets and cancellations in the headers of records.

Covers: kafkawire.schedules.headers.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.batches import Record
from kafkawire.schedules.headers import (
    CANCELS,
    DELIVER_AFTER,
    DELIVER_AT,
    DELIVER_EVERY,
    LAST_MS,
    CancelKey,
    CancelOffset,
    Delivery,
    Instruction,
    Interval,
    Invalid,
    instruction_of,
)


def asked(
    *headers: tuple[str, bytes | None],
    timestamp: int = 5_000,
    value: bytes | None = b"v",
    compacted: bool = False,
    target_header: str = "",
) -> Instruction:
    record = Record(7, timestamp, b"k", value, headers)
    return instruction_of(record, compacted=compacted, target_header=target_header)


def test_timestamp_is_the_due_time() -> None:
    assert asked() == Delivery(5_000, None, None)
    assert asked(timestamp=-1) == Delivery(0, None, None)


def test_headers_give_the_due_time() -> None:
    assert asked((DELIVER_AT, b" 1970-01-01T00:00:09Z ")) == Delivery(9_000, None, None)
    assert asked((DELIVER_AFTER, b"PT2S")) == Delivery(7_000, None, None)
    assert asked((DELIVER_AT, b"1"), (DELIVER_AT, b"2")) == Delivery(2, None, None)


def test_repetition() -> None:
    found = asked((DELIVER_EVERY, b"PT10S"))
    assert found == Delivery(5_000, Interval(10_000), None)
    assert isinstance(found, Delivery)
    assert (found.next_after(4_999), found.next_after(5_000)) == (5_000, 15_000)
    cron = asked((DELIVER_EVERY, b"* * * * *"))
    assert isinstance(cron, Delivery)
    assert cron.due_ms == 60_000, "the first time that matches"


def test_record_without_repetition_is_due_once() -> None:
    once = Delivery(5_000, None, None)
    assert (once.next_after(4_999), once.next_after(5_000)) == (5_000, None)


def test_target_header() -> None:
    assert asked(("to", b"orders"), target_header="to") == Delivery(5_000, None, "orders")
    missing = asked(target_header="to")
    assert isinstance(missing, Invalid)
    assert "header to" in missing.reason


def test_cancellations() -> None:
    assert asked(value=None, compacted=True) == CancelKey()
    assert asked((DELIVER_AT, b"1"), value=None, compacted=True) == CancelKey()
    assert asked(value=None) == Delivery(5_000, None, None), "a null value is delivered"
    assert asked((CANCELS, b"12"), value=None) == CancelOffset(12)
    assert asked((CANCELS, b"12"), value=None, compacted=True) == CancelOffset(12)


@pytest.mark.parametrize(
    "headers",
    [
        ((DELIVER_AT, b"soon"),),
        ((DELIVER_AT, None),),
        ((DELIVER_AT, b"\xff"),),
        ((DELIVER_AT, b""),),
        ((DELIVER_AT, b"1"), (DELIVER_AFTER, b"1")),
        ((DELIVER_AFTER, b"P1Y"),),
        ((DELIVER_AFTER, str(LAST_MS).encode()),),
        ((DELIVER_EVERY, b"500"),),
        ((DELIVER_EVERY, b"0 0 * * *"), (DELIVER_AT, str(LAST_MS).encode())),
        ((CANCELS, b"-1"),),
        ((CANCELS, b"9999999999999999999"),),
        ((CANCELS, b"x"),),
    ],
)
def test_invalid_headers(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    found = asked(*headers)
    assert isinstance(found, Invalid)
    assert found.reason
    assert len(found.reason) < 300


def test_timestamp_after_the_year_9999() -> None:
    assert isinstance(asked(timestamp=LAST_MS + 1), Invalid)
    assert asked(timestamp=LAST_MS) == Delivery(LAST_MS, None, None)
