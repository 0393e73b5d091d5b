"""Checksums of rows: each row of the metadata has one, and a row that does not match it is damaged.

SQLite and PostgreSQL notice a damaged page by its structure, not a number in it that has another
value: a flipped bit in a log start hides records, one in a deletion time brings a topic back. So
every table but those of UNCHECKED has

- a stored generated column `checksum`, which the database computes from all other columns whenever
  it writes a row, so that no statement names it;
- `intact`, whether a row matches its checksum: a virtual column in SQLite, a function of the row in
  PostgreSQL, in both of them read as `table.intact`;
- triggers that refuse to change or delete a damaged row: an UPDATE of one column would compute a
  valid checksum of the damage in others.

`kafkawire.metadata.damage` has the checks. In PostgreSQL the checksum is an XOR of its own hashes.
SQLite has no hash, and a function of this program would stop its thread for each row until the
event loop lets the interpreter go; so there it is a sum of the halves of all numbers, each with a
weight of its own, followed by a copy of all texts and byte strings. Any damage within one column
changes both.

The expressions are stored in the schema: a change of this module or of a column of a table with a
checksum needs a revision that calls `rebuild`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Computed,
    Connection,
    Float,
    LargeBinary,
    MetaData,
    String,
    Table,
    event,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn

from kafkawire.metadata.schema import MISMATCH, UNCHECKED

WRITTEN_WHOLE = frozenset({"partition_offset_checkpoints"})
"""Tables whose rows are only replaced, never changed in part, and in great numbers: a trigger would
take half the time of the statement again."""

_CHECKSUM = "checksum"
_HALF = 0xFFFFFFFF
_NULL = -0x5555_5555_5555_5556
"""Stands for NULL in sums: no column has it."""
# Odd numbers below 2^26, so that 31 products with 32 bits each cannot exceed 63 bits.
_WEIGHTS = [33_554_467 + 15_838 * i * i for i in range(31)]


@compiles(CreateColumn)
def _create_column(element: CreateColumn, compiler: Any, **options: Any) -> Any:
    """Write a column in CREATE TABLE: SQLAlchemy has one expression for all databases."""
    column, dialect = element.element, compiler.dialect.name
    if column.name != _CHECKSUM or column.computed is None:
        return compiler.visit_create_column(element, **options)
    return ", ".join(f"{text} {kind}" for text, kind in _columns(column.table, dialect))


def _columns(table: Table, dialect: str) -> list[tuple[str, str]]:
    """Return the columns that a table has more, and whether they are stored."""
    found = expression(table.columns, dialect)
    checksum = f"{_CHECKSUM} BIGINT GENERATED ALWAYS AS ({found})", "STORED"
    intact = f"intact BOOLEAN GENERATED ALWAYS AS ({_CHECKSUM} IS ({found}))", "VIRTUAL"
    return [checksum, intact] if dialect == "sqlite" else [checksum]


def add_checksums(metadata: MetaData) -> None:
    """Declare the column in each table that has one, and create what belongs to it after the
    table."""
    for table in metadata.tables.values():
        if table.name not in UNCHECKED:
            computed = Computed("", persisted=True)  # see _create_column
            table.append_column(Column(_CHECKSUM, BigInteger, computed))
            event.listen(table, "after_create", _add_checks)


def _add_checks(table: Table, connection: Connection, **_options: Any) -> None:
    for statement in check_statements(table, connection.dialect.name):
        connection.exec_driver_sql(statement)


def expression(columns: Iterable[Column[Any]], dialect: str, row: str = "") -> str:
    """Return the SQL expression of a checksum. `row`: what to write before the name of each
    column."""
    summed = [column for column in columns if column.name != _CHECKSUM]
    return (_in_sqlite if dialect == "sqlite" else _in_postgresql)(summed, row)


def _in_sqlite(columns: Sequence[Column[Any]], row: str) -> str:
    weights = iter(_WEIGHTS)
    terms: list[str] = []
    copied: list[str] = []
    for column in columns:
        name = row + column.name
        if isinstance(column.type, String | LargeBinary):
            kind = "blob" if isinstance(column.type, LargeBinary) else "text"
            terms.append(f"(typeof({name})='{kind}')*{next(weights)}")
            copied.append(f"ifnull({name},'')" if column.nullable else name)
            continue
        if isinstance(column.type, Float):  # the fraction in 62 bits; all of it exact in IEEE 754
            whole = f"CAST({name} AS INTEGER)"
            fraction = f"CAST(({name}-{whole})*4294967296.0*1073741824.0 AS INTEGER)"
            numbers = [whole, fraction]
        else:
            name = f"ifnull({name},{_NULL})" if column.nullable else name
            numbers = [name]
        # Whether it is a number at all: one bit makes an empty byte string of a 0.
        terms.append(f"({name}<'')")
        for number in numbers:
            terms.append(f"({number}&{_HALF})*{next(weights)}")
            terms.append(f"({number}>>32&{_HALF})*{next(weights)}")
    total = "+".join(terms)
    return f"CAST({'||'.join([f'({total})', *copied])} AS BLOB)" if copied else total


def _in_postgresql(columns: Sequence[Column[Any]], row: str) -> str:
    hashes: list[str] = []
    for at, column in enumerate(columns):
        name = row + column.name
        if isinstance(column.type, LargeBinary):
            hashed = f"hashtextextended(encode({name},'hex'),{at})"
        elif isinstance(column.type, String):
            hashed = f"hashtextextended({name}::text,{at})"
        elif isinstance(column.type, Float):
            hashed = f"hashfloat8extended({name},{at})"
        else:
            hashed = f"hashint8extended({name}::int::bigint,{at})"
            if isinstance(column.type, BigInteger):
                hashed = f"hashint8extended({name},{at})"
        hashes.append(f"coalesce({hashed},{at})" if column.nullable else hashed)
    return "#".join(hashes)


def check_statements(table: Table, dialect: str) -> Iterator[str]:
    """Yield the statements that create the triggers of a table, and in PostgreSQL `intact`."""
    name, guarded = table.name, ["UPDATE", "DELETE"]
    if name in WRITTEN_WHOLE:
        guarded.remove("UPDATE")
    message = f"a row of {name} {MISMATCH}"
    if dialect == "sqlite":
        for change in guarded:
            yield (
                f"CREATE TRIGGER {name}_{change.lower()} BEFORE {change} ON {name}"
                f" WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, '{message}'); END"
            )
        return
    found = expression(table.columns, dialect, "r.")
    yield (
        f"CREATE FUNCTION intact(r {name}) RETURNS boolean LANGUAGE sql IMMUTABLE AS"
        f" $$ SELECT r.{_CHECKSUM} IS NOT DISTINCT FROM ({found}) $$"
    )
    yield (
        "CREATE OR REPLACE FUNCTION kafkawire_refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN RAISE EXCEPTION 'a row of % {MISMATCH}', TG_TABLE_NAME"
        " USING ERRCODE = 'data_corrupted'; END $$"
    )
    yield (
        f"CREATE TRIGGER {name}_intact BEFORE {' OR '.join(guarded)} ON {name} FOR EACH ROW"
        " WHEN (NOT intact(OLD)) EXECUTE FUNCTION kafkawire_refuse()"
    )


def rebuild(connection: Connection, name: str) -> None:
    """Give a table without checksums, or with those of other columns, its checksums. For
    migrations, outside of foreign key enforcement."""
    table = Table(name, MetaData(), autoload_with=connection, resolve_fks=False)
    dialect = connection.dialect.name
    columns = _columns(table, dialect)
    if dialect == "sqlite":
        _rebuild_sqlite(connection, table, columns)
    else:
        for text, kind in columns:
            connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {text} {kind}")
    for statement in check_statements(table, dialect):
        connection.exec_driver_sql(statement)


def _rebuild_sqlite(
    connection: Connection, table: Table, columns: Sequence[tuple[str, str]]
) -> None:
    """Copy a table into a new one: SQLite adds no stored columns to one that exists. They are added
    as virtual ones first, for the text of the new table."""
    name, new = table.name, f"{table.name}_new"
    run = connection.exec_driver_sql
    for column, _ in columns:
        run(f"ALTER TABLE {name} ADD COLUMN {column} VIRTUAL")
    master = "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND type = ? AND sql IS NOT NULL"
    ((text,),) = run(master, (name, "table")).all()
    indexes = run(master, (name, "index")).all()
    for column, kind in columns:
        text = text.replace(f"{column} VIRTUAL", f"{column} {kind}")
    run(text.replace(f"CREATE TABLE {name}", f"CREATE TABLE {new}", 1))
    names = ", ".join(each.name for each in table.columns)
    run(f"INSERT INTO {new} ({names}) SELECT {names} FROM {name}")
    if table.name == "segments":  # AUTOINCREMENT: ids of deleted rows stay used
        seq = "SELECT seq FROM sqlite_sequence WHERE name = ?"
        for (last,) in run(seq, (name,)).all():
            run("DELETE FROM sqlite_sequence WHERE name = ?", (new,))
            run("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (new, last))
    run(f"DROP TABLE {name}")
    run(f"ALTER TABLE {new} RENAME TO {name}")
    for (index,) in indexes:
        run(index)
