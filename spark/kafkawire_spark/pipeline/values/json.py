"""JSON parsed by Spark's from_json: a column expression, and a Converter that finds invalid values
and the reason.

The mode is PERMISSIVE: unknown fields are ignored, missing ones are null; a value that cannot be
parsed, has a field of another type, or is followed by anything but white space is invalid. The last
is found here, because Spark ignores what follows a complete value.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kafkawire.plural import count
from kafkawire_spark.pipeline.values.ddl import parse_ddl
from kafkawire_spark.pipeline.values.jsonwhy import why
from kafkawire_spark.pipeline.values.rows import KEY, PARSED, VALUE
from kafkawire_spark.pipeline.values.spec import Format, ValueFormatError, checked_columns

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

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
        from kafkawire_spark.pipeline.values.jsonends import trailing_bytes  # imports numba

        payloads, parsed = batch.column(self._name), batch.column(self.parsed)
        columns = parsed.flatten()
        corrupt = columns.pop(parsed.type.get_field_index(CORRUPT))
        failed = pc.or_(pc.is_null(parsed), pc.is_valid(corrupt))
        rows = pc.and_(pc.is_valid(payloads), failed).to_numpy(zero_copy_only=False).nonzero()[0]
        bad = {int(row): why(payloads[int(row)].as_py(), self._schema) for row in rows}
        for row, left in trailing_bytes(payloads).items():
            bad.setdefault(row, f"{count(left, 'byte')} after the JSON value")
        if self._name == KEY:
            struct = pa.StructArray.from_arrays(columns, fields=self._arrow, mask=parsed.is_null())
            return [struct], bad
        return columns, bad

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_schema": self._schema}
