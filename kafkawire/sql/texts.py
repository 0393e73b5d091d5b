"""Keys and values as text: null for what is no UTF-8."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from kafkawire.reading.model.columns import KEY, VALUE

KEY_TEXT, VALUE_TEXT = "key_text", "value_text"
ORIGINS = {KEY_TEXT: KEY, VALUE_TEXT: VALUE}
"""The column of the bytes of each column of texts."""


def with_texts(batch: pa.RecordBatch, wanted: Collection[str]) -> pa.RecordBatch:
    """Return a batch with the wanted columns of texts that it does not have yet."""
    for name, origin in ORIGINS.items():
        if name in wanted and name not in batch.schema.names:
            batch = batch.append_column(name, text_of(batch.column(origin)))
    return batch


def text_of(column: pa.Array) -> pa.Array:
    """Return binary values as strings. All of a batch are checked in one call, which fails if one
    of them is no UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(each) for each in column.to_pylist()], pa.string())


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
