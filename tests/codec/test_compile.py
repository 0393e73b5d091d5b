"""The message compiler and the meaning of declarations, on small example messages.

Covers: kafkawire.codec.compile_encode.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
from typing import Annotated, Any

import pytest

from kafkawire.codec.compile import (
    DecodeError,
    decode,
    decode_versioned,
    decoder,
    encode,
    encode_versioned,
    encoder,
    part_encoder,
    version_of,
)
from kafkawire.codec.schema import (
    fields_in,
    fields_of,
    fresh,
    ignorable,
    nullable,
    request,
    response,
    since,
    stored_message,
    tag,
    until,
)
from kafkawire.codec.schema import struct as declared
from kafkawire.codec.types import (
    Buffer,
    Records,
    UnknownTags,
    int8,
    int16,
    int32,
    int64,
    uint16,
    uint32,
    uuid,
    uuid_parse,
    uuid_text,
)


@declared
class Point:
    """Two numbers."""

    x: int32 = 0
    y: int32 = -1
    unknown_tags: UnknownTags = None


@request(key=1, versions=(0, 3), flexible_from=2)
class Sample:
    """A message with one field of each kind."""

    flag: bool = False
    small: int8 = 0
    port: uint16 = 0
    wide: uint32 = 0
    ratio: float = 0.0
    name: str = ""
    title: Annotated[str | None, nullable(1)] = ""
    ident: uuid = bytes(16)
    blob: bytes = b""
    numbers: list[int16] = []
    idents: list[uuid] = []
    names: list[str] | None = []
    points: list[Point] = []
    corner: Point = fresh(Point)
    centre: Point | None = None
    old: Annotated[int64, until(0), ignorable] = 7
    new: Annotated[int64, since(1)] = 9
    hint: Annotated[str | None, since(2), tag(0)] = None
    place: Annotated[Point | None, since(2), tag(3)] = None
    many: Annotated[list[int32], since(3), tag(1)] = []
    unknown_tags: UnknownTags = None


@response(key=1, versions=(0, 1), flexible_from=1)
class Carrier:
    """A message with records between two numbers."""

    before: int32 = 0
    records: Records | None = None
    after: int32 = 0
    extra: Annotated[int32, since(1)] = 0
    unknown_tags: UnknownTags = None


@stored_message(versions=(1, 2))
class Kept:
    """A stored value that begins with its version."""

    number: int32 = 0


# -- declared classes


def test_declared_class_behaves_like_slotted_dataclass() -> None:
    one, other = Sample(), Sample(name="a", numbers=[1])
    assert one == Sample()
    assert one != other
    assert one != object()
    assert Point(3, 4) == Point(x=3, y=4)
    assert one.numbers == []
    assert one.numbers is not Sample().numbers
    assert one.corner is not Sample().corner
    assert not hasattr(one, "__dict__")
    assert repr(Point(3)) == "Point(x=3)"
    with pytest.raises(AttributeError):
        one.misspelt = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Point(z=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        hash(one)


def test_fields_of_a_version() -> None:
    assert [field.name for field in fields_in(Sample, 0)][-1] == "old"
    assert {field.name for field in fields_in(Sample, 3)} >= {"new", "hint", "place", "many"}
    title = next(field for field in fields_of(Sample) if field.name == "title")
    assert not title.nullable(0)
    assert title.nullable(1)


def test_field_without_default_is_refused() -> None:
    with pytest.raises(KeyError, match="x"):

        @declared
        class Lacking:
            x: int32


def test_annotation_without_wire_type_is_refused() -> None:
    @request(key=1, versions=(0, 0), flexible_from=None)
    class Wrong:
        x: complex = 0j

    with pytest.raises(TypeError, match="not a wire type"):
        encode(Wrong(), 0)


# -- bytes


def test_non_flexible_encoding() -> None:
    sample = Sample(True, -2, 65535, 2**32 - 1, 0.5, "é", "t", bytes(range(16)), b"b", [-1])
    expected = b"\x01\xfe\xff\xff\xff\xff\xff\xff" + struct.pack(">d", 0.5)
    expected += b"\x00\x02\xc3\xa9" + b"\x00\x01t" + bytes(range(16)) + b"\x00\x00\x00\x01b"
    expected += b"\x00\x00\x00\x01\xff\xff" + 3 * b"\x00\x00\x00\x00"
    expected += b"\x00\x00\x00\x00\xff\xff\xff\xff" + b"\xff" + struct.pack(">q", 7)
    assert encode(sample, 0) == expected
    assert decode(Sample, 0, expected) == sample


def test_flexible_encoding() -> None:
    point = Point(1, 2)
    sample = Sample(names=None, points=[point], centre=Point(), hint="h", place=point, many=[5])
    expected = b"\x00\x00\x00\x00\x00\x00\x00\x00" + bytes(8)
    expected += b"\x01\x01" + bytes(16) + b"\x01\x01\x01\x00"
    expected += b"\x02\x00\x00\x00\x01\x00\x00\x00\x02\x00"
    expected += b"\x00\x00\x00\x00\xff\xff\xff\xff\x00"
    expected += b"\x01\x00\x00\x00\x00\xff\xff\xff\xff\x00" + struct.pack(">q", 9)
    expected += b"\x03\x00\x02\x02h\x01\x05\x02\x00\x00\x00\x05"
    expected += b"\x03\x09\x00\x00\x00\x01\x00\x00\x00\x02\x00"
    assert encode(sample, 3) == expected
    assert decode(Sample, 3, expected) == sample


def test_unknown_tags_are_kept_and_sorted_among_the_known() -> None:
    sample = Sample(hint="h", unknown_tags={300: b"far", 2: b"near"})
    data = encode(sample, 3)
    assert data.endswith(b"\x03\x00\x02\x02h\x02\x04near\xac\x02\x03far")
    assert decode(Sample, 3, data) == sample


def test_tagged_struct_of_defaults_is_not_encoded() -> None:
    assert encode(Sample(place=Point()), 2) == encode(Sample(), 2)


def test_fields_of_other_versions_decode_to_their_defaults() -> None:
    found = decode(Sample, 0, encode(Sample(old=1), 0))
    assert (found.old, found.new, found.hint, found.many) == (1, 9, None, [])
    assert decode(Sample, 1, encode(Sample(old=1), 1)).old == 7


@pytest.mark.parametrize("size", [0, 1, 14, 15, 16, 17, 126, 127, 128, 20_000])
def test_arrays_and_strings_of_every_length_class(size: int) -> None:
    sample = Sample(name="n" * size, numbers=list(range(size)), blob=b"b" * size)
    for version in (0, 3):
        assert decode(Sample, version, encode(sample, version)) == sample


# -- records


@pytest.mark.parametrize("version", [0, 1])
def test_records_are_not_copied(version: int) -> None:
    records = memoryview(bytearray(b"r" * 500))
    parts: list[Buffer] = []
    encoder(Carrier, version)(Carrier(1, records, 2), parts)
    assert parts[1] is records
    data = bytearray(b"".join(parts))
    found, position = decoder(Carrier, version)(data, 0, len(data))
    assert position == len(data)
    assert isinstance(found.records, memoryview)
    assert found.records.obj is data
    assert found.records == records
    found.records[0] = 0  # the produce path writes into the batch in place
    assert b"\0rrr" in data


def test_records_of_several_buffers() -> None:
    pieces: list[Buffer] = [b"ab", bytearray(b"cd"), memoryview(b"ef")]
    data = encode(Carrier(records=pieces, after=5), 1)
    assert decode(Carrier, 1, data) == Carrier(records=b"abcdef", after=5)
    nothing: list[Records] = [b"", []]
    for empty in nothing:
        assert decode(Carrier, 1, encode(Carrier(records=empty), 1)).records == b""
    assert decode(Carrier, 1, encode(Carrier(), 1)).records is None


# -- mistakes of the caller


def test_request_refuses_to_drop_non_ignorable_field() -> None:
    with pytest.raises(ValueError, match=r"Sample\.new is set but version 0 lacks it"):
        encode(Sample(new=1), 0)
    encode(Sample(old=1), 3)  # ignorable
    encode(Carrier(extra=1), 0)  # a response fills in for every version at once


@pytest.mark.parametrize(
    ("sample", "version"),
    [
        (Sample(small=200), 0),
        (Sample(title=None), 0),
        (Sample(numbers=None), 3),  # type: ignore[arg-type]
        (Sample(ident=b"short"), 3),
        (Sample(name="x" * 40_000), 0),
        (Sample(name="\ud800"), 3),
        (Sample(corner=None), 3),  # type: ignore[arg-type]
    ],
)
def test_values_out_of_range_are_refused(sample: Sample, version: int) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, struct.error)):
        encode(sample, version)


def test_unknown_versions_are_refused() -> None:
    for made in (encoder, decoder):
        with pytest.raises(ValueError, match="no version 4"):
            made(Sample, 4)
    with pytest.raises(TypeError, match="not a top-level message"):
        encode(Point(), 0)


# -- garbage


FIXED = 16  # flag to ratio in Sample


@pytest.mark.parametrize(
    ("version", "tail"),
    [
        (0, b"\xff\xff"),  # null where null is not allowed
        (0, b"\xff\xfe"),  # length -2
        (0, b"\x00\x01\xff"),  # not UTF-8
        (0, b"\x7f\xff"),  # more than the available bytes
        (3, b"\x00"),
        (3, b"\x02\xff"),
        (3, b"\xff\xff\xff\xff\x7f"),  # varint over int32
        (3, b"\xff\xff\xff\xff\xff\xff\x01"),  # varint over 5 bytes
        (3, b"\xff"),
    ],
)
def test_garbage_raises_decode_error(version: int, tail: bytes) -> None:
    for data in (bytes(FIXED) + tail, bytearray(FIXED) + tail, memoryview(bytes(FIXED) + tail)):
        with pytest.raises(DecodeError):
            decode(Sample, version, data)


@pytest.mark.parametrize("version", [0, 3])
@pytest.mark.parametrize("name", ["numbers", "idents", "names", "points"])
def test_array_counts_are_checked_before_allocation(version: int, name: str) -> None:
    sample = Sample(numbers=[7], idents=[b"7" * 16], names=["7" * 7], points=[Point(7, 7)])
    data = encode(sample, version)
    content: dict[str, bytes] = {
        "numbers": b"\x00\x07",
        "idents": b"7" * 16,
        "names": b"\x08" + b"7" * 7 if version else b"\x00\x07" + b"7" * 7,
        "points": b"\x00\x00\x00\x07\x00\x00\x00\x07",
    }
    count = b"\x02" if version else b"\x00\x00\x00\x01"
    huge = b"\xff\xff\xff\xff\x07" if version else b"\x7f\xff\xff\xff"
    start = data.index(count + content[name])
    damaged = data[:start] + huge + data[start + len(count) :]
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="array over its bytes"):
            decode(Sample, version, damaged)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_tagged_field_must_fill_its_size() -> None:
    data = encode(Sample(hint="h"), 2)
    assert data.endswith(b"\x01\x00\x02\x02h")
    for wrong in (b"\x01\x00\x01\x02h", b"\x01\x00\x03\x02hh", b"\x01\x00\x7f\x02h"):
        with pytest.raises(DecodeError):
            decode(Sample, 2, data[:-5] + wrong)


@pytest.mark.parametrize("cls", [Sample, Carrier])
def test_end_is_respected_inside_larger_buffer(cls: Any) -> None:
    version = 1
    message = cls()
    data = encode(message, version)
    for around in (bytes, bytearray):
        buffer = around(b"before" + data + b"after" * 20)
        read = decoder(cls, version)
        assert read(buffer, 6, 6 + len(data)) == (message, 6 + len(data))
        assert read(buffer, 6, len(buffer)) == (message, 6 + len(data))
        for end in range(6, 6 + len(data)):
            with pytest.raises(DecodeError):
                read(buffer, 6, end)


# -- parts and stored values


def test_part_is_encoded_as_inside_its_message() -> None:
    parts: list[Buffer] = []
    part_encoder(Sample, Point, 3)(Point(1, 2), parts)
    assert b"".join(parts) == b"\x00\x00\x00\x01\x00\x00\x00\x02\x00"


def test_stored_values_contain_their_version() -> None:
    data = encode_versioned(Kept(5), 2)
    assert data == b"\x00\x02\x00\x00\x00\x05"
    assert version_of(data) == 2
    assert decode_versioned(Kept, memoryview(data)) == Kept(5)
    for wrong in (b"", b"\x00", b"\x00\x03\x00\x00\x00\x05", b"\x00\x02\x00"):
        with pytest.raises(DecodeError):
            decode_versioned(Kept, wrong)


# -- uuids, start-up


def test_uuid_text_is_kafkas_format() -> None:
    assert uuid_text(bytes(16)) == "A" * 22
    assert uuid_parse(uuid_text(bytes(range(16)))) == bytes(range(16))
    for wrong in ("", "A" * 21, "A" * 23, "!" * 22, "A" * 24):
        with pytest.raises(ValueError, match="not a uuid"):
            uuid_parse(wrong)


def test_the_registry_imports_no_message() -> None:
    code = (
        "import sys, kafkawire.messages.registry as registry\n"
        "loaded = [m for m in sys.modules if m.startswith('kafkawire.messages.')]\n"
        "assert loaded == ['kafkawire.messages.registry'], loaded\n"
        "registry.request_class(3)\n"
        "assert 'kafkawire.messages.metadata' in sys.modules\n"
        "assert 'kafkawire.messages.fetch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
