"""Protobuf values: golden ones for every type, versions of a schema, garbage.

Covers: kafkawire_spark.pipeline.values.protobuf.
"""

from __future__ import annotations

import base64
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from kafkawire_spark.pipeline.values.converters import converter, resolve
from kafkawire_spark.pipeline.values.protobuf import complete, message_of, name_at
from kafkawire_spark.pipeline.values.spec import Format, ValueFormatError
from tests.kit.spark.registry import FakeRegistry
from tests.spark.values.test_values import records

DOUBLE, FLOAT, INT64, UINT64, INT32, FIXED64, FIXED32, BOOL, STRING = range(1, 10)
MESSAGE, BYTES, UINT32, ENUM = 11, 12, 13, 14
ONE, MANY = 1, 3


def field(
    message: DescriptorProto, name: str, type: int, *, label: int = ONE, of: str = "", **more: Any
) -> None:
    """Add a field, numbered by its position."""
    number = more.pop("number", len(message.field) + 1)
    one = message.field.add(name=name, number=number, type=type, label=label, **more)
    if of:
        one.type_name = of


def shop() -> FileDescriptorProto:
    """The descriptor of this proto3 source:

    message Order {
      int64 id = 1; string name = 2; optional int32 count = 3; double price = 4; bytes raw = 5;
      uint64 big = 6; uint32 small = 7; bool paid = 8; State state = 9; Address to = 10;
      repeated string tags = 11; repeated Address stops = 12; map<string, int64> stock = 13;
      map<int32, Address> places = 14; google.protobuf.Timestamp at = 15; Nothing nothing = 16;
      oneof how { string card = 17; Address cash = 18; }
      enum State { NEW = 0; DONE = 1; }
      message Address { string city = 1; Deeper deeper = 2; message Deeper { int32 x = 1; } }
    }
    message Nothing {}
    """
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    order = file.message_type.add(name="Order")
    for name, type in (("id", INT64), ("name", STRING)):
        field(order, name, type)
    order.oneof_decl.add(name="how")
    order.oneof_decl.add(name="_count")
    field(order, "count", INT32, proto3_optional=True, oneof_index=1)
    for name, type in (("price", DOUBLE), ("raw", BYTES), ("big", UINT64), ("small", UINT32)):
        field(order, name, type)
    field(order, "paid", BOOL)
    field(order, "state", ENUM, of=".shop.Order.State")
    field(order, "to", MESSAGE, of=".shop.Order.Address")
    field(order, "tags", STRING, label=MANY)
    field(order, "stops", MESSAGE, label=MANY, of=".shop.Order.Address")
    field(order, "stock", MESSAGE, label=MANY, of=".shop.Order.StockEntry")
    field(order, "places", MESSAGE, label=MANY, of=".shop.Order.PlacesEntry")
    field(order, "at", MESSAGE, of=".google.protobuf.Timestamp")
    field(order, "nothing", MESSAGE, of=".shop.Nothing")
    field(order, "card", STRING, oneof_index=0)
    field(order, "cash", MESSAGE, of=".shop.Order.Address", oneof_index=0)
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="DONE", number=1)
    address = order.nested_type.add(name="Address")
    field(address, "city", STRING)
    field(address, "deeper", MESSAGE, of=".shop.Order.Address.Deeper")
    field(address.nested_type.add(name="Deeper"), "x", INT32)
    for name, key, type, of in (
        ("StockEntry", STRING, INT64, ""),
        ("PlacesEntry", INT32, MESSAGE, ".shop.Order.Address"),
    ):
        entry = order.nested_type.add(name=name)
        entry.options.map_entry = True
        field(entry, "key", key)
        field(entry, "value", type, of=of)
    file.message_type.add(name="Nothing")
    return file


def message_class(file: FileDescriptorProto, name: str) -> Any:
    return message_factory.GetMessageClass(message_of(complete([file]), name))


def framed(number: int, indexes: bytes, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + indexes + data


@pytest.fixture
def descriptor(tmp_path: Path) -> str:
    path = tmp_path / "shop.desc"
    path.write_bytes(FileDescriptorSet(file=[shop()]).SerializeToString())
    return str(path)


def rows_of(form: Format, payloads: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
    value = pickle.loads(pickle.dumps(converter(form)))  # as it is sent to the tasks
    made, bad = value.convert(records(_value=payloads))
    batch = pa.RecordBatch.from_arrays(made, schema=pa.schema(value.fields()))
    batch.validate(full=True)
    return batch.to_pylist(), bad


def test_every_protobuf_type(descriptor: str) -> None:
    form = resolve(Format("protobuf", descriptor=descriptor, message="shop.Order"), ["t"])
    order = message_class(shop(), "shop.Order")
    full = order(
        id=-1, name="grün", count=0, price=0.5, raw=b"\xff", big=2**64 - 1, small=2**32 - 1,
        paid=True, state=1, to={"city": "Ulm", "deeper": {"x": 5}}, tags=["a", "b"],
        stops=[{"city": "A"}, {}], stock={"k": 2**40}, places={7: {"city": "B"}}, card="visa",
    )  # fmt: skip
    full.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 678901))
    full.nothing.SetInParent()
    payloads = [full.SerializeToString(), order().SerializeToString(), None]
    rows, bad = rows_of(form, payloads)
    assert not bad
    assert rows[0] == {
        "id": -1, "name": "grün", "count": 0, "price": 0.5, "raw": b"\xff",
        "big": Decimal(2**64 - 1), "small": 2**32 - 1, "paid": True, "state": "DONE",
        "to": {"city": "Ulm", "deeper": {"x": 5}}, "tags": ["a", "b"],
        "stops": [{"city": "A", "deeper": None}, {"city": "", "deeper": None}],
        "stock": [("k", 2**40)], "places": [(7, {"city": "B", "deeper": None})],
        "at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), "card": "visa", "cash": None,
    }  # fmt: skip
    assert rows[1] == {
        "id": 0, "name": "", "count": None, "price": 0.0, "raw": b"", "big": Decimal(0),
        "small": 0, "paid": False, "state": "NEW", "to": None, "tags": [], "stops": [],
        "stock": [], "places": [], "at": None, "card": None, "cash": None,
    }  # fmt: skip
    assert set(rows[2].values()) == {None}


def test_garbage_is_reported_row_by_row(descriptor: str) -> None:
    form = resolve(Format("protobuf", descriptor=descriptor, message="shop.Order"), ["t"])
    order = message_class(shop(), "shop.Order")
    late = order(id=1)
    late.at.seconds = 2**62  # too large for a timestamp
    unknown = order(id=2, state=9)
    payloads = [
        order(id=3).SerializeToString(),
        b"\xff\xff",
        b"\x12\x02\xff\xfe",  # name, not UTF-8
        late.SerializeToString(),
        unknown.SerializeToString(),
        b"",
    ]
    rows, bad = rows_of(form, payloads)
    assert sorted(bad) == [1, 2, 3]
    assert "not Protobuf of its schema" in bad[1]
    assert [row["id"] for row in rows] == [3, None, None, None, 2, 0]
    assert rows[4]["state"] == "9"


def newer() -> FileDescriptorProto:
    """The same with a field removed, one added, and another message before Order."""
    file = shop()
    order = file.message_type[0]
    del order.field[1]
    field(order, "more", STRING, number=40)
    first = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    first.message_type.add(name="First")
    first.message_type.extend(file.message_type)
    first.dependency.extend(file.dependency)
    return first


def test_several_schema_versions_in_one_topic(fake: FakeRegistry) -> None:
    old = fake.register("orders-value", shop().SerializeToString())
    new = fake.register("orders-value", newer().SerializeToString())
    avro = fake.register("x", '"string"')
    form = resolve(Format("protobuf", registry=fake.url, message="shop.Order"), ["orders"])
    then, now = message_class(shop(), "shop.Order"), message_class(newer(), "shop.Order")
    address = message_class(shop(), "shop.Order.Address")
    payloads: list[bytes | None] = [
        framed(old, b"\0", then(id=1, name="left out").SerializeToString()),
        framed(new, b"\x02\x02", now(id=2, more="m").SerializeToString()),
        framed(old, b"\x04\0\0", address(city="Ulm").SerializeToString()),
        framed(new, b"\0", b""),
        framed(old, b"\x02\x10", b""),
        framed(avro, b"\0", b""),
        framed(77, b"\0", b""),
        b"short",
    ]
    rows, bad = rows_of(form, payloads)
    assert [(row["id"], row.get("more"), "name" in row) for row in rows[:2]] == [
        (1, "", False),
        (2, "m", False),
    ]
    assert bad == {
        2: f"a message shop.Order.Address of schema {old}, the table has shop.Order",
        3: f"a message shop.First of schema {new}, the table has shop.Order",
        4: f"schema {old} has no message at the indexes [8]",
        5: f"schema {avro}: the schema in the registry is AVRO, not PROTOBUF",
        6: "the registry has no schema 77",
        7: "begins with byte 115, not with 0 and the number of a schema",
    }


def test_first_message_is_used_if_none_is_named(fake: FakeRegistry) -> None:
    fake.register("orders-value", shop().SerializeToString())
    form = resolve(Format("protobuf", registry=fake.url), ["orders"])
    assert form.message == "shop.Order"


def test_references(fake: FakeRegistry) -> None:
    low = FileDescriptorProto(name="default", package="low", syntax="proto3")
    field(low.message_type.add(name="Point"), "x", INT32)
    fake.register("low", low.SerializeToString())
    top = FileDescriptorProto(name="default", syntax="proto3")
    top.dependency.append("low/point.proto")
    field(top.message_type.add(name="Top"), "at", MESSAGE, of=".low.Point")
    number = fake.register(
        "t-value", top.SerializeToString(), references=[("low/point.proto", "low", 1)]
    )
    form = resolve(Format("protobuf", registry=fake.url), ["t"])
    rows, bad = rows_of(form, [framed(number, b"\0", b"\x0a\x02\x08\x05")])
    assert (rows, bad) == ([{"at": {"x": 5}}], {})
    fake.register("u-value", top.SerializeToString())
    with pytest.raises(
        ValueFormatError, match=r"imports low/point\.proto, which the schema does not"
    ):
        resolve(Format("protobuf", registry=fake.url), ["u"])


def test_registry_that_returns_compiled_schemas_only_by_id(fake: FakeRegistry) -> None:
    """As Karapace does."""
    fake.serialized = ("schemas",)
    fake.register("t-value", shop().SerializeToString())
    newest = fake.register("t-value", newer().SerializeToString())
    form = resolve(Format("protobuf", registry=fake.url, message="shop.Order"), ["t"])
    payload = message_class(newer(), "shop.Order")(id=2, more="m").SerializeToString()
    rows, bad = rows_of(form, [framed(newest, b"\x02\x02", payload)])
    assert (rows[0]["id"], rows[0]["more"], bad) == (2, "m", {})


def test_optional_fields_without_their_oneof(fake: FakeRegistry) -> None:
    """As Karapace compiles them."""
    file = FileDescriptorProto(name="default", syntax="proto3")
    message = file.message_type.add(name="M")
    field(message, "x", INT32, proto3_optional=True)
    field(message, "_x", INT32)
    field(message.nested_type.add(name="Inner"), "y", INT32, proto3_optional=True)
    field(message, "inner", MESSAGE, of="M.Inner")
    number = fake.register("t-value", file.SerializeToString())
    form = resolve(Format("protobuf", registry=fake.url), ["t"])
    rows, bad = rows_of(
        form, [framed(number, b"\0", b""), framed(number, b"\0", b"\x1a\x02\x08\0")]
    )
    assert rows == [
        {"x": None, "_x": 0, "inner": None},
        {"x": None, "_x": 0, "inner": {"y": 0}},
    ]
    assert not bad


def test_registry_with_text_schemas_only(fake: FakeRegistry) -> None:
    fake.serialized = ()
    fake.register("t-value", shop().SerializeToString())
    with pytest.raises(ValueFormatError, match="gives Protobuf schemas as text only"):
        resolve(Format("protobuf", registry=fake.url), ["t"])
    fake.register("a-value", '"string"')
    with pytest.raises(ValueFormatError, match="is AVRO, not PROTOBUF"):
        resolve(Format("protobuf", registry=fake.url), ["a"])


def test_schemas_without_table_form_are_refused(descriptor: str, tmp_path: Path) -> None:
    def of(file: FileDescriptorProto, message: str) -> Format:
        path = tmp_path / "x.desc"
        path.write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
        return Format("protobuf", descriptor=str(path), message=message)

    with pytest.raises(
        ValueFormatError, match=r"no message 'shop.None'; .*: shop.Order, shop.Nothing"
    ):
        resolve(Format("protobuf", descriptor=descriptor, message="shop.None"), ["t"])
    circle = FileDescriptorProto(name="c.proto", syntax="proto3")
    node = circle.message_type.add(name="Node")
    field(node, "next", MESSAGE, of=".Node")
    with pytest.raises(ValueFormatError, match="has a Node inside of a Node"):
        converter(resolve(of(circle, "Node"), ["t"]))
    torn = FileDescriptorProto(name="t.proto", syntax="proto3")
    field(torn.message_type.add(name="M"), "x", MESSAGE, of=".Gone")
    with pytest.raises(ValueFormatError, match="does not fit together"):
        resolve(of(torn, "M"), ["t"])
    unknown = FileDescriptorProto(name="u.proto", dependency=["google/protobuf/none.proto"])
    with pytest.raises(ValueFormatError, match=r"google/protobuf/none\.proto, which is not known"):
        resolve(of(unknown, "M"), ["t"])


def test_names_of_nested_messages() -> None:
    assert name_at(shop(), (0, 0, 0)) == "shop.Order.Address.Deeper"
    for path in ((5,), (-1,), (0, 9)):
        with pytest.raises(IndexError):
            name_at(shop(), path)


def test_resolved_format_is_text(descriptor: str) -> None:
    form = resolve(Format("protobuf", descriptor=descriptor, message="shop.Order"), ["t"])
    files = FileDescriptorSet.FromString(base64.b64decode(form.schema)).file
    assert [file.name for file in files] == ["google/protobuf/timestamp.proto", "shop.proto"]


def test_descriptor_for_the_columns_of_a_registry(fake: FakeRegistry, descriptor: str) -> None:
    """Karapace makes a map a repeated message: the descriptor knows better."""
    file = shop()
    for entry in file.message_type[0].nested_type:
        entry.options.map_entry = False
    number = fake.register("orders-value", file.SerializeToString())
    payload = message_class(shop(), "shop.Order")(stock={"x": 5}).SerializeToString()
    for form, column in (
        (Format("protobuf", registry=fake.url), [{"key": "x", "value": 5}]),
        (
            Format("protobuf", registry=fake.url, message="shop.Order", descriptor=descriptor),
            [("x", 5)],
        ),
    ):
        [row], bad = rows_of(resolve(form, ["orders"]), [framed(number, b"\0", payload)])
        assert (row["stock"], bad) == (column, {})
