"""DDL of columns, parsed without Spark as Spark's own parser does it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kafkawire_spark.pipeline.values.ddl import MAX_DEPTH, parse_ddl
from kafkawire_spark.pipeline.values.spec import ValueFormatError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALID = [
    "a INT",
    "id BIGINT, t TINYINT, f FLOAT, d DOUBLE, p DECIMAL(6,2), n STRING, b BOOLEAN, x BINARY",
    "day DATE, at TIMESTAMP, arr ARRAY<INT>, s STRUCT<x: INT>, m MAP<STRING,INT>, z TIMESTAMP_NTZ",
    "a int not null, b string comment 'x, y', `c d` long",
    'a INT NOT NULL COMMENT "it\'s"',
    "a: int, b: struct<>",
    "a array<map<string, struct<x: int comment 'it\\'s', `y``z`: decimal>>>",
    "a dec(5), b numeric(5, 2), c real, d byte, e short, f integer, g long",
    "a struct<x int, y: string not null>",
    "date DATE, timestamp TIMESTAMP_LTZ, select INT, 1a SMALLINT",
    "struct<a: int>",
    "array<int>",
    "BIGINT",
]
INVALID = [
    ("a", "a type is missing"),
    ("a INT,", "a column name is missing"),
    ("a INT b", "'b' where a comma or the end is expected"),
    ("a BIGNIT", "there is no type 'BIGNIT'"),
    ("a decimal(39)", "a precision from 1 to 38"),
    ("a decimal(5,6)", "a precision from 1 to 38"),
    ("a decimal(x)", "'x' is not a precision or scale"),
    ("a array<int", "'the end' where > is expected"),
    ("a array<int>>", "'>' where a comma or the end is expected"),
    ("a map<int>", "'>' where , is expected"),
    ("a-b INT", "'-b INT' is not the name of a column or type"),
    ("ä INT", "is not the name of a column or type"),
    ("a INT COMMENT x", "the comment of the column a is not a quoted text"),
    ("a INT(5)", r"'\(' where a comma or the end is expected"),
    ("a text", "there is no type 'text'"),
    ("a struct<b: int,>", "'>' is not a column name"),
]
LEFT_TO_SPARK = [
    "a INT -- c",
    "a interval day to second",
    "a varchar(5)",
    "a INT DEFAULT 5",
    "a STRING COLLATE UTF8_LCASE",
    "a variant, b int",
    "a void",
]


def plain(value: Any) -> Any:
    """Without comments and NOT NULL, which from_json ignores."""
    if isinstance(value, dict):
        kept = {name: plain(one) for name, one in value.items() if name != "metadata"}
        return kept | {name: True for name in kept if name in ("nullable", "containsNull")}
    return [plain(one) for one in value] if isinstance(value, list) else value


@pytest.mark.real
def test_types_are_those_of_spark(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    for text in VALID:
        found = parse_ddl(text)
        assert found is not None
        theirs = DataType.fromDDL(text)
        assert plain(json.loads(found.json())) == plain(json.loads(theirs.json())), text
    for text, _ in INVALID:
        with pytest.raises(PySparkException):
            DataType.fromDDL(text)


@pytest.mark.parametrize(("text", "message"), INVALID)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueFormatError, match=message):
        parse_ddl(text)


@pytest.mark.parametrize("text", LEFT_TO_SPARK)
def test_rare_types_are_left_to_spark(text: str) -> None:
    assert parse_ddl(text) is None


def test_nesting_is_bounded() -> None:
    assert parse_ddl("a " + "array<" * MAX_DEPTH + "int" + ">" * MAX_DEPTH) is not None
    with pytest.raises(ValueFormatError, match="nested deeper"):
        parse_ddl("a " + "array<" * 10_000)
