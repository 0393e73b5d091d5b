"""One transaction as its statements see it: SQL text, whichever database and driver is below.

What is stored of offsets is written and read in large numbers, also before SQLAlchemy has been
imported, so its statements are text that SQLite and PostgreSQL both understand, with `?` for
values, and rows are plain tuples. `Metadata.transact` hands a Session to a function and runs it in
the write turn of the metadata. Pure but for `SqliteSession`, which blocks: on a thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]


class Session(Protocol):
    """A running transaction. Errors of the driver pass through and undo it."""

    dialect: str
    """`sqlite` or `postgresql`."""

    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        """All rows of a query."""
        ...

    def run(self, sql: str, values: Row = ()) -> int:
        """Runs one statement; how many rows it has changed."""
        ...

    def many(self, sql: str, values: Sequence[Row]) -> None:
        """Runs one statement for each of the values; none is fine."""
        ...


class SqliteSession:
    """A Session over the standard library's driver."""

    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        """See `Session.rows`."""
        return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Row = ()) -> int:
        """See `Session.run`."""
        return self._connection.execute(sql, values).rowcount

    def many(self, sql: str, values: Sequence[Row]) -> None:
        """See `Session.many`."""
        if values:
            self._connection.executemany(sql, values)


PART = 2_000
"""Rows of numbers written into one statement: enough that the statement costs nothing beside its
rows, and few enough that a driver may keep some in its cache (a tenth of a megabyte each)."""


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in parts of PART."""
    for start in range(0, len(values), PART):
        yield values[start : start + PART]


def numbers_text(numbers: Iterable[int]) -> str:
    """Numbers for `IN (...)`, as text: one statement for any number of them."""
    return ",".join(map(str, map(int, numbers)))


def values_text(rows: Iterable[Sequence[int]]) -> str:
    """Rows of numbers for `VALUES ...`; there must be one at least."""
    return ",".join([f"({numbers_text(row)})" for row in rows])
