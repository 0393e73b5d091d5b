"""Tables in columns, so that a million rows take bytes rather than objects.

A column is an array while it is written, and may be a view of a file's bytes after reading; row
objects are created on access. Columns of 16-byte ids are one byte string. Pure.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, NamedTuple, TypeAlias, TypeVar, cast

Numbers: TypeAlias = "array[int] | memoryview"
Bytes: TypeAlias = "bytearray | memoryview"
Column: TypeAlias = "Numbers | Bytes"
RowT = TypeVar("RowT", bound=tuple[object, ...])

UUID = "uuid"
"""The type of a column of 16-byte ids; all others are type codes of `array`: q, Q, i, I."""
WIDTHS = {UUID: 16, "q": 8, "Q": 8, "i": 4, "I": 4}


class ManifestObject(NamedTuple):
    """An object: segment file `segment` (its uuid) of the generation in SQL. `class_at`: index of
    its retention class in `ObjectColumns.classes`. Its entries follow those of the previous object
    in `EntryColumns`; `entries`: their number. `max_timestamp`: -1 if there is none."""

    uuid: bytes
    segment: bytes
    generation: int
    node_id: int
    size_bytes: int
    created_ms: int
    max_timestamp: int
    class_at: int
    entries: int


class Entry(NamedTuple):
    """One partition's share of one object: the offsets [base_offset, end_offset) are in its bytes
    [start, start + length) (length 0: no records); their sparse index is at `index_start`."""

    number: int
    base_offset: int
    end_offset: int
    start: int
    length: int
    index_start: int
    index_length: int
    index_checksum: int
    max_timestamp: int
    batches: int
    records: int


class ManifestPartition(NamedTuple):
    """One partition. `end`: the bucket has all offsets from the log start up to here. `epochs`:
    leader epochs as in a segment's state (u8 1, then i32 epoch and i64 first offset)."""

    number: int
    log_start: int
    end: int
    epochs: bytes


class Columns(Generic[RowT]):
    """Rows of one kind, with named columns. FORM: name and type of each, in file order."""

    FORM: ClassVar[tuple[tuple[str, str], ...]]
    __slots__ = ("columns",)

    def __init__(self, columns: Sequence[Column] | None = None) -> None:
        self.columns: list[Column] = (
            list(columns) if columns is not None else [_empty(form) for _, form in self.FORM]
        )

    @classmethod
    def row_bytes(cls) -> int:
        return sum(WIDTHS[form] for _, form in cls.FORM)

    def __len__(self) -> int:
        return len(self.columns[0]) // (16 if self.FORM[0][1] == UUID else 1)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[RowT]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, at: int) -> RowT:
        raise NotImplementedError

    def append(self, row: RowT) -> None:
        # Only of a table that is written: columns of a file may be views.
        for column, (_, form), value in zip(self.columns, self.FORM, row, strict=True):
            if form == UUID:
                cast("bytearray", column).extend(cast("bytes", value))
            else:
                cast("array[int]", column).append(cast("int", value))

    def copy_rows(self, other: Columns[RowT], start: int, stop: int) -> None:
        """Append rows [start, stop) of another table of this kind."""
        for own, column, (_, form) in zip(self.columns, other.columns, self.FORM, strict=True):
            if form == UUID:
                cast("bytearray", own).extend(cast("Bytes", column)[16 * start : 16 * stop])
            else:
                part = column[start:stop]
                cast("array[int]", own).frombytes(memoryview(part).cast("B"))

    def _numbers(self, name: str) -> Numbers:
        return cast("Numbers", self.columns[self._place(name)])

    def _ids(self, name: str) -> Bytes:
        return cast("Bytes", self.columns[self._place(name)])

    @classmethod
    def _place(cls, name: str) -> int:
        return [each for each, _ in cls.FORM].index(name)


class EntryColumns(Columns[Entry]):
    """Entries, in the order of the objects they belong to."""

    FORM = (
        ("number", "Q"), ("base_offset", "q"), ("end_offset", "q"), ("start", "Q"),
        ("length", "Q"), ("index_start", "Q"), ("index_length", "I"), ("index_checksum", "I"),
        ("max_timestamp", "q"), ("batches", "I"), ("records", "Q"),
    )  # fmt: skip
    __slots__ = ()

    def __getitem__(self, at: int) -> Entry:
        return Entry(*[cast("Numbers", column)[at] for column in self.columns])

    @property
    def number(self) -> Numbers:
        return self._numbers("number")

    @property
    def base_offset(self) -> Numbers:
        return self._numbers("base_offset")

    @property
    def end_offset(self) -> Numbers:
        """The offsets after the last ones."""
        return self._numbers("end_offset")


class ObjectColumns(Columns[ManifestObject]):
    """Objects. `classes`: the retention classes that `class_at` means."""

    FORM = (
        ("uuid", UUID), ("segment", UUID), ("generation", "I"), ("node_id", "i"),
        ("size_bytes", "Q"), ("created_ms", "q"), ("max_timestamp", "q"), ("class_at", "I"),
        ("entries", "I"),
    )  # fmt: skip
    __slots__ = ("classes",)

    def __init__(
        self, columns: Sequence[Column] | None = None, classes: Sequence[str] = ()
    ) -> None:
        super().__init__(columns)
        self.classes = list(classes)

    def __getitem__(self, at: int) -> ManifestObject:
        numbers = [cast("Numbers", column)[at] for column in self.columns[2:]]
        return ManifestObject(self.uuid(at), self.segment(at), *numbers)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self.classes == cast("ObjectColumns", other).classes

    def uuid(self, at: int) -> bytes:
        return bytes(self._ids("uuid")[16 * at : 16 * at + 16])

    def segment(self, at: int) -> bytes:
        """Return the segment that it is a copy of."""
        return bytes(self._ids("segment")[16 * at : 16 * at + 16])

    def retention_class(self, at: int) -> str:
        return self.classes[self._numbers("class_at")[at]]

    def class_at(self, name: str) -> int:
        """Return the index of a retention class, added if it is new."""
        if name not in self.classes:
            self.classes.append(name)
        return self.classes.index(name)

    @property
    def class_numbers(self) -> Numbers:
        return self._numbers("class_at")

    @property
    def generation(self) -> Numbers:
        return self._numbers("generation")

    @property
    def created_ms(self) -> Numbers:
        return self._numbers("created_ms")

    @property
    def entries(self) -> Numbers:
        return self._numbers("entries")


class PartitionColumns(Columns[ManifestPartition]):
    """Partitions. The epochs of all are in one byte string, `blob`."""

    FORM = (("number", "Q"), ("log_start", "q"), ("end", "q"), ("epochs_length", "I"))
    __slots__ = ("_ends", "blob")

    def __init__(
        self, columns: Sequence[Column] | None = None, blob: bytes | bytearray | memoryview = b""
    ) -> None:
        super().__init__(columns)
        self.blob: bytes | bytearray | memoryview = bytearray() if columns is None else blob
        # The file has only lengths; with their sums a row is found at once.
        self._ends = array("Q")
        end = 0
        for length in self._numbers("epochs_length"):
            end += length
            self._ends.append(end)

    def __getitem__(self, at: int) -> ManifestPartition:
        number, log_start, end, length = (cast("Numbers", column)[at] for column in self.columns)
        stop = self._ends[at]
        return ManifestPartition(number, log_start, end, bytes(self.blob[stop - length : stop]))

    def append(self, row: ManifestPartition) -> None:
        number, log_start, end, epochs = row
        for column, value in zip(self.columns, (number, log_start, end, len(epochs)), strict=True):
            cast("array[int]", column).append(value)
        cast("bytearray", self.blob).extend(epochs)
        self._ends.append(len(self.blob))

    @property
    def number(self) -> Numbers:
        return self._numbers("number")

    @property
    def log_start(self) -> Numbers:
        return self._numbers("log_start")

    @property
    def end(self) -> Numbers:
        """Ends of the uploaded offsets."""
        return self._numbers("end")


def _empty(form: str) -> Column:
    return bytearray() if form == UUID else array(form)


def read_column(form: str, part: memoryview) -> Column:
    """Return a column of a file (little-endian), without a copy if possible."""
    if form == UUID:
        return part
    if sys.byteorder == "little":
        return part.cast("B").cast(form)  # type: ignore[call-overload,no-any-return]
    column: array[int] = array(form)
    column.frombytes(part)
    column.byteswap()
    return column


def column_bytes(form: str, column: Column) -> bytes:
    if form != UUID and sys.byteorder == "big":
        turned: array[int] = array(form, cast("Numbers", column))
        turned.byteswap()
        return turned.tobytes()
    return bytes(memoryview(column).cast("B")) if len(column) else b""
