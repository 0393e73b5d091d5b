"""Output of the commands: tables (rich), JSON, and error sentences.

The only place that writes to standard output. rich is imported when a table is printed, never by
`kafkawire serve`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

WIDE = 4000
"""Columns of a table written to a file or pipe, which rich would truncate at 80."""


def print_json(value: Any) -> None:
    """Print one JSON document, keys in the given order."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print one JSON document on a line of its own, for streams."""
    print(json.dumps(value, ensure_ascii=False))


def print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str], title: str) -> None:
    """Print rows as a table with these columns, numbers right-aligned; without rows, the title and
    "none"."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print(f"{title}: none")
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDE)
    print(f"{title}:")
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        numbers = all(isinstance(row.get(column), (int, type(None))) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    console.print(table)


def _cell(value: object) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return escape(", ".join(str(item) for item in value))
    return escape(str(value))


def without_password(text: str) -> str:
    """Return the text without the passwords in its URLs."""
    return re.sub(r"(:/{1,2}[^:/@\s]*):[^@/\s]*@", r"\1:***@", text)


def fail(sentence: object, code: int = 1) -> NoReturn:
    """Print an error on standard error and exit: code 1 for a failure, 2 for invalid arguments.
    Passwords in URLs are removed from the sentence."""
    print(f"kafkawire: {without_password(str(sentence))}", file=sys.stderr)
    raise SystemExit(code)
