"""The schema of what commands print with --json: snake_case keys, numbers as JSON numbers.

A document is checked as its text, so values that JSON does not have (NaN) are found, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

NAMED = {"files", "configs", "requests", "errors", "tables", "listeners", "unreleased"}
"""Objects whose keys are names of files, settings, HTTP methods, errors of a service, listeners,
folders of log objects, or of the tables of a report, which are those of their files."""
KEY = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
NUMBER = re.compile(
    r"(.*_)?(ms|s|bytes|offset|offsets|records|rows|lag|partition)|log_start|log_end|seconds"
)
"""Names of what is a number, exact to the unit; null if it is not known."""


def check_document(text: str) -> Any:
    """Return the document of a command's output, which must be of the schema."""
    document = json.loads(text, parse_constant=_refuse)
    assert list(wrong(document)) == []
    return document


def check_lines(text: str) -> list[Any]:
    """Return the documents of an output with one on each line: at least one, all of the schema."""
    lines = [check_document(line) for line in text.splitlines()]
    assert lines, "no line of JSON"
    return lines


def wrong(value: Any, where: str = "") -> Iterator[str]:
    """Yield what is not of the schema: keys that are not snake_case, numbers as text."""
    if isinstance(value, list):
        for each in value:
            yield from wrong(each, where)
    if isinstance(value, dict):
        for key, below in value.items():
            at = f"{where}.{key}"
            if not KEY.fullmatch(key) and where.rpartition(".")[2] not in NAMED:
                yield f"{at} is not snake_case"
            if NUMBER.fullmatch(key) and isinstance(below, str):
                yield f"{at} is {below!r}"
            yield from wrong(below, at)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
