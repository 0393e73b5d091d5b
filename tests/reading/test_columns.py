"""The columns: their names, their types in Spark and in Arrow, and unknown names."""

from __future__ import annotations

import pytest

from kafkawire.reading.model.columns import DEFAULT, DEFAULT_HEADERS, NATIVE, Selection
from kafkawire.reading.model.source import SourceError


def test_columns_have_connector_and_native_names() -> None:
    assert DEFAULT.names == (
        "topic", "partition", "offset", "timestamp", "timestampType", "key", "value",
    )  # fmt: skip
    assert DEFAULT_HEADERS.names == (*DEFAULT.names, "headers")
    assert NATIVE.names == (
        "_topic", "_partition", "_offset", "_timestamp", "_timestamp_type", "_key", "_value",
        "_headers",
    )  # fmt: skip
    assert [c.kind for c in NATIVE.fields()] == list(DEFAULT_HEADERS.names)


def test_columns_keep_requested_order_and_spelling() -> None:
    mixed = Selection(("_value", "offset"))
    assert mixed.ddl() == "`_value` BINARY, `offset` BIGINT"
    assert mixed.arrow_schema().names == ["_value", "offset"]
    assert mixed.kinds() == {"value", "offset"}
    assert Selection(("valueSize",)).ddl() == "`valueSize` INT"
    assert Selection(("_value_size",)).kinds() == {"valueSize"}
    both = Selection(("_index", "_offset"))
    assert (both.ddl(), both.kinds()) == (
        "`_index` BIGINT, `_offset` BIGINT",
        frozenset({"offset"}),
    )
    assert Selection(()).ddl() == ""
    assert not Selection(()).arrow_schema().names


@pytest.mark.parametrize(
    ("names", "text"), [(("offsets",), "'offsets'"), (("key", "key"), "'key'"), (("",), "''")]
)
def test_unknown_column_is_refused(names: tuple[str, ...], text: str) -> None:
    with pytest.raises(SourceError, match=text):
        Selection(names).fields()


def test_arrow_types_match_spark_ddl() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_schema

    by_ddl = {
        "STRING": types.StringType(),
        "INT": types.IntegerType(),
        "BIGINT": types.LongType(),
        "TIMESTAMP": types.TimestampType(),
        "BINARY": types.BinaryType(),
        "ARRAY<STRUCT<key: STRING, value: BINARY>>": types.ArrayType(
            types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
        ),
    }
    for selection in (DEFAULT, DEFAULT_HEADERS, NATIVE):
        struct = types.StructType()
        for column in selection.fields():
            struct = struct.add(column.name, by_ddl[column.ddl])
        assert selection.arrow_schema().equals(to_arrow_schema(struct, timezone="UTC"))
