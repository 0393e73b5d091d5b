"""Options for the start and end of reading: offsets, times, earliest or latest. Pure.

The JSON is that of Spark's Kafka connector: {"topic": {"0": 23, "1": -1}}, where in offsets -2 is
earliest and -1 latest, and for `assign` {"topic": [0, 1]}.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kafkawire.reading.model.source import SourceError

EARLIEST, LATEST = -2, -1
OFFSET_MAX = (1 << 63) - 1


class SourceOptionError(SourceError):
    """An invalid option; one sentence with its name, its value, and what is allowed."""


class Everywhere(NamedTuple):
    """EARLIEST or LATEST, for every partition."""

    offset: int


class EachOffset(NamedTuple):
    """An offset, EARLIEST or LATEST for each partition: rows of (topic, partition, offset)."""

    rows: tuple[tuple[str, int, int], ...]

    def values(self) -> dict[tuple[str, int], int]:
        """Return the offsets by topic and partition."""
        return {(topic, partition): value for topic, partition, value in self.rows}


class AtTime(NamedTuple):
    """The first record of this time or later, in every partition."""

    ms: int


class EachAtTime(NamedTuple):
    """Likewise, of a time for each partition: rows of (topic, partition, ms)."""

    rows: tuple[tuple[str, int, int], ...]

    def values(self) -> dict[tuple[str, int], int]:
        """Return the times by topic and partition."""
        return {(topic, partition): value for topic, partition, value in self.rows}


Limit = Everywhere | EachOffset | AtTime | EachAtTime


def limit_of(said: Mapping[str, str], side: str, *, default: int) -> Limit:
    """Return the limit from the options of one side, "starting" or "ending", by their precedence.
    Raises SourceOptionError."""
    if f"{side}timestamp" in said:
        return AtTime(_whole(said[f"{side}timestamp"], f"{side}Timestamp"))
    if f"{side}offsetsbytimestamp" in said:
        name = f"{side}OffsetsByTimestamp"
        return EachAtTime(_rows(said[name.lower()], name, least=0))
    text = said.get(f"{side}offsets")
    if text is None:
        return Everywhere(default)
    named = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in named:
        return Everywhere(named[text.lower()])
    return EachOffset(_rows(text, f"{side}Offsets", least=EARLIEST))


def offsets_of(limit: Limit) -> Collection[int]:
    """Return the offsets of a limit, with EARLIEST and LATEST; none for times."""
    if isinstance(limit, Everywhere):
        return (limit.offset,)
    return limit.values().values() if isinstance(limit, EachOffset) else ()


def partitions_of(text: str) -> tuple[tuple[str, int], ...]:
    """Return the partitions of the option `assign`, in order. Raises SourceOptionError."""
    form = 'JSON like {"topic": [0, 1]}'
    found = set()
    for topic, indexes in _topics(text, "assign", form).items():
        if not isinstance(indexes, list):
            raise SourceOptionError(f"assign has {indexes!r} for {topic}; it is {form}")
        for index in indexes:
            if not _is_whole(index, 0, (1 << 31) - 1):
                raise SourceOptionError(
                    f"assign has the partition {index!r} of {topic}; it is {form}"
                )
            found.add((topic, index))
    if not found:
        raise SourceOptionError(f"assign={text!r} names no partition; it is {form}")
    return tuple(sorted(found))


def _rows(text: str, name: str, *, least: int) -> tuple[tuple[str, int, int], ...]:
    form = 'JSON like {"topic": {"0": 23, "1": 42}}'
    if least == EARLIEST:
        form = f"earliest, latest, or {form}, where -2 is earliest and -1 latest"
    rows = []
    for topic, values in _topics(text, name, form).items():
        if not isinstance(values, dict):
            raise SourceOptionError(f"{name} has {values!r} for {topic}; it is {form}")
        for partition, value in values.items():
            if not (partition.isascii() and partition.isdigit() and len(partition) < 10):
                raise SourceOptionError(
                    f"{name} has the partition {partition!r} of {topic}; it is {form}"
                )
            if not _is_whole(value, least, OFFSET_MAX):
                raise SourceOptionError(
                    f"{name} has {value!r} for {topic}-{partition}; it is {form}"
                )
            rows.append((topic, int(partition), value))
    if not rows:
        raise SourceOptionError(f"{name}={text!r} names no partition; it is {form}")
    return tuple(sorted(rows))


def _topics(text: str, name: str, form: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SourceOptionError(f"{name}={text!r} is not {form}")
    return found


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise SourceOptionError(f"{name}={text!r} is not a time in milliseconds since 1970")
    return int(text)
