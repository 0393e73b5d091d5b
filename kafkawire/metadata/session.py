"""One transaction with SQL text, independent of database and driver.

Statements are text for both SQLite and PostgreSQL, with `?` for values, and rows are plain tuples.
`Transactions.transact` runs a function with a Session in a transaction of the metadata.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, TypeVar

from kafkawire.metadata.schema import MISMATCH

T = TypeVar("T")
Row = tuple[Any, ...]


class DamagedRow(ValueError):
    """A row is not what was written. `Database.run` finds its name, and raises DamagedMetadata."""

    def __init__(self, table: str) -> None:
        super().__init__(f"a row of {table} {MISMATCH}")


class Session(ABC):
    """A running transaction: `sqlite.SqliteSession` or `engines.EngineSession`. Errors of the
    driver are passed on and roll it back."""

    dialect: str
    """`sqlite` or `postgresql`."""
    conflict: type[Exception]
    """The error of a statement that violates a constraint, such as a unique index."""

    @abstractmethod
    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        """Return all rows of a query; of a table that may have more than some 10,000, `portions`
        returns them without blocking the event loop. Not checked: see `read_checked`."""

    @abstractmethod
    def run(self, sql: str, values: Row = ()) -> int:
        """Run one statement; return how many rows it has changed."""

    @abstractmethod
    def _read(self, sql: str, values: Row) -> Generator[list[Row], None, None]:
        """Yield all rows of a query, in lists of PORTION rows."""

    @abstractmethod
    def _run_each(self, sql: str, values: Sequence[Row]) -> None:
        """Run one statement for each of the values, at least one."""

    def read_checked(self, table: str, columns: str, rest: str = "", values: Row = ()) -> list[Row]:
        """Return columns of rows of a table that has checksums. `rest`: what follows the table in
        the statement. Raises DamagedRow."""
        query = f"SELECT {columns}, {table}.intact FROM {table} {rest}"
        return without_flags(table, self.rows(query, values))

    def portions(self, sql: str, values: Row = (), checked: str = "") -> list[list[Row]]:
        """Return all rows of a query, PORTION at a time as the database sends them: the event loop
        runs in between. All are of one moment. To be used with
        `kafkawire.log.io.slices.drain_slowly`. `checked`: see `checked_portions`."""
        found: list[list[Row]] = []
        with closing(self._read(sql, values)) as parts:
            for part in parts:  # checked here: the event loop runs before the next one
                found.append(without_flags(checked, part) if checked else part)
        return found

    def checked_portions(self, table: str, columns: str) -> list[list[Row]]:
        """Return columns of all rows of a table that has checksums, as `portions` does. Raises
        DamagedRow."""
        query = f"SELECT {columns}, {table}.intact FROM {table}"
        return self.portions(query, checked=table)

    def many(self, sql: str, values: Sequence[Row]) -> None:
        """Run one statement for each of the values; there may be none. The event loop runs after
        each PORTION of them."""
        for start in range(0, len(values), PORTION):
            self._run_each(sql, values[start : start + PORTION])


PORTION = 1_000
"""Rows that are handled at a time: a millisecond, most of it for decoding PostgreSQL's."""


def without_flags(table: str, found: Sequence[Row]) -> list[Row]:
    """Return rows of a query without their last column, which is `intact` of this table. Raises
    DamagedRow unless all of them are."""
    check_flags(table, found)
    return [row[:-1] for row in found]


def check_flags(table: str, found: Sequence[Row]) -> None:
    """Raise DamagedRow unless the last column of all rows, `intact` of this table, is true."""
    if not all([row[-1] for row in found]):
        raise DamagedRow(table)


PART = 10_000
"""Rows of numbers written into one statement: enough that the overhead of a statement is
negligible, and few enough for the statement cache of a driver (half a megabyte each)."""


def parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the values in parts of PART."""
    for start in range(0, len(values), PART):
        yield values[start : start + PART]


def marks(values: Sequence[Any]) -> str:
    """Return a `?` for each of the values, for `IN (...)`."""
    return ",".join("?" * len(values))


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
    one = f"({marks(rows[0])})"
    whole = len(rows) - len(rows) % GROUP
    of_group = f"{head} VALUES {', '.join([one] * GROUP)} {tail}"
    for start in range(0, whole, ROWS_INSERTED):
        stop = min(start + ROWS_INSERTED, whole)
        session.many(
            of_group,
            [tuple(chain.from_iterable(rows[at : at + GROUP])) for at in range(start, stop, GROUP)],
        )
    session.many(f"{head} VALUES {one} {tail}", rows[whole:])


def values_text(rows: Iterable[Sequence[int]]) -> str:
    """Return rows of numbers for `VALUES ...`; there must be at least one."""
    return ",".join([f"({numbers_text(row)})" for row in rows])
