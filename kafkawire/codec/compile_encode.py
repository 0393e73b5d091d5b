"""Generation of encoder source: an instance of a declared class to bytes, for one version.

A value that cannot be written (out of range, None where null is not allowed, a uuid of another
size) raises ValueError, TypeError, AttributeError or struct.error: a mistake of the caller, never
of a peer. Requests and stored records also refuse to drop a field that matters (see `ignorable` in
`codec.schema`); responses do not check, since a handler fills in for all versions at once.

Small pieces are collected in a list and joined: appending to a bytearray is slower by a half. A
sliced encoder is a generator that stops after every STEP elements of arrays, with what it has
written so far joined: small pieces take ten times the memory of their bytes.
Locals of generated code: `out` pieces so far, `a` its append, `parts` where finished parts go, `n`
last length, `r` last string or bytes.
"""

from __future__ import annotations

import struct
from typing import Any

from kafkawire.codec import emit
from kafkawire.codec.schema import Field, fields_in, fields_of
from kafkawire.codec.types import RECORDS, STRING, STRUCT, UUID


class EncodeWriter:
    """Emits the body of one encoder into a Source; `sliced`: of a generator."""

    def __init__(
        self,
        source: emit.FunctionSource,
        version: int,
        flexible: bool,
        checked: bool,
        *,
        sliced: bool = False,
    ) -> None:
        self.sliced = sliced
        self.source = source
        self.version = version
        self.flexible = flexible
        self.checked = checked
        self.put = "a"  # the append of the list that is being filled
        self._values: list[str] = []  # the pending run of fixed-size values
        self._codes = ""
        source.space.update(uvarint=emit.uvarint, tags=emit.write_tags, byte=emit.ONE_BYTE)
        source.space.update(uuid_of=uuid_of, Struct=struct.Struct, join=b"".join)

    def message(self, cls: type, value: str) -> None:
        """Write the instance of `cls` in the local `value`."""
        if self.checked:
            self._refuse_drops(cls, value)
        present = fields_in(cls, self.version)
        for field in present:
            if field.tag is None:
                self._field(field, f"{value}.{field.name}")
        if self.flexible:
            self._tags([field for field in present if field.tag is not None], value)
        self._flush()

    def _refuse_drops(self, cls: type, value: str) -> None:
        for field in fields_of(cls):
            if field.present(self.version) or field.ignorable:
                continue
            condition = self._differs(field, f"{value}.{field.name}")
            text = f"{cls.__name__}.{field.name} is set but version {self.version} lacks it"
            self.source.line(f"if {condition}: raise ValueError({text!r})")

    def _differs(self, field: Field, value: str) -> str:
        """The condition that a field has another value than its default."""
        if isinstance(field.default, list):
            return value
        if field.default is None:
            return f"{value} is not None"
        if isinstance(field.default, bool | int | str):
            return f"{value} != {field.default!r}"
        return f"{value} != {self.source.constant(field.default, 'default')}"

    # -- runs of fixed-size values

    def _add_fixed(self, value: str, code: str) -> None:
        self._values.append(value)
        self._codes += code

    def _call_pack(self, codes: str, values: list[str]) -> str:
        return f"{self.source.method(codes, 'pack')}({', '.join(values)})"

    def _flush(self) -> None:
        """Write the pending run with one pack."""
        if self._codes:
            self.source.line(f"{self.put}({self._call_pack(self._codes, self._values)})")
        self._values, self._codes = [], ""

    def _length(self, code: str, old_style: bool) -> None:
        """Write the length in `n` (-1 for null) in the form of this version."""
        if old_style or not self.flexible:
            self._add_fixed("n", code)
            self._flush()
            return
        short, long = "byte[n + 1]", "uvarint(n + 1)"
        if self._codes:
            short = self._call_pack(self._codes + "B", [*self._values, "n + 1"])
            long = f"{self._call_pack(self._codes, self._values)} + {long}"
        self.source.line(f"{self.put}({short} if n < 127 else {long})")
        self._values, self._codes = [], ""

    # -- fields

    def _field(self, field: Field, value: str) -> None:
        if field.is_array:
            self._array(field, value)
        elif field.kind is UUID:
            self._add_fixed(f"uuid_of({value})", field.kind.code)
        elif field.kind.code:
            self._add_fixed(value, field.kind.code)
        elif field.kind is STRUCT:
            self._struct(field, value)
        elif field.kind is RECORDS:
            self._records(field, value)
        else:
            self._encode_sized(field, value)

    def _encode_sized(self, field: Field, value: str) -> None:
        """A string or bytes."""
        line = self.source.line
        encode = ".encode()" if field.kind is STRING else ""
        if field.nullable(self.version):
            line(f"r = {value}")
            line("if r is None: n = -1; r = b''")
            line(f"else: r = r{encode}; n = len(r)" if encode else "else: n = len(r)")
        else:
            line(f"r = {value}{encode}")
            line("n = len(r)")
        self._length("h" if field.kind is STRING else "i", field.inflexible)
        line(f"{self.put}(r)")

    def _records(self, field: Field, value: str) -> None:
        line = self.source.line
        line(f"r = {value}")
        if field.nullable(self.version):
            line("if r is None: n = -1")
            line("else: n = sum(map(len, r)) if type(r) is list else len(r)")
        else:
            line("n = sum(map(len, r)) if type(r) is list else len(r)")
        self._length("i", False)
        line("if n > 0:")
        line("    parts.append(join(out))")
        line("    if type(r) is list: parts += r")
        line("    else: parts.append(r)")
        line("    out.clear()")

    def _struct(self, field: Field, value: str) -> None:
        assert field.struct is not None
        made = self.source.local("o")
        self.source.line(f"{made} = {value}")
        if not field.nullable(self.version):
            self.message(field.struct, made)
            return
        self._flush()
        self.source.line(f"if {made} is None: {self.put}(byte[255])")
        self.source.line("else:")
        self.source.indent()
        self._add_fixed("1", "b")
        self.message(field.struct, made)
        self.source.dedent()

    def _array(self, field: Field, value: str) -> None:
        line = self.source.line
        items = self.source.local("l")
        line(f"{items} = {value}")
        if field.nullable(self.version):
            line(f"if {items} is None: n = -1; {items} = ()")
            line(f"else: n = len({items})")
        else:
            line(f"n = len({items})")
        if field.kind.code and field.kind is not UUID and not field.nullable(self.version):
            self._number_array(field, items)
            return
        self._length("i", False)
        if field.kind.code and field.kind is not UUID:
            line(f"if n > 0: {self.put}(Struct(f'>{{n}}{field.kind.code}').pack(*{items}))")
            return
        item = self.source.local("o")
        line(f"for {item} in {items}:")
        self.source.indent()
        if field.kind is STRUCT:
            assert field.struct is not None
            self.message(field.struct, item)
        elif field.kind is UUID:
            line(f"{self.put}(uuid_of({item}))")
        else:
            line(f"r = {item}{'.encode()' if field.kind is STRING else ''}")
            line("n = len(r)")
            self._length("h" if field.kind is STRING else "i", False)
            line(f"{self.put}(r)")
        self._step()
        self.source.dedent()

    def _step(self) -> None:
        """End one element of a loop: a point where the caller may pause."""
        if self.sliced:
            self.source.line("k += 1")
            self.source.line(f"if not k & {emit.STEP - 1}:")
            self.source.line("    parts.append(join(out))")
            self.source.line("    out.clear()")
            self.source.line("    yield")

    def _number_array(self, field: Field, items: str) -> None:
        """Length and numbers in one pack; nearly all are short (replicas, partitions)."""
        line, kind = self.source.line, field.kind
        code, length, long = ("B", "n + 1", "uvarint(n + 1)") if self.flexible else ("i", "n", "")
        self._flush()
        short = self.source.constant(emit.array_packers(kind, code), "short")
        line(f"if n < {emit.SHORT_ARRAY}: {self.put}({short}[n]({length}, *{items}))")
        long = long or f"{self._call_pack('i', ['n'])}"
        line(f"else: {self.put}({long} + Struct(f'>{{n}}{kind.code}').pack(*{items}))")

    # -- tagged fields

    def _tags(self, tagged: list[Field], value: str) -> None:
        """The tag section. The common case, none at all, is a zero packed with what precedes it."""
        line = self.source.line
        codes, values = self._codes, self._values
        self._values, self._codes = [], ""
        known = "None"
        if tagged:
            known = self.source.local("k")
            line(f"{known} = {{}}")
        for field in tagged:
            self._encode_tagged(field, f"{value}.{field.name}", known)
        condition = f"{known} or {value}.unknown_tags" if tagged else f"{value}.unknown_tags"
        none, some = "byte[0]", f"tags({known}, {value}.unknown_tags)"
        if codes:
            none = self._call_pack(codes + "B", [*values, "0"])
            some = f"{self._call_pack(codes, values)} + {some}"
        line(f"{self.put}({some} if {condition} else {none})")

    def _encode_tagged(self, field: Field, place: str, known: str) -> None:
        """Encode one tagged field apart, since its size comes first, if it is to be sent."""
        line, outer = self.source.line, self.put
        condition = self._differs(field, place)
        if field.absent_is_none:
            default = self.source.constant(_default_of(field), "default")
            condition = f"{place} is not None and {place} != {default}"
        line(f"if {condition}:")
        self.source.indent()
        pieces = self.source.local("w")
        self.put = f"{pieces}.append"
        line(f"{pieces} = []")
        self._field(field, place)
        self._flush()
        line(f"{known}[{field.tag}] = join({pieces})")
        self.put = outer
        self.source.dedent()


_defaults: dict[type, Any] = {}


def _default_of(field: Field) -> Any:
    """One shared default instance of a tagged struct, to compare with."""
    assert field.struct is not None
    return _defaults.setdefault(field.struct, field.struct())


def uuid_of(value: bytes) -> bytes:
    """The value itself: struct's `16s` would pad or cut in silence."""
    if len(value) != 16:
        raise ValueError(f"a uuid has 16 bytes, not {len(value)}")
    return value
