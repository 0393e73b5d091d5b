"""Which records a search keeps: by key, text, a pattern of RE2, and the filters of view topics.

Filters are data, never code, and take linear time.
"""

from __future__ import annotations

from collections.abc import Callable

from kafkawire.codec.batches import Record, dump_record, header_bytes
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.record_columns import RecordColumns
from kafkawire.codec.view_filter import FilterError, Row, parse_filter

RecordTest = Callable[[Record], bool]


class FilterRefused(ValueError):
    """A filter or pattern is invalid. `name`: which; the text says where and why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


def compile_test(key: str | None, text: str, filter_text: str, pattern: str) -> RecordTest:
    """Return a test of records for which all of these hold: `key` is theirs, exactly, or None;
    `text`, and a match of `pattern`, is in key, value, or name or value of a header; `filter_text`
    is true (kafkawire.codec.view_filter). "": everything passes. FilterRefused."""
    tests: list[RecordTest] = []
    if key is not None:
        wanted = key.encode()
        tests.append(lambda record: record.key == wanted)
    if text:
        needle = text.encode()
        tests.append(lambda record: _any_part(record, lambda part: needle in part))
    if filter_text:
        try:
            matches = parse_filter(filter_text).matches
        except FilterError as error:
            raise FilterRefused("filter", str(error)) from None
        tests.append(lambda record: matches(_row(record)))
    if pattern:
        from kafkawire.codec.patterns import compile_search  # imports re2

        try:
            found_in = compile_search(pattern)
        except KafkaError as error:
            raise FilterRefused("pattern", error.message or error.code.sentence) from None
        tests.append(lambda record: _any_part(record, found_in))
    if len(tests) == 1:
        return tests[0]
    return lambda record: all(test(record) for test in tests)


def _row(record: Record) -> Row:
    """Return a record as filters take it."""
    data = dump_record(record)
    columns = RecordColumns(data, 0)
    columns.read(len(data), 1)
    return Row(columns, 0, 0, record.timestamp)


def _any_part(record: Record, holds: Callable[[bytes], bool]) -> bool:
    return (
        holds(record.key or b"")
        or holds(record.value or b"")
        or any(holds(header_bytes(name)) or holds(value or b"") for name, value in record.headers)
    )
