"""Rows of SQL statements, for people and programs (`kafkawire sql`, `kafkawire pipeline query`)."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.plural import count

CELL_CHARACTERS = 200
"""Maximum characters of a value in a table; csv and json are not truncated."""


def plain(value: Any) -> Any:
    """Return a value for JSON: bytes as text if they are UTF-8, else hexadecimal after 0x; NaN and
    infinities, which JSON does not have, as text (as Spark's to_json)."""
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return "0x" + bytes(value).hex()
    if hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(plain(name)): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("nan", "NaN").replace("inf", "Infinity")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, datetime):
        precision = "microseconds" if value.microsecond % 1000 else "milliseconds"
        return value.isoformat("T", precision).replace("+00:00", "Z")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def text_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _cell(value: Any) -> Any:
    if isinstance(value, (int, type(None))):
        return value
    text = text_of(value)
    return text if len(text) <= CELL_CHARACTERS else text[: CELL_CHARACTERS - 3] + "..."


def unique(columns: Sequence[str]) -> list[str]:
    """Return unique column names: the second of the same name is called `name (2)`."""
    seen: Counter[str] = Counter()
    names = []
    for name in columns:
        seen[name] += 1
        names.append(f"{name} ({seen[name]})" if seen[name] > 1 else name)
    return names


def print_rows(names: Sequence[str], found: Iterable[Sequence[Any]], wide: bool) -> None:
    """Print rows as a table whose headers are the names of the columns as they are in SQL."""
    rows = [dict(zip(names, map(_cell, row), strict=True)) for row in found]
    columns = [TableColumn(name, header=name) for name in names]
    print_table(rows, columns, count(len(rows), "row"), wide)


def print_unread(unread: Mapping[str, int]) -> None:
    """Report on standard error how many offsets of each topic a query has not read."""
    for topic, offsets in sorted(unread.items()):
        print(
            f"{topic}: {count(offsets, 'offset')} that are only in journals were not read; "
            "read them from a broker with --server, or with kafkawire find",
            file=sys.stderr,
        )
