"""JSON parsed by Spark's from_json: a column expression, and a Converter that finds invalid values
and the reason.

The mode is PERMISSIVE: unknown fields are ignored, missing ones are null; a value that cannot be
parsed, has a field of another type, or is followed by anything but white space is invalid.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit, types

from kafkawire.codec.compiled import byte, compile_for, int32, put
from kafkawire.plural import count
from kafkawire_spark.pipeline.values.ddl import parse_ddl
from kafkawire_spark.pipeline.values.rows import KEY, PARSED, VALUE
from kafkawire_spark.pipeline.values.spec import Format, ValueFormatError, checked_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType


_QUOTES, _BACKSLASH = (0x22, 0x27), 0x5C
_OPENING, _CLOSING = (0x5B, 0x7B), (0x5D, 0x7D)  # [ {, ] }
_SPACES = (0x20, 0x09, 0x0A, 0x0D)


def trailing_bytes(payloads: pa.Array) -> dict[int, int]:
    """Return how many bytes follow the JSON object or array of a value, by row, for rows that have
    any; white space does not count. Values that are not valid JSON may be in the result or not."""
    import pyarrow as pa

    payloads = payloads.cast(pa.binary())
    _, ends, data = payloads.buffers()
    rows = len(payloads)
    found = np.zeros(rows, np.int64)
    if rows and data is not None:
        first = ends.address + 4 * payloads.offset
        _find(first, data.address, rows, found.ctypes.data)
    found[payloads.is_null().to_numpy(zero_copy_only=False)] = 0
    return {int(row): int(found[row]) for row in found.nonzero()[0]}


@njit
def _end_of_value(data: int, at: int, stop: int) -> int:
    """Return the position after the first object or array; `stop` if there is none. Brackets in
    texts do not count; Spark allows both kinds of quotes."""
    depth, quote = 0, 0
    while at < stop:
        char = byte(data, at)
        at += 1
        if quote:
            if char == _BACKSLASH:
                at += 1
            elif char == quote:
                quote = 0
        elif char in _QUOTES:
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
            if depth == 0:
                return at
    return stop


@compile_for(types.int64(*[types.int64] * 4))
def _find(ends: int, data: int, rows: int, out: int) -> int:
    """Store the number of bytes after each value data[ends[i] : ends[i + 1]]. All but `rows` are
    addresses."""
    for row in range(rows):
        stop = int32(ends, row + 1)
        at = _end_of_value(data, int32(ends, row), stop)
        while at < stop and byte(data, at) in _SPACES:
            at += 1
        put(out, row, stop - at)
    return 0


_WHOLE = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_SHOWN = 60


def why(payload: bytes, schema: DataType) -> str:
    """Return the reason as text; `schema` is that of the whole value."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}"
    if not text.strip():
        return "empty"
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    except RecursionError:
        return "not JSON: nested too deep"
    if not isinstance(value, dict):
        return f"not a JSON object: {text[:_SHOWN]}"
    return mismatch(value, schema, "") or "does not fit the schema"


def mismatch(value: Any, type: DataType, path: str) -> str:
    """Return the first field with a wrong type, or ""."""
    kind = type.typeName()
    if value is None:
        return ""
    if kind == "struct" and isinstance(value, dict):
        inner = ((value.get(one.name), one.dataType, one.name) for one in _parts(type, "fields"))
        return _first((part, of, f"{path}.{name}" if path else name) for part, of, name in inner)
    if kind == "array" and isinstance(value, list):
        item = _parts(type, "elementType")
        return _first((part, item, f"{path}[{at}]") for at, part in enumerate(value))
    if kind == "map" and isinstance(value, dict):
        item = _parts(type, "valueType")
        return _first((part, item, f"{path}.{name}") for name, part in value.items())
    if _fits(value, type.simpleString()):
        return ""
    return f"{path} is {json.dumps(value)[:_SHOWN]}, not {type.simpleString()}"


def _parts(type: DataType, name: str) -> Any:
    return getattr(type, name)


def _first(parts: Any) -> str:
    return next(filter(None, (mismatch(*part) for part in parts)), "")


def _fits(value: Any, kind: str) -> bool:
    if kind == "string":
        return True  # Spark accepts anything, as text
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in _WHOLE:
        bound = 1 << (_WHOLE[kind] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
    if kind in ("float", "double") or kind.startswith("decimal"):
        words = isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity", "INF", "-INF")
        return words or (isinstance(value, int | float) and not isinstance(value, bool))
    return not isinstance(value, dict | list) and not kind.startswith(("struct", "array", "map"))


CORRUPT = "_corrupt_record"


def struct_type(text: str) -> StructType:
    """Parse a Spark schema from DDL (`id BIGINT, name STRING`) or JSON. Raises ValueFormatError."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType, StructType

    try:
        if text.lstrip().startswith("{"):
            found: DataType = StructType.fromJson(json.loads(text))
        else:
            found = parse_ddl(text) or DataType.fromDDL(text)
    except (PySparkException, ValueFormatError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "not a schema"
        raise ValueFormatError(
            f"the schema {text[:80]!r} is not one of Spark: {reason[:200]}"
        ) from None
    if not isinstance(found, StructType) or not found.fields:
        raise ValueFormatError(
            f"the schema {text[:80]!r} is {found.simpleString()}: it needs columns"
        )
    return _all_nullable(found)


def needs_spark(text: str) -> bool:
    """Return True for a schema that `struct_type` parses in a session only."""
    try:
        return not text.lstrip().startswith("{") and parse_ddl(text) is None
    except ValueFormatError:
        return False


def _all_nullable(schema: StructType) -> StructType:
    """Make all fields nullable, because from_json does not enforce NOT NULL."""
    from pyspark.sql.types import StructType

    plain = schema.json()
    for name in ("nullable", "containsNull", "valueContainsNull"):
        plain = plain.replace(f'"{name}":false', f'"{name}":true')
    return StructType.fromJson(json.loads(plain))


class JsonConverter:
    """Created on the driver, sent to the tasks."""

    def __init__(self, form: Format, *, key: bool = False) -> None:
        """Raise ValueFormatError."""
        self._name = KEY if key else VALUE
        self._schema = struct_type(form.schema)
        names = self._schema.fieldNames()
        if CORRUPT in names:
            raise ValueFormatError(f"the schema has a field {CORRUPT!r}: that name is taken")
        if not key:
            checked_columns(names, "value")

    @property
    def parsed(self) -> str:
        """Name of the parsed column."""
        return PARSED[self._name]

    def column(self) -> Column:
        """Return a Spark expression for the binary column `_value` (or `_key`)."""
        from pyspark.sql import functions
        from pyspark.sql.types import StringType, StructType

        fields = StructType([*self._schema.fields]).add(CORRUPT, StringType())
        text = functions.col(self._name).cast("string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "timeZone": "UTC"}
        found = functions.from_json(text, fields, options)
        return functions.when(functions.is_valid_utf8(text), found).alias(self.parsed)

    @cached_property
    def _arrow(self) -> list[pa.Field]:
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import to_arrow_schema

        try:
            return list(to_arrow_schema(self._schema, timezone="UTC"))
        except (PySparkException, ValueError, pa.ArrowException) as error:
            reason = str(error).partition("\n")[0][:200]
            raise ValueFormatError(f"the schema of the values is no table's: {reason}") from None

    def fields(self) -> list[pa.Field]:
        if self._name == KEY:
            return [pa.field(KEY, pa.struct(self._arrow))]
        return [field.with_nullable(True) for field in self._arrow]

    def convert(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], dict[int, str]]:
        """Convert a batch, see Converter; the batch also has the result of `column`."""
        from kafkawire_spark.pipeline.values.json import trailing_bytes  # imports numba

        payloads, parsed = batch.column(self._name), batch.column(self.parsed)
        columns = parsed.flatten()
        corrupt = columns.pop(parsed.type.get_field_index(CORRUPT))
        failed = pc.or_(pc.is_null(parsed), pc.is_valid(corrupt))
        rows = pc.and_(pc.is_valid(payloads), failed).to_numpy(zero_copy_only=False).nonzero()[0]
        # Spark gives no reason for an invalid value.
        bad = {int(row): why(payloads[int(row)].as_py(), self._schema) for row in rows}
        # Spark ignores what follows a complete value.
        for row, left in trailing_bytes(payloads).items():
            bad.setdefault(row, f"{count(left, 'byte')} after the JSON value")
        if self._name == KEY:
            struct = pa.StructArray.from_arrays(columns, fields=self._arrow, mask=parsed.is_null())
            return [struct], bad
        return columns, bad

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_schema": self._schema}
