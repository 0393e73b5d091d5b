"""Parameters of URLs, checked: numbers, texts, times and the positions of a search."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from starlette.requests import HTTPConnection, Request

from kafkawire.console.views.record_filter import FilterRefused
from kafkawire.console.views.records import (
    MAX_NEEDLE,
    MAX_PARTITIONS,
    MAX_RECORDS,
    RecordOrder,
    RecordQuery,
)

MAX_PAGE = 1_000_000
MAX_FIELDS = 50
INT32, INT64 = 2**31 - 1, 2**63 - 1
WHERE = ("newest", "oldest", "offset", "time")
_POSITION = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")
TIMES = "a time in UTC such as 2026-01-31T12:00, or @ and milliseconds since 1970"


class WrongInput(ValueError):
    """A parameter is invalid; the text is one sentence."""

    def __init__(self, name: str, value: str, allowed: str) -> None:
        super().__init__(f"{name}={value[:100]}: it must be {allowed}".rstrip("."))


def text_param(request: HTTPConnection, name: str) -> str:
    """Return a parameter, "" without it. WrongInput if it is too long."""
    text = request.query_params.get(name, "")
    # The positions of a search may be long; the URL as a whole is bounded.
    if len(text) > MAX_NEEDLE and name not in ("after", "before"):
        raise WrongInput(name, text, f"at most {MAX_NEEDLE} characters")
    return text


def number_param(request: HTTPConnection, name: str, default: int, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`. WrongInput."""
    return read_number(name, text_param(request, name) or str(default), low, high)


def page_number(request: HTTPConnection) -> int:
    """Return the number of the page of a list, from 1. WrongInput."""
    return number_param(request, "page", 1, 1, MAX_PAGE)


def choice_param(
    request: HTTPConnection, name: str, allowed: Sequence[str], default: str = ""
) -> str:
    """Return one of the texts that are allowed. WrongInput."""
    text = text_param(request, name) or default
    if text not in allowed and text != default:
        raise WrongInput(name, text, "one of " + ", ".join(allowed))
    return text


def client_of(request: HTTPConnection) -> str:
    """Return the address of a client."""
    return request.client.host if request.client is not None else ""


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that was sent; the last of several with one name. WrongInput."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise WrongInput("content-type", kind, "application/x-www-form-urlencoded")
    try:
        text = (await request.body()).decode("ascii")
        return dict(
            parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
        )
    except ValueError:
        raise WrongInput("form", "", f"at most {MAX_FIELDS} fields in UTF-8") from None


def read_number(name: str, text: str, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`. WrongInput."""
    valid = text.isascii() and text.isdigit() and len(text) <= len(str(high))
    if not valid or not low <= int(text) <= high:
        raise WrongInput(name, text, f"a whole number from {low} to {high}")
    return int(text)


def record_query(topic: str, request: HTTPConnection, most: int = MAX_RECORDS) -> RecordQuery:
    """Return what the parameters of a page of records ask for, `most` records at most. WrongInput.

    `where`: one of WHERE, with its offset or time in `at`; `after` or `before`: positions at which
    a search continues; `partition`, `limit`; `key`, `text`, `filter`, `pattern`: see compile_test.
    """
    partition = text_param(request, "partition")
    where, at = choice_param(request, "where", WHERE, "newest"), text_param(request, "at").strip()
    order = RecordOrder.BACKWARD if where == "newest" else RecordOrder.FORWARD
    positions: Mapping[int, int] = {}
    time_ms: int | None = None
    index = read_number("partition", partition, 0, INT32) if partition else None
    after, before = text_param(request, "after"), text_param(request, "before")
    if after or before:
        order = RecordOrder.FORWARD if after else RecordOrder.BACKWARD
        positions = parse_positions("after" if after else "before", after or before)
    elif where == "offset":
        if index is None:
            raise WrongInput("partition", "", "a number, if an offset is given")
        positions = {index: read_number("at", at, 0, INT64)}
    elif where == "time":
        time_ms = parse_time("at", at)
    query = RecordQuery(
        topic=topic,
        order=order,
        partition=index,
        positions=positions,
        time_ms=time_ms,
        text=text_param(request, "text"),
        key=text_param(request, "key") or None,
        limit=number_param(request, "limit", 50, 1, most),
        filter=text_param(request, "filter").strip(),
        pattern=text_param(request, "pattern"),
    )
    try:
        query.test()
    except FilterRefused as refused:
        allowed = f"a valid {refused.name}: {refused}"
        raise WrongInput(refused.name, text_param(request, refused.name), allowed) from None
    return query


def parse_positions(name: str, text: str) -> dict[int, int]:
    """Parse `0:123,1:456` into offsets by partition. WrongInput."""
    found = [_POSITION.fullmatch(each) for each in text.split(",")]
    positions = {int(each[1]): int(each[2]) for each in found if each is not None}
    if None in found or len(found) > MAX_PARTITIONS or max(positions.values()) > INT64:
        raise WrongInput(name, text, "PARTITION:OFFSET,...")
    return positions


def positions_text(positions: Mapping[int, int]) -> str:
    """Return positions as `parse_positions` reads them."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def parse_time(name: str, text: str) -> int:
    """Parse ISO 8601, in UTC if it has no zone, or `@MILLISECONDS`. WrongInput."""
    if text.startswith("@"):
        return read_number(name, text[1:], 0, INT64)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise WrongInput(name, text, TIMES) from None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    try:
        return max(0, int(at.timestamp() * 1000))
    except (OverflowError, ValueError):
        raise WrongInput(name, text, TIMES) from None
