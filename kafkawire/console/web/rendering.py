"""Templates: escaped text, URLs, numbers for people, and the map of offsets as SVG."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from kafkawire.client.quotas import limit_text
from kafkawire.console.views.decoding import decode, visible
from kafkawire.console.views.offset_map import MapSpan, PartitionMap
from kafkawire.units import ago, duration_ms, money, size

WIDTH = 100
"""The map's width: positions are percentages of it."""
MIN_WIDTH = 0.3
"""Width of the narrowest span: a few records of millions are still seen."""


def environment() -> Environment:
    """Return the templates. Everything is escaped, and a name that does not exist is an error."""
    made = Environment(
        loader=PackageLoader("kafkawire.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=number,
        size=size,
        percent=percent,
        utc=utc,
        shown=visible,
        decoded=decode,
        ago=ago_now,
        duration_ms=duration_ms,
        money=money,
    )
    made.globals.update(link=link, bars=bars, limit_text=limit_text)
    return made


def link(*parts: str, **query: Any) -> str:
    """Return the URL of a page: its path by parts, and its query without None and empty texts."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    given = {name: value for name, value in query.items() if value is not None and value != ""}
    return f"{path}?{urlencode(given)}" if given else path


def number(value: float | None) -> str:
    """Return a number with separators, or a dash for None."""
    return "–" if value is None else f"{value:,.0f}"  # noqa: RUF001


def percent(share: float | None) -> str:
    """Return a share of 0 to 1 in percent, or a dash for None; neither 0 nor 100 is rounded to."""
    if share is None:
        return "–"  # noqa: RUF001
    whole = round(share * 100)
    if 0 < share < 1:
        whole = min(max(whole, 1), 99)
    return f"{whole} %"


def utc(at_ms: int | None) -> str:
    """Return a time as 2026-01-31 23:59:59.123Z, or its number if no calendar has it."""
    if at_ms is None or at_ms < 0:
        return "no time"
    try:
        at = datetime.fromtimestamp(at_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"@{at_ms}"
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03}Z"


def ago_now(at_ms: int | None) -> str:
    """Return how long ago a time was."""
    return ago(at_ms, time.time_ns() // 1_000_000)


class Bar(NamedTuple):
    """A span on the map, from `x` on, with the text of its tip."""

    x: float
    width: float
    slug: str
    tip: str


class Mark(NamedTuple):
    """An offset on the map: of a group, or the last stable offset."""

    x: float
    slug: str
    tip: str


class Bars(NamedTuple):
    """The map of a partition, in percent of its width."""

    spans: Sequence[Bar]
    marks: Sequence[Mark]


def bars(shown: PartitionMap, groups: Mapping[str, int]) -> Bars:
    """Return the map of a partition. `groups`: their committed offsets. Pure."""
    start, total = shown.log_start or 0, max(1, shown.offsets)

    def x(offset: int) -> float:
        return round(min(max(0, offset - start), total) * WIDTH / total, 3)

    spans = [
        Bar(
            min(x(span.start), WIDTH - MIN_WIDTH),
            max(MIN_WIDTH, round(x(span.end) - x(span.start), 3)),
            span.place.slug,
            tip(span),
        )
        for span in shown.spans
    ]
    marks = [Mark(x(at), "group", f"{name}: {at:,}") for name, at in sorted(groups.items())]
    if shown.stable is not None and shown.log_end is not None and shown.stable < shown.log_end:
        text = f"last stable offset {shown.stable:,}: a transaction is open"
        marks.append(Mark(x(shown.stable), "stable", text))
    return Bars(spans, marks)


def tip(span: MapSpan) -> str:
    """Return what a span is, in one line."""
    parts = [f"{span.start:,} to {span.end - 1:,}: {span.place.value}"]
    if span.reason:
        parts.append(span.reason)
    if span.segment is not None:
        parts.append(f"segment {span.segment}")
    elif span.segments:
        parts.append(f"{span.segments:,} segments")
    if span.size_bytes is not None:
        parts.append(size(span.size_bytes))
    if span.object is not None:
        parts.append(f"object {span.object}")
    if span.created_ms is not None:
        parts.append(f"written {utc(span.created_ms)}")
    return ", ".join(parts)
