"""Formats in jobs; bytes and text; whole batches with invalid records separated."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafkawire.reading.model.source import SourceError
from kafkawire_spark.pipeline.values import rows
from kafkawire_spark.pipeline.values.converters import converter, resolve
from kafkawire_spark.pipeline.values.framing import BadValue, message_path, number_of
from kafkawire_spark.pipeline.values.json import why
from kafkawire_spark.pipeline.values.shred import (
    RecordField,
    array,
    build_all,
    leaf,
    mapping,
    struct,
)
from kafkawire_spark.pipeline.values.spec import Format, ValueFormatError, checked_columns


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"format": "xml"},
            "value.format is 'xml': it is one of bytes, text, json, avro, protobuf",
        ),
        ({"schema": "x"}, "value.schema is set, but the format bytes takes no other setting"),
        ({"format": "text", "registry": "x"}, "value.registry is set, but the format text takes"),
        ({"format": "json", "registry": "x"}, "format json takes schema, schema_file"),
        ({"format": "json"}, "value.schema is missing"),
        ({"format": "avro"}, "value.registry is missing"),
        ({"format": "avro", "schema": "x", "schema_file": "y"}, "both set: one is enough"),
        ({"format": "avro", "registry": "x", "version": "new"}, "value.version is 'new'"),
        ({"format": "protobuf", "message": "M"}, "value.registry is missing: protobuf needs it"),
        ({"format": "protobuf", "descriptor": "x"}, "value.message is missing"),
        ({"format": "avro", "schema": "x", "resolved": True}, "value.resolved is set"),
    ],
)
def test_invalid_formats_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueFormatError) as raised:
        Format(**keys).validate("value")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "form",
    [
        Format(),
        Format("text"),
        Format("json", schema="id BIGINT"),
        Format("avro", registry="http://x", version="7", subject="s"),
        Format("avro", registry="http://x", version="latest", schema='"string"'),
        Format("protobuf", registry="http://x"),
        Format("protobuf", descriptor="x.desc", message="a.B"),
    ],
)
def test_valid_formats(form: Format) -> None:
    assert form.validate() is form
    assert pickle.loads(pickle.dumps(form)) == form


def test_invalid_columns_are_refused() -> None:
    checked_columns(["a", "b", "value", "_value"], "value")
    with pytest.raises(ValueFormatError, match="has a field '_Offset': that is reserved"):
        checked_columns(["_Offset"], "value")
    with pytest.raises(ValueFormatError, match="fields 'id' and 'ID': names must differ"):
        checked_columns(["id", "ID"], "value")


def records(**columns: list[Any]) -> pa.RecordBatch:
    """Records with native names; `_key` and `_value` binary."""
    some = next(iter(columns.values()))
    offsets = pa.array(range(len(some)), pa.int64())
    arrays = {"_offset": offsets} | {
        name: pa.array(values, pa.binary()) for name, values in columns.items()
    }
    return pa.RecordBatch.from_pydict(arrays)


def test_bytes_are_unchanged() -> None:
    batch = records(_key=[None, b"k"], _value=[b"\xff\x00", None])
    good, dead = rows.convert(batch, converter(Format(), key=True), converter(Format()))
    assert dead is None
    assert good.equals(batch)
    assert good.column("_value").buffers()[2].address == batch.column("_value").buffers()[2].address


def test_text_is_validated() -> None:
    batch = records(_value=["grün".encode(), None, b"a\xffb", b"", "日本".encode()[:-1], b"ok"])
    good, dead = rows.convert(batch, None, converter(Format("text")))
    assert good.to_pydict() == {"_offset": [0, 1, 3, 5], "_value": ["grün", None, "", "ok"]}
    assert dead is not None
    assert dead.schema.names == ["_offset", "_value", "_reason"]
    assert dead.to_pydict() == {
        "_offset": [2, 4],
        "_value": [b"a\xffb", "日本".encode()[:-1]],
        "_reason": [
            "value: not UTF-8: invalid start byte at byte 1",
            "value: not UTF-8: unexpected end of data at byte 3",
        ],
    }


def test_keys_have_formats_too() -> None:
    batch = records(_key=[b"k", b"\xff", b"\xff"], _value=[b"v", b"v", b"\xfe"])
    text = converter(Format("text")), converter(Format("text"), key=True)
    good, dead = rows.convert(batch, text[1], text[0])
    assert good.to_pydict() == {"_offset": [0], "_key": ["k"], "_value": ["v"]}
    assert dead is not None
    assert (
        dead.column("_reason").to_pylist() == ["key: not UTF-8: invalid start byte at byte 0"] * 2
    )
    assert dead.column("_value").to_pylist() == [b"v", b"\xfe"]


def test_empty_batch() -> None:
    for form in (Format(), Format("text"), resolve(Format("avro", schema='"int"'), ["t"])):
        good, dead = rows.convert(records(_value=[]), None, converter(form))
        assert (good.num_rows, dead) == (0, None)
        assert good.schema == rows.schema(records(_value=[]).schema, None, converter(form))


def test_slice_of_batch() -> None:
    batch = records(_value=[b"a", b"\xff", b"b", b"\xff"]).slice(1, 2)
    good, dead = rows.convert(batch, None, converter(Format("text")))
    assert good.to_pydict() == {"_offset": [2], "_value": ["b"]}
    assert dead is not None
    assert dead.column("_offset").to_pylist() == [1]


def test_reasons_are_truncated() -> None:
    class Wordy:
        def fields(self) -> list[pa.Field]:
            return [pa.field("x", pa.int32())]

        def convert(self, batch: pa.RecordBatch) -> tuple[list[pa.Array], dict[int, str]]:
            return [pa.nulls(batch.num_rows, pa.int32())], {0: "x" * 10_000}

    _, dead = rows.convert(records(_value=[b"a"]), None, Wordy())
    assert dead is not None
    assert len(dead.column("_reason")[0].as_py()) == rows.REASON_CHARACTERS_MAX


def test_values_that_do_not_fit_are_found() -> None:
    values: list[Any] = list(range(1000))
    values[7], values[8], values[500], values[999] = 2**40, None, "x", 2**63
    column, bad = build_all(leaf(pa.int32()), values)
    assert sorted(bad) == [7, 500, 999]
    assert column.null_count == 4
    assert column[501].as_py() == 501


def test_nested_columns() -> None:
    inner = struct([RecordField("x", leaf(pa.int32()), lambda found: [one["x"] for one in found])])
    node = struct(
        [
            RecordField("a", array(inner), lambda found: [one.get("a") for one in found]),
            RecordField(
                "m", mapping(leaf(pa.string()), inner), lambda f: [one.get("m") for one in f]
            ),
        ]
    )
    values: list[dict[str, Any] | None] = [
        {"a": [{"x": 1}, None, {"x": None}], "m": {"k": {"x": 2}, "l": None}},
        None,
        {"a": None, "m": None},
        {"a": [], "m": {}},
    ]
    column = node.build(values)
    column.validate(full=True)
    assert column.to_pylist() == [
        {"a": [{"x": 1}, None, {"x": None}], "m": [("k", {"x": 2}), ("l", None)]},
        None,
        {"a": None, "m": None},
        {"a": [], "m": []},
    ]


def test_schema_ids_are_parsed() -> None:
    assert number_of(b"\0\x00\x01\x00\x02rest") == 65538
    for wrong, reason in ((b"", "0 bytes"), (b"\0\0\0\0", "4 bytes"), (b'{"a":1}', "byte 123")):
        with pytest.raises(BadValue, match=reason):
            number_of(wrong)


def test_message_indexes_are_parsed() -> None:
    head = b"\0\0\0\0\1"
    assert message_path(head + b"\0rest") == ((0,), 6)
    assert message_path(head + b"\x02\x02") == ((1,), 7)
    assert message_path(head + b"\x04\x00\x80\x01") == ((0, 64), 9)
    for wrong in (b"", b"\x04\x00", b"\xff\xff\xff\xff\xff\xff", b"\x01", b"\xfe\x7f"):
        with pytest.raises(BadValue, match="message indexes"):
            message_path(head + wrong)


def test_schema_files(tmp_path: Path) -> None:
    (tmp_path / "s.avsc").write_text('{"type": "enum", "name": "E", "symbols": ["A"]}')
    form = resolve(Format("avro", schema_file=str(tmp_path / "s.avsc")), ["t"])
    assert form.resolved
    assert not form.schema_file
    assert resolve(form, ["other"]) is form
    good, dead = rows.convert(records(_value=[b"\x00", b"\x02"]), None, converter(form))
    assert good.column("_value").to_pylist() == ["A"]
    assert dead is not None
    for form in (Format("avro", schema_file="/no/file"), Format("protobuf", descriptor="/no/file")):
        with pytest.raises(SourceError, match="/no/file cannot be read: No such file"):
            resolve(form, ["t"])
    (tmp_path / "x").write_bytes(b"\xff\xff")
    with pytest.raises(SourceError, match="is no descriptor set"):
        resolve(Format("protobuf", descriptor=str(tmp_path / "x"), message="M"), ["t"])


def test_reason_why_value_does_not_match_schema() -> None:
    from pyspark.sql.types import (
        ArrayType,
        BooleanType,
        DecimalType,
        DoubleType,
        LongType,
        MapType,
        ShortType,
        StringType,
        StructType,
    )

    deep = StructType().add("n", ShortType()).add("l", ArrayType(DoubleType()))
    schema = StructType().add("id", LongType()).add("s", StringType()).add("deep", deep)
    schema = schema.add("m", MapType(StringType(), BooleanType())).add("d", DecimalType(5, 2))
    expected = {
        b"\xff": "not UTF-8: invalid start byte at byte 0",
        b" ": "empty",
        b'{"a":': "not JSON: Expecting value: line 1 column 6 (char 5)",
        b"[1]": "not a JSON object: [1]",
        b"null": "not a JSON object: null",
        b'{"id": "1"}': 'id is "1", not bigint',
        b'{"id": 9223372036854775808}': "id is 9223372036854775808, not bigint",
        b'{"id": true}': "id is true, not bigint",
        b'{"s": 5, "deep": {"n": 40000}}': "deep.n is 40000, not smallint",
        b'{"deep": {"l": [1, null, "NaN", []]}}': "deep.l[3] is [], not double",
        b'{"deep": 5}': "deep is 5, not struct<n:smallint,l:array<double>>",
        b'{"m": {"a": true, "b": 1}}': "m.b is 1, not boolean",
        b'{"m": []}': "m is [], not map<string,boolean>",
        b'{"d": 123456}': "does not fit the schema",
    }
    assert {value: why(value, schema) for value in expected} == expected
    assert why(b"[" * 100_000, schema).startswith("not JSON")
