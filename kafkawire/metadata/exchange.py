"""All rows out of, or into, a database behind an SQLAlchemy URL. For `copying.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import func, insert, select, text

from kafkawire.metadata import tables
from kafkawire.metadata.database import Database
from kafkawire.metadata.store import MetadataError

Put = Callable[[str, Sequence[str], list[Sequence[Any]]], None]


async def read_all(url: str, names: Sequence[str], put: Put, rows: int) -> None:
    """Yield the rows of these tables in parts of `rows`, as of one moment."""
    database = Database(url)
    await database.open()
    try:
        async with database.transaction() as connection:
            if not database.is_sqlite:
                await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            for name in names:
                table = tables.metadata.tables[name]
                found = await connection.stream(select(table))
                async for part in found.partitions(rows):
                    put(name, [column.name for column in table.columns], list(part))
    finally:
        await database.close()


async def write_all(
    url: str, names: Sequence[str], rows_of: Callable[[str], Iterable[list[Any]]]
) -> None:
    """Insert all rows in one transaction. MetadataError when the database has metadata already."""
    database = Database(url)
    await database.open()
    try:
        async with database.transaction() as connection:
            count = select(func.count()).select_from(tables.cluster)
            if (await connection.execute(count)).scalar_one():
                raise MetadataError(f"{database.name} is not empty: restore into a new database")
            await connection.execute(tables.revision.delete())  # the rows bring their own
            for name in names:
                table = tables.metadata.tables[name]
                keys = [column.name for column in table.columns]
                for part in rows_of(name):
                    values = [dict(zip(keys, row, strict=True)) for row in part]
                    await connection.execute(insert(table), values)
            if not database.is_sqlite:
                await connection.execute(
                    text("SELECT setval(pg_get_serial_sequence('segments', 'id'),"
                         " (SELECT coalesce(max(id), 0) + 1 FROM segments), false)")
                )  # fmt: skip
    finally:
        await database.close()
