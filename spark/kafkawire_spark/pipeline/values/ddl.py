"""Spark's DDL of columns, `id BIGINT, tags ARRAY<STRING>`, parsed without Spark: Spark's own parser
is Java, and a mistake is to be reported before Java is started. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkawire_spark.pipeline.values.spec import ValueFormatError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<mark>[<>(),:]))",
    re.ASCII,
)
_NAMES = {
    "boolean": "BooleanType", "tinyint": "ByteType", "byte": "ByteType", "smallint": "ShortType",
    "short": "ShortType", "int": "IntegerType", "integer": "IntegerType", "bigint": "LongType",
    "long": "LongType", "float": "FloatType", "real": "FloatType", "double": "DoubleType",
    "date": "DateType", "timestamp": "TimestampType", "timestamp_ltz": "TimestampType",
    "timestamp_ntz": "TimestampNTZType", "string": "StringType", "binary": "BinaryType",
}  # fmt: skip
_DECIMALS = ("decimal", "dec", "numeric")
MAX_PRECISION = 38
MAX_DEPTH = 100
"""Maximum nesting of types: more than a table of any format has, and no deep recursion."""
_ONLY_SPARK = {
    "interval", "variant", "void", "null", "time", "char", "character", "varchar", "collate",
    "default", "generated", "geometry", "geography",
}  # fmt: skip
"""Words of types and clauses that are left to Spark's parser."""


class _LeftToSpark(Exception):
    """The text has a word that is left to Spark's parser."""


def parse_ddl(text: str) -> DataType | None:
    """Return the columns, or the one type in the text; None if only Spark's parser can tell. Raises
    ValueFormatError."""
    try:
        try:
            return _Parser(text).columns("")
        except ValueFormatError:
            with suppress(ValueFormatError):
                return _Parser(text).whole_type()
            raise
    except _LeftToSpark:
        return None


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    def columns(self, end: str) -> StructType:
        """Return the columns up to the token `end`, "" for the end of the text."""
        from pyspark.sql.types import StructType

        fields = [self._column()]
        while self._take(","):
            fields.append(self._column())
        self._need(end)
        return StructType(fields)

    def whole_type(self) -> DataType:
        kind = self._type()
        self._need("")
        return kind

    def _column(self) -> StructField:
        from pyspark.sql.types import StructField

        name = self._word("a column name")
        self._take(":")
        kind = self._type()
        if self._take("not"):
            self._need("null")
        if self._take("comment") and self._pop()[:1] not in ("'", '"'):
            raise ValueFormatError(f"the comment of the column {name} is not a quoted text")
        return StructField(name, kind)

    def _type(self) -> DataType:
        from pyspark.sql import types

        word = self._word("a type")
        low = word.lower()
        if low in _ONLY_SPARK:
            raise _LeftToSpark
        if low in _DECIMALS:
            return types.DecimalType(*self._decimal())
        if low in _NAMES:
            kind: DataType = getattr(types, _NAMES[low])()
            return kind
        if low not in ("array", "map", "struct"):
            raise ValueFormatError(f"there is no type {word!r}")
        self._need("<")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueFormatError(f"types are nested deeper than {MAX_DEPTH}")
        nested = self._parse_nested(low)
        self._depth -= 1
        return nested

    def _parse_nested(self, low: str) -> DataType:
        from pyspark.sql import types

        if low == "struct":
            return types.StructType() if self._take(">") else self.columns(">")
        first = self._type()
        if low == "array":
            self._need(">")
            return types.ArrayType(first)
        self._need(",")
        second = self._type()
        self._need(">")
        return types.MapType(first, second)

    def _decimal(self) -> tuple[int, int]:
        if not self._take("("):
            return 10, 0
        precision, scale = self._whole(), 0
        if self._take(","):
            scale = self._whole()
        self._need(")")
        if not 0 < precision <= MAX_PRECISION or scale > precision:
            raise ValueFormatError(
                f"DECIMAL({precision}, {scale}) has a precision from 1 to {MAX_PRECISION}, and a "
                "scale up to it"
            )
        return precision, scale

    def _whole(self) -> int:
        token = self._pop()
        if not token.isdecimal() or len(token) > 4:
            raise ValueFormatError(f"{token or 'the end'!r} is not a precision or scale")
        return int(token)

    def _word(self, what: str) -> str:
        token = self._pop()
        if token[:1] == "`":
            return token[1:-1].replace("``", "`")
        if not token or not re.fullmatch(r"\w+", token, re.ASCII):
            raise ValueFormatError(f"{token!r} is not {what}" if token else f"{what} is missing")
        return token

    def _take(self, wanted: str) -> bool:
        """Skip the next token if it is this one."""
        found = self._peek() == wanted
        self._next += found
        return found

    def _need(self, wanted: str) -> None:
        token = self._pop()
        if token.lower() == wanted:
            return
        if token.lower() in _ONLY_SPARK:
            raise _LeftToSpark
        shown = wanted or "a comma or the end"
        raise ValueFormatError(f"{token or 'the end'!r} where {shown} is expected")

    def _peek(self) -> str:
        return self._tokens[self._next].lower() if self._next < len(self._tokens) else ""

    def _pop(self) -> str:
        token = self._tokens[self._next] if self._next < len(self._tokens) else ""
        self._next += 1
        return token


def _tokens(text: str) -> Iterator[str]:
    text, at = text.rstrip(), 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            rest = text[at:].lstrip()
            if rest.startswith(("--", "/*")):  # a comment
                raise _LeftToSpark
            raise ValueFormatError(f"{rest[:20]!r} is not the name of a column or type")
        yield found[0].lstrip()
        at = found.end()
