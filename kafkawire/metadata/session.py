"""One transaction with SQL text, independent of database and driver.

Offsets are written and read in large numbers, so their statements are SQL text for both SQLite and
PostgreSQL, with `?` for values, and rows are plain tuples. `Transactions.transact` runs a function
with a Session in a transaction of the metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # the simulation uses `Transactions` without a database
    from sqlalchemy import Connection

T = TypeVar("T")
Row = tuple[Any, ...]


class Session:
    """A running transaction on a connection of SQLAlchemy. Errors of the driver are passed on and
    roll it back.

    Statements are passed to the driver as text, and tuples come from its cursor: SQLAlchemy's rows
    and parameters would take longer than the statements.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.dialect = connection.dialect.name
        """`sqlite` or `postgresql`."""

    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        """Return all rows of a query; of a table that may have more than some 10,000, `portions`
        returns them without blocking the event loop."""
        result = self._connection.exec_driver_sql(self._text(sql), values)
        found: list[Row] = list(result.cursor.fetchall())
        result.close()
        return found if self.dialect == "sqlite" else [tuple(row) for row in found]

    def portions(self, sql: str, values: Row = ()) -> list[list[Row]]:
        """Return all rows of a query, PORTION at a time as the database sends them: the event loop
        runs in between. All are of one moment. To be used with
        `kafkawire.log.io.slices.drained`."""
        options = {"stream_results": True, "max_row_buffer": PORTION}
        result = self._connection.exec_driver_sql(self._text(sql), values, options)
        found: list[list[Row]] = []
        while portion := result.fetchmany(PORTION):
            found.append(list(map(tuple, portion)))
        return found

    def run(self, sql: str, values: Row = ()) -> int:
        """Run one statement; return how many rows it has changed."""
        return self._connection.exec_driver_sql(self._text(sql), values).rowcount

    def many(self, sql: str, values: Sequence[Row]) -> None:
        """Run one statement for each of the values; there may be none. The event loop runs after
        each PORTION of them."""
        for start in range(0, len(values), PORTION):
            part = list(values[start : start + PORTION])
            self._connection.exec_driver_sql(self._text(sql), part)

    def _text(self, sql: str) -> str:
        return sql if self.dialect == "sqlite" else _numbered(sql)


PORTION = 1_000
"""Rows that are handled at a time: a millisecond, most of it for decoding PostgreSQL's."""


def _numbered(sql: str) -> str:
    """Replace each `?` by asyncpg's $1, $2, ..."""
    first, *others = sql.split("?")
    return first + "".join(f"${at}{part}" for at, part in enumerate(others, 1))


PART = 10_000
"""Rows of numbers written into one statement: enough that the overhead of a statement is
negligible, and few enough for the statement cache of a driver (half a megabyte each)."""


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the values in parts of PART."""
    for start in range(0, len(values), PART):
        yield values[start : start + PART]


def numbers_text(numbers: Iterable[int]) -> str:
    """Return numbers for `IN (...)`, as text: one statement for any number of them."""
    return ",".join([f"{number:d}" for number in numbers])


def among(column: str, numbers: Sequence[int]) -> str:
    """Return the condition that the column is one of these numbers, at least one. Consecutive
    numbers, as of partitions created together, become a range, which is read in half the time."""
    if numbers[-1] - numbers[0] == len(numbers) - 1 and list(numbers) == list(
        range(numbers[0], numbers[-1] + 1)
    ):
        return f"{column} BETWEEN {numbers[0]:d} AND {numbers[-1]:d}"
    return f"{column} IN ({numbers_text(numbers)})"


GROUP = 16
"""Rows per INSERT: half the time of single ones; more gains little."""
ROWS_INSERTED = 250 * GROUP
"""Rows whose values are grouped at a time: a millisecond."""


def insert(session: Session, head: str, rows: Sequence[Row], tail: str = "") -> None:
    """Insert all rows, which have equal length, with `head` VALUES ... `tail`; one statement per
    group, so `tail` must not depend on the order of rows."""
    if not rows:
        return
    marks = "(" + ", ".join("?" * len(rows[0])) + ")"
    whole = len(rows) - len(rows) % GROUP
    of_group = f"{head} VALUES {', '.join([marks] * GROUP)} {tail}"
    for start in range(0, whole, ROWS_INSERTED):
        stop = min(start + ROWS_INSERTED, whole)
        session.many(
            of_group,
            [tuple(chain.from_iterable(rows[at : at + GROUP])) for at in range(start, stop, GROUP)],
        )
    session.many(f"{head} VALUES {marks} {tail}", rows[whole:])


def values_text(rows: Iterable[Sequence[int]]) -> str:
    """Return rows of numbers for `VALUES ...`; there must be at least one."""
    return ",".join([f"({numbers_text(row)})" for row in rows])
