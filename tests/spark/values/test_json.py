"""JSON by a real Spark's from_json: values that become columns, and reasons for those that do not.

Covers: kafkawire_spark.pipeline.converting.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kafkawire_spark.mapping import map_in_arrow
from kafkawire_spark.pipeline.values import rows
from kafkawire_spark.pipeline.values.json import JsonConverter
from kafkawire_spark.pipeline.values.spec import Format, ValueFormatError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

DDL = (
    "id BIGINT NOT NULL, name STRING, at TIMESTAMP, deep STRUCT<a: INT, b: ARRAY<DOUBLE>>, "
    "m MAP<STRING, INT>, price DECIMAL(6, 2), day DATE"
)
NULLS = dict.fromkeys(("id", "name", "at", "deep", "m", "price", "day"))
FULL = (
    b'{"id": 1, "name": "gr\xc3\xbcn", "at": "2026-01-02T03:04:05.5Z", "more": [1],'
    b' "deep": {"a": 3, "b": [1, 2.5]}, "m": {"k": 1}, "price": 1.25, "day": "2026-03-04"}'
)
GOOD: list[tuple[bytes | None, dict[str, Any]]] = [
    (FULL, {
        "id": 1, "name": "grün", "at": datetime(2026, 1, 2, 3, 4, 5, 500000, UTC),
        "deep": {"a": 3, "b": [1.0, 2.5]}, "m": [("k", 1)], "price": Decimal("1.25"),
        "day": date(2026, 3, 4),
    }),
    (b"{}", NULLS),
    (None, NULLS),
    (b'{"id": null, "name": {"x": 1}}', {**NULLS, "name": '{"x":1}'}),
    (b' {"id": 7} \n\t', {**NULLS, "id": 7}),
    (b'{"name": "}{"}', {**NULLS, "name": "}{"}),
]  # fmt: skip
BAD: list[tuple[bytes, str]] = [
    (b'{"id": "x"}', 'id is "x", not bigint'),
    (b'{"id":', "not JSON: Expecting value: line 1 column 7 (char 6)"),
    (b"", "empty"),
    (b"  ", "empty"),
    (b"null", "not a JSON object: null"),
    (b'[{"id": 1}]', 'not a JSON object: [{"id": 1}]'),
    (b'{"name": "\xff"}', "not UTF-8: invalid start byte at byte 10"),
    (b'{"deep": {"a": "q"}}', 'deep.a is "q", not int'),
    (b'{"m": {"k": "v"}}', 'm.k is "v", not int'),
    (b'{"id": 99999999999999999999}', "id is 99999999999999999999, not bigint"),
    (b'{"price": 123456789.1}', "does not fit the schema"),
    (b'{"at": "yesterday"}', "does not fit the schema"),
    (b'{"id": 7} and what follows', "16 bytes after the JSON value"),
    (b'{"id": 7}{"id": 8}', "9 bytes after the JSON value"),
    (b'{"id": 7}\n{"id": 8}', "9 bytes after the JSON value"),
    (b'{"id": 7}}', "1 byte after the JSON value"),
    (b'{"id": 7}\0', "1 byte after the JSON value"),
    (b'{"name": "}"},', "1 byte after the JSON value"),
    (b'[{"id": 1}, {"id": 2}]', 'not a JSON object: [{"id": 1}, {"id": 2}]'),
    (b"[]", "not a JSON object: []"),
    (b'{"id": NaN}', "id is NaN, not bigint"),
    (
        b'{"id": 1,}',
        "not JSON: Expecting property name enclosed in double quotes: line 1 column 10 (char 9)",
    ),
]


class Split:
    """The second step of a pipeline, with its two kinds of rows as text."""

    def __init__(self, key: JsonConverter | None, value: JsonConverter) -> None:
        self.key, self.value = key, value

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            good, dead = rows.convert(batch, self.key, self.value)
            good.validate(full=True)
            reported = [pickle.dumps(("good", row)) for row in good.to_pylist()]
            reported += [pickle.dumps(("dead", row)) for row in dead.to_pylist()] if dead else []
            yield pa.RecordBatch.from_arrays([pa.array(reported, pa.binary())], ["row"])


def through(
    spark: SparkSession, records: list[dict[str, Any]], *, key: str = "", value: str = DDL
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of the table, and those that are invalid."""
    table = pa.Table.from_pylist(
        [{"_offset": at, "_key": None, **one} for at, one in enumerate(records)],
        schema=pa.schema([("_offset", pa.int64()), ("_key", pa.binary()), ("_value", pa.binary())]),
    )
    values = JsonConverter(Format("json", schema=value))
    keys = JsonConverter(Format("json", schema=key), key=True) if key else None
    columns = [one.column() for one in (keys, values) if one]
    frame = spark.createDataFrame(table).select("*", *columns)
    split = pickle.loads(pickle.dumps(Split(keys, values)))
    found = [pickle.loads(row[0]) for row in map_in_arrow(frame, split, "row BINARY").collect()]
    return [row for kind, row in found if kind == "good"], [
        row for kind, row in found if kind == "dead"
    ]


def test_valid_and_invalid_values(spark: SparkSession) -> None:
    records = [{"_value": value} for value, _ in (*GOOD, *BAD)]
    good, dead = through(spark, records)
    assert good == [
        {"_offset": at, "_key": None, **expected} for at, (_, expected) in enumerate(GOOD)
    ]
    assert dead == [
        {"_offset": at, "_key": None, "_value": value, "_reason": f"value: {reason}"}
        for at, (value, reason) in enumerate(BAD, len(GOOD))
    ]


def test_keys_and_schemas_as_json(spark: SparkSession) -> None:
    from pyspark.sql.types import DataType

    as_json = DataType.fromDDL("id BIGINT, name STRING").json()
    records: list[dict[str, Any]] = [
        {"_key": b'{"k": 1}', "_value": b'{"id": 1, "name": "a"}'},
        {"_key": b"{}", "_value": b"{}"},
        {"_key": None, "_value": None},
        {"_key": b"no", "_value": b"neither"},
    ]
    good, dead = through(spark, records, key="k INT", value=as_json)
    assert good == [
        {"_offset": 0, "_key": {"k": 1}, "id": 1, "name": "a"},
        {"_offset": 1, "_key": {"k": None}, "id": None, "name": None},
        {"_offset": 2, "_key": None, "id": None, "name": None},
    ]
    assert [row["_reason"].partition(": ")[0] for row in dead] == ["key"]
    assert [(row["_key"], row["_value"]) for row in dead] == [(b"no", b"neither")]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id BIGNIT", "is not one of Spark"),
        ("{", "is not one of Spark"),
        ('{"type": "struct", "fields": [{"name": "a"}]}', "is not one of Spark"),
        ("BIGINT", "it needs columns"),
        ("_offset BIGINT", "'_offset': that is reserved"),
        ("_corrupt_record STRING", "that name is taken"),
        ("a INT, A INT", "must differ in more than case"),
    ],
)
def test_invalid_schemas_are_refused(spark: SparkSession, schema: str, message: str) -> None:
    with pytest.raises(ValueFormatError, match=message):
        JsonConverter(Format("json", schema=schema))
