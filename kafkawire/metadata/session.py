"""One transaction as its statements see it: SQL text, whichever database and driver is below.

What is stored of offsets is written and read in large numbers, also before SQLAlchemy has been
imported, so its statements are text that SQLite and PostgreSQL both understand, with `?` for
values, and rows are plain tuples. `Metadata.transact` hands a Session to a function and runs it in
the write turn of the metadata. Pure but for `SqliteSession`, which blocks: on a thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
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
        """Run one statement; how many rows it has changed."""
        ...

    def many(self, sql: str, values: Sequence[Row]) -> None:
        """Run one statement for each of the values; none is fine."""
        ...


class SqliteSession:
    """A Session over the standard library's driver."""

    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        """All rows of a query."""
        return self._connection.execute(sql, values).fetchall()

    def run(self, sql: str, values: Row = ()) -> int:
        """Run one statement; how many rows it has changed."""
        return self._connection.execute(sql, values).rowcount

    def many(self, sql: str, values: Sequence[Row]) -> None:
        """Run one statement for each of the values; none is fine."""
        if values:
            self._connection.executemany(sql, values)


PART = 10_000
"""Rows of numbers written into one statement: enough that the statement, and its way to the
driver's thread, cost nothing beside its rows, and few enough that a driver may keep some in its
cache (half a megabyte each)."""


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in parts of PART."""
    for start in range(0, len(values), PART):
        yield values[start : start + PART]


def numbers_text(numbers: Iterable[int]) -> str:
    """Numbers for `IN (...)`, as text: one statement for any number of them."""
    return ",".join([f"{number:d}" for number in numbers])


def among(column: str, numbers: Sequence[int]) -> str:
    """A condition: the column is one of these numbers, at least one. Numbers without holes, as
    those of partitions made together, are a range, which is read in half the time."""
    if numbers[-1] - numbers[0] == len(numbers) - 1 and list(numbers) == list(
        range(numbers[0], numbers[-1] + 1)
    ):
        return f"{column} BETWEEN {numbers[0]:d} AND {numbers[-1]:d}"
    return f"{column} IN ({numbers_text(numbers)})"


GROUP = 16
"""Rows in one INSERT: half the time of one by one, and more gains little."""


def insert(session: Session, head: str, rows: Sequence[Row], tail: str = "") -> None:
    """`head` VALUES ... `tail` for all of the rows, which are equally long; whole groups go as
    one statement each, so `tail` must not depend on the order of rows."""
    if not rows:
        return
    marks = "(" + ", ".join("?" * len(rows[0])) + ")"
    whole = len(rows) - len(rows) % GROUP
    groups = [tuple(chain.from_iterable(rows[at : at + GROUP])) for at in range(0, whole, GROUP)]
    session.many(f"{head} VALUES {', '.join([marks] * GROUP)} {tail}", groups)
    session.many(f"{head} VALUES {marks} {tail}", rows[whole:])


def values_text(rows: Iterable[Sequence[int]]) -> str:
    """Rows of numbers for `VALUES ...`; there must be one at least."""
    return ",".join([f"({numbers_text(row)})" for row in rows])
