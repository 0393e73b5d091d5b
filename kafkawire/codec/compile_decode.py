"""Generation of decoder source: bytes to an instance of a declared class, for one version.

How the generated code stays safe without a check at every field: positions only grow, so one
comparison of the final position with `end` catches every overrun; reads beyond the buffer raise
IndexError or struct.error, which `compile.decoder` turns into DecodeError; slices never allocate
more than is there. Only array counts are checked before use, against the smallest element size.

A request may also have only so many array elements and tagged fields, `allowed_elements` of its
size: each becomes an object of 50 bytes and more, whose one byte on the wire could be repeated
millions of times. A sliced decoder is a generator that stops after every STEP elements, so that
the caller can let other requests run.

Locals of generated code: `b` input, `p` position, `e` end, `n` last length, `t` last tag count,
`left` elements that may still come, `k` elements since the decoder began.
"""

from __future__ import annotations

import struct
from typing import Any

from kafkawire.codec import emit
from kafkawire.codec.schema import Field, fields_in
from kafkawire.codec.types import BYTES, RECORDS, STRING, STRUCT, UUID, DecodeError

MAX_STRING_BYTES = 1 << 16
"""The longest string of a request. What is valid has 32,767 bytes at most; somewhat longer ones are
refused by the handlers, with an error for their entry. Several of a megabyte would hold the event
loop wherever they are compared, checked or answered."""

SMALL_REQUEST_ELEMENTS = 1_000
SMALL_ELEMENT_BYTES = 4
"""A request may have so many array elements, and one more for every four of its bytes, which is
what the shortest useful one takes: the number of a partition."""

LARGE_REQUEST_ELEMENTS = 25_000
LARGE_ELEMENT_BYTES = 32
"""A large request may have so many, which is one of 10,000 partitions, each of another topic, and
some room; and one more for every 32 bytes, which is less than a topic of a usual name takes, with
one partition."""

MAX_ELEMENTS = 100_000
"""Maximum number of elements. Each takes up to a kilobyte until it is answered
(tests/broker/test_request_memory.py), so one large request takes a hundred MB, and a smaller one 25
MB plus 32 times its size."""


def allowed_elements(size_bytes: int) -> int:
    """Return how many array elements and tagged fields a request of this size may have."""
    return min(
        SMALL_REQUEST_ELEMENTS + size_bytes // SMALL_ELEMENT_BYTES,
        LARGE_REQUEST_ELEMENTS + size_bytes // LARGE_ELEMENT_BYTES,
        MAX_ELEMENTS,
    )


class DecodeWriter:
    """Emits the body of one decoder into a Source.

    `views`: the input is a memoryview, not bytes. `bounded`: elements are counted against the
    local `left`. `sliced`: the function is a generator.
    """

    def __init__(
        self,
        source: emit.FunctionSource,
        version: int,
        flexible: bool,
        *,
        views: bool,
        bounded: bool = False,
        sliced: bool = False,
    ) -> None:
        self.source = source
        self.version = version
        self.flexible = flexible
        self.views = views
        self.bounded = bounded
        self.sliced = sliced
        self._targets: list[str] = []  # the pending run of fixed-size fields
        self._codes = ""
        source.space.update(DecodeError=DecodeError, varint=emit.read_length)
        source.space.update(new=object.__new__, unknown_tag=emit.read_unknown_tag)
        source.space.update(numbers=emit.read_numbers, Struct=struct.Struct)

    def message(self, cls: type, target: str, end: str, *, made: bool = False) -> None:
        """Make an instance of `cls` in the local `target`, or fills the one that is there."""
        line = self.source.line
        name = self.source.constant(cls, cls.__name__)
        if not made:
            line(f"{target} = new({name})")
        present = fields_in(cls, self.version)
        for field in present:
            if field.tag is None:
                self._field(field, f"{target}.{field.name}", end)
        names = {field.name for field in present if field.tag is None}
        self._absent(cls, target, names)
        if self.flexible:
            self._tags([field for field in present if field.tag is not None], target, end)
        self._flush()

    def _absent(self, cls: Any, target: str, present: set[str]) -> None:
        """Fields this version lacks, and tagged ones, start with their defaults."""
        for name, default in cls.__wire_defaults__.items():
            if name in present:
                continue
            if isinstance(default, list):
                text = "[]"
            elif callable(getattr(default, "factory", None)):
                text = self.source.constant(default.factory, "fresh") + "()"
            elif default is None or isinstance(default, bool | int | str):
                text = repr(default)
            else:
                text = self.source.constant(default, "default")
            self.source.line(f"{target}.{name} = {text}")

    # -- runs of fixed-size fields

    def _add_fixed(self, target: str, code: str) -> None:
        self._targets.append(target)
        self._codes += code

    def _flush(self) -> None:
        """Read the pending run with one unpack."""
        if not self._targets:
            return
        name = self.source.method(self._codes, "unpack_from")
        comma = "," if len(self._targets) == 1 else ""
        if self._codes == "B":
            self.source.line(f"{self._targets[0]} = b[p]")
        else:
            self.source.line(f"{', '.join(self._targets)}{comma} = {name}(b, p)")
        self.source.line(f"p += {emit.struct_of(self._codes).size}")
        self._targets, self._codes = [], ""

    def _length(self, code: str, old_style: bool) -> None:
        """Leave a length in `n`, -1 for null."""
        if old_style or not self.flexible:
            self._add_fixed("n", code)
            self._flush()
            return
        self._add_fixed("n", "B")
        self._flush()
        if self.bounded and code == "h":
            long = f"if n > {MAX_STRING_BYTES + 1}: raise DecodeError('a string too long')"
            self.source.line("if n > 127:")
            self.source.line("    n, p = varint(b, p)")
            self.source.line(f"    {long}")
        else:
            self.source.line("if n > 127: n, p = varint(b, p)")
        self.source.line("n -= 1")

    def _count(self, number: str) -> None:
        """Count elements of a request against what it may have."""
        if self.bounded:
            self.source.line(f"left -= {number}")
            self.source.line("if left < 0: raise DecodeError('more elements than its size allows')")

    def _step(self) -> None:
        """End one element of a loop: a point where the caller may pause."""
        if self.sliced:
            self.source.line("k += 1")
            self.source.line(f"if not k & {emit.STEP - 1}: yield")

    # -- fields

    def _field(self, field: Field, target: str, end: str) -> None:
        if field.is_array:
            self._array(field, target, end)
        elif field.kind.code:
            self._add_fixed(target, field.kind.code)
        elif field.kind is STRUCT:
            self._struct(field, target, end)
        else:
            self._length("h" if field.kind is STRING else "i", field.inflexible)
            self._branch_on_null(field, target)
            self._decode_sized(field, target)
            self.source.dedent()

    def _branch_on_null(self, field: Field, target: str) -> None:
        """Handle n < 0 and leaves the source indented for n >= 0."""
        line = self.source.line
        line("if n < 0:")
        if field.nullable(self.version):
            line(f"    if n != -1: raise DecodeError('length below null in {field.name}')")
            line(f"    {target} = None")
        else:
            line(f"    raise DecodeError('null or negative length in {field.name}')")
        line("else:")
        self.source.indent()

    def _decode_sized(self, field: Field, target: str) -> None:
        """`n` bytes: a string, bytes or records."""
        line = self.source.line
        line("q = p + n")
        if field.kind is STRING:
            line(f"{target} = {self._text('b[p:q]')}")
        elif field.kind is BYTES:
            line(f"{target} = {'bytes(b[p:q])' if self.views else 'b[p:q]'}")
        else:
            assert field.kind is RECORDS
            line(f"{target} = b[p:q]")
        line("p = q")

    def _text(self, piece: str) -> str:
        return f"str({piece}, 'utf-8')" if self.views else f"{piece}.decode()"

    def _struct(self, field: Field, target: str, end: str) -> None:
        assert field.struct is not None
        nullable = field.nullable(self.version)
        if nullable:
            self._add_fixed("n", "b")
            self._flush()
            self.source.line(f"if n < 0: {target} = None")
            self.source.line("else:")
            self.source.indent()
        made = self.source.local("o")
        self.message(field.struct, made, end)
        self.source.line(f"{target} = {made}")
        if nullable:
            self.source.dedent()

    def _array(self, field: Field, target: str, end: str) -> None:
        line = self.source.line
        numbers = bool(field.kind.code) and field.kind is not UUID
        if numbers and self.flexible:
            self._compact_numbers(field, target, end)
            return
        self._length("i", False)
        self._branch_on_null(field, target)
        smallest = minimum_size(field, self.version, self.flexible)
        line(f"if n * {smallest} > {end} - p: raise DecodeError('array over its bytes')")
        self._count("n")
        if field.kind is STRUCT:
            self._struct_array(field, target, end)
        elif numbers:
            line(f"{target} = list(Struct(f'>{{n}}{field.kind.code}').unpack_from(b, p))")
            line(f"p += n * {field.kind.size_bytes}")
        else:
            self._item_array(field, target)
        self.source.dedent()

    def _compact_numbers(self, field: Field, target: str, end: str) -> None:
        """Numbers in a flexible version; a prepared Struct reads the short ones."""
        line, kind = self.source.line, field.kind
        short = self.source.constant(emit.array_unpackers(kind), "short")
        self._add_fixed("n", "B")
        self._flush()
        line(f"if 0 < n <= {emit.SHORT_ARRAY}:")
        line(f"    {target} = list({short}[n - 1](b, p))")
        line(f"    p += n * {kind.size_bytes} - {kind.size_bytes}")
        if field.nullable(self.version):
            line(f"elif n == 0: {target} = None")
        else:
            line(f"elif n == 0: raise DecodeError('null in {field.name}')")
        line(f"else: {target}, p = numbers(b, p, {end}, n, {kind.code!r}, {kind.size_bytes})")
        self._count(f"len({target} or ())" if field.nullable(self.version) else f"len({target})")

    def _struct_array(self, field: Field, target: str, end: str) -> None:
        line = self.source.line
        items, made = self.source.local("l"), self.source.local("o")
        assert field.struct is not None
        line(f"{target} = {items} = []")
        line("for _ in range(n):")
        self.source.indent()
        self.message(field.struct, made, end)
        line(f"{items}.append({made})")
        self._step()
        self.source.dedent()

    def _item_array(self, field: Field, target: str) -> None:
        """Strings, bytes or uuids."""
        line = self.source.line
        items = self.source.local("l")
        line(f"{target} = {items} = []")
        line("for _ in range(n):")
        self.source.indent()
        if field.kind is UUID:
            piece = "bytes(b[p:p + 16])" if self.views else "b[p:p + 16]"
            line(f"{items}.append({piece})")
            line("p += 16")
        else:
            self._length("h" if field.kind is STRING else "i", False)
            line("if n < 0: raise DecodeError('null in an array')")
            item = self.source.local("i")
            self._decode_sized(field, item)
            line(f"{items}.append({item})")
        self._step()
        self.source.dedent()

    # -- tagged fields

    def _tags(self, tagged: list[Field], target: str, end: str) -> None:
        """The tag section. The common case, none at all, is one byte read with what precedes it."""
        line = self.source.line
        count, number, stop = (self.source.local(prefix) for prefix in ("c", "t", "s"))
        self._add_fixed("t", "B")
        self._flush()
        line("if t:")
        self.source.indent()
        line("if t > 127: t, p = varint(b, p)")
        self._count("t")
        line(f"for {count} in range(t):")
        self.source.indent()
        for name in (number, "n"):
            line(f"{name} = b[p]")
            line("p += 1")
            line(f"if {name} > 127: {name}, p = varint(b, p)")
        line(f"{stop} = p + n")
        line(f"if {stop} > {end}: raise DecodeError('tagged field over its bytes')")
        for field in tagged:
            line(f"{'if' if field is tagged[0] else 'elif'} {number} == {field.tag}:")
            self.source.indent()
            self._field(field, f"{target}.{field.name}", stop)
            self._flush()
            self.source.dedent()
        kept = f"unknown_tag({target}.unknown_tags, {number}, b[p:{stop}])"
        if tagged:
            line(f"else: {target}.unknown_tags = {kept}; p = {stop}")
            line(f"if p != {stop}: raise DecodeError('tagged field of another size')")
        else:
            line(f"{target}.unknown_tags = {kept}; p = {stop}")
        self._step()
        self.source.dedent()
        self.source.dedent()


def minimum_size(field: Field, version: int, flexible: bool) -> int:
    """Return the minimum size of an array element in bytes, at least 1."""
    if field.kind.code:
        return field.kind.size_bytes
    if field.kind is not STRUCT:
        return 1 if flexible else (2 if field.kind is STRING else 4)
    assert field.struct is not None
    total = 1 if flexible else 0
    for inner in fields_in(field.struct, version):
        if inner.tag is not None:
            continue
        if inner.is_array:
            total += 1 if flexible else 4
        elif inner.kind is STRUCT and inner.nullable(version):
            total += 1
        else:
            total += minimum_size(inner, version, flexible)
    if total == 0:
        raise TypeError(f"{field.name}: elements without bytes cannot be bounded")
    return total
