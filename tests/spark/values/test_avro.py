"""Avro values: golden ones for every type, schemas that change, garbage."""

from __future__ import annotations

import io
import json
import pickle
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.reading.model.source import SourceError
from kafkawire_spark.pipeline.values import registry as client
from kafkawire_spark.pipeline.values.avro import AvroDecoder, build, self_contained
from kafkawire_spark.pipeline.values.converters import converter, resolve
from kafkawire_spark.pipeline.values.registry import RegistryError
from kafkawire_spark.pipeline.values.spec import Format, ValueFormatError
from tests.kit.spark.registry import FakeRegistry
from tests.spark.values.test_values import records

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
ADDRESS = {
    "type": "record",
    "name": "Address",
    "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": ["null", "int"]}],
}
LOCAL = pa.timestamp("us")
STAMP = pa.timestamp("us", tz="UTC")

# type, its Arrow type, and a value with its converted form
GOLDEN: list[tuple[Any, pa.DataType, Any, Any]] = [
    ("boolean", pa.bool_(), True, True),
    ("int", pa.int32(), -5, -5),
    ("long", pa.int64(), 2**62, 2**62),
    ("float", pa.float32(), 1.5, 1.5),
    ("double", pa.float64(), 0.1, 0.1),
    ("bytes", pa.binary(), b"\xff", b"\xff"),
    ("string", pa.string(), "grün", "grün"),
    ("null", pa.string(), None, None),
    (["null", "long"], pa.int64(), None, None),
    (["long", "null"], pa.int64(), 7, 7),
    ({"type": "int", "logicalType": "date"}, pa.date32(), date(2026, 1, 2), date(2026, 1, 2)),
    ({"type": "long", "logicalType": "timestamp-millis"}, STAMP, AT,
     AT.replace(microsecond=678000)),
    ({"type": "long", "logicalType": "timestamp-micros"}, STAMP, AT, AT),
    ({"type": "long", "logicalType": "timestamp-nanos"}, STAMP, 1_700_000_000_123_456_789,
     datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, LOCAL, 1,
     datetime(1970, 1, 1, 0, 0, 0, 1)),
    ({"type": "int", "logicalType": "time-millis"}, pa.int32(), 5, 5),
    ({"type": "long", "logicalType": "time-micros"}, pa.int64(), 6, 6),
    ({"type": "string", "logicalType": "uuid"}, pa.string(), uuid.UUID(int=5),
     "00000000-0000-0000-0000-000000000005"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
     pa.decimal128(10, 2), Decimal("-12.34"), Decimal("-12.34")),
    ({"type": "fixed", "name": "D", "size": 6, "logicalType": "decimal", "precision": 4},
     pa.decimal128(4, 0), Decimal(77), Decimal(77)),
    ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), b"ab", b"ab"),
    ({"type": "enum", "name": "E", "symbols": ["NEW", "DONE"]}, pa.string(), "DONE", "DONE"),
    ({"type": "array", "items": ["null", "int"]}, pa.list_(pa.field("element", pa.int32())),
     [1, None], [1, None]),
    ({"type": "map", "values": "double"}, pa.map_(pa.string(), pa.float64()), {"a": 1.0},
     [("a", 1.0)]),
    (ADDRESS, pa.struct([("city", pa.string()), ("zip", pa.int32())]), {"city": "Ulm", "zip": None},
     {"city": "Ulm", "zip": None}),
    (["int", "long"], pa.int64(), 3, 3),
    (["float", "double", "null"], pa.float64(), 0.25, 0.25),
    (["null", "int", "string", ADDRESS],
     pa.struct([("member0", pa.int32()), ("member1", pa.string()),
                ("member2", pa.struct([("city", pa.string()), ("zip", pa.int32())]))]),
     ("Address", {"city": "Ulm", "zip": 1}),
     {"member0": None, "member1": None, "member2": {"city": "Ulm", "zip": 1}}),
    (["boolean", "long", "bytes"],
     pa.struct([("member0", pa.bool_()), ("member1", pa.int64()), ("member2", pa.binary())]),
     True, {"member0": True, "member1": None, "member2": None}),
]  # fmt: skip


def encoded(schema: Any, value: Any) -> bytes:
    """A datum."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def record_of(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": type} for field, type in fields],
    }


def columns(schema: Any, payloads: Sequence[bytes | None]) -> tuple[pa.Array, dict[int, str]]:
    decoder = AvroDecoder(self_contained(json.dumps(schema)), None)
    column, bad = build(decoder, pa.array(payloads, pa.binary()))
    column.validate(full=True)
    return column, bad


@pytest.mark.parametrize(("type", "arrow", "value", "expected"), GOLDEN, ids=str)
def test_every_avro_type(type: Any, arrow: pa.DataType, value: Any, expected: Any) -> None:
    schema = record_of(("x", type))
    column, bad = columns(schema, [encoded(schema, {"x": value}), None])
    assert not bad
    assert column.type == pa.struct([pa.field("x", arrow)])
    assert column.to_pylist() == [{"x": expected}, None]


def test_named_type_is_defined_once_and_reused() -> None:
    schema = record_of(
        ("a", ADDRESS), ("b", ["null", "Address"]), ("c", {"type": "array", "items": "Address"})
    )
    one = {"city": "Ulm", "zip": 1}
    column, bad = columns(schema, [encoded(schema, {"a": one, "b": one, "c": [one, one]})])
    assert (column.to_pylist(), bad) == ([{"a": one, "b": one, "c": [one, one]}], {})


def test_garbage_is_reported_row_by_row() -> None:
    schema = record_of(("id", "long"), ("name", "string"))
    good = encoded(schema, {"id": 1, "name": "abc"})
    payloads = [good, b"", good + b"x", good[:-1], b"\xff" * 30, b"\x02\x06a\xff\xfe", None, good]
    column, bad = columns(schema, payloads)
    assert sorted(bad) == [1, 2, 3, 4, 5]
    assert bad[2] == "1 bytes after the value"
    assert all(
        reason.startswith("not Avro of its schema") for row, reason in bad.items() if row != 2
    )
    assert column.is_valid().to_pylist() == [True, *[False] * 6, True]


def test_values_that_do_not_fit_column_are_bad_rows() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    schema = record_of(("at", millis))
    plain = record_of(("at", "long"))
    payloads = [encoded(plain, {"at": at}) for at in (1, 2**62, 3)]
    column, bad = columns(schema, payloads)
    assert list(bad) == [1]
    assert column.is_valid().to_pylist() == [True, False, True]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "is not one"),
        ("5", "is not one"),
        ('{"type": "record", "name": "A", "fields": [{"name": "x", "type": "Nope"}]}', "Nope"),
        ('{"type": "record", "name": "A", "fields": [{"name": "x", "type": ["null", "A"]}]}',
         "is a A inside of one: a table has no recursive types"),
        ('{"type": "array", "items": "null"}', "array of nulls"),
        ('{"type": "array", "items": {"type": "record", "name": "A", "fields": []}}',
         "records without fields"),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}',
         "the value of the Avro schema is a decimal(50, 2): at most 38 digits"),
    ],
)  # fmt: skip
def test_schemas_without_table_form_are_refused(schema: str, message: str) -> None:
    with pytest.raises(ValueFormatError) as raised:
        converter(resolve(Format("avro", schema=schema), ["t"]))
    assert message in str(raised.value)


def test_reserved_columns() -> None:
    schema = json.dumps(record_of(("_offset", "long")))
    with pytest.raises(ValueFormatError, match="'_offset': that is reserved"):
        converter(resolve(Format("avro", schema=schema), ["t"]))
    converter(resolve(Format("avro", schema=schema), ["t"]), key=True)


def test_keys_are_one_column() -> None:
    schema = record_of(("id", "long"))
    key = converter(resolve(Format("avro", schema=json.dumps(schema)), ["t"]), key=True)
    key = pickle.loads(pickle.dumps(key))
    assert [field.name for field in key.fields()] == ["_key"]
    made, bad = key.convert(records(_key=[encoded(schema, {"id": 7}), None]))
    assert (made[0].to_pylist(), bad) == ([{"id": 7}, None], {})


LEAVES = st.sampled_from(
    [("boolean", st.booleans()), ("int", st.integers(-(2**31), 2**31 - 1)), ("bytes", st.binary()),
     ("long", st.integers(-(2**63), 2**63 - 1)), ("string", st.text()),
     ("double", st.floats(allow_nan=False))]
)  # fmt: skip


@given(st.data())
def test_avro_values_round_trip(data: st.DataObject) -> None:
    """Records of records, lists and nulls, as written by fastavro."""

    def shape(depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        kinds = ["leaf", "null"] + (["list", "record"] if depth else [])
        kind = data.draw(st.sampled_from(kinds))
        if kind == "leaf":
            return data.draw(LEAVES)
        if kind == "null":
            type, values = data.draw(LEAVES)
            return ["null", type], st.none() | values
        if kind == "list":
            type, values = shape(depth - 1)
            return {"type": "array", "items": type}, st.lists(values, max_size=3)
        parts = {f"f{at}": shape(depth - 1) for at in range(data.draw(st.integers(1, 3)))}
        names.append(f"R{len(names)}")
        fields = [(name, type) for name, (type, _) in parts.items()]
        values = st.fixed_dictionaries({name: part for name, (_, part) in parts.items()})
        return record_of(*fields, name=names[-1]), values

    names: list[str] = []
    type, values = shape(2)
    schema = record_of(("x", type), name="Top")
    rows = data.draw(st.lists(st.fixed_dictionaries({"x": values}), max_size=5))
    column, bad = columns(schema, [encoded(schema, row) for row in rows])
    assert (column.to_pylist(), bad) == (rows, {})


OLD = record_of(("id", "int"), ("name", "string"))
NEW: dict[str, Any] = {
    **OLD,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "title", "type": ["null", "string"], "aliases": ["name"], "default": None},
        {"name": "state", "type": "string", "default": "new"},
    ],
}


def test_several_schema_versions_in_one_topic(fake: FakeRegistry) -> None:
    old = fake.register("orders-value", json.dumps(OLD))
    new = fake.register("orders-value", json.dumps(NEW))
    alien = fake.register("else-value", json.dumps(record_of(("z", "string"))))
    form = resolve(Format("avro", registry=fake.url), ["orders"])
    value = pickle.loads(pickle.dumps(converter(form)))  # as it is sent to the tasks
    asked = len(fake.requests)
    payloads = [
        framed(old, encoded(OLD, {"id": 1, "name": "a"})),
        framed(new, encoded(NEW, {"id": 2**40, "title": None, "state": "x"})),
        framed(alien, encoded(record_of(("z", "string")), {"z": "q"})),
        framed(99, b"abc"),
        b"plain text",
        None,
        framed(old, encoded(OLD, {"id": 3, "name": "c"})),
    ]
    made, bad = value.convert(records(_value=payloads))
    rows = pa.RecordBatch.from_arrays(made, schema=pa.schema(value.fields())).to_pylist()
    nothing = {"id": None, "title": None, "state": None}
    assert rows == [
        {"id": 1, "title": "a", "state": "new"},
        {"id": 2**40, "title": None, "state": "x"},
        nothing, nothing, nothing, nothing,
        {"id": 3, "title": "c", "state": "new"},
    ]  # fmt: skip
    assert sorted(bad) == [2, 3, 4]
    assert "not Avro of its schema" in bad[2]
    assert bad[3] == "the registry has no schema 99"
    assert bad[4] == "begins with byte 112, not with 0 and the number of a schema"
    value.convert(records(_value=payloads))
    assert len(fake.requests) == asked + 4  # each number once, also the missing one


def test_columns_of_an_older_version(fake: FakeRegistry) -> None:
    fake.register("orders-value", json.dumps(OLD))
    fake.register("orders-value", json.dumps(NEW))
    form = resolve(Format("avro", registry=fake.url, version="1"), ["orders"])
    assert [field.name for field in converter(form).fields()] == ["id", "name"]


def test_schema_of_job_together_with_registry(fake: FakeRegistry) -> None:
    number = fake.register("orders-value", json.dumps(OLD))
    own = json.dumps(record_of(("name", "string")))
    value = converter(resolve(Format("avro", registry=fake.url, schema=own), ["orders"]))
    made, bad = value.convert(
        records(_value=[framed(number, encoded(OLD, {"id": 1, "name": "a"}))])
    )
    assert ([column.to_pylist() for column in made], bad) == ([["a"]], {})


def test_references_and_unions_of_them(fake: FakeRegistry) -> None:
    """A topic of several records: the schema is a union of references (Confluent's way)."""
    fake.register("address", json.dumps({**ADDRESS, "namespace": "shop"}))
    order = record_of(("to", "shop.Address"))
    fake.register("order", json.dumps(order), references=[("shop.Address", "address", 1)])
    number = fake.register(
        "mixed-value",
        '["Order", "shop.Address"]',
        references=[("Order", "order", 1), ("shop.Address", "address", 1)],
    )
    form = resolve(Format("avro", registry=fake.url), ["mixed"])
    value = converter(form)
    schema = json.loads(form.schema)
    one = {"city": "Ulm", "zip": None}
    payloads = [
        framed(number, encoded(schema, ("Order", {"to": one}))),
        framed(number, encoded(schema, ("shop.Address", one))),
    ]
    made, bad = value.convert(records(_value=payloads))
    rows = pa.RecordBatch.from_arrays(made, schema=pa.schema(value.fields())).to_pylist()
    assert not bad
    assert rows == [{"member0": {"to": one}, "member1": None}, {"member0": None, "member1": one}]


def test_topics_of_one_table_have_one_schema(fake: FakeRegistry) -> None:
    fake.register("a-value", json.dumps(OLD))
    fake.register("b-value", json.dumps(NEW))
    fake.register("c-value", json.dumps(OLD))
    form = Format("avro", registry=fake.url)
    assert resolve(form, ["a", "c"]) == resolve(form, ["a"])
    with pytest.raises(ValueFormatError, match=r"topics a, b have 2 different schemas"):
        resolve(form, ["a", "b"])
    with pytest.raises(RegistryError, match="has no subject 'd-value'"):
        resolve(form, ["d"])
    assert resolve(Format("avro", registry=fake.url, subject="b-value"), ["x", "y"]).resolved
    with pytest.raises(RegistryError, match="subject 'a-key'"):
        resolve(form, ["a"], key=True)


def test_unreachable_registry_is_not_a_bad_record(fake: FakeRegistry) -> None:
    number = fake.register("orders-value", json.dumps(OLD))
    value = converter(resolve(Format("avro", registry=fake.url), ["orders"]))
    fake.failures = [503] * 100
    client.registry(fake.url)._by_number.clear()
    payload = framed(number, encoded(OLD, {"id": 1, "name": "a"}))
    with pytest.raises(SourceError, match="answers 503"):
        value.convert(records(_value=[payload]))
    fake.failures = []
    assert value.convert(records(_value=[payload]))[1] == {}
