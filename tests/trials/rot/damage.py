"""One flipped bit: of a file, of the structure of a page of a database, or of a value of a row. Or
a row that is gone, as an older page of the database does not have it.

Files, pages and rows are chosen alike, however large they are: a bit anywhere in the bytes of a
folder would nearly always be one of a record.
"""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from tests.kit.damaged_rows import damage_sqlite
from tests.trials.flip.damage import Damage, Hit, hit_batches
from tests.trials.flip.kinds import HARMLESS, REFUSED, Kind

HEAD_BYTES = 200
"""Of a file, or of a page of a database: where its fields are."""
TAIL_BYTES = 600
"""Of a file: sections, table and trailer of a segment."""
PAGE_BYTES = 4096
ATTEMPTS = 50
"""Values of rows that are tried: some cannot be changed, as of a key that another row has."""
GENERATED = "GENERATED ALWAYS"
"""Of a table with columns that the database computes when a row is changed."""
GONE_SHARE = 0.2
"""Of the rows of EVIDENT tables."""
EVIDENT = ("offset_mappings", "partition_offset_checkpoints", "partitions", "segments", "topics")
"""Tables of which journals and segments say what a row that is gone said."""
NO_RECORDS = Hit(frozenset(), internal=False)
ROWS = Kind("row of the metadata", "", REFUSED | HARMLESS,
            "refused if it says another thing than journals and segments")  # fmt: skip
SCHEDULED = Kind("row of the schedules", "", HARMLESS, "made again from the schedule topics")


class Rot(Protocol):
    """A flipped bit."""

    def apply(self, folder: Path) -> None:
        """Flip it in a copy of the folder."""

    def hit(self, pristine: Path, kind: Kind) -> Hit:
        """Return which records may be lost by it."""


@dataclass(frozen=True, slots=True)
class FileRot:
    """A bit of a file."""

    path: str
    byte: int
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.byte} of {self.path}"

    def apply(self, folder: Path) -> None:
        """Flip it; see Rot."""
        data = bytearray((folder / self.path).read_bytes())
        data[self.byte] ^= 1 << self.bit
        (folder / self.path).write_bytes(data)

    def hit(self, pristine: Path, kind: Kind) -> Hit:
        """Return the records of the batch, or of the frame; see Rot."""
        data = (pristine / self.path).read_bytes()
        damage = Damage("flip", self.byte, self.byte + 1, b"")
        return hit_batches(data, damage, frames=kind.frames)


@dataclass(frozen=True, slots=True)
class RowRot:
    """A bit of a value of a row, which keeps the checksum that the row has."""

    path: str
    table: str
    row: tuple[tuple[str, Any], ...]
    column: str
    changed: Any

    def __str__(self) -> str:
        before = dict(self.row)[self.column]
        key = ", ".join(f"{name} {shown(value)}" for name, value in self.row[:3])
        change = f"{shown(before)} -> {shown(self.changed)}"
        return f"{self.path}: {self.table}.{self.column} {change} (row {key})"

    def apply(self, folder: Path) -> None:
        """Change the value, and not the checksum that the database would compute from it; see Rot.
        Raises sqlite3.Error if that is not possible."""
        where = " AND ".join(f'"{name}" IS ?' for name, _ in self.row)
        value = "CAST(? AS TEXT)" if isinstance(dict(self.row)[self.column], str) else "?"
        change = f'UPDATE "{self.table}" SET "{self.column}" = {value} WHERE {where}'
        values = (self.changed, *(each for _, each in self.row))
        path = folder / self.path
        with closing(sqlite3.connect(path)) as connection:
            query = "SELECT sql FROM sqlite_master WHERE name = ?"
            ((declared,),) = connection.execute(query, (self.table,)).fetchall()
            if GENERATED not in declared:
                if connection.execute(change, values).rowcount != 1:
                    raise sqlite3.IntegrityError("the row is not there")
                connection.commit()
                return
        damage_sqlite(path, change, self.table, values)

    def hit(self, pristine: Path, kind: Kind) -> Hit:
        """Return none: no row is the only copy of a record. See Rot."""
        return NO_RECORDS


@dataclass(frozen=True, slots=True)
class RowGone:
    """A row that is gone."""

    path: str
    table: str
    row: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        key = ", ".join(f"{name} {shown(value)}" for name, value in self.row[:3])
        return f"{self.path}: {self.table} without the row {key}"

    def apply(self, folder: Path) -> None:
        """Delete it; see Rot. Raises sqlite3.Error if that is not possible."""
        where = " AND ".join(f'"{name}" IS ?' for name, _ in self.row)
        values = tuple(value for _, value in self.row)
        with closing(sqlite3.connect(folder / self.path)) as connection:
            connection.execute(f'DELETE FROM "{self.table}" WHERE {where}', values)
            connection.commit()

    def hit(self, pristine: Path, kind: Kind) -> Hit:
        """Return none, as of RowRot. See Rot."""
        return NO_RECORDS


def shown(value: Any) -> str:
    """A value, shortened."""
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def draw_file(rng: Random, folder: Path, path: str) -> FileRot | None:
    """Choose a bit of the written part of a file: of its head, its end, or any; None: it is
    empty."""
    used = len((folder / path).read_bytes().rstrip(b"\0"))
    if not used:
        return None
    low, high = rng.choice(((0, HEAD_BYTES), (used - TAIL_BYTES, used), (0, used)))
    return FileRot(path, rng.randrange(max(0, low), min(high, used)), rng.randrange(8))


def draw_page(rng: Random, folder: Path, path: str) -> FileRot:
    """Choose a bit of the head of a page of a database: its kind, its cells, its neighbours."""
    data = (folder / path).read_bytes()
    size = int.from_bytes(data[16:18], "big") or PAGE_BYTES
    size = 65536 if size == 1 else size
    page = rng.randrange(max(1, len(data) // size))
    return FileRot(path, page * size + rng.randrange(min(HEAD_BYTES, len(data))), rng.randrange(8))


def draw_row(rng: Random, folder: Path, path: str, scratch: Path) -> RowRot | RowGone | None:
    """Choose a bit of a value of a table: each table, row, column and bit alike; or a whole row;
    None: no value can be changed. `scratch`: for copies of the folder's database."""
    for _ in range(ATTEMPTS):
        for each in (folder / path).parent.glob(f"{Path(path).name}*"):
            (scratch / each.name).write_bytes(each.read_bytes())
        copy = str(Path(path).name)
        with closing(sqlite3.connect(scratch / copy)) as connection:
            found = _draw(rng, connection)
        if found is None:
            continue
        table, row, column, changed = found
        if table in EVIDENT and rng.random() < GONE_SHARE:
            return RowGone(path, table, row)
        try:
            RowRot(copy, table, row, column, changed).apply(scratch)
        except sqlite3.Error:
            continue
        return RowRot(path, table, row, column, changed)
    return None


def _draw(
    rng: Random, connection: sqlite3.Connection
) -> tuple[str, tuple[tuple[str, Any], ...], str, Any] | None:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    tables = [name for (name,) in connection.execute(query + " ORDER BY name")]
    table = rng.choice(tables)
    cursor = connection.execute(
        f'SELECT * FROM "{table}" ORDER BY 1, 2'
        if len(connection.execute(f'SELECT * FROM "{table}" LIMIT 0').description) > 1
        else f'SELECT * FROM "{table}"'
    )
    names = [each[0] for each in cursor.description]
    rows = cursor.fetchall()
    if not rows:
        return None
    row = rng.choice(rows)
    column = rng.randrange(len(names))
    changed = flipped(rng, row[column])
    if changed is None:
        return None
    return table, tuple(zip(names, row, strict=True)), names[column], changed


def flipped(rng: Random, value: Any) -> Any:
    """A value with one other bit; None: it has none."""
    if isinstance(value, int):
        return value ^ 1 << rng.randrange(min(63, max(8, value.bit_length() + 1)))
    if isinstance(value, float):
        (bits,) = struct.unpack(">q", struct.pack(">d", value))
        return struct.unpack(">d", struct.pack(">q", bits ^ 1 << rng.randrange(63)))[0]
    data = bytearray(value.encode() if isinstance(value, str) else value or b"")
    if not data:
        return None
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)
    return bytes(data)
