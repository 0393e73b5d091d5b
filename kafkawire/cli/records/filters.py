"""Filters of records: by key, by a regular expression in the value, by header. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from kafkawire.client.notation import OptionError
from kafkawire.codec.batches import Record

Filter = Callable[[Record], bool]


def filters_of(key: str | None, grep: str | None, headers: Sequence[str]) -> list[Filter]:
    """Return the filters of these options, all of which a record must pass. OptionError."""
    found: list[Filter] = []
    if key is not None:
        found.append(_by_key(key.encode("utf-8", "surrogateescape")))
    if grep is not None:
        found.append(_by_value(grep))
    return found + [_by_header(text) for text in headers]


def _by_key(wanted: bytes) -> Filter:
    return lambda record: record.key is not None and bytes(record.key) == wanted


def _by_value(text: str) -> Filter:
    try:
        pattern = re.compile(text.encode("utf-8", "surrogateescape"))
    except (re.error, RecursionError, OverflowError) as error:
        raise OptionError("--grep", text, f"a regular expression ({error})") from None
    return lambda record: record.value is not None and pattern.search(record.value) is not None


def _by_header(text: str) -> Filter:
    name, equals, value = text.partition("=")
    if not name:
        raise OptionError("--header", text, "NAME or NAME=VALUE")
    if not equals:
        return lambda record: any(each == name for each, _ in record.headers)
    wanted = value.encode("utf-8", "surrogateescape")
    return lambda record: any(
        each == name and data is not None and bytes(data) == wanted for each, data in record.headers
    )
