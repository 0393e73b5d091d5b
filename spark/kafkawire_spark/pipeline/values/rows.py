"""Convert whole batches of records for tasks: keys and values in place, bad records separately."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kafkawire_spark.pipeline.values.converters import Converter

KEY, VALUE, REASON = "_key", "_value", "_reason"
PARSED = {KEY: "_key_parsed", VALUE: "_value_parsed"}
"""The column parsed by Spark, which comes together with the JSON bytes."""
REASON_CHARACTERS_MAX = 500


def schema(records: pa.Schema, key: Converter | None, value: Converter | None) -> pa.Schema:
    """Return the table's columns for records with native names (`_key`, `_value`, ...)."""
    fields: list[pa.Field] = []
    for field in records:
        if field.name == KEY and key:
            fields += key.fields()
        elif field.name == VALUE and value:
            fields += value.fields()
        elif field.name not in PARSED.values():
            fields.append(field)
    return pa.schema(fields)


def convert(
    batch: pa.RecordBatch, key: Converter | None, value: Converter | None
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Return the rows of the table, and the bad records unchanged with `_reason` as last column;
    None without any. Raises SourceError."""
    bad: dict[int, str] = {}
    columns: list[pa.Array] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        converter = {KEY: key, VALUE: value}.get(name)
        if converter:
            made, reasons = converter.convert(batch)
            columns += made
            for row, reason in reasons.items():
                bad.setdefault(row, f"{name[1:]}: {reason}"[:REASON_CHARACTERS_MAX])
        elif name not in PARSED.values():
            columns.append(column)
    table = pa.RecordBatch.from_arrays(columns, schema=schema(batch.schema, key, value))
    if not bad:
        return table, None
    return table.filter(_good(batch.num_rows, bad)), _dead(batch, bad)


def _good(rows: int, bad: dict[int, str]) -> pa.Array:
    return pc.invert(pc.is_in(pa.array(range(rows)), pa.array(list(bad))))


def _dead(batch: pa.RecordBatch, bad: dict[int, str]) -> pa.RecordBatch:
    kept = [name for name in batch.schema.names if name not in PARSED.values()]
    at = sorted(bad)
    dead = batch.select(kept).take(pa.array(at))
    return dead.append_column(REASON, pa.array([bad[row] for row in at], pa.string()))
